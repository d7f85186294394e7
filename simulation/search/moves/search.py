"""A seeded search through moves of partitions: the workload ``facts_moves`` (design: simulation).

It is the search of facts with more nodes than copies. Besides all that happens there, operators drain and replace
nodes, nodes stay away and come back with old rows, copies are made and dropped, and partitions settle. In some runs a
partition loses its majority, and an operator forces it. ``onyxq simulate --workload facts_moves --seed 7`` plays one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import ClassVar

from attrs import evolve

from onyxq.core.placement import LOST
from onyxq.leader.leader import PartitionLeader
from simulation.probes import MOVES
from simulation.search.facts import FactsPlan, FactsSearch, facts_plan_of
from simulation.search.facts_calm import calm
from simulation.search.facts_node import FactsNode, SearchClock
from simulation.search.facts_states import PAIRS
from simulation.search.moves.cluster import MovingFacts, unsettled_copies
from simulation.search.moves.model import MovesModel

MOVE_ODDS = {"away": 4, "back": 8, "drain": 10, "undrain": 6, "replace": 6}
FORCE_ODDS = {"disaster": 3, "force": 24}
FORCED = 0.25
"""How likely partitions are forced in a run."""
PLAIN = ("enqueue", "later", "again", "claim", "complete", "late", "fail", "release", "renew")
"""Moves of clients in runs with forced partitions, where nothing follows from the order of acknowledged requests."""
AWAY_MAX = 2
"""Nodes that are away at a time, unless a partition loses its majority."""
LOOK_EVERY = 100
"""Steps between checks of the copies of partitions that move."""
FOLLOW = 0.2
"""How likely a leader thinks of comparing a copy while its partition moves."""


def moves_plan_of(seed: int) -> FactsPlan:
    """Return the plan of a seed."""
    plan, draw = facts_plan_of(seed), Random(f"moves plan {seed}")
    bend = (0.3, 1.0, 1.0, 2.0)
    faults = {**plan.faults, **{move: odd * draw.choice(bend) for move, odd in MOVE_ODDS.items()}}
    clients = plan.clients
    if draw.random() < FORCED:
        faults |= FORCE_ODDS
        clients = {move: odd for move, odd in clients.items() if move in PLAIN}
    return evolve(
        plan, nodes=draw.choice((4, 5, 5)), clients=clients, faults=faults, fail=draw.choice((0.006, 0.012, 0.02))
    )


class MovesSearch(FactsSearch):
    """The search from one seed."""

    steps: ClassVar[int] = 5_000
    deliver: ClassVar[float] = 0.25
    probed: ClassVar[tuple[str, ...]] = (*PAIRS, *MOVES)
    facts: MovingFacts
    model: MovesModel

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.plan = moves_plan_of(seed)
        self.draw = Random(f"moves {seed}")
        self._random = self.draw.random

    def _found(self, clock: SearchClock) -> None:
        plan = self.plan
        self.facts = facts = MovingFacts(
            clock, self.draw, nodes=plan.nodes, partitions=plan.partitions, reached=self.probes.reached
        )
        self.model = MovesModel(
            disks=lambda: {name: node.disk.tables for name, node in facts.nodes.items()},
            reached=self.probes.reached,
            replica=facts.found,
        )

    def _calm(self) -> int:
        self.facts.gone.clear()
        steps = calm(self.facts, self.clients, self.model, differences=unsettled_copies)
        self.model.look()
        return steps

    def _step(self) -> None:
        super()._step()
        if self.made.steps % LOOK_EVERY == 0:
            self.model.look(moving=True)

    # --- what nodes do

    def _due(self, node: FactsNode) -> Iterator[tuple[str, Callable[[], object]]]:
        yield from super()._due(node)
        for leader in node.leaders.values():
            placed = leader.placed
            if placed.members == placed.target:
                continue
            if leader.ready and leader.settlement() is not None:
                yield "send", partial(self.facts.settle, node, leader)
            if self._random() < FOLLOW:
                yield "follow", partial(self._follow, node, leader)

    def _follow(self, node: FactsNode, leader: PartitionLeader) -> None:
        """Compare with a holder, also with one whose process is dead: the leader must notice that."""
        other = self._one(node.behind(leader))
        if other is not None:
            node.procedures.start(node.follow(leader, self.facts.nodes[other]))

    # --- faults, and what operators do

    def _away(self) -> None:
        node = self._one(self.facts.living())
        if node is not None and len(self.facts.gone) < AWAY_MAX:
            self.facts.send_away(node)

    def _back(self) -> None:
        name = self._one(sorted(self.facts.gone))
        if name is not None:
            self.facts.gone.discard(name)

    def _drain(self) -> None:
        name = self._one(sorted(self.facts.nodes))
        if name is not None:
            self.facts.drain(name)

    def _undrain(self) -> None:
        """A node that was drained begins a new session, which ends its draining."""
        nodes = self.facts.course.replica.nodes
        peer = self._one([nodes[name].peer for name in sorted(nodes) if nodes[name].draining])
        if peer in self.facts.pulses:
            self.facts.expire(peer)

    def _replace(self) -> None:
        nodes = self.facts.course.replica.nodes
        name = self._one([name for name in sorted(nodes) if not nodes[name].peer])
        if name is not None:
            self.facts.replace(name)

    def _disaster(self) -> None:
        """A majority of a partition's members stays away."""
        members = self.facts.course.replica.partitions[self._below(self.plan.partitions)].members
        alive = [name for name in members if LOST not in name and self.facts.nodes[name].alive]
        self.draw.shuffle(alive)
        for name in alive[: len(members) // 2 + 1]:
            self.facts.send_away(self.facts.nodes[name])

    def _force(self) -> None:
        self.facts.force(self._below(self.plan.partitions))
