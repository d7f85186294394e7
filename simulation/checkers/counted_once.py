"""Every record of a peer counts once and in order, however often and late it was appended.

The checker counts the records of each peer without the replica.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from onyxq.core.replica import Replica
from onyxq.core.step import GAP, REPEAT, Step
from simulation.checkers import LogChecker


@define(eq=False)
class CountedOnce(LogChecker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "records count once"
    last: dict[str, int] = field(factory=dict)
    """Number of each peer's last record that counted. None is ever forgotten."""

    def step(self, before: Replica, step: Step) -> None:
        """Compare a record with the last one of its peer that counted."""
        last = self.last.get(step.peer, 0)
        told = f"record {step.number} of {step.peer} at position {step.replica.position}"
        if not step.problem:
            if step.number != last + 1:
                raise self.broken(f"{told} counted after number {last}")
            self.last[step.peer] = step.number
        elif step.problem == REPEAT and step.number > last:
            raise self.broken(f"{told} is not a repeat, number {last} was the last")
        elif step.problem == GAP and step.number <= last + 1 and step.peer in before.peers:
            # A collection forgets the number of a peer that has left.
            raise self.broken(f"{told} leaves no gap after number {last}")
