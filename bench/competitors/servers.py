"""Server processes of a measurement, with their own ports on loopback and their own directories."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.competitors.base import Skip

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10.0


def find_program(name: str, *, package: str, also: Sequence[str] = ()) -> str:
    """Return the path of an installed program; raises `Skip` with the name of its package.

    Some programs are in packages for Python, which install them beside the interpreter.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), beside, "/usr/sbin", *also]))
    if found is None:
        raise Skip(f"{name} is not installed (package {package})")
    return found


def free_port() -> int:
    """Return a TCP port that was free on loopback a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def version_of(argv: Sequence[str]) -> str:
    """Return the first line that a program prints about its version."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"


class Servers:
    """The processes that one system started."""

    def __init__(self) -> None:
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        directory: Path,
        name: str,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to ``directory/name.log``."""
        output = directory / f"{name}.log"
        with output.open("ab") as sink:
            process = subprocess.Popen(
                list(argv),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                user=user,
                group=user,
                env=environment,
                start_new_session=True,  # Ctrl-C must reach only this program, which ends them in order
            )
        self._running.append((process, output))
        return process

    def wait_port(self, port: int) -> None:
        """Wait until the port accepts connections; raises if a process ended."""
        until = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < until:
            self.check()
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise TimeoutError(f"nothing listens on port {port} after {START_SECONDS_MAX:.0f} s")

    def check(self) -> None:
        """Raise an error with the end of its output if a process has ended."""
        for process, output in self._running:
            if process.poll() is not None:
                tail = output.read_bytes()[-800:].decode(errors="replace")
                raise RuntimeError(f"{process.args!r} ended with {process.returncode}: {tail}")

    def pids(self) -> list[int]:
        """Return process ids, in order of start."""
        return [process.pid for process, _ in self._running]

    def end(self, pid: int) -> None:
        """Kill one process."""
        for place, (process, _) in enumerate(self._running):
            if process.pid == pid:
                process.kill()
                process.wait()
                del self._running[place]
                return
        raise ValueError(f"no process {pid} runs")

    def stop(self) -> None:
        """Terminate all, latest first; kill those that do not end in time."""
        for process, _ in reversed(self._running):
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + STOP_SECONDS_MAX
        for process, _ in reversed(self._running):
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()
