"""The same jobs on a real Spark cluster: a standalone master and two workers. One worker is killed."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from onyxq.jobs.host_settings import HostSettings, with_settings
from onyxq.jobs.model import Function
from tests.spark.host_world import PATIENCE_S, brought, host_process
from tests.spark.job_world import HERE, lines_job, written
from tests.spark.standalone_world import Standalone, standalone

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("java")]


@pytest.fixture
def cluster(java: None, tmp_path: Path) -> Iterator[Standalone]:
    """A master and its two workers of one core each."""
    with standalone(tmp_path) as found:
        yield found


def test_a_job_goes_on_when_a_worker_of_the_cluster_dies(cluster: Standalone, tmp_path: Path) -> None:
    """Only the master's name differs; unfinished work of the dead worker is done by the other.

    Executors have the sizes, jar, Python file and Python environment that the job brings.
    """
    until = tmp_path / "go"
    held = Function("hold", f"{HERE}:hold_first", {"started": str(tmp_path / "started"), "until": str(until)})
    job = lines_job(tmp_path, held, Function("where", f"{HERE}:where"), Function("packed", "brought_words:packed"))
    job = evolve(job, key_groups=4)
    for number in range(4):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
    work = tmp_path / "host"
    work.mkdir()
    jar = tmp_path / "spice.jar"
    with zipfile.ZipFile(jar, "w") as file:
        file.writestr("spice.txt", "salt")
    sizes = {"driver_memory": "600m", "executor_memory": "512m", "executor_cores": 1}
    given = HostSettings(**sizes, jars=[str(jar)], conf={"spark.executorEnv.SHOP": "7"}, **brought(tmp_path))
    with host_process(work, master=cluster.url, conf=with_settings({}, given)) as host:
        host.event("up")
        host.start(job)
        host.event("ready", "failed")
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline, (work / "host.log").read_text()[-2_000:]
            time.sleep(0.05)
        holder = int((tmp_path / "started").read_text())
        executors = cluster.executors()
        next(worker for worker in cluster.workers if holder in worker.family()).kill()
        until.touch()
        found = host.event("completed", "failed")
        assert found["event"] == "completed", found
    assert sorted(one["value"] for one in written(tmp_path / "out")) == ["0", "1", "2", "3"]
    assert all(one["executor"] and one["packed"] == "yes" for one in written(tmp_path / "out"))
    assert executors and all({b"-Xmx512M", b"--cores", b"1"} <= set(one.split(b"\0")) for one in executors)
    assert list(tmp_path.glob("worker*/app-*/*/spice.jar")), "executors got the jar"
