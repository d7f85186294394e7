"""Frame tasks on Spark: DataFrames from functions of the user, from SQL, and from functions of Arrow batches.

This module only builds a plan. Spark runs it with the rest of the job's query, so a frame task has the job's commit,
fencing and checkpoint. Spark tracks event time for these tasks, with one watermark for the whole job. Rows are only
appended to outputs. If Spark cannot append the rows of a frame, the job is refused here with the name of the task.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as of
from pyspark.sql.types import StructField, StructType

from onyxq.core.errors import BadRequest
from onyxq.jobs.encoding import decode
from onyxq.jobs.frame_check import columns_of, parameters
from onyxq.jobs.model import FRAME_TASKS, BatchFunction, Frame, FrameTask, Input, Job, Sql
from onyxq.jobs.options import CORRUPT
from onyxq.jobs.values import Unfit, unpack
from onyxq.spark import java
from onyxq.spark.failures import of_task, said_by
from onyxq.spark.files.columns import row_fitter, table
from onyxq.spark.files.formats import decoded, described
from onyxq.spark.functions import resolve
from onyxq.spark.plan import rows
from onyxq.spark.plan.fused import Place, run
from onyxq.spark.plan.inputs import DEFAULTS, Opened, check_names, placed, quoted, unnamed, whole
from onyxq.spark.plan.lifecycles import Lifecycles
from onyxq.spark.plan.regions import Region

_APPEND = (
    "An aggregation, a distinct or an outer join of streams needs a watermark: give the input (or the task before) "
    "time and watermark_ms, or call withWatermark in the function, and group by the window or the time."
)


def arrow_schema(columns: StructType) -> str:
    """Return the columns of a frame as an Arrow schema, in the form of `onyxq.spark.files.formats.described`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return described(to_arrow_schema(columns, timezone="UTC"))


def columns_in(text: str) -> StructType:
    """Return the columns that a text names as in SQL; raises `PySparkException`."""
    found = StructType.fromDDL(text)
    return found if isinstance(found, StructType) else StructType([StructField("value", found)])


def columns_from(job: Job, name: str, opened: Opened) -> Any:
    """Return the rows of an input or frame task as frame tasks read them, with the input's watermark."""
    task = job.task(name)
    frame = opened.frame.drop(rows.PART)
    if opened.shape == rows.QUEUE:
        assert isinstance(task, Input) and task.schema is not None, "a queue that is read as columns has a schema"
        frame = _parsed(frame, _struct(job, task, "schema", task.schema))
    return _timed(job, task, frame) if isinstance(task, Input) else frame


def _parsed(frame: Any, columns: StructType) -> Any:
    """Return tasks of a queue, which are JSON objects, as columns."""
    options = {} if CORRUPT in columns.names else DEFAULTS["json"]
    payload = of.col("payload").cast("string")
    return frame.select(of.from_json(payload, columns, options).alias("row")).select("row.*")


def columns_of_segments(
    job: Job, task: FrameTask, source: str, regions: Iterable[tuple[Opened, Region]], place: Place
) -> Any:
    """Return the segments that reach a frame task from a function, window or join, with the columns of its schema."""
    declared = columns_of(task, source)
    assert declared is not None, "a checked job names the columns of segments"
    columns = _struct(job, task, "schema", declared)
    schema = arrow_schema(columns)
    frames = []
    for opened, region in regions:
        frame, names = placed(opened, region.entry)
        work = functools.partial(_fitted, task.name, schema, functools.partial(run, place, region, opened.shape, names))
        frames.append(frame.mapInArrow(work, columns))
    return functools.reduce(lambda one, other: one.unionAll(other), frames)


def _fitted(task: str, schema: str, run_region: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the segments of a region as batches of columns; runs in a worker."""
    fields = decoded(schema)
    fit = row_fitter(fields)
    for batch in run_region(batches):
        found = []
        for payload in batch.column("payload").to_pylist():
            segment = unpack(payload)
            try:
                found.append(fit(segment))
            except Unfit as error:
                raise of_task(error, task=task, segment=segment, restart=False) from None
        yield from table(fields, found).to_batches()


def result(session: Any, job: Job, task: FrameTask, given: Mapping[str, Any], place: Place) -> Any:
    """Return the frame of a task; ``given``: task before it -> its rows.

    Raises `BadRequest` for SQL that Spark cannot read, and for rows that Spark cannot append; `TaskFailed` with the
    user's traceback for a function that raises.
    """
    if isinstance(task, Sql):
        found = _queried(session, job, task, given)
    elif isinstance(task, Frame):
        found = _called(job, task, given)
    else:
        found = _mapped(job, task, given, place)
    check_names(found.columns, _path(job, task), task.name)
    found = _timed(job, task, found)
    streams = [name for name, frame in given.items() if frame.isStreaming]
    if streams and not found.isStreaming:
        raise _wrong(job, task, "", f"does not use its stream {streams[0]!r}: all batches would have the same rows")
    try:
        java.check_append(session, found)
    except PySparkException as error:
        raise _wrong(job, task, "", f"Spark cannot append its rows to outputs: {said_by(error)}", _APPEND) from error
    return found


def _queried(session: Any, job: Job, task: Sql, given: Mapping[str, Any]) -> Any:
    for name, frame in given.items():
        frame.createOrReplaceTempView(quoted(name))
    try:
        wrong = java.sql_problem(session, task.sql)
        if wrong:
            raise _wrong(job, task, ".sql", wrong)
        return session.sql(task.sql)
    except PySparkException as error:
        known = f"its views are {', '.join(given)}"
        raise _wrong(job, task, ".sql", f"Spark cannot read it: {said_by(error)} ({known})") from error


def _called(job: Job, task: Frame, given: Mapping[str, Any]) -> Any:
    path = f"{_path(job, task)}.fn"
    fn = resolve(task.fn, path)
    frames = {parameter: given[source] for parameter, source in parameters(job, task).items()}
    try:
        found = fn(**frames, **task.params)
    except Exception as error:
        raise of_task(error, task=task.name, segment=None, restart=False) from error
    if not isinstance(found, DataFrame):
        raise _wrong(job, task, ".fn", f"returned a {type(found).__name__}, not a DataFrame")
    return found


def _mapped(job: Job, task: BatchFunction, given: Mapping[str, Any], place: Place) -> Any:
    columns = _struct(job, task, "returns", task.returns)
    schema = arrow_schema(columns)
    frames = [
        unnamed(frame).mapInArrow(_Batches(place, task.name, schema, tuple(frame.columns)), columns)
        for frame in given.values()
    ]
    return functools.reduce(lambda one, other: one.unionAll(other), frames)


class _Batches:
    """A function of Arrow batches, as `mapInArrow` calls it in a worker."""

    def __init__(self, place: Place, task: str, schema: str, names: tuple[str, ...]) -> None:
        self._names = names
        self._place = place
        self._task = task
        self._schema = schema

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow

        job, fields = decode(self._place.body), decoded(self._schema)
        task = job.task(self._task)
        assert isinstance(task, BatchFunction)
        lifecycles = Lifecycles(job, {"job": job.id, "version": self._place.version})
        fn = resolve(task.fn, f"{_path(job, task)}.fn")
        lifecycles.around("before_batch", (task.name,))
        for batch in batches:
            try:
                made = fn(batch.rename_columns(list(self._names)), **task.params)
                if not isinstance(made, pyarrow.RecordBatch):
                    raise TypeError(f"it returned a {type(made).__name__}, not a pyarrow.RecordBatch")
                made = _cast(made, fields)
            except Exception as error:
                raise lifecycles.failed(task.name, error, None) from error
            yield made
        lifecycles.around("after_batch", (task.name,))


def _cast(batch: Any, fields: Any) -> Any:
    """Return the batch with exactly these columns; raises `ValueError` if it has others."""
    if sorted(batch.schema.names) != sorted(fields.names):
        wanted, found = ", ".join(fields.names), ", ".join(batch.schema.names)
        raise ValueError(f"it returned the columns {found or 'none'}, and `returns` names {wanted}")
    return batch.select(fields.names).cast(fields)


def _timed(job: Job, task: Input | FrameTask, frame: Any) -> Any:
    """Return the frame with the task's watermark.

    Spark has a watermark for each use of the frame, and the smallest one counts for the job. So with several uses the
    filters of one use must not take rows away before the watermark: they would hold back the windows of all others.
    """
    if task.time is None:
        return frame
    try:
        frame = frame.withWatermark(task.time, f"{task.watermark_ms} milliseconds")
    except PySparkException as error:
        raise _wrong(job, task, ".time", f"cannot have the watermark: {said_by(error)}") from error
    return whole(frame) if _ways(job, task.name) > 1 else frame


def _ways(job: Job, name: str) -> int:
    """Return the number of ways from a task through frame tasks to other tasks."""
    return sum(_ways(job, to) if isinstance(job.task(to), FRAME_TASKS) else 1 for to in job.after(name))


def _struct(job: Job, task: Input | FrameTask, name: str, columns: str) -> StructType:
    try:
        found = columns_in(columns)
        arrow_schema(found)
    except PySparkException as error:
        raise _wrong(job, task, f".{name}", f"is not names and types of columns: {said_by(error)}") from error
    return found


def _path(job: Job, task: Input | FrameTask) -> str:
    return f"catalog[{[one.name for one in job.catalog].index(task.name)}]"


def _wrong(job: Job, task: Input | FrameTask, part: str, what: str, hint: str | None = None) -> BadRequest:
    path = f"{_path(job, task)}{part}"
    return BadRequest(f"{path} of {task.name!r}: {what}", field=path, hint=hint)
