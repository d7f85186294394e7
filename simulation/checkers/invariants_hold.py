"""The replica's invariants hold after every step, and a snapshot of it gives the same replica."""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from onyxq.core import snapshot
from onyxq.core.invariants.replica import STRUCTURE, other_violations, structure_violations
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import LogChecker


@define(eq=False)
class InvariantsHold(LogChecker):
    """The invariants, at each ``every``-th record and whenever the structure or the jobs change.

    Those of the structure are checked only when it changes: they follow from it alone.
    """

    name: ClassVar[str] = "invariants hold"
    every: int = 1
    records: int = 0
    _checked: Replica | None = None
    """The replica whose structure was checked last."""

    def step(self, before: Replica, step: Step) -> None:
        """Check the replica after one record."""
        self.records += 1
        after, found = step.replica, list[str]()
        changed = any(getattr(after, part) is not getattr(self._checked, part, None) for part in STRUCTURE)
        if changed:
            found = structure_violations(after)
            self._checked = after
        if changed or after.jobs is not before.jobs or self.records % self.every == 0:
            found += other_violations(after)
        if found:
            names = [outcome.name for outcome in step.outcomes]
            raise self.broken(f"at position {after.position}, after {names} of {step.peer}: {'; '.join(found)}")


@define(eq=False)
class SnapshotsEqual(LogChecker):
    """A snapshot, at each ``every``-th record, unpacks to an equal replica, and packs to the same bytes.

    Earlier, at records 1, 2, 4, 8 and so on: many scenes and searches write fewer records.
    """

    name: ClassVar[str] = "snapshots are equal"
    every: int = 128
    records: int = 0

    def step(self, before: Replica, step: Step) -> None:
        """Pack and unpack the replica after one record."""
        self.records += 1
        early = self.records < self.every and not self.records & self.records - 1
        if self.records % self.every and not early:
            return
        replica = step.replica
        data = snapshot.pack(replica)
        back = snapshot.unpack(data)
        if back != replica:
            raise self.broken(f"unpacking at position {replica.position} gives another replica")
        if snapshot.pack(back) != data:
            raise self.broken(f"packing twice at position {replica.position} gives other bytes")
