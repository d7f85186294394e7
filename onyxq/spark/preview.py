"""A preview of a job on Spark: the job's own query on a few rows, in a session of this process, without a cluster.

Tasks, conditions, windows, joins and frames are compiled as at a peer. Inputs are given rows or the first rows of
files, and all outputs are collected. `onyxq.jobs.preview` loads this module by name, for it needs PySpark.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onyxq.core.errors import BY_CODE, OnyxqError, TaskFailed
from onyxq.jobs import letters
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.model import Input, Job, Join, Output, Preview, Reduce
from onyxq.jobs.preview import Refused, handed_over
from onyxq.spark import failures, given_rows, java, progress
from onyxq.spark.checkpoint import end_event_time
from onyxq.spark.plan import collected, end_of_input, outputs, rows
from onyxq.spark.plan.compile import Flow, Setting, configure
from onyxq.spark.plan.fused import Place
from onyxq.spark.plan.inputs import Opened
from onyxq.spark.plan.regions import Stage, timed
from onyxq.spark.session import Settings, kill_machine, machine_of, of_a_user, open_session

SLOTS = 2
"""Slots of the session that a preview opens."""
REPORTS_MAX = 10_000
"""Largest number of batches whose late rows are counted."""
_PATH = "PYTHONPATH"


def run(
    job: Job,
    given: Mapping[str, Iterable[Any]],
    *,
    count: int | None,
    batch_rows: int | None,
    ended: bool,
    session: Any = None,
) -> Preview:
    """Run a valid job's query on segments of its inputs, and return what reaches its outputs.

    ``count``: number of rows to read of inputs without segments; None: these inputs are empty. ``session``: default:
    this thread's active session, or a local one, which stays open.

    Raises `BadRequest` for rows that do not fit their inputs and for a job that Spark refuses, `Incomplete` if
    something is not installed, and `TaskFailed` for an exception of the user's functions.
    """
    session = java.classic(session or SparkSession.getActiveSession() or _local_session())
    body = encode(job)
    job = evolve(decode(body), key_groups=1)  # With one group and one part, rows keep their order.
    with tempfile.TemporaryDirectory(prefix="onyxq-preview-", ignore_cleanup_errors=True) as folder:
        try:
            with _imports(session):
                trial = _Trial(_own(session, job), job, body, Path(folder))
                trial.open(given, count, batch_rows)
                trial.run(ended=ended)
        except (failures.TaskFailed, PySparkException, Py4JError) as error:
            raise _failed(error) from error
        finally:
            java.make_active(session)
        return trial.result()


def _own(session: Any, job: Job) -> Any:
    """Return a session for one preview."""
    found = of_a_user(session)
    configure(found, job)
    found.conf.set("spark.sql.streaming.numRecentProgressUpdates", REPORTS_MAX)
    return found


def _local_session() -> Any:
    """Open a session on this machine; it ends with this process."""
    work = tempfile.mkdtemp(prefix="onyxq-preview-")
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    session = open_session(Settings(work=Path(work), slots=SLOTS, quick_start=True))
    atexit.register(kill_machine, machine_of(session))
    return session


@contextmanager
def _imports(session: Any) -> Iterator[None]:
    """Let workers on this machine import what this process can import, such as modules beside a test."""
    environment = session.sparkContext.environment
    before = environment.get(_PATH)
    if session.sparkContext.master.startswith("local"):
        environment[_PATH] = os.pathsep.join(os.path.abspath(path) for path in sys.path if os.path.exists(path or "."))
    try:
        yield
    finally:
        environment.pop(_PATH, None)
        if before is not None:
            environment[_PATH] = before


def _failed(error: Exception) -> OnyxqError:
    """Return the error of a preview for an exception of a user's function, or of Spark."""
    failure = failures.of_exception(error)
    kind = BY_CODE.get(failure.code, TaskFailed)
    kind = TaskFailed if kind is OnyxqError else kind
    found = kind(failure.error, field=failure.task, hint="Read the traceback in the notes of this error.")
    if failure.traceback:
        found.add_note(failure.traceback)
    return found


@frozen
class _Trial:
    """The query of one preview."""

    session: Any
    """The preview's own."""
    job: Job
    body: bytes = field(repr=False)
    folder: Path
    inputs: dict[str, Opened] = field(factory=dict, init=False)
    late: dict[str, int] = field(factory=dict, init=False)
    """Task with windows or a join -> segments that came too late so far."""
    dropped: list[int] = field(factory=list, init=False)
    """Rows that Spark's watermark dropped, of each batch."""

    def open(self, given: Mapping[str, Iterable[Any]], count: int | None, batch_rows: int | None) -> None:
        """Open the inputs; without ``batch_rows`` one batch reads all rows."""
        for place, task in enumerate(self.job.catalog):
            if not isinstance(task, Input):
                continue
            if count is None or task.name in given:
                found = given_rows.of_rows(self.job, task, list(given.get(task.name, ())))
            else:
                found = given_rows.first_rows(self.session, self.job, task, count)
            self.inputs[task.name] = found.opened(self.session, self.folder / f"rows-{place}", batch_rows)

    def run(self, *, ended: bool) -> None:
        """Run the query over all rows; with ``ended`` once more, for the last output of windows, joins and frames."""
        (self.folder / "out").mkdir()
        setting = Setting(version=1, slots=1, checkpoint=str(self.folder / "checkpoint"), connect=None)
        keeps_state = self._once(setting)
        if ended and keeps_state:
            if timed(self.job):
                end_event_time(setting.checkpoint)
            end_of_input.note(setting.checkpoint)
            self._once(setting)

    def _once(self, setting: Setting) -> bool:
        """Run the query until it has read all rows; return whether it keeps state."""
        place = Place(body=self.body, job=self.job.id, version=setting.version)
        flow = _Collected(self.session, self.job, setting, place, self.inputs, self.folder / "out")
        query = flow.query().start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        batches = [json.loads(said) for said in java.reports(query)]
        for report in (progress.report(said, []) for said in batches):
            self.late.update({name.partition("/")[2]: count for name, count in report["late"].items()})
            self.dropped.append(report["dropped"])
        return any(said["stateOperators"] for said in batches)

    def result(self) -> Preview:
        """Return what reached the outputs."""
        job = self.job
        late = {task.name: self.late.get(task.name, 0) for task in job.catalog if isinstance(task, (Reduce, Join))}
        found: dict[str, list[Any]] = {task.name: [] for task in job.catalog if isinstance(task, Output)}
        dead: dict[str, list[Any]] = {name: [] for name in job.ordered() if letters.wanted(job, name)}
        for out, segment in collected.collected(self.folder / "out"):
            if out == rows.LETTER:
                dead[segment["task"]].append(segment["segment"])
                continue
            try:
                found[out].append(handed_over(job.task(out), segment))
            except Refused:
                if out not in dead:
                    raise
                dead[out].append(segment)
        return Preview(found, late, dead, sum(self.dropped))


class _Collected(Flow):
    """The frames of a job with given inputs, and with a sink that collects all segments."""

    def __init__(
        self, session: Any, job: Job, setting: Setting, place: Place, given: Mapping[str, Opened], folder: Path
    ) -> None:
        super().__init__(session, job, setting, place)
        self._bounds = {}  # A preview has one slot. Bounds would make it read inputs once for each use.
        self._given = given
        self._folder = folder

    def _read(self, task: Input, common: dict[str, str]) -> Opened:
        return self._given[task.name]

    def sink(self, stage: Stage) -> Any:
        """Return the writer of all outputs."""
        self._session.dataSource.register(collected.Collection)
        frame, _, structs = self.outputs(stage)
        options = {"job": self._job.id, "version": str(self._setting.version), "folder": str(self._folder)}
        options |= outputs.regions_of(self._place.body, structs)
        writer = frame.writeStream.format(collected.FORMAT).options(**options)
        return writer.option("checkpointLocation", self._setting.checkpoint).trigger(availableNow=True)
