"""The format ``onyxq`` of Spark: queues to read from and to write to (design: jobs on Spark).

Use it in a program of your own like this::

    from onyxq.spark.datasource import register
    register(spark)
    spark.readStream.format("onyxq").option("connect", "HOST:PORT").option("queue", "in").load()
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema

from onyxq.core.errors import BadRequest
from onyxq.spark.queues import tables
from onyxq.spark.queues.options import fail_options, read_options, table_options, write_options
from onyxq.spark.queues.sink import FailureWriter, QueueStreamWriter, QueueWriter, check_columns
from onyxq.spark.queues.source import QueueScan, QueueStream
from onyxq.spark.queues.tables import TableScan
from onyxq.spark.queues.task_columns import TaskShape, shape_of

FORMAT = "onyxq"
SCAN_SCHEMA = (
    "id binary, queue string, payload binary, format string, state string, priority int, at_ms bigint, "
    "attempts int, ordering_key string, unique_key string, result binary, error string"
)


class OnyxqSource(DataSource):
    """Queues as a data source of Spark; options are those of `onyxq.spark.queues.options`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        """Return the columns of a table, of a batch read that names a state, or of a stream."""
        if "table" in self.options:
            return tables.schema(table_options(self.options).table)
        if "state" in self.options:
            return SCAN_SCHEMA
        options = read_options(self.options, streaming=True)
        return shape_of(options.schema, headers=options.headers)

    def reader(self, schema: Any) -> QueueScan | TableScan:
        """Return a reader of a table, or of a queue's tasks as they are now."""
        if "table" in self.options:
            return TableScan(table_options(self.options), schema)
        return QueueScan(read_options(self.options, streaming=False))

    def streamReader(self, schema: Any) -> QueueStream:
        """Return a reader that claims tasks batch by batch."""
        options = read_options(self.options, streaming=True)
        if not options.schema and not options.headers:
            return QueueStream(options)
        fields = to_arrow_schema(schema, timezone="UTC")
        dead_letter = options.bad_rows == "dead_letter"
        return QueueStream(options, TaskShape(fields, bool(options.schema), dead_letter))

    def writer(self, schema: Any, overwrite: bool) -> QueueWriter | FailureWriter:
        """Return a writer that enqueues all rows as tasks in one step, or one that fails the tasks of the rows."""
        if "fail" in self.options:
            return FailureWriter(fail_options(self.options, [one.name for one in schema.fields]))
        if overwrite:
            raise BadRequest("a queue cannot be overwritten, only appended to", field="mode")
        check_columns(schema)
        return QueueWriter(write_options(self.options))

    def streamWriter(self, schema: Any, overwrite: bool) -> QueueStreamWriter:
        """Return a writer that makes tasks of rows batch by batch."""
        check_columns(schema)
        return QueueStreamWriter(write_options(self.options))


def register(session: Any) -> None:
    """Register the format with a session, and let filters limit what is read of tables."""
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(OnyxqSource)
