"""Starting a Spark host as a process, and ensuring that it ends (design: jobs on Spark).

The host is ``python -m onyxq.spark.host``. Its plan is the first line of its stdin, because the plan may hold
secrets and any user can see arguments. After that, both sides exchange lines of JSON: orders on its stdin, events
on its stdout. The stderr of the host and of its children is kept in ``host.log`` in its directory, up to twice
`LOG_BYTES_MAX`.

A host never outlives its peer. It ends on its own at the end of its stdin, even if the peer was killed. After
that its process group is killed: by this peer when it stops the host, or by the next peer that starts a host in
the same directory. Temporary files are deleted then too, because a killed virtual machine deletes nothing.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import trio
from attrs import asdict

from onyxq.core.errors import Incomplete
from onyxq.node.jobs.hosts import HostEnded, Message, Plan
from onyxq.system.directories import LOCAL, TEMPORARY, given_umask

LAST_WORDS_S = 3.0
"""Time limit for a host to end after its stdin was closed, in seconds."""
LINE_BYTES_MAX = 4 << 20
LOG_BYTES_MAX = 4 << 20
TAIL_LINES = 25
"""Lines of stderr that are shown when a host ends unexpectedly."""
PIECE_BYTES = 64 << 10
LOG_NAME, PID_NAME = "host.log", "host.pid"
NEEDED = ("pyspark", "pandas", "pyarrow", "google.protobuf")
COMMAND = (sys.executable, "-m", "onyxq.spark.host")

log = logging.getLogger(__name__)


class ProcessLink:
    """A host process; made by `launch`."""

    def __init__(self, process: trio.Process, log_file: BoundedLog) -> None:
        self._process = process
        self._log_file = log_file
        self._lines: deque[bytes] = deque()
        self._part = b""
        self._sending = trio.Lock()
        self.quiet = trio.Event()
        """Set once all of stderr is in the log."""

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send an order; raises `HostEnded`."""
        assert self._process.stdin is not None
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            async with self._sending:
                await self._process.stdin.send_all(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise HostEnded(self.why()) from None

    async def receive(self) -> Message | None:
        """Return the next event; None once the host has ended."""
        assert self._process.stdout is not None
        while True:
            while self._lines:
                message = _message(self._lines.popleft())
                if message is None:
                    continue
                if message["event"] == "up":
                    self._log_file.tail.clear()  # Messages from Spark's start do not explain a later end.
                return message
            try:
                piece = await self._process.stdout.receive_some(PIECE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return None
            if not piece:
                return None
            *lines, self._part = (self._part + piece).split(b"\n")
            self._lines.extend(lines)
            if len(self._part) > LINE_BYTES_MAX:
                log.error("the Spark host said a line of over %d bytes", LINE_BYTES_MAX)
                return None

    def why(self) -> str:
        """Return how it ended, with the last lines of its stderr."""
        code = self._process.poll()
        if code is None:
            how = "the Spark host does not answer"
        elif code < 0:
            how = f"the Spark host was killed by {_signal_name(-code)}"
        else:
            how = f"the Spark host ended with code {code}"
        said = "\n".join(self._log_file.tail)
        return f"{how}; it last said:\n{said}" if said else how

    async def copy_stderr(self) -> None:
        """Copy stderr to the log until all processes that hold it have ended."""
        assert self._process.stderr is not None
        try:
            async for piece in self._process.stderr:
                self._log_file.write(bytes(piece))
        finally:
            self.quiet.set()


class BoundedLog:
    """A log file of limited size: before it exceeds its limit it is renamed, and a new one begins."""

    def __init__(self, path: Path, limit: int = LOG_BYTES_MAX) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        """The last complete lines of this run."""
        self._path = path
        self._limit = limit
        self._part = b""
        self._file: IO[bytes] = open(path, "ab")  # noqa: SIM115  # closed by `close`
        self._size = self._file.tell()

    def write(self, piece: bytes) -> None:
        """Append a piece.

        On a full disk only log lines are lost.
        """
        *lines, self._part = (self._part + piece).split(b"\n")
        self._part = self._part[-PIECE_BYTES:]
        self.tail.extend(line.decode("utf-8", "replace") for line in lines if line.strip())
        try:
            if self._size + len(piece) > self._limit:
                self._begin_anew()
            self._file.write(piece)
            self._file.flush()
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)
        self._size += len(piece)

    def _begin_anew(self) -> None:
        self._file.close()
        os.replace(self._path, self._path.with_name(self._path.name + ".1"))
        self._file = open(self._path, "wb")  # noqa: SIM115
        self._size = 0

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._file.close()


@asynccontextmanager
async def launch(plan: Plan, *, command: Sequence[str] = COMMAND) -> AsyncIterator[ProcessLink]:
    """Yield a host process.

    It has ended when the context is left. Raises `HostEnded` if it cannot be started.
    """
    work = Path(plan.work)
    try:
        work.mkdir(parents=True, exist_ok=True)
        log_file = BoundedLog(work / LOG_NAME)
    except OSError as error:
        raise HostEnded(f"the Spark host has no directory to work in: {error}") from None
    end_leftover(work)
    await trio.to_thread.run_sync(_clear, work)
    temporary = work.absolute() / TEMPORARY
    try:
        temporary.mkdir()
        process = await trio.lowlevel.open_process(
            [*command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(temporary)},
            umask=given_umask(),  # Jobs write files for their users.
        )
    except OSError as error:
        log_file.close()
        raise HostEnded(f"the Spark host cannot be started: {error}") from None
    link = ProcessLink(process, log_file)
    try:
        with suppress(HostEnded):  # The receiver gets the error.
            await link.send(asdict(plan))
        _note_process(work, process.pid)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.copy_stderr)
            nursery.start_soon(_close_output, process, link)
            yield link
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await _end(process)
            await trio.to_thread.run_sync(_clear, work)
        with suppress(OSError):
            (work / PID_NAME).unlink()
        log_file.close()


def _clear(work: Path) -> None:
    for name in (TEMPORARY, LOCAL):
        shutil.rmtree(work / name, ignore_errors=True)


async def _close_output(process: trio.Process, link: ProcessLink) -> None:
    """Close stdout once the host has ended, because its children may keep it open."""
    assert process.stdout is not None
    await process.wait()
    _kill_group(process.pid)
    with trio.move_on_after(1.0):
        await link.quiet.wait()
    await process.stdout.aclose()


async def _end(process: trio.Process) -> None:
    """Let the process end on its own for `LAST_WORDS_S`, then kill its group."""
    assert process.stdin is not None
    await process.stdin.aclose()
    with trio.move_on_after(LAST_WORDS_S):
        await process.wait()
    _kill_group(process.pid)
    await process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def check_installed(needed: Sequence[str] = NEEDED) -> None:
    """Raise `Incomplete` if Spark, or the Java that it needs, is missing.

    Imports none of them.
    """
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise Incomplete(
            f"hosting Spark needs {', '.join(missing)}, not installed here",
            hint="Install it with: pip install 'onyxq[spark]', or start the peer without --spark.",
        )
    home = os.environ.get("JAVA_HOME")
    if not ((home and shutil.which(os.path.join(home, "bin", "java"))) or shutil.which("java")):
        raise Incomplete(
            "hosting Spark needs Java, and there is none in JAVA_HOME or on PATH",
            hint="Install a Java runtime, version 17 or newer (Debian: apt-get install openjdk-17-jre-headless), "
            "or start the peer without --spark.",
        )


# --- hosts of a peer that was killed ----------------------------------------------


def _note_process(work: Path, pid: int) -> None:
    with suppress(OSError):
        (work / PID_NAME).write_text(json.dumps({"pid": pid, "started": _started(pid)}))


def end_leftover(work: Path) -> bool:
    """Kill a host that an earlier peer started in this directory, and return whether it was still running."""
    try:
        noted = json.loads((work / PID_NAME).read_text())
        pid, started = int(noted["pid"]), str(noted["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if not started or _started(pid) != started:
        return False
    log.warning("killing the Spark host %d, which an earlier peer left behind", pid)
    _kill_group(pid)
    return True


def _started(pid: int) -> str:
    """Return the start time of a process, which distinguishes it from a later one with the same id.

    Empty if the process does not exist, or its start time is unknown.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


# --- words ------------------------------------------------------------------------


def _message(line: bytes) -> Message | None:
    """Return the event in a line; None for other output, for example of a library."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("event"), str):
        return found
    if line.strip():
        log.info("the Spark host printed %r", line[:200])
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
