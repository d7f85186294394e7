"""Nodes at the same position of the log have equal replicas."""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field, fields

from onyxq.replica import Replica
from onyxq.step import Step
from simulation.checkers import Checker

KEPT = 4_000
"""Positions for which the replica is remembered."""


@define(eq=False)
class ReplicasEqual(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "replicas equal"
    replicas: dict[int, Replica] = field(factory=dict)
    compared: int = 0

    def step(self, before: Replica, step: Step) -> None:
        """Remember the replica of a position."""
        position = step.replica.position
        self.replicas[position] = step.replica
        self.replicas.pop(position - KEPT, None)

    def compare(self, node: str, replica: Replica) -> None:
        """Compare a node's replica with the independent one."""
        mine = self.replicas.get(replica.position)
        if mine is None or mine is replica:
            return
        self.compared += 1
        if mine != replica:
            names = [part.name for part in fields(Replica) if getattr(mine, part.name) != getattr(replica, part.name)]
            raise self.broken(f"{node} differs at position {replica.position} in {names}")
