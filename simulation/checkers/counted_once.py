"""Every record of a peer counts once and in order, however often and late it was appended.

The checker counts the records of each peer by itself, without asking the replica.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import Checker


@define(eq=False)
class CountedOnce(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "records count once"
    last: dict[str, int] = field(factory=dict)
    """Number of each peer's last record that counted."""

    def step(self, before: Replica, step: Step) -> None:
        """Compare a record that counted with the last one of its peer."""
        if step.problem:
            return
        last = self.last.get(step.peer, 0)
        if step.number != last + 1:
            raise self.broken(
                f"record {step.number} of {step.peer} counted at position {step.replica.position} after number {last}"
            )
        self.last[step.peer] = step.number
