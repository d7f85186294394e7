"""The replica's invariants hold after every step, and a snapshot of it gives the same replica."""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from onyxq.core import snapshot
from onyxq.core.invariants.replica import violations
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import LogChecker


@define(eq=False)
class InvariantsHold(LogChecker):
    """The invariants, at each ``every``-th record and whenever ring, peers, nodes, partitions or jobs change."""

    name: ClassVar[str] = "invariants hold"
    every: int = 1
    records: int = 0

    def step(self, before: Replica, step: Step) -> None:
        """Check the replica after one record."""
        self.records += 1
        after = step.replica
        same = (
            after.ring is before.ring
            and after.peers is before.peers
            and after.nodes is before.nodes
            and after.partitions is before.partitions
            and after.jobs is before.jobs
        )
        if same and self.records % self.every:
            return
        if found := violations(after):
            names = [outcome.name for outcome in step.outcomes]
            raise self.broken(f"at position {after.position}, after {names} of {step.peer}: {'; '.join(found)}")


@define(eq=False)
class SnapshotsEqual(LogChecker):
    """A snapshot, at each ``every``-th record, unpacks to an equal replica, and packs to the same bytes."""

    name: ClassVar[str] = "snapshots are equal"
    every: int = 128
    records: int = 0

    def step(self, before: Replica, step: Step) -> None:
        """Pack and unpack the replica after one record."""
        self.records += 1
        if self.records % self.every:
            return
        replica = step.replica
        data = snapshot.pack(replica)
        back = snapshot.unpack(data)
        if back != replica:
            raise self.broken(f"unpacking at position {replica.position} gives another replica")
        if snapshot.pack(back) != data:
            raise self.broken(f"packing twice at position {replica.position} gives other bytes")
