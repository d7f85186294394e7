"""The same job on a real Spark cluster: a standalone master and two workers; one worker is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from onyxq.jobs.model import Function
from tests.spark.host_world import PATIENCE_S, host_process
from tests.spark.job_world import HERE, lines_job, written
from tests.spark.standalone_world import Standalone, standalone

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("java")]


@pytest.fixture
def cluster(java: None, tmp_path: Path) -> Iterator[Standalone]:
    """A master and its two workers of one core each."""
    with standalone(tmp_path) as found:
        yield found


def test_a_job_goes_on_when_a_worker_of_the_cluster_dies(cluster: Standalone, tmp_path: Path) -> None:
    """Only the master's name differs; unfinished work of the dead worker is done by the other."""
    until = tmp_path / "go"
    held = Function("hold", f"{HERE}:hold_first", {"started": str(tmp_path / "started"), "until": str(until)})
    job = lines_job(tmp_path, held, Function("where", f"{HERE}:where"))
    job = evolve(job, key_groups=4)
    for number in range(4):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
    work = tmp_path / "host"
    work.mkdir()
    with host_process(work, master=cluster.url, conf={"spark.executor.memory": "512m"}) as host:
        host.event("up")
        host.start(job)
        host.event("ready", "failed")
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline, (work / "host.log").read_text()[-2_000:]
            time.sleep(0.05)
        holder = int((tmp_path / "started").read_text())
        next(worker for worker in cluster.workers if holder in worker.family()).kill()
        until.touch()
        found = host.event("completed", "failed")
        assert found["event"] == "completed", found
    assert sorted(one["value"] for one in written(tmp_path / "out")) == ["0", "1", "2", "3"]
    assert all(one["executor"] for one in written(tmp_path / "out"))
