"""Nodes at the same position of the log have equal replicas."""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field, fields

from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import Checker

COMPARED_EVERY = 4
"""Positions between comparisons: a difference stays, and comparing costs more than stepping."""
KEPT = 4_000
"""Positions for which the replica is remembered."""


@define(eq=False)
class ReplicasEqual(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "replicas equal"
    replicas: dict[int, Replica] = field(factory=dict)
    compared: int = 0
    last: dict[str, Replica] = field(factory=dict)
    """Each node's replica as last compared."""

    def step(self, before: Replica, step: Step) -> None:
        """Remember the replica of a position."""
        position = step.replica.position
        self.replicas[position] = step.replica
        self.replicas.pop(position - KEPT, None)

    def compare(self, node: str, replica: Replica, *, always: bool = False) -> None:
        """Compare a node's replica with the independent one, or leave it to one of the next (`COMPARED_EVERY`)."""
        if replica.position % COMPARED_EVERY and not always:
            return
        mine = self.replicas.get(replica.position)
        if mine is None or mine is replica or self.last.get(node) is replica:
            return
        self.last[node] = replica
        self.compared += 1
        if mine != replica:
            names = [part.name for part in fields(Replica) if getattr(mine, part.name) != getattr(replica, part.name)]
            raise self.broken(f"{node} differs at position {replica.position} in {names}")
