"""Queues as a sink of Spark: executors prepare, one entry of the log commits (design: jobs on Spark).

Rows that an executor writes are stored as pending facts, which clients cannot see. One entry commits a batch of a
job, with its offsets and the completion of the tasks that it has read. It applies once, under the job's present
version. Writers whose attempt died, replaced drivers and repeated commits have no visible effect. A batch
without a job is a group that is identified by its query and number.
"""

from __future__ import annotations

import json
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
from onyxq.core.errors import BadRequest, TooLarge
from onyxq.spark.connection import Connection
from onyxq.spark.places import located
from onyxq.spark.queues.options import QueueOutput, Target, WriteOptions
from onyxq.spark.queues.queue_claims import Held
from onyxq.spark.queues.shares import Piece, Share, task_of
from onyxq.spark.queues.source import Offset, connected, held_in

UNDER_WAY = 2
"""Number of pieces that one writer prepares at the same time."""
JOB_COLUMNS = ("lineage", "out", "payload")
COLUMNS = {"payload": True, "lineage": False, "priority": False, "ordering_key": False, "queue": False}
"""Column of rows that do not come from a job -> whether it is required."""


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

    def add(self, output: QueueOutput, packed: bytes, *, lineage: bytes, name: str) -> None:
        """Add a segment of a job, as msgpack, for its output ``name``."""
        found, payload, key = task_of(output, packed, name)
        self.add_task(found, payload, lineage=lineage, name=name, key=key)

    def add_task(
        self, output: QueueOutput, payload: bytes, *, lineage: bytes | None, name: str, key: str | None
    ) -> None:
        """Add a task.

        The tasks before it are prepared first if both do not fit.
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


def write_segments(sending: Sending, batches: Iterator[Any], outputs: dict[str, QueueOutput]) -> None:
    """Write rows of a job: ``lineage``, ``out``, ``payload``."""
    for rows in batches:
        columns = [rows.column(name).to_pylist() for name in JOB_COLUMNS]
        for lineage, out, payload in zip(*columns, strict=True):
            output = outputs.get(out)
            if output is None:
                raise BadRequest(f"there is no output {out!r}; there are {', '.join(sorted(outputs))}", field="out")
            sending.add(output, payload, lineage=lineage, name=out)


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


def check_segments(schema: Any) -> None:
    """Raise `BadRequest` unless rows of this schema are segments of a job."""
    named = {field.name: field.dataType.simpleString() for field in schema.fields}
    if named != {"lineage": "binary", "out": "string", "payload": "binary"}:
        raise BadRequest(f"with outputs the columns are {', '.join(JOB_COLUMNS)}, not {named}", field="outputs")


# --- offsets ----------------------------------------------------------------------------------


def offsets_text(checkpoint: str, batch: int) -> str:
    """Return the offsets that a batch has read, from Spark's checkpoint."""
    system, path = located(checkpoint)
    with system.open_input_stream(f"{path}/offsets/{batch}", compression=None) as stream:
        return str(stream.read().decode())


def queue_offsets(text: str) -> list[Offset]:
    """Return the offsets of queues among those of a batch, each once.

    Spark notes an offset for each use of a source in its plan. A queue that feeds several stages is noted several
    times, and has claimed its tasks once.
    """
    found = []
    for line in dict.fromkeys(text.splitlines()):
        if line.startswith("{"):
            said = json.loads(line)
            if isinstance(said, dict) and said.get("onyxq") == 1:
                found.append(said)
    return found


def claims_of(checkpoint: str, batch: int) -> list[Held]:
    """Return the claims of a batch.

    A queue without new tasks repeats the offset of the batch before.
    """
    offsets = queue_offsets(offsets_text(checkpoint, batch))
    try:
        before = queue_offsets(offsets_text(checkpoint, batch - 1))
    except FileNotFoundError:
        before = []
    old = {one["digest"] for one in before if one.get("claims")}
    return [held for offset in offsets if offset.get("digest") not in old for held in held_in(offset)]


def recorded(text: str) -> bytes:
    """Return offsets in the form that the log keeps: without the claims of queues, which end with the batch.

    Spark continues from them as from its own. It compares offsets as text, so they are formatted as Spark's Python
    workers do it. Otherwise a source without news would seem to have moved, and an empty batch would be run and
    committed. Raises `TooLarge`.
    """
    lines = []
    for line in text.splitlines():
        said = json.loads(line) if line.startswith("{") else None
        if isinstance(said, dict) and said.get("onyxq") == 1:
            line = json.dumps({**said, "claims": []})
        lines.append(line)
    packed = "\n".join(lines).encode()
    if len(packed) > 64 * 1024:
        raise TooLarge(f"{len(packed)} bytes of offsets; the log keeps 65536 of a batch", field="offsets")
    return packed


# --- commits ----------------------------------------------------------------------------------


def commit_job_batch(options: WriteOptions, batch: int, parts: Sequence[bytes]) -> BatchCommitted:
    """Commit a batch of a job with the tasks that it has read; raises `Superseded`, `StaleToken`."""
    text = offsets_text(options.checkpoint, batch)
    complete = [[*held, None] for held in claims_of(options.checkpoint, batch)]
    target, offsets = options.target, recorded(text)
    name = f"job/{target.job}/{target.version}/{batch}/{_random_64():016x}"
    return _link(options).call(
        lambda client: client.commit_batch(
            name=name,
            prepared=parts,
            complete=complete,
            job=target.job,
            version=target.version,
            batch=batch,
            offsets=offsets,
            timeout_ms=options.commit_timeout_ms,
        )
    )


def commit_group(options: WriteOptions, name: str, parts: Sequence[bytes]) -> BatchCommitted:
    """Commit what writers without a job have prepared, once under a name."""
    return _link(options).call(
        lambda client: client.commit_batch(
            name=name, prepared=parts, keep_ms=options.keep_ms, timeout_ms=options.commit_timeout_ms
        )
    )


def _link(options: WriteOptions) -> Connection:
    return connected(options.target)


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
        sending = Sending(self._options.target, share_name(self._options, f"{query}/{batch}"))
        if self._options.outputs:
            write_segments(sending, iterator, dict(self._options.outputs))
        elif self._options.output is not None:
            write_rows(sending, iterator, self._options.output)
        made = sending.finish()
        return StreamPrepared(made.parts, made.rows, str(query))

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Commit the batch; a repeat changes nothing."""
        parts = [part for message in messages if message is not None for part in message.parts]
        if self._options.target.job:
            commit_job_batch(self._options, batchId, parts)
            return
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
        assert self._options.output is not None
        sending = Sending(self._options.target, share_name(self._options, self._name))
        write_rows(sending, iterator, self._options.output)
        return sending.finish()

    def commit(self, messages: list[Any]) -> None:
        """Make all rows visible."""
        parts = [part for message in messages if message is not None for part in message.parts]
        if parts:
            commit_group(self._options, self._name, parts)

    def abort(self, messages: list[Any]) -> None:
        """Do nothing: prepared rows expire at their deadline."""


def share_name(options: WriteOptions, name: str) -> str:
    """Return the prefix of the names of a writer's pieces."""
    target = options.target
    if target.job:
        return f"job/{target.job}/{target.version}/{name.rpartition('/')[2]}"
    return f"{name[:150]}/share"
