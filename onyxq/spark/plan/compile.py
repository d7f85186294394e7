"""A job as one Structured Streaming query.

Inputs become frames. Each region becomes one `mapInArrow`, each cut the result of `onyxq.spark.plan.windows` or
`onyxq.spark.plan.joins`, and all outputs one sink. `Setting` has what is known only at run time, such as offsets and
the place of the checkpoint.
"""

from __future__ import annotations

import functools
from typing import Any

from attrs import evolve, frozen

from onyxq.core.errors import BadRequest
from onyxq.jobs.model import Input, Job, Join, Output, Reduce
from onyxq.jobs.slot_bounds import OUTPUTS, bounds
from onyxq.spark.failures import said_by
from onyxq.spark.files.file_sink import Folder
from onyxq.spark.files.formats import WRITERS, check_schema, described
from onyxq.spark.plan import end_of_input, outputs, rows
from onyxq.spark.plan.fused import Place, run
from onyxq.spark.plan.inputs import Opened, open_input
from onyxq.spark.plan.regions import Region, Stage, stages, stateful


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


def compiled(session: Any, job: Job, body: bytes, setting: Setting) -> Any:
    """Return the query of a job, ready to be started; raises `BadRequest` or `Incomplete`.

    ``session`` is the job's own: its SQL settings are changed. ``body`` is the job's bytes.
    """
    _configure(session, job)
    common = _common(job, setting)
    frames = {task.name: open_input(session, job, task, common) for task in inputs_of(job)}
    end = _end(session, setting) if stateful(job) else None
    place = Place(body=body, job=job.id, version=setting.version)
    most = bounds(job, setting.slots if setting.share is None else setting.share)
    for stage in stages(job):
        sides = [_union([_region(frames[region.entry], region, place) for region in side]) for side in stage.sides]
        limit = most.get(stage.task or OUTPUTS)
        if stage.task is None:
            return _sink(session, job, sides[0] if limit is None else sides[0].coalesce(limit), setting)
        frames[stage.task] = Opened(_cut(job, stage, [side.unionAll(end) for side in sides], limit), rows.SEGMENTS)
    raise AssertionError("a job's last stage is its outputs")


def bounded(job: Job) -> bool:
    """Return whether all input exists at the start."""
    return all(task.bounded for task in inputs_of(job))


def inputs_of(job: Job) -> list[Input]:
    """Return its inputs, in the catalog's order."""
    return [task for task in job.catalog if isinstance(task, Input)]


def _configure(session: Any, job: Job) -> None:
    groups = str(job.key_groups)
    session.conf.set("spark.sql.shuffle.partitions", groups)
    session.conf.set("spark.sql.files.minPartitionNum", groups)  # files are split in the same way on every peer
    session.conf.set("spark.sql.streaming.schemaInference", "true")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(rows.ROWS_MAX))


def _region(source: Opened, region: Region, place: Place) -> Any:
    work = functools.partial(run, place, region, source.shape)
    return source.frame.mapInArrow(work, rows.SCHEMA)


def _end(session: Any, setting: Setting) -> Any:
    session.dataSource.register(end_of_input.End)
    return session.readStream.format(end_of_input.FORMAT).option("checkpoint", setting.checkpoint).load()


def _union(frames: list[Any]) -> Any:
    return functools.reduce(lambda one, other: one.unionAll(other), frames)


def _cut(job: Job, stage: Stage, sides: list[Any], most: int | None) -> Any:
    assert stage.task is not None
    task = job.task(stage.task)
    if isinstance(task, Reduce):
        from onyxq.spark.plan.windows import apply

        windows = [window for window in job.windows if window.task == task.name]
        named = {window.id for window in windows}
        return apply(sides[0], job, windows, [trigger for trigger in job.triggers if trigger.window in named], most)
    assert isinstance(task, Join), "stages are cut at reduces and joins"
    from onyxq.spark.plan.joins import join

    return join(sides[0], sides[1], job, task, most)


def folders_of(job: Job) -> list[Folder]:
    """Return its outputs that are folders of files.

    Columns that are given as SQL are not resolved yet.
    """
    tasks = [(task, place) for place, task in enumerate(job.catalog) if isinstance(task, Output)]
    return [_folder(task, place) for task, place in tasks if task.queue is None]


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


def _sink(session: Any, job: Job, frame: Any, setting: Setting) -> Any:
    session.dataSource.register(outputs.Outputs)
    names = [task.name for task in job.catalog]
    folders = [_with_columns(session, folder, f"catalog[{names.index(folder.name)}]") for folder in folders_of(job)]
    tasks = [task for task in job.catalog if isinstance(task, Output)]
    queues = {task.name: _queue(task) for task in tasks if task.queue is not None}
    options = outputs.options_of(folders, queues, {**_common(job, setting), "committed": str(setting.batch)})
    writer = frame.writeStream.format(outputs.FORMAT).options(**options)
    writer = writer.option("checkpointLocation", setting.checkpoint).queryName(f"{job.id}/{setting.version}")
    if bounded(job):
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{job.trigger_ms} milliseconds")


def _queue(task: Output) -> dict[str, Any]:
    said: dict[str, Any] = {"queue": task.queue, "priority": task.priority, "delay_ms": task.delay_ms}
    return said if task.ordering_key is None else {**said, "ordering_key": task.ordering_key}


def _folder(task: Output, place: int) -> Folder:
    kind = str(task.format).lower()
    if kind not in WRITERS:
        known = ", ".join(sorted(WRITERS))
        raise BadRequest(
            f"catalog[{place}].format: outputs are {known} or a queue, not {task.format!r}",
            field=f"catalog[{place}].format",
        )
    options = {str(name): str(value) for name, value in task.options.items()}
    return Folder(task.name, kind, str(task.path), options)


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
    return found
