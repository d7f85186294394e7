"""The cluster of the search of moves: more nodes than copies, operators, and nodes that stay away.

Each method is one thing that can happen next, as in `simulation.search.facts_cluster`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from log_entries import drain_node, force_partition, replace_node
from onyxq.core.errors import Unavailable
from onyxq.core.placement import eligible_nodes, holders
from onyxq.core.replica import majority
from onyxq.leader.leader import PartitionLeader
from simulation.search.facts_cluster import Facts
from simulation.search.facts_node import FactsNode, Machine, SearchClock, SearchDisk, differing
from simulation.search.moves.node import MovesNode

COPIES = 3
READS = ("cohort.hours", "cohort.leaves", "cohort.keys", "cohort.rows")
"""Calls that mostly need no message of their own, so that most steps of a run do not go into comparisons."""
READ_AT_ONCE = 0.9
"""How likely such a call is answered in the same step."""
HAND_OVER = 0.4
"""How likely a node checks for copies that moved away when time passes."""


class MovingFacts(Facts):
    """See the module's first paragraph; ``reached`` counts a probe."""

    def __init__(
        self, clock: SearchClock, draw: Random, *, nodes: int, partitions: int, reached: Callable[[str], None]
    ) -> None:
        self.reached = reached
        super().__init__(clock, draw, nodes=nodes, partitions=partitions, copies=COPIES)

    # --- nodes

    def _node(self, name: str, disk: SearchDisk) -> FactsNode:
        machine = Machine(self.clock, self.start_ms)
        node = self.nodes[name] = MovesNode(name, disk, machine, random=self.draw.random, post=self.post)
        node.reached = self.reached
        return node

    def restart(self, node: FactsNode) -> None:
        """The process starts again from its disk, unless it stays away: then its node is in ``gone``."""
        if node.node_id not in self.gone:
            super().restart(node)

    def send_away(self, node: FactsNode) -> None:
        """The process dies, its sessions end, and it stays away."""
        self.crash(node, lands=self.draw.random() < 0.5)
        self.gone.add(node.node_id)
        for peer in [peer for peer, name in self.pulses.items() if name == node.node_id]:
            self.expire(peer)

    def react(self, node: FactsNode) -> None:
        """A member submits what it owes, and the ends of its partitions' moves."""
        super().react(node)
        for leader in list(node.leaders.values()):
            self.settle(node, leader)

    def settle(self, node: FactsNode, leader: PartitionLeader) -> None:
        """A leader submits the end of a move, if it may end now."""
        outbox, entry = node.sends, leader.settlement() if leader.ready else None
        if entry is None or outbox is None or node.peer_id not in node.replica.ring.members:
            return
        if not outbox.holds(entry):
            outbox.submit([entry])

    def wait(self, seconds: float) -> None:
        """Time passes, and some nodes check for copies that moved away."""
        super().wait(seconds)
        for node in self.living():
            assert isinstance(node, MovesNode)
            if self.draw.random() < HAND_OVER:
                node.procedures.start(node.hand_over())

    # --- operators

    def request(self, entry: Any) -> None:
        """An operator has a member submit an entry."""
        members = [node for node in self.living() if node.peer_id in node.replica.ring.members]
        able = [outbox for node in members if (outbox := node.sends) is not None]
        if able:
            able[int(self.draw.random() * len(able))].submit([entry])

    def drain(self, name: str) -> None:
        """An operator moves all copies away from a node, unless few nodes are left."""
        if len(eligible_nodes(self.course.replica)) > 2:
            self.request(drain_node.Args(name, permanent=True))

    def replace(self, name: str) -> None:
        """An operator has the copies of an absent node made elsewhere."""
        if not self.course.replica.nodes[name].peer:
            self.request(replace_node.Args(name))

    def force(self, number: int) -> None:
        """An operator gives up the members of a partition that are away, if they are a majority.

        The record lands at once. No process of an absent holder may run: it might still serve without the log, and
        would acknowledge tasks to nodes that were given up.
        """
        replica = self.course.replica
        placed = replica.partitions[number]
        absent = [name for name in holders(placed) if not replica.nodes[name].peer]
        if majority(placed.members, {*holders(placed)} - {*absent}) or any(self.nodes[name].alive for name in absent):
            return
        for node in self.living():
            outbox = node.sends
            if outbox is None or outbox.flying or outbox.due or node.peer_id not in replica.ring.members:
                continue
            self.gone.update(absent)
            outbox.submit([force_partition.Args(number, "operator")])
            outbox.send()
            outbox.land(heard=True)
            return

    # --- messages

    async def post(self, source: FactsNode, target: str, method: str, args: dict[str, Any], timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`, `TimedOut`."""
        if method not in READS or self.draw.random() >= READ_AT_ONCE:
            return await super().post(source, target, method, args, timeout_s)
        node = self.nodes[target]
        if not node.alive:
            raise Unavailable(f"node {target} does not run")
        return await self._serve(node, method, args)


def unsettled_copies(facts: Facts, led: dict[int, FactsNode]) -> list[str]:
    """Return in words which moves have not ended, and which copies differ or should not be there."""
    out = []
    for number, leader in sorted(led.items()):
        placed = facts.course.replica.partitions[number]
        if placed.members != placed.target:
            out.append(f"partition {number} has not settled")
        for node in facts.living():
            if node.node_id not in holders(placed):
                if number in node.store.partitions():
                    out.append(f"{node.node_id} never drops its copy of partition {number}")
            elif differing(node, leader, number) or differing(leader, node, number):
                out.append(f"copies of partition {number} differ")
    return out
