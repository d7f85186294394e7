"""Rows of a preview as inputs of a job's query: each input is a folder, and each batch reads one Parquet file of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from attrs import evolve, field, frozen
from py4j.protocol import Py4JJavaError
from pyarrow import parquet, types
from pyspark.errors import PySparkException
from pyspark.sql import functions as of
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from onyxq.core.errors import BadRequest
from onyxq.core.ids import make_id
from onyxq.jobs.file_sample import refused
from onyxq.jobs.model import FRAME_TASKS, Input, Job
from onyxq.jobs.options import FILES, format_of
from onyxq.jobs.values import Unfit, pack, to_json
from onyxq.spark.failures import said_by
from onyxq.spark.files.columns import Columns, check_readable, row_fitter, table
from onyxq.spark.plan import rows as shapes
from onyxq.spark.plan.frames import columns_in
from onyxq.spark.plan.inputs import Opened, open_input

_TIMES = "timestamp timestamp, value bigint"
KNOWN: Mapping[str, str] = {
    "text": "value string",
    "binaryfile": "path string, modificationTime timestamp, length bigint, content binary",
    "kafka": "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int",
    "rate": _TIMES,
    "rate-micro-batch": _TIMES,
}
"""Columns of formats that always have the same."""
_BYTES = dict.fromkeys(("lineage", "payload", "id"), pyarrow.binary())
_QUEUE = pyarrow.schema({**_BYTES, "format": pyarrow.string()})
"""Columns of tasks of a queue, as `onyxq.spark.plan.rows` reads them."""
_NOT_HERE = ("maxfilespertrigger", "maxbytespertrigger", "cleansource", "sourcearchivedir")
"""Options of files, in lower case, that a preview replaces, or that would move or delete files."""


@frozen
class Given:
    """The rows of one input, as an Arrow table."""

    task: Input
    rows: Any = field(repr=False)

    def opened(self, session: Any, folder: Path, batch_rows: int | None) -> Opened:
        """Write the rows to a new folder, and return them as the input of a query with batches of ``batch_rows``.

        A batch reads all rows without ``batch_rows``, and of a static input.
        """
        folder.mkdir()
        size = max(1, self.rows.num_rows if batch_rows is None or self.task.static else batch_rows)
        for number, start in enumerate(range(0, self.rows.num_rows, size)):
            file = folder / f"{number}.parquet"
            try:
                parquet.write_table(self.rows.slice(start, size), file)
            except pyarrow.ArrowException as error:
                raise refused(self.task, f"a preview cannot keep its rows: {error}") from error
            os.utime(file, (number + 1, number + 1))  # Spark reads older files first.
        schema = from_arrow_schema(self.rows.schema, prefer_timestamp_ntz=True)
        if self.task.static:
            return Opened(of.broadcast(session.read.schema(schema).parquet(str(folder))), shapes.COLUMNS)
        stream = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
        return Opened(stream, shapes.COLUMNS if self.task.queue is None else shapes.QUEUE)


def of_rows(job: Job, task: Input, rows: Sequence[Any]) -> Given:
    """Return given segments of an input; raises `BadRequest` if the input cannot have them."""
    if task.queue is not None:
        return Given(task, pyarrow.Table.from_pylist([_task(task, *one) for one in enumerate(rows)], schema=_QUEUE))
    schema = _columns(job, task, rows)
    found = []
    fit = row_fitter(schema)
    for place, row in enumerate(rows):
        try:
            found.append(fit(row))
        except Unfit as error:
            raise _wrong(task, place, error) from None
    return Given(task, table(schema, found))


def first_rows(session: Any, job: Job, task: Input, count: int) -> Given:
    """Return the first rows of an input of files, oldest file first; a static input has all its rows.

    Raises `BadRequest` if it is not files, or if Spark cannot read them.
    """
    if format_of(task) not in FILES:
        what = format_of(task) if task.queue is None else f"the queue {task.queue!r}"
        raise refused(task, f"a preview reads files, not {what}")
    options = {name: said for name, said in task.options.items() if name.lower() not in _NOT_HERE}
    by_file = {} if task.static else {"maxFilesPerTrigger": "1"}
    frame = open_input(session, job, evolve(task, options={**options, **by_file}), {}).frame
    try:
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        check_readable(schema)
    except (Unfit, PySparkException) as error:
        raise refused(task, f"a preview cannot keep its rows: {said_by(error)}") from error
    return Given(task, frame.toArrow().cast(schema) if task.static else _taken(frame, schema, count))


def _taken(frame: Any, schema: Any, count: int) -> Any:
    """Return the first rows of a stream as an Arrow table."""
    tables: list[Any] = [schema.empty_table()]

    def add(batch: Any, number: int) -> None:
        left = count - sum(one.num_rows for one in tables)
        if left > 0:
            tables.append(batch.limit(left).toArrow().cast(schema))

    query = frame.writeStream.foreachBatch(add).trigger(availableNow=True).start()
    try:
        while not query.awaitTermination(0.1) and sum(one.num_rows for one in tables) < count:
            pass
    finally:
        query.stop()
    return pyarrow.concat_tables(tables)


def _task(task: Input, place: int, value: Any) -> dict[str, Any]:
    """Return a segment of a queue as the row of a task."""
    made = make_id(0, 0, 0, place)
    if isinstance(value, bytes):
        return {"lineage": made, "payload": value, "format": "bytes", "id": made}
    try:
        return {"lineage": made, "payload": to_json(pack(value)).encode(), "format": "json", "id": made}
    except Unfit as error:
        raise _wrong(task, place, error) from None


def _columns(job: Job, task: Input, rows: Sequence[Any]) -> Any:
    """Return the columns of given rows as an Arrow schema: those that the input has, or those of all rows."""
    said = task.schema or KNOWN.get(format_of(task))
    if said is None and not rows:
        after = [to for to in job.after(task.name) if isinstance(job.task(to), FRAME_TASKS)]
        if after:
            raise refused(task, f"it has neither rows nor a schema, so {after[0]!r} does not know its columns")
        said = KNOWN["text"]
    if said is not None:
        try:
            return to_arrow_schema(columns_in(said), timezone="UTC")
        except (PySparkException, Py4JJavaError) as error:
            raise BadRequest(f"the schema of input {task.name}: {said_by(error)}", field="schema") from error
    found = Columns()
    for place, row in enumerate(rows):
        try:
            found.add(row)
        except Unfit as error:
            raise _wrong(task, place, error) from None
    try:
        return pyarrow.schema([part.with_type(_typed(part.type)) for part in found.schema()])
    except Unfit as error:
        raise refused(task, error.message) from None


def _typed(kind: Any) -> Any:
    """Return a type of a column with strings where all values are None: Spark reads no column without a type."""
    if types.is_list(kind):
        return pyarrow.list_(_typed(kind.value_type))
    if types.is_struct(kind):
        return pyarrow.struct([part.with_type(_typed(part.type)) for part in kind])
    return pyarrow.string() if types.is_null(kind) else kind


def _wrong(task: Input, place: int, error: Unfit) -> BadRequest:
    return BadRequest(f"rows[{task.name!r}][{place}]: {error.message}", field="rows", hint=error.advice or None)
