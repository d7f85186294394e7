"""Changes that operators ask for: peers that leave, copies that move, partitions that are forced.

A peer leaves *for good* in three steps. ``drain_node`` with ``permanent`` gives its node's copies new places. Its
partitions settle there one by one while the old copies still count. Once the node has offered the rows of its disk
to the leaders and has no copy left, the peer leaves as on SIGTERM.
"""

from __future__ import annotations

from typing import Any

import trio

from log_entries import drain_node, force_partition, leave_cluster
from onyxq.core.entry import APPLIED
from onyxq.core.errors import Conflict, NotFound, OnyxqError, TimedOut, Unavailable
from onyxq.core.placement import FORCED, LOST, eligible_nodes
from onyxq.core.replica import Replica
from onyxq.node.node import Node
from onyxq.operations import cluster_views
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.table.cluster import (
    FORCE_PARTITION,
    GET_PARTITION,
    GET_PARTITIONS,
    LEAVE,
    Forced,
    ForcePartition,
    GetPartition,
    GetPartitions,
    Leave,
    Leaving,
    PartitionNow,
    Partitions,
)
from onyxq.operations.table.operation import converted

LEAVE_TIMEOUT_S = 3.0
LOOK_EVERY_S = 0.5
PROGRESS_TIMEOUT_S = 1.0
"""Longest wait for the reports of leaders about partitions, in seconds."""
NOTHING_TOLD: dict[str, Any] = {"transfers": [], "purge_waits": None}


class Operating:
    """Serves the requests of one node's operators."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.leave_wanted = trio.Event()
        """Set when the node's peer is to leave."""
        self.retire_wanted = trio.Event()
        """Set when the peer is to leave as soon as other nodes hold all copies."""

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(
            served(LEAVE, self.leave),
            served(FORCE_PARTITION, self.force),
            served(GET_PARTITIONS, self.partitions),
            served(GET_PARTITION, self.partition),
        )

    # --- leaving

    async def leave(self, args: Leave) -> Leaving:
        """Make a peer leave; raises `NotFound`, `Conflict`, `Unavailable`.

        If it leaves for good, the answer has the number of partitions that move; the peer leaves after that.
        """
        wanted, permanent = args.peer, args.permanent
        replica = self._node.replica
        found = replica.peers.get(wanted)
        if found is None:
            raise NotFound(f"there is no peer {wanted}", field="peer")
        answer = self._terms(replica, found.node) if permanent else Leaving()
        if found.node == self._node.node_id:
            self._told(permanent=permanent)
            return answer
        try:
            told = {"peer": wanted, "permanent": permanent}
            await self._node.call(found.node, "peer.leave", told, timeout_s=LEAVE_TIMEOUT_S)
        except (Unavailable, TimedOut) as error:
            if permanent:
                raise Unavailable(
                    f"peer {wanted} did not receive the order to leave: {error.message}",
                    hint="A node that does not answer cannot hand over its copies. Repeat without --permanent: the "
                    "peer is removed from the ring, and its copies are made elsewhere from the others.",
                ) from None
            await self._node.verdicts([leave_cluster.Args(wanted, "told to leave; it did not answer")])
        return answer

    async def told_to_leave(self, args: dict[str, Any]) -> None:
        """Let this node's peer leave, as another node asks."""
        if args["peer"] == self._node.peer_id:
            self._told(permanent=bool(args.get("permanent", False)))

    def _told(self, *, permanent: bool) -> None:
        (self.retire_wanted if permanent else self.leave_wanted).set()

    def _terms(self, replica: Replica, node: str) -> Leaving:
        """Return what leaving for good means for the copies; raises `Conflict` if no other node could take them."""
        left = cluster_views.partitions_left(replica, node)
        others = [other for other in eligible_nodes(replica) if other != node]
        if left and not others:
            raise Conflict(
                "no other node is there to take this one's copies",
                hint="Start another peer first, or leave without --permanent: the data then stays on this disk.",
            )
        wanted = replica.settings.replicas
        warning = None
        if len(others) < wanted:
            warning = f"{len(others)} nodes stay for {wanted} copies: partitions are under-replicated then"
        return Leaving(partitions_left=left, warning=warning)

    async def move_away(self, peer: str) -> None:
        """Return once other nodes hold all copies of this node, whose peer is ``peer``; none is kept here."""
        node = self._node
        while True:
            replica = node.replica
            mine = replica.nodes.get(node.node_id)
            if mine is not None and mine.peer == peer:
                if not (mine.draining and mine.replaced):
                    await self._drain()
                elif not cluster_views.partitions_left(replica, node.node_id) and not node.store.partitions():
                    return
            with trio.move_on_after(LOOK_EVERY_S):
                await node.changed(replica)

    async def _drain(self) -> None:
        try:
            await self._node.propose(drain_node.Args(self._node.node_id, True))
        except Unavailable:
            await trio.sleep(LOOK_EVERY_S)  # no copy can move without the log; the next turn asks again

    # --- partitions

    async def force(self, args: ForcePartition) -> Forced:
        """Continue a partition with its live members; raises `NotFound`, `Conflict`, `LogUnavailable`.

        Rows that no live node has are lost, unless the other nodes come back with their disks.
        """
        number, by = args.partition, args.by
        replica = self._node.replica
        before = replica.partitions.get(number)
        if before is None:
            raise NotFound(f"there is no partition {number}", field="partition")
        position, (verdict,) = await self._node.verdicts([force_partition.Args(number, by)])
        if verdict != APPLIED:
            raise Conflict(
                f"partition {number} is not forced: {verdict}",
                hint="If a majority of its members is up, force nothing. If none is up, there is no copy to continue "
                "with: start at least one.",
            )
        after = self._node.replica.partitions[number]
        members = [node for node in after.members if LOST not in node]
        lost = [node for node in before.members if node not in after.members and FORCED not in node]
        return Forced(partition=number, position=position, members=members, given_up=lost)

    async def partitions(self, args: GetPartitions) -> Partitions:
        """Return where every partition is, and what the leaders report of them."""
        found = cluster_views.partitions(self._node.replica)
        told = await self._told_by_leaders()
        for one in found["partitions"]:
            one.update(told.get(one["partition"], NOTHING_TOLD))
        return converted(Partitions, found)

    async def partition(self, args: GetPartition) -> PartitionNow:
        """Return where one partition is, and what its leader reports of it."""
        number = args.partition
        replica = self._node.replica
        if number not in replica.partitions:
            raise NotFound(f"there is no partition {number}", field="partition")
        told = (await self._told_by_leaders()).get(number, NOTHING_TOLD)
        found = {"position": replica.position, **cluster_views.partition(replica, number), **told}
        return converted(PartitionNow, found)

    async def _told_by_leaders(self) -> dict[int, dict[str, Any]]:
        """Return the reports of live nodes about partitions that they lead; slow nodes are left out."""
        node = self._node
        found: dict[int, dict[str, Any]] = dict(node.told_here())

        async def ask(other: str) -> None:
            try:
                told = await node.call(other, "lead.told", {}, timeout_s=PROGRESS_TIMEOUT_S)
            except OnyxqError:
                return  # a silent node reports nothing
            found.update({int(number): {**NOTHING_TOLD, **one} for number, one in told.items()})

        async with trio.open_nursery() as nursery:
            for one in sorted(node.replica.nodes.values(), key=lambda one: one.id):
                if one.peer and one.id != node.node_id:
                    nursery.start_soon(ask, one.id)
        return found
