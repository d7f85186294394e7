"""What a planted bug is: a seam of the tree, and the fault that goes there."""

from __future__ import annotations

from attrs import frozen

from simulation.planted.seams import Fault


@frozen
class Planted:
    """One deliberate fault."""

    name: str
    seam: str
    """The function, method or constant that it replaces; see `simulation.planted.seams`."""
    fault: Fault
    breaks: str
    """What can go wrong because of it."""
    workload: str
    """The workload that is expected to find it."""
    runs: int = 100
    """Seeds within which it must be found, from 1 on."""
    more: tuple[tuple[str, Fault], ...] = ()
    """More seams and faults, if one is not enough because others make up for it."""
    quick: int = 0
    """Seeds, from 1 on, within which every full run of the tests finds it; 0: they do not try."""

    @property
    def faults(self) -> tuple[tuple[str, Fault], ...]:
        """All of its seams, with their faults."""
        return ((self.seam, self.fault), *self.more)
