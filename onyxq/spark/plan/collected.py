"""The sink of a preview: it collects the segments that reach the outputs of a job, instead of writing them.

It gets the columns of the sink of jobs (`onyxq.spark.plan.outputs`). Each batch becomes one file on the driver's
machine, which `collected` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
from attrs import frozen
from pyspark.sql.datasource import DataSource, WriterCommitMessage

from onyxq.core.errors import BadRequest
from onyxq.jobs.values import pack, unpack
from onyxq.spark.failures import of_task
from onyxq.spark.files import columns
from onyxq.spark.plan.fused import Row
from onyxq.spark.plan.outputs import Fed

FORMAT = "onyxq-preview"


@frozen
class Part(WriterCommitMessage):
    """What one task of a batch has collected."""

    rows: tuple[tuple[str, bytes], ...]
    """``(out, payload)``: the output, and the segment as msgpack."""


class Collection(DataSource):
    """The sink as a data source of Spark; option ``folder``, besides those of `Fed`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: Any, overwrite: bool) -> Collector:
        return Collector(dict(self.options))


class Collector(Fed):
    """Collects the segments of batches."""

    def write(self, iterator: Iterator[Any]) -> Part:
        """Return the segments of one task; runs on an executor."""

        def rows(out: str, batch: Any) -> Iterator[Row]:
            return ((out, b"", pack(segment)) for segment in columns.segments(batch))

        try:
            found = [(out, payload) for out, _, payload in self._rows(iterator, rows)]
        except BadRequest as error:
            raise of_task(error, task=error.field or self._job, segment=None, restart=False) from error
        return Part(tuple(found))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Store the segments of a batch, in the order of its parts."""
        rows = [row for message in messages if isinstance(message, Part) for row in message.rows]
        part = Path(self._options["folder"]) / f"{batchId}.part"
        part.write_bytes(msgpack.packb(rows))
        part.rename(part.with_suffix(""))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: a batch that fails has no file."""


def collected(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield output and segment of all rows, in the order of batches."""
    for file in sorted((file for file in folder.iterdir() if file.name.isdigit()), key=lambda file: int(file.name)):
        for out, payload in msgpack.unpackb(file.read_bytes()):
            yield out, unpack(payload)
