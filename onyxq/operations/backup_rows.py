"""What a backup of the whole cluster asks of its nodes: that transactions wait, and all rows.

The leader of a partition, whose store is complete, returns its rows page by page. It does so only after it has
read the log up to the position that the backup names, and has stored what it read.
"""

from __future__ import annotations

from typing import Any

import trio

from log_entries import hold_transactions
from log_entries.hold_transactions import OTHER
from onyxq.core.entry import APPLIED
from onyxq.core.errors import BadRequest, Conflict, NotLeader, Unavailable
from onyxq.node.node import Node
from onyxq.node.routing import CALL_TIMEOUT_S, insist, leader_of
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.partition_rows import NAME_BYTES, Reading
from onyxq.operations.table.log import (
    GET_BACKUP_ROWS,
    HOLD_TRANSACTIONS,
    BackupRows,
    GetBackupRows,
    Held,
    HoldTransactions,
)
from onyxq.operations.table.operation import converted, plain
from onyxq.operations.task_reads import partitions_of

READ_UP_TIMEOUT_S = 4.0
IDLE_S = 60.0
"""Time after which a reading without requests is forgotten."""


class BackingUp:
    """Serves backups at one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._readings: dict[int, tuple[int, Reading]] = {}
        """Partition that is led from here -> the epoch in which its reading began, and the reading."""

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(served(HOLD_TRANSACTIONS, self.hold), served(GET_BACKUP_ROWS, self.rows))

    async def hold(self, args: HoldTransactions) -> Held:
        """Make transactions wait, or with ``for_ms`` 0 end the wait; raises `Conflict`, `Unavailable`."""
        position, (verdict,) = await self._node.verdicts([hold_transactions.Args(args.name, args.why, args.for_ms)])
        if verdict == APPLIED:
            return Held(position=position)
        if verdict.startswith(OTHER):
            raise Conflict(f"transactions are {verdict}", field="name", hint="Wait until that is over.")
        raise Conflict(f"transactions are not held: {verdict}", field="name")

    async def rows(self, args: GetBackupRows) -> BackupRows:
        """Return a page of a partition's rows; raises `NotLeader`, `Unavailable`, `BadRequest`."""
        partitions = partitions_of(self._node)
        if args.partition >= partitions:
            raise BadRequest(f"partition must be 0 to {partitions - 1}, not {args.partition}", field="partition")
        return await insist(self._node, lambda: self._ask(leader_of(self._node, args.partition), args))

    async def _ask(self, leader: str, args: GetBackupRows) -> BackupRows:
        if not leader:
            raise NotLeader(f"no node leads partition {args.partition} now")
        if leader == self._node.node_id:
            return await self._read(args)
        answer = await self._node.call(leader, "lead.rows", plain(args), timeout_s=CALL_TIMEOUT_S)
        return converted(BackupRows, answer)

    async def lead_rows(self, args: dict[str, Any]) -> Any:
        """Return a page of a partition that is led from here; raises `NotLeader`."""
        return plain(await self._read(GET_BACKUP_ROWS.decode(args)))

    async def _read(self, args: GetBackupRows) -> BackupRows:
        node, partition, after = self._node, args.partition, args.after
        with trio.move_on_after(READ_UP_TIMEOUT_S) as waited:
            while node.replica.position < args.position:
                await node.moved()
            await node.recorded()
            await node.unflushed_writes.flushed()
        if waited.cancelled_caught:
            raise Unavailable("this node has not read the log far enough yet")
        epoch = node.operations.tokens.leader(partition).epoch
        if node.epochs.get(partition, 0) > epoch:
            # Rows of a later leader belong to positions that this node has not read yet.
            raise NotLeader(f"another node leads partition {partition} now")
        reading = self._reading(partition, epoch, after)
        rows, following = reading.page(after)
        answer = BackupRows(rows=rows, after=following, position=node.replica.position)
        if following is None:
            self._forget(partition)
        await node.pacer.took(sum(len(value) for _, value in rows))
        return answer

    def _reading(self, partition: int, epoch: int, after: bytes) -> Reading:
        """Return the reading to which a place belongs; raises `Conflict` if it must begin again."""
        now = trio.current_time()
        for other, (_, one) in list(self._readings.items()):
            if one.used_at < now - IDLE_S:
                self._forget(other)
        if not after:
            self._forget(partition)
            self._readings[partition] = epoch, Reading(self._node.store, partition, name=self._name())
        began, found = self._readings.get(partition, (-1, None))
        if found is None or began != epoch or not found.knows(after):
            raise Conflict(f"partition {partition} must be read from the beginning", field="after")
        found.used_at = now
        return found

    def _name(self) -> bytes:
        return int(self._node.random() * (1 << 62)).to_bytes(NAME_BYTES, "big")

    def _forget(self, partition: int) -> None:
        _, found = self._readings.pop(partition, (0, None))
        if found is not None:
            found.end()
