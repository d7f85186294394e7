"""The replica's invariants hold after every step, and only records that count change it."""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from onyxq.core.invariants.replica import violations
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import Checker


@define(eq=False)
class InvariantsHold(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "invariants hold"

    def step(self, before: Replica, step: Step) -> None:
        """Check the replica behind one record."""
        if found := violations(step.replica):
            names = [outcome.name for outcome in step.outcomes]
            raise self.broken(f"at position {step.replica.position}, after {names} of {step.peer}: {found}")
