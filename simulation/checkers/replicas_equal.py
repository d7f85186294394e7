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
_PARTS = tuple(part.name for part in fields(Replica) if part.eq)
_NOTHING = object()


@define(eq=False)
class ReplicasEqual(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "replicas equal"
    replicas: dict[int, Replica] = field(factory=dict)
    compared: int = 0
    last: dict[str, tuple[Replica, Replica]] = field(factory=dict)
    """The pair last compared of each node: the independent replica and the node's."""

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
        last = self.last.get(node, (None, None))
        if mine is None or mine is replica or last[1] is replica:
            return
        self.last[node] = (mine, replica)
        self.compared += 1
        if names := [name for name in _PARTS if _differ(name, (mine, replica), last)]:
            raise self.broken(f"{node} differs at position {replica.position} in {names}")


def _differ(name: str, pair: tuple[Replica, Replica], last: tuple[Replica | None, Replica | None]) -> bool:
    """Return whether a part differs. It does not if it is the same object in both as when they were last equal."""
    mine, other = getattr(pair[0], name), getattr(pair[1], name)
    if mine is getattr(last[0], name, _NOTHING) and other is getattr(last[1], name, _NOTHING):
        return False
    return bool(mine != other)
