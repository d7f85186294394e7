"""Queues as a sink of Spark: executors prepare, one entry of the log commits (design: jobs on Spark).

Rows that an executor writes are stored as pending facts, which clients cannot see. A batch is a group that is
identified by its query and number. Writers whose attempt died and repeated commits have no visible effect.
`onyxq.spark.plan.outputs` is the sink of jobs, whose executors send in the same way.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from attrs import frozen
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from onyxq.client import AsyncClient
from onyxq.client.batches import BatchCommitted
from onyxq.core.errors import BadRequest
from onyxq.spark.queues.options import FailOptions, QueueOutput, Target, WriteOptions
from onyxq.spark.queues.shares import Piece, Share
from onyxq.spark.queues.source import connected
from onyxq.spark.queues.task_columns import fail_rows

log = logging.getLogger(__name__)

UNDER_WAY = 2
"""Number of pieces that one writer prepares at the same time."""
COLUMNS = {"payload": True, "lineage": False, "priority": False, "ordering_key": False, "queue": False}
"""Column of rows -> whether it is required."""


@frozen
class Prepared(WriterCommitMessage):
    """The prepared pieces of one writer of a batch."""

    parts: tuple[bytes, ...]
    rows: int


class Sending:
    """One writer's share of a batch, while executors send it."""

    def __init__(self, target: Target, name: str) -> None:
        self._target = target
        self._name = name
        self._link = connected(target)
        partitions, now_ms = self._link.call(_cluster)
        self.share = Share(partitions=partitions, now_ms=now_ms, random_64=_random_64)
        self._sent: deque[Future[bytes]] = deque()
        self._parts: list[bytes] = []

    def add_task(
        self, output: QueueOutput, payload: bytes, *, lineage: bytes | None, name: str, key: str | None
    ) -> None:
        """Add a task.

        The tasks before it are prepared first if both do not fit. What this raises may be about them.
        """
        if not self.share.has_room(payload):
            self._send(self.share.take())
        self.share.add(output, payload, lineage=lineage, name=name, key=key)

    def _send(self, runs: Piece) -> None:
        if not runs:
            return
        while len(self._sent) >= UNDER_WAY:
            self._parts.append(self._sent.popleft().result())
        one, name = self._target, f"{self._name}/{_random_64():016x}"
        self._sent.append(
            self._link.begin(
                lambda client: client.prepare_batch(name=name, enqueue=runs, job=one.job, version=one.version)
            )
        )

    def finish(self) -> Prepared:
        """Send the rest, and return all prepared parts."""
        self._send(self.share.take())
        while self._sent:
            self._parts.append(self._sent.popleft().result())
        return Prepared(tuple(self._parts), self.share.rows)


async def _cluster(client: AsyncClient) -> tuple[int, int]:
    return await client.partition_count(), await client.now_ms()


def _random_64() -> int:
    return int.from_bytes(os.urandom(8), "big")


# --- rows -------------------------------------------------------------------------------------


def write_rows(sending: Sending, batches: Iterator[Any], output: QueueOutput) -> None:
    """Write rows of a user: ``payload`` and the other `COLUMNS`."""
    outputs = {(output.queue, output.priority): output}
    for rows in batches:
        given = {name: rows.column(name).to_pylist() for name in rows.schema.names}
        count = rows.num_rows
        nothing = [None] * count
        queues, priorities = given.get("queue", nothing), given.get("priority", nothing)
        lineages, keys = given.get("lineage", nothing), given.get("ordering_key", nothing)
        for place, payload in enumerate(given["payload"]):
            if payload is None:
                raise BadRequest("a task needs a payload, and a row has none", field="payload")
            queue = output.queue if queues[place] is None else queues[place]
            priority = output.priority if priorities[place] is None else priorities[place]
            to = outputs.get((queue, priority))
            if to is None:
                to = QueueOutput(queue, priority, None, output.delay_ms, output.format)
                outputs[queue, priority] = to
            data = payload if type(payload) is bytes else payload.encode()
            sending.add_task(to, data, lineage=lineages[place], name=queue, key=keys[place])


def check_columns(schema: Any) -> None:
    """Raise `BadRequest` unless rows of this schema can be written."""
    kinds = {"payload": ("binary", "string"), "lineage": ("binary",), "priority": ("int", "bigint", "smallint")}
    named = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in named.items():
        if name not in COLUMNS:
            known = ", ".join(COLUMNS)
            raise BadRequest(f"column {name} says nothing to a queue; columns are {known}", field=name)
        wanted = kinds.get(name, ("string",))
        if kind not in wanted:
            raise BadRequest(f"column {name} must be {' or '.join(wanted)}, not {kind}", field=name)
    for name, needed in COLUMNS.items():
        if needed and name not in named:
            raise BadRequest(f"column {name} is missing", field=name)


# --- commits ----------------------------------------------------------------------------------


def commit_group(options: WriteOptions, name: str, parts: Sequence[bytes]) -> BatchCommitted:
    """Commit what writers have prepared, once under a name."""
    return connected(options.target).call(
        lambda client: client.commit_batch(
            name=name, prepared=parts, keep_ms=options.keep_ms, timeout_ms=options.commit_timeout_ms
        )
    )


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._query = ""

    def write(self, iterator: Iterator[Any]) -> Prepared:
        """Prepare the rows of one task; runs on an executor."""
        context = TaskContext.get()
        assert context is not None, "rows are written by tasks"
        batch = context.getLocalProperty("streaming.sql.batchId")
        query = context.getLocalProperty("sql.streaming.queryId")
        sending = Sending(self._options.target, share_name(f"{query}/{batch}"))
        write_rows(sending, iterator, self._options.output)
        made = sending.finish()
        return StreamPrepared(made.parts, made.rows, str(query))

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Commit the batch; a repeat changes nothing."""
        parts = [part for message in messages if message is not None for part in message.parts]
        query = next((message.query for message in messages if message is not None), "")
        if parts:
            commit_group(self._options, f"spark/{query}/{batchId}", parts)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Do nothing: prepared rows expire at their deadline."""


@frozen
class StreamPrepared(Prepared):
    """The prepared pieces of a writer, with the id of the query."""

    query: str


class QueueWriter(DataSourceArrowWriter):
    """The sink of a batch write: all rows become tasks, or none."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._name = options.name or f"spark/{_random_64():016x}{_random_64():016x}"

    def write(self, iterator: Iterator[Any]) -> Prepared:
        """Prepare the rows of one task; runs on an executor."""
        sending = Sending(self._options.target, share_name(self._name))
        write_rows(sending, iterator, self._options.output)
        return sending.finish()

    def commit(self, messages: list[Any]) -> None:
        """Make all rows visible."""
        parts = [part for message in messages if message is not None for part in message.parts]
        if parts:
            commit_group(self._options, self._name, parts)

    def abort(self, messages: list[Any]) -> None:
        """Do nothing: prepared rows expire at their deadline."""


class FailureWriter(DataSourceArrowWriter):
    """The sink of rows whose tasks failed: each task is retried, or becomes a dead letter.

    The batch that read the tasks continues. Its other tasks are completed with it.
    """

    def __init__(self, options: FailOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Fail the tasks of some rows; runs on an executor."""
        one = self._options
        for rows in iterator:
            lost = fail_rows(connected(one.target), rows, outcome=one.outcome)
            if lost:
                log.info("%d tasks did not fail: their claims are no longer valid", lost)
        return WriterCommitMessage()

    def commit(self, messages: list[Any]) -> None:
        """Do nothing: each task has failed already."""

    def abort(self, messages: list[Any]) -> None:
        """Do nothing: failing the same tasks again has no effect."""


def share_name(name: str) -> str:
    """Return the prefix of the names of a writer's pieces."""
    return f"{name[:150]}/share"
