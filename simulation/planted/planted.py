"""The type of a planted bug: a seam of the tree, and the fault that is put there."""

from __future__ import annotations

from attrs import frozen

from simulation.planted.seams import Fault


@frozen
class Planted:
    """One deliberate fault."""

    name: str
    seam: str
    """The function, method or constant that the fault replaces; see `simulation.planted.seams`."""
    fault: Fault
    breaks: str
    """What can go wrong because of the fault."""
    workload: str
    """The workload that is expected to find it."""
    runs: int = 100
    """Seeds, from 1 on, within which the fault must be found."""
    more: tuple[tuple[str, Fault], ...] = ()
    """Further seams and faults, if one alone has no effect."""
    quick: int = 0
    """Seeds, from 1 on, within which every full run of the tests finds the fault; 0: the tests skip it."""

    @property
    def faults(self) -> tuple[tuple[str, Fault], ...]:
        """All seams of the bug, with their faults."""
        return ((self.seam, self.fault), *self.more)
