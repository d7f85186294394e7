"""The sink of a job's query: one for all its outputs, so that a batch is committed once, for all.

Rows for queues go to `onyxq.spark.sink`, which commits the batch in the log; rows for folders are
written aside (`onyxq.spark.files`) and shown once the log has taken the batch.  Without a peer to
connect to (a query that is run by hand) Spark's checkpoint alone decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from attrs import asdict, frozen
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from onyxq.spark import files
from onyxq.spark.files import Folder, Staging

FORMAT = "onyxq-outputs"


@frozen
class Written(WriterCommitMessage):
    """What one task of a batch wrote."""

    files: tuple[tuple[str, str], ...]


def options_of(folders: list[Folder], *, job: str) -> dict[str, str]:
    """What the sink is told."""
    return {"job": job, "folders": json.dumps([asdict(folder) for folder in folders])}


class Outputs(DataSource):
    """The sink as Spark finds it."""

    @classmethod
    def name(cls) -> str:
        """What it is called in ``format``."""
        return FORMAT

    def streamWriter(self, schema: Any, overwrite: bool) -> Routed:
        """The writer of each batch."""
        folders = {said["name"]: Folder(**said) for said in json.loads(self.options["folders"])}
        return Routed(self.options["job"], folders)


class Routed(DataSourceStreamArrowWriter):
    """Writes each row to where its column ``out`` says."""

    def __init__(self, job: str, folders: dict[str, Folder]) -> None:
        self._job = job
        self._folders = folders

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of one task aside; runs on an executor."""
        context: Any = TaskContext.get()
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        staging = Staging(self._folders, job=self._job, batch=batch, part=context.partitionId())
        try:
            for rows in iterator:
                outs, payloads = rows.column("out").to_pylist(), rows.column("payload").to_pylist()
                for out, payload in zip(outs, payloads, strict=True):
                    staging.add(out, payload)
            return Written(tuple(staging.finish()))
        except BaseException:
            staging.discard()
            raise

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Show what the batch wrote, unless it was shown already."""
        folders = list(self._folders.values())
        written = [one for message in messages if isinstance(message, Written) for one in message.files]
        mark = files.staged(folders, job=self._job, batch=batchId)
        mark = mark or files.stage(folders, written, job=self._job, batch=batchId)
        files.publish(folders, job=self._job, batch=batchId, mark=mark)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what is aside is not seen, and goes with the next batch."""
