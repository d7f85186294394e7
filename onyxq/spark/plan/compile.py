"""A job as one Structured Streaming query.

Inputs become frames. Each cut becomes the result of `onyxq.spark.plan.windows`, `onyxq.spark.plan.joins` or
`onyxq.spark.plan.frames`, and all outputs become one sink. Each region is a part of the Python function of the cut or
sink to which it leads. An input that several stages use is read once. `Setting` has what is known only at run time,
such as offsets and the place of the checkpoint.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from onyxq.core.errors import BadRequest
from onyxq.jobs import letters
from onyxq.jobs.fields import GROUPS_MAX
from onyxq.jobs.inherited_state import stateful
from onyxq.jobs.job_check import OUTPUT_FORMATS
from onyxq.jobs.model import FRAME_TASKS, BatchFunction, FrameTask, Input, Job, Join, Output, Reduce
from onyxq.jobs.options import format_of
from onyxq.jobs.slot_bounds import OUTPUTS, bounds
from onyxq.spark import java
from onyxq.spark.checkpoint import PARTS, parts_in
from onyxq.spark.failures import said_by
from onyxq.spark.files.formats import WRITERS, check_schema, described
from onyxq.spark.files.staging import Folder
from onyxq.spark.plan import end_of_input, outputs, rows
from onyxq.spark.plan.fused import Feed, Place, made
from onyxq.spark.plan.inputs import Opened, open_input, placed, plain, quoted, shared
from onyxq.spark.plan.outputs import Struct
from onyxq.spark.plan.regions import Region, Stage, is_plain, stages, streams, timed, uses
from onyxq.spark.progress import INPUT, names_of
from onyxq.spark.sinks import calls, tables

GROUPS_PER_SLOT = 2
"""Key groups for each slot: with several, slots whose groups have less work take over others."""
PARTS_WITHOUT_STATE = 16
"""Parts of each exchange of a job without state, and least number of parts into which files are split."""
_NOTHING = "<nothing>"
"""No task has this name."""


@frozen
class Setting:
    """The run-time settings of a job's query."""

    version: int
    """Version of the allocation that made this process its driver."""
    slots: int
    """Number of parts of a batch without a bound, from the session."""
    checkpoint: str
    """Folder of the query's checkpoint."""
    connect: str | None
    """``HOST:PORT`` of the peer; None if a query is run by hand."""
    batch: int = -1
    """The last batch that was committed when the query started."""
    share: int | None = None
    """Slots that the job has; those of the session if not given."""
    calls: str = ""
    """Address of the host for functions that get a DataFrame (`onyxq.spark.sinks.frame_calls`)."""


def compiled(session: Any, job: Job, body: bytes, setting: Setting) -> Any:
    """Return the query of a job, ready to be started; raises `BadRequest` or `Incomplete`.

    ``session`` is the job's own: its SQL settings are changed. ``body`` is the job's bytes.
    """
    job = _grouped(job, setting)
    configure(session, job)
    return Flow(session, job, setting, Place(body=body, job=job.id, version=setting.version)).query()


def restoring(session: Any, job: Job, body: bytes, setting: Setting, state: Any) -> Any:
    """Return a query of one batch that stores the state of another job where the job's query finds it.

    It is the job's query, with its cuts, without rows of its inputs, and with an output that drops all. ``state`` is a
    stream of tasks and payloads, as `onyxq.spark.state_copy` writes them.
    """
    job = _grouped(job, setting)
    configure(session, job)
    plan = stages(job)
    flow = _Restoring(session, job, setting, Place(body=body, job=job.id, version=setting.version), state)
    flow.open(uses(plan))
    for stage in plan[:-1]:
        flow.add(stage)
    frame, *_ = flow.outputs(plan[-1])
    writer = frame.writeStream.format("noop").option("checkpointLocation", setting.checkpoint)
    return writer.trigger(availableNow=True)


class Flow:
    """The frames of a job's inputs and cuts, one after the other."""

    def __init__(self, session: Any, job: Job, setting: Setting, place: Place) -> None:
        self._session = session
        self._job = job
        self._setting = setting
        self._place = place
        self._bounds = bounds(job, setting.slots if setting.share is None else setting.share)
        self._end = _end(session, setting) if stateful(job) else None
        self._opened: dict[str, Opened] = {}
        self._used: Mapping[str, int] = {}

    def query(self) -> Any:
        """Return the writer of all outputs, from the inputs on."""
        plan = stages(self._job)
        self.open(uses(plan))
        for stage in plan[:-1]:
            self.add(stage)
        return self.sink(plan[-1])

    def open(self, used: Mapping[str, int]) -> None:
        """Open the inputs.

        An input with several uses is shared, unless the job has bounds: it would be read beside the stages.
        """
        self._used = used
        common = _common(self._job, self._setting)
        for task in self._job.catalog:
            if isinstance(task, Input):
                opened = self._read(task, common)
                if not task.static:
                    opened = evolve(opened, frame=opened.frame.alias(INPUT + task.name))
                several = used[task.name] > 1 and not task.static and not self._bounds
                self._opened[task.name] = shared(opened, self._setting.slots) if several else opened

    def _read(self, task: Input, common: dict[str, str]) -> Opened:
        return open_input(self._session, self._job, task, common)

    def _beside(self, task: str, side: int) -> Any:
        """Return the rows that reach one side of a cut beside its segments."""
        return self._end

    def add(self, stage: Stage) -> None:
        """Add the cut that ends a stage."""
        assert stage.task is not None, "the outputs are no cut"
        task = self._job.task(stage.task)
        if isinstance(task, FRAME_TASKS):
            self._opened[stage.task] = self._result(task, self._frame(stage, task))
            return
        feeds = [feed for side, regions in enumerate(stage.sides) for feed in self._feeds(stage.task, side, regions)]
        cut = _cut(self._job, stage.task, feeds, self._bounds.get(stage.task))
        self._opened[stage.task] = Opened(cut, rows.SEGMENTS)

    def _feeds(self, task: str, side: int, regions: Iterable[Region]) -> Iterator[Feed]:
        """Yield what reaches one side of a cut."""
        for region in regions:
            opened = self._opened[region.entry]
            if opened.shape == rows.COLUMNS and is_plain(self._job, region):
                frame, names = plain(opened, region.entry)
                yield Feed(frame, side, names=names)
            else:
                frame, names = placed(opened, region.entry)
                yield Feed(frame, side, functools.partial(made, self._place, region, opened.shape, names))
        yield Feed(self._beside(task, side), side, rows.sent)

    def _entry(self, region: Region) -> tuple[Any, Struct]:
        """Return the rows that the sink passes to a region."""
        opened = self._opened[region.entry]
        frame, names = placed(opened, region.entry)
        return frame, Struct(entry=region.entry, shape=opened.shape, names=names)

    def _frame(self, stage: Stage, task: FrameTask) -> Any:
        from onyxq.spark.plan import frames

        given = {name: frames.columns_from(self._job, name, self._opened[name]) for name, _ in stage.columns}
        limit = self._bounds.get(task.name)
        for side in stage.sides:
            ((source, _),) = {edge for region in side for edge in region.wanted}
            parts = [(self._opened[region.entry], region) for region in side]
            segments = frames.columns_of_segments(self._job, task, source, parts, self._place)
            given[source] = segments if limit is None else self._once(segments.coalesce(limit))
        return frames.result(self._session, self._job, task, given, self._place)

    def _result(self, task: FrameTask, frame: Any) -> Opened:
        """Return the rows of a frame task; a function of Arrow batches computes them once for all their uses.

        Spark shares no operators with state, and it computes other rows faster than it exchanges them.
        """
        opened = Opened(frame, rows.COLUMNS)
        several = isinstance(task, BatchFunction) and self._used[task.name] > 1 and not self._bounds
        if not several or not frame.isStreaming or java.keeps_state(frame):
            return opened
        return shared(opened, self._setting.slots)

    def _once(self, frame: Any) -> Any:
        """Return the same rows, computed once, although a frame task or the tasks after it may use them several times.

        Otherwise a bound would hold for each use alone.
        """
        return shared(Opened(frame, rows.COLUMNS), self._setting.slots).frame.drop(rows.PART)

    def outputs(self, stage: Stage) -> tuple[Any, list[Folder], dict[str, Struct]]:
        """Return the rows that reach the sink, the outputs that are folders, with their columns, and the structs."""
        session, job = self._session, self._job
        folders, parts = _folders(session, job, self._setting.calls), [self._entry(region) for region in stage.sides[0]]
        if stage.columns:
            from onyxq.spark.plan.frame_outputs import laid_out

            folders, more = laid_out(
                [(source, to, self._opened[source].frame.drop(rows.PART)) for source, to in stage.columns], folders
            )
            parts += more
        if timed(job) and any(java.keeps_state(frame) for frame, _ in parts):
            parts.append((self._end, Struct()))  # The sink drops its row, but Spark must read it.
        named = {f"struct_{place}": part for place, part in enumerate(parts)}
        frames = [_as_struct(frame, name) for name, (frame, _) in named.items()]
        frame = functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
        return frame, folders, {name: struct for name, (_, struct) in named.items()}

    def sink(self, stage: Stage) -> Any:
        """Return the writer of all outputs."""
        job, setting = self._job, self._setting
        self._session.dataSource.register(outputs.Outputs)
        frame, folders, structs = self.outputs(stage)
        for folder in folders:
            tables.check(folder, folder.schema)
        limit = self._bounds.get(OUTPUTS)
        tasks = [task for task in job.catalog if isinstance(task, Output)]
        queues = {task.name: _queue(task) for task in tasks if task.queue is not None}
        errors = {task.name: task.errors for task in tasks if task.errors is not None}
        if letters.any_in(job):
            queues[rows.LETTER] = {"queue": letters.queue_of(job.id), "own": True}
        common = {**_common(job, setting), "committed": str(setting.batch)}
        options = outputs.options_of(folders, queues, errors, common)
        options |= outputs.regions_of(self._place.body, structs)
        options["letters"] = json.dumps([task.name for task in tasks if letters.wanted(job, task.name)])
        options["attempt"] = str(letters.attempt_of(job))
        options["inputs"] = json.dumps(streams(job) or sources(frame))
        writer = (frame if limit is None else frame.coalesce(limit)).writeStream.format(outputs.FORMAT)
        writer = writer.options(**options).option("checkpointLocation", setting.checkpoint)
        writer = writer.queryName(f"{job.id}/{setting.version}")
        if bounded(job):
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{job.trigger_ms} milliseconds")


class _Restoring(Flow):
    """The same frames, with the state of another job instead of segments."""

    def __init__(self, session: Any, job: Job, setting: Setting, place: Place, state: Any) -> None:
        super().__init__(session, job, setting, place)
        self._state = state
        self._end = self._rows(_NOTHING)

    def _read(self, task: Input, common: dict[str, str]) -> Opened:
        from pyspark.sql import functions as of

        opened = super()._read(task, common)
        if task.static:
            return opened
        columns = [of.lit(None).cast(column.dataType).alias(column.name) for column in opened.frame.schema]
        return evolve(opened, frame=self._state.where(of.col("task") == _NOTHING).select(*columns))

    def _beside(self, task: str, side: int) -> Any:
        return self._rows(_NOTHING if side else task)

    def _rows(self, task: str) -> Any:
        from pyspark.sql import functions as of

        columns = (of.lit(b"").alias("lineage"), of.lit(rows.STATE).alias("out"), of.col("payload"))
        return self._state.where(of.col("task") == task).select(*columns)


def sources(frame: Any) -> list[str]:
    """Return the inputs of what a query writes in the order of their offsets, also if frame tasks decide it."""
    return [name or rows.END for name in names_of(frame)]


def bounded(job: Job) -> bool:
    """Return whether all input exists at the start."""
    return all(task.bounded for task in inputs_of(job))


def inputs_of(job: Job) -> list[Input]:
    """Return its inputs that are streams, in the catalog's order."""
    return [task for task in job.catalog if isinstance(task, Input) and not task.static]


def _grouped(job: Job, setting: Setting) -> Job:
    """Return the job with its number of key groups: its own, that of its checkpoint, or that of its first driver.

    A job without state has a fixed number: its next driver may know only the places of its inputs.
    """
    if job.key_groups is not None:
        return job
    slots = min(setting.slots, job.max_slots or setting.slots)
    first = min(GROUPS_PER_SLOT * slots, GROUPS_MAX) if stateful(job) else PARTS_WITHOUT_STATE
    return evolve(job, key_groups=parts_in(setting.checkpoint) or first)


def configure(session: Any, job: Job) -> None:
    """Set the SQL settings of a job's own session that depend on the job; it has a number of key groups."""
    groups = str(job.key_groups)
    session.conf.set(PARTS, groups)
    session.conf.set("spark.sql.files.minPartitionNum", groups)  # files are split in the same way on every peer
    session.conf.set("spark.sql.streaming.schemaInference", "true")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(rows.ROWS_MAX))


def _end(session: Any, setting: Setting) -> Any:
    session.dataSource.register(end_of_input.End)
    return session.readStream.format(end_of_input.FORMAT).option("checkpoint", setting.checkpoint).load()


def _cut(job: Job, name: str, feeds: Sequence[Feed], most: int | None) -> Any:
    task = job.task(name)
    if isinstance(task, Reduce):
        from onyxq.spark.plan.windows import apply

        windows = [window for window in job.windows if window.task == task.name]
        named = {window.id for window in windows}
        return apply(feeds, job, windows, [trigger for trigger in job.triggers if trigger.window in named], most)
    assert isinstance(task, Join), "stages are cut at reduces and joins"
    from onyxq.spark.plan.joins import join

    return join(feeds, job, task, most)


def folders_of(job: Job, calls: str = "") -> list[Folder]:
    """Return its outputs that are folders of files; ``calls`` as in `Setting`.

    Columns that are given as SQL are not resolved yet.
    """
    tasks = [(task, place) for place, task in enumerate(job.catalog) if isinstance(task, Output)]
    return [evolve(_folder(task, place), calls=calls) for task, place in tasks if task.queue is None]


# --- outputs -----------------------------------------------------------------------


def _common(job: Job, setting: Setting) -> dict[str, str]:
    """Return the options that our own source and sink share."""
    return {
        "connect": setting.connect or "",
        "job": job.id,
        "version": str(setting.version),
        "slots": str(setting.slots),
        "checkpoint": setting.checkpoint,
    }


def _folders(session: Any, job: Job, calls: str) -> list[Folder]:
    names, found = [task.name for task in job.catalog], folders_of(job, calls)
    return [_with_columns(session, folder, f"catalog[{names.index(folder.name)}]") for folder in found]


def _as_struct(frame: Any, name: str) -> Any:
    """Return the rows of a frame as the only column of another one."""
    from pyspark.sql import functions as of

    return frame.select(of.struct(*(of.col(quoted(column)) for column in frame.columns)).alias(name))


def _queue(task: Output) -> dict[str, Any]:
    said: dict[str, Any] = {"queue": task.queue, "priority": task.priority, "delay_ms": task.delay_ms}
    return said if task.ordering_key is None else {**said, "ordering_key": task.ordering_key}


def _folder(task: Output, place: int) -> Folder:
    kind = format_of(task)
    if kind not in WRITERS:
        known = ", ".join(OUTPUT_FORMATS)
        raise BadRequest(
            f"catalog[{place}].format: outputs are {known} or a queue, not {task.format!r}",
            field=f"catalog[{place}].format",
        )
    options = {str(name): str(value) for name, value in task.options.items()}
    fn = "" if task.foreach_batch is None else calls.reference(task.foreach_batch)
    return Folder(task.name, kind, str(task.path), options, fn=fn)


def _with_columns(session: Any, folder: Folder, place: str) -> Folder:
    """Return the folder with its option ``schema`` as an Arrow schema; raises `BadRequest` if it is invalid."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    said = folder.options.get("schema")
    if not said:
        return folder
    try:
        schema = to_arrow_schema(session.createDataFrame([], said).schema, timezone="UTC")
    except (PySparkException, Py4JJavaError) as error:
        what = f"{place}.options.schema of output {folder.name}: {said_by(error)}"
        raise BadRequest(f"{what} (in {said!r:.200})", field=f"{place}.options.schema") from error
    found = evolve(folder, schema=described(schema))
    check_schema(found)
    found.partitions()
    return found
