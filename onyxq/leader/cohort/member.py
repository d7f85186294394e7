"""Serves requests to a node as a member of partitions' cohorts: promises, writes, digests.

A node never accepts a write below the epoch that it has reached. Its promise is durable before it
is given. A write above that epoch is refused as `Behind`. Then the leader first brings the node up
to date (`onyxq.leader.leader`) and repeats the write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import trio

from onyxq.core.errors import BadRequest, Behind, OnyxqError, StaleEpoch, Unavailable
from onyxq.core.facts import KINDS, Row, check_key, partition_of_key, sealed
from onyxq.core.ids import PARTITIONS_MAX
from onyxq.leader.cohort.pending_facts import page, split_wire_rows
from onyxq.leader.cohort.unflushed_writes import UnflushedWrites
from onyxq.store.interface import LEAVES, Batch, PendingRow, Piece
from onyxq.store.row_checks import Prepared, prepare
from onyxq.store.store import Store

ROWS_PAGE_BYTES = 1024 * 1024
EPOCHS = 1 << 62
HOURS = 1 << 32
ADMISSION_S = 1.0
"""Longest wait of a promise until the log knows this node's store, in seconds."""


class Host(Protocol):
    """What the cohort needs of its node."""

    store: Store
    epochs: dict[int, int]
    unflushed_writes: UnflushedWrites
    admitted: trio.Event
    """Set once the log knows this node's store."""

    @property
    def is_known(self) -> bool:
        """Whether other nodes may rely on the copies in this node's store."""
        ...

    def pieces_added(self, pieces: Sequence[Piece]) -> None:
        """Take note of new pieces in the store."""
        ...


def checked_rows(rows: Any, partition: int) -> list[Row]:
    """Return verified rows from the wire; raises `BadRequest`."""
    return [Row(one.key, one.value) for one in prepared_rows(rows, partition)]


def prepared_rows(rows: Any, partition: int) -> list[Prepared]:
    """Return verified rows in the form that a store accepts without another check; raises `BadRequest`."""
    if not isinstance(rows, list):
        raise BadRequest("rows must be a list", field="rows")
    out = []
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], bytes) and isinstance(row[1], bytes)):
            raise BadRequest("a row must be [key, value]", field="rows")
        out.append(prepare(Row(*row)))
        if partition_of_key(row[0]) != partition:
            raise BadRequest("a row is of another partition", field="rows")
    return out


def _number(value: Any, field: str, below: int) -> int:
    """Return a whole number from a peer if it is below a limit; raises `BadRequest`."""
    if type(value) is not int or not 0 <= value < below:
        raise BadRequest(f"{field} must be a whole number below {below}", field=field)
    return value


class Cohort:
    """Serves the ``cohort.*`` methods of one node."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def check_known(self) -> None:
        """Raise `Unavailable` while the log does not know this node's store.

        Until then other nodes may rely on copies and promises of a store that was lost.
        """
        if not self._host.is_known:
            raise Unavailable("this node has not joined with its present store yet")

    async def reach(self, partition: int, epoch: int) -> None:
        """Promise durably never to accept a write below ``epoch``; raises `StaleEpoch`."""
        host = self._host
        with trio.move_on_after(ADMISSION_S):
            await host.admitted.wait()
        self.check_known()
        _number(partition, "partition", PARTITIONS_MAX)
        reached = host.epochs.get(partition, 0)
        if _number(epoch, "epoch", EPOCHS) < reached:
            raise StaleEpoch(f"partition {partition} has reached epoch {reached}, not {epoch}")
        host.epochs[partition] = epoch
        await self._keep_promise(partition, epoch)

    async def _keep_promise(self, partition: int, epoch: int) -> None:
        """Store a promised epoch after all acknowledged rows, because the leader reads this store next."""
        await self._host.unflushed_writes.flushed()
        await self._host.store.write(Batch(epochs=((partition, epoch),)))

    def check(self, partition: int, epoch: int) -> None:
        """Raise `StaleEpoch` or `Behind` unless ``epoch`` is the one reached."""
        self.check_known()
        reached = self._host.epochs.get(_number(partition, "partition", PARTITIONS_MAX), 0)
        if _number(epoch, "epoch", EPOCHS) < reached:
            raise StaleEpoch(f"partition {partition} has reached epoch {reached}, not {epoch}")
        if epoch > reached:
            raise Behind(f"partition {partition} has only reached epoch {reached}, not {epoch}")

    async def write_received(self, args: dict[str, Any]) -> list[dict[str, Any] | None]:
        """Store ``[partition, epoch, rows]`` of another node's leaders together; return an error map or None for each.

        ``early``: the answer need not wait for the disk. Raises `StoreFailed`.
        """
        writes, early = args["writes"], args.get("early", False)
        results: list[dict[str, Any] | None] = []
        rows: list[Prepared] = []
        pending: list[PendingRow] = []
        for write in writes:
            try:
                partition, epoch, given = write
                self.check(partition, epoch)
                given, kept = split_wire_rows(given, partition)
                rows += prepared_rows(given, partition)
                pending += kept
                results.append(None)
            except OnyxqError as error:
                results.append(error.to_map())
        if early and not pending and self._host.unflushed_writes.take(rows):
            return results
        if rows or pending:
            await self._store(rows, pending)
        return results

    async def _store(self, rows: Sequence[Row | Prepared], pending: Sequence[PendingRow]) -> None:
        written = await self._host.store.write(Batch(rows=rows, pending=pending))
        self._host.pieces_added(written.pieces)

    async def push(self, partition: int, epoch: int, rows: Any) -> None:
        """Store rows that the leader of an epoch found to be missing here."""
        self.check(partition, epoch)
        given, pending = split_wire_rows(rows, partition)
        await self._store(prepared_rows(given, partition), pending)

    def pending(self, partition: int, known: Sequence[str], want: str | None) -> dict[str, Any]:
        """Return pending rows of transactions that the asking node lacks; see `onyxq.leader.cohort.pending_facts`."""
        self.check_known()
        return page(self._host.store, _number(partition, "partition", PARTITIONS_MAX), known=known, want=want)

    def hours(self, partition: int) -> dict[int, list[int]]:
        """Return the digest of each hour, as ``[rows, total]``."""
        self.check_known()
        _number(partition, "partition", PARTITIONS_MAX)
        return {hour: list(digest) for hour, digest in self._host.store.hours(partition).items()}

    def leaves(self, partition: int, hour: int) -> dict[int, list[int]]:
        """Return the digest of each leaf of an hour."""
        self.check_known()
        _number(partition, "partition", PARTITIONS_MAX)
        _number(hour, "hour", HOURS)
        return {leaf: list(digest) for leaf, digest in self._host.store.leaves(partition, hour).items()}

    def keys(self, partition: int, hour: int, leaves: Sequence[int]) -> list[list[bytes]]:
        """Return the row keys of some leaves, each with the checksum of its value."""
        self.check_known()
        _number(partition, "partition", PARTITIONS_MAX)
        _number(hour, "hour", HOURS)
        for leaf in leaves:
            _number(leaf, "leaves", LEAVES)
        return [list(listed) for leaf in leaves for listed in self._host.store.keys(partition, hour, leaf)]

    def rows(self, keys: Sequence[bytes]) -> list[list[bytes]]:
        """Return undamaged rows by key, as many as fit a page; at least one of those that exist."""
        self.check_known()
        out: list[list[bytes]] = []
        size = 0
        for key in keys:
            check_key(key)
            value = self._host.store.get(key)
            if value is None:
                continue
            if not sealed(key, value):
                self._host.store.damaged.add(key)
                continue
            if out and size + len(value) > ROWS_PAGE_BYTES:
                break
            out.append([key, value])
            size += len(value)
        return out

    def covering(self, task_id: bytes) -> list[list[bytes]]:
        """Return ``[kind, first id, body]`` of every row that covers a task."""
        store = self._host.store
        return [[kind, first, body] for kind in KINDS for first, body in store.covering(kind, task_id)]
