"""The same job on a real Spark cluster: a standalone master and two workers, one of which is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from onyxq.jobs.model import Function
from onyxq.spark import home
from onyxq.spark.session import descendants
from tests.spark.host_world import PATIENCE_S, alive, host_process
from tests.spark.job_world import HERE, lines_job, written

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]

_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER = re.compile(r"Successfully registered with master")


class Daemon:
    """A process of Spark's own cluster, known to be up by a line of its log."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self._log = folder / f"{name}.log"
        environment = {**os.environ, "SPARK_HOME": str(home.find_home().path), "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [f"{environment['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def said(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait for a line of its log."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := pattern.search(self._log.read_text())) is None:
            assert self.process.poll() is None and time.monotonic() < deadline, self._log.read_text()[-2_000:]
            time.sleep(0.05)
        return found

    def kill(self) -> None:
        """Kill it and all that it started, like a machine that is switched off."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def cluster(java: None, tmp_path: Path) -> Iterator[tuple[str, list[Daemon]]]:
    """A master's URL, and its two workers of one core each."""
    ends = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    daemons = [Daemon(tmp_path, "master.Master", *ends)]
    try:
        url = daemons[0].said(_MASTER).group(1)
        for number in range(2):
            folder = tmp_path / f"worker{number}"
            folder.mkdir()
            sized = ("--cores", "1", "--memory", "600m", "--work-dir", str(folder))
            daemons.append(Daemon(folder, "worker.Worker", *ends, *sized, url))
        for worker in daemons[1:]:
            worker.said(_WORKER)
        yield url, daemons[1:]
    finally:
        for daemon in daemons:
            daemon.kill()


def test_a_job_goes_on_when_a_worker_of_the_cluster_dies(cluster: tuple[str, list[Daemon]], tmp_path: Path) -> None:
    """Nothing but the master's name is different; what was half done on the dead worker is done by the other."""
    url, workers = cluster
    until = tmp_path / "go"
    held = Function("hold", f"{HERE}:hold_first", {"started": str(tmp_path / "started"), "until": str(until)})
    job = lines_job(tmp_path, held, Function("where", f"{HERE}:where"))
    job = evolve(job, key_groups=4)
    for number in range(4):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
    work = tmp_path / "host"
    work.mkdir()
    with host_process(work, master=url, conf={"spark.executor.memory": "512m"}) as host:
        host.event("up")
        host.start(job)
        host.event("ready", "failed")
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline, (work / "host.log").read_text()[-2_000:]
            time.sleep(0.05)
        holder = int((tmp_path / "started").read_text())
        next(worker for worker in workers if holder in descendants(worker.process.pid)).kill()
        until.touch()
        found = host.event("completed", "failed")
        assert found["event"] == "completed", found
    assert sorted(one["value"] for one in written(tmp_path / "out")) == ["0", "1", "2", "3"]
    assert all(one["executor"] for one in written(tmp_path / "out"))
