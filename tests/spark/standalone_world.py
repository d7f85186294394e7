"""A real Spark cluster of this machine: a standalone master, and workers that can be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onyxq.spark import home
from onyxq.spark.session import descendants
from onyxq.system.parent_death import killed_with_parent
from tests.spark.host_world import PATIENCE_S, alive

_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_RECOVERED = re.compile(r"Recovery complete")
_WORKER = re.compile(r"Successfully registered with master")
_PLACE = ("--host", "127.0.0.1", "--webui-port", "0", "--port")
_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of our own hosts; executors get them from their worker."""


def _recovery(folder: Path) -> tuple[str, str]:
    """Make a master that starts again take up the workers and applications that it knew."""
    return "Mode=FILESYSTEM", f"Directory={folder / 'recovery'}"


class Daemon:
    """A process of Spark's own cluster, which is up once its log has a certain line."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self._log = folder / f"{name}.log"
        found = home.find_home()
        archive = f" -XX:SharedArchiveFile={found.archive}" if found.archived else ""
        environment = {
            **os.environ,
            "SPARK_HOME": str(found.path),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(f"-Dspark.deploy.recovery{part}" for part in _recovery(folder)),
            "JAVA_TOOL_OPTIONS": f"{_OPTIONS}{archive}",
        }
        command = [f"{environment['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=killed_with_parent(),  # noqa: PLW1509  # two system calls, their library loaded before
            )

    def said(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait for a line of its log."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := pattern.search(self._log.read_text())) is None:
            assert self.process.poll() is None and time.monotonic() < deadline, self._log.read_text()[-2_000:]
            time.sleep(0.05)
        return found

    def family(self) -> list[int]:
        """Process ids of all that it has started."""
        return descendants(self.process.pid)

    def kill(self) -> None:
        """Kill it and all that it started, like a machine without power."""
        for pid in [*self.family(), self.process.pid]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Standalone:
    """A master and its workers; made by `standalone`."""

    def __init__(self, folder: Path, *, cores: int, memory: str) -> None:
        self._folder = folder
        self._sized = ("--cores", str(cores), "--memory", memory)
        self._daemons = [Daemon(folder, "master.Master", *_PLACE, "0")]
        self.url = ""

    @property
    def workers(self) -> list[Daemon]:
        """Those that run."""
        return [one for one in self._daemons[1:] if one.process.poll() is None]

    def executors(self) -> list[bytes]:
        """Return the commands of the executors that run."""
        return [one for worker in self.workers for one in _executors(worker)]

    def holders(self) -> list[Daemon]:
        """Return the workers that run an executor."""
        return [worker for worker in self.workers if _executors(worker)]

    def begin(self, workers: int) -> None:
        """Wait for the master, then start workers and wait for them."""
        self.url = self._daemons[0].said(_MASTER).group(1)
        self.await_workers([self.add_worker() for _ in range(workers)])

    def restart_master(self) -> None:
        """Kill the master, and start another one at its address, which takes up what the dead one knew."""
        self._daemons[0].kill()
        self._daemons[0] = Daemon(self._folder, "master.Master", *_PLACE, self.url.rpartition(":")[2])
        self._daemons[0].said(_RECOVERED)

    def add_worker(self) -> Daemon:
        """Start one more worker."""
        folder = self._folder / f"worker{len(self._daemons)}"
        folder.mkdir()
        worker = Daemon(folder, "worker.Worker", *_PLACE, "0", *self._sized, "--work-dir", str(folder), self.url)
        self._daemons.append(worker)
        return worker

    def await_workers(self, workers: list[Daemon]) -> None:
        """Wait until the master knows them."""
        for worker in workers:
            worker.said(_WORKER)

    def end(self) -> None:
        """Kill all of it."""
        for daemon in self._daemons:
            daemon.kill()


def _executors(worker: Daemon) -> list[bytes]:
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in worker.family() if alive(pid)]
    return [one for one in commands if b"CoarseGrainedExecutorBackend" in one]


@contextmanager
def standalone(folder: Path, *, cores: int = 1, memory: str = "600m", workers: int = 2) -> Iterator[Standalone]:
    """Run a master and its workers; kill them after the test in any case."""
    found = Standalone(folder, cores=cores, memory=memory)
    try:
        found.begin(workers)
        yield found
    finally:
        found.end()
