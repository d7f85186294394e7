"""The end of a job whose inputs are sealed. Data from before the seal is read, even if Spark looks for data rarely."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen

pytest.importorskip("pyspark")

from onyxq.jobs.encoding import encode
from onyxq.jobs.model import Function, Input, Job, Output
from onyxq.spark.checkpoint import Checkpoints
from onyxq.spark.job_run import Order, Place, Running
from onyxq.spark.plan.compile import Setting
from tests.spark.host_world import PATIENCE_S, host_process
from tests.spark.job_world import HERE, lines_job, written

JOB = Job(
    id="j",
    workflow=[("in", "out")],
    catalog=[Input("in", format="text", path="/in", bounded=False), Output("out", format="text", path="/out")],
)
SETTING = Setting(version=1, slots=1, checkpoint="/checkpoint", connect=None)


@frozen
class Report:
    """Spark's report of a batch that was empty."""

    began: str

    def batchId(self) -> int:
        """The number of the batch."""
        return 7

    def json(self) -> str:
        """The report as text."""
        return json.dumps({"batchId": 7, "timestamp": self.began, "numInputRows": 0, "sources": []})


class Waiting:
    """A query of Spark that has found no data, and waits for its next trigger. Its methods have Spark's names."""

    isActive = True

    def __init__(self) -> None:
        self.status = {"isTriggerActive": False, "isDataAvailable": False}
        self.stopped = False
        self.looked = threading.Event()
        self.reports: list[Report] = []

    @property
    def _jsq(self) -> Waiting:
        return self

    def recentProgress(self) -> list[Report]:
        """The reports of the latest batches."""
        return self.reports

    def processAllAvailable(self) -> None:
        """Wait for a look that finds no data."""
        self.looked.wait(PATIENCE_S)

    def stop(self) -> None:
        """Stop."""
        self.stopped = True


def over(query: Waiting) -> Any:
    """Return the next step of a job that runs the query, and whose inputs are sealed."""
    order = Order(job="j", version=1, body=encode(JOB), slots=1, batch=-1, offsets=b"", sealed=frozenset({"in"}))
    place = Place(connect=None, slots=1, checkpoints=Checkpoints("/nowhere"))
    return Running(None, order, place=place, say=lambda _: None)._until_over(query, JOB, SETTING)


def test_a_job_ends_after_a_look_for_data_that_began_when_its_inputs_were_sealed() -> None:
    """The look before may have been earlier than the last file."""
    query = Waiting()
    step = over(query)
    for _ in range(3):
        step = step(query, JOB, SETTING)
    assert not query.stopped
    query.looked.set()
    deadline = time.monotonic() + PATIENCE_S
    while not query.stopped:
        assert time.monotonic() < deadline
        step = step(query, JOB, SETTING)


@pytest.mark.parametrize(("began", "ends"), [("2020-01-02T03:04:05.678Z", False), ("2999-01-02T03:04:05.678Z", True)])
def test_with_timers_an_empty_batch_that_began_after_that_ends_the_job(began: str, ends: bool) -> None:
    """Timers cause batches for ever, so no look finds that there is nothing to do."""
    query = Waiting()
    step = over(query)
    query.reports.append(Report(began))
    step(query, JOB, SETTING)
    assert query.stopped == ends
    query.looked.set()


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_a_file_that_came_between_two_looks_is_read(tmp_path: Path) -> None:
    """The job has its own trigger, which is rare."""
    job = lines_job(tmp_path, Function("f", f"{HERE}:words"), trigger_ms=4_000)
    lines = Input("in", format="text", path=str(tmp_path / "in"), bounded=False)
    job = evolve(job, catalog=(lines, *job.catalog[1:]))
    (tmp_path / "in" / "a.txt").write_text("a b\n")
    with host_process(tmp_path) as host:
        host.event("up")
        host.start(job)
        assert host.event("progress", "failed", job=job.id)["event"] == "progress"
        (tmp_path / "in" / "b.txt").write_text("c\n")
        host.order("seal", job.id, 1, input="in")
        assert host.event("completed", "failed", job=job.id)["event"] == "completed"
    assert sorted(one["word"] for one in written(tmp_path / "out")) == ["a", "b", "c"]
