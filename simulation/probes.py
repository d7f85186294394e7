"""Probes: counters of rare branches, so that a run can prove that it came by (design: simulation).

A name is looked up in a table; counting one that is not there is a mistake in the
simulation.  A long run fails while a probe is at zero: what is never reached is not tested.
"""

from __future__ import annotations

from collections.abc import Iterable


class Probes:
    """How often each name of a table was reached."""

    def __init__(self, names: Iterable[str]) -> None:
        self.counts = dict.fromkeys(names, 0)

    def reached(self, name: str) -> None:
        """Count one; raises `KeyError` for a name that is not in the table."""
        self.counts[name] += 1

    def add(self, other: Probes) -> None:
        """Add another run's counts, which are of the same table."""
        for name, count in other.counts.items():
            self.counts[name] += count

    def unreached(self) -> list[str]:
        """Names that stand at zero, in the table's order."""
        return [name for name, count in self.counts.items() if not count]

    def table(self) -> str:
        """All counts, one line each."""
        return "\n".join(f"{count:9,}  {name}" for name, count in self.counts.items())
