"""What a backup of the whole cluster asks of its nodes: that transactions wait, and every row there is.

Rows of a partition are given page by page by its leader, whose store is complete, and only once it
has read the log, and written down what it says, up to the position that the backup asks for.
"""

from __future__ import annotations

from typing import Any

import trio

from log_entries import hold_transactions
from log_entries.hold_transactions import HOLD_MS_MAX, OTHER, TEXT_CHARACTERS_MAX
from onyxq.core.entry import APPLIED
from onyxq.core.errors import BadRequest, Conflict, NotLeader, Unavailable
from onyxq.core.ids import PARTITIONS_MAX
from onyxq.node import arguments as check
from onyxq.node.node import Node
from onyxq.node.routing import CALL_TIMEOUT_S, insist, leader_of
from onyxq.operations.partition_rows import NAME_BYTES, Reading

PLACE_BYTES_MAX = 128
READ_UP_TIMEOUT_S = 4.0
IDLE_S = 60.0
"""A reading that nobody goes on with is forgotten after so long."""


class BackingUp:
    """Serves backups at one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._readings: dict[int, tuple[int, Reading]] = {}
        """Of partitions led from here: the epoch that it began in, and how far it is."""

    async def hold(self, args: dict[str, Any]) -> dict[str, int]:
        """Have transactions wait, go on waiting, or (``for_ms`` 0) wait no longer; raises `Conflict`, `Unavailable`."""
        check.only(args, ("name", "why", "for_ms"))
        name = check.text(args.get("name"), "name", TEXT_CHARACTERS_MAX, least=1)
        why = check.text(args.get("why", ""), "why", TEXT_CHARACTERS_MAX)
        for_ms = check.integer(args.get("for_ms"), "for_ms", 0, HOLD_MS_MAX)
        position, (verdict,) = await self._node.verdicts([hold_transactions.Args(name, why, for_ms)])
        if verdict == APPLIED:
            return {"position": position}
        if verdict.startswith(OTHER):
            raise Conflict(f"transactions are {verdict}", field="name", hint="Wait until that is over.")
        raise Conflict(f"transactions are not held: {verdict}", field="name")

    async def rows(self, args: dict[str, Any]) -> dict[str, Any]:
        """A page of a partition's rows behind a place: ``rows``, the next place as ``after`` (null at the end), and
        ``position``, which the log had reached where they were read. Raises `NotLeader`, `Unavailable`."""
        partition, *_ = self._place(args)
        return await insist(self._node, lambda: self._ask(leader_of(self._node, partition), args))

    async def _ask(self, leader: str, args: dict[str, Any]) -> dict[str, Any]:
        if not leader:
            raise NotLeader(f"nobody leads partition {args['partition']} now")
        if leader == self._node.node_id:
            return await self.lead_rows(args)
        return dict(await self._node.call(leader, "lead.rows", args, timeout_s=CALL_TIMEOUT_S))

    async def lead_rows(self, args: dict[str, Any]) -> dict[str, Any]:
        """The same of a partition that is led from here; raises `NotLeader`."""
        partition, position, after = self._place(args)
        node = self._node
        with trio.move_on_after(READ_UP_TIMEOUT_S) as waited:
            while node.replica.position < position:
                await node.moved()
            await node.recorded()
            await node.unflushed_writes.flushed()
        if waited.cancelled_caught:
            raise Unavailable("this node is behind with the log")
        epoch = node.operations.leader(partition).epoch
        if node.epochs.get(partition, 0) > epoch:
            # What a later leader writes here is of positions that this node has not read yet.
            raise NotLeader(f"partition {partition} is led by another node by now")
        reading = self._reading(partition, epoch, after)
        rows, following = reading.page(after)
        answer = {"rows": rows, "after": following, "position": node.replica.position}
        if following is None:
            self._forget(partition)
        await node.pacer.took(sum(len(value) for _, value in rows))
        return answer

    def _reading(self, partition: int, epoch: int, after: bytes) -> Reading:
        """The reading that a place is of, a new one for none; raises `Conflict` if that has to begin anew."""
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

    def _place(self, args: dict[str, Any]) -> tuple[int, int, bytes]:
        check.only(args, ("partition", "position", "after"))
        if self._node.replica.cluster is None:
            raise Unavailable("the cluster is not known here yet")
        most = min(PARTITIONS_MAX, self._node.replica.settings.partitions) - 1
        partition = check.integer(args.get("partition"), "partition", 0, most)
        position = check.integer(args.get("position"), "position", 0, 1 << 62)
        after = args.get("after", b"")
        if not isinstance(after, bytes) or len(after) > PLACE_BYTES_MAX:
            raise BadRequest("after must be the place that a page ended at", field="after")
        return partition, position, after
