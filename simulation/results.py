"""Results of simulated runs, and their sums."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field, frozen

from simulation.checkers import Course
from simulation.probes import Probes


@frozen
class Result:
    """Outcome of one seed of a workload. ``checker`` is empty if nothing broke."""

    workload: str
    seed: int
    checker: str = ""
    what: str = ""
    """What broke, in words."""
    simulated_s: float = 0.0
    """Length of the run in simulated seconds; 0 for a search, which has no event loop."""
    cpu_s: float = 0.0
    records: int = 0
    applied: int = 0
    """Number of log entries that changed something."""
    digest: str = ""
    """Chained digest of the run's log; equal for runs that took the same course."""
    probes: Mapping[str, int] = field(factory=dict)
    """How often each rare branch was reached."""

    @staticmethod
    def of(workload: str, seed: int, course: Course, probes: Probes, *, simulated_s: float = 0.0) -> Result:
        """Return the result of a run that broke nothing."""
        return Result(
            workload,
            seed,
            simulated_s=simulated_s,
            records=len(course.records),
            applied=course.applied,
            digest=course.replica.digest.hex(),
            probes=dict(probes.counts),
        )

    @property
    def replay(self) -> str:
        """The command that repeats this run."""
        return f"onyxq simulate --workload {self.workload} --seed {self.seed}"


@define
class Totals:
    """Sums over runs."""

    runs: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    records: int = 0
    applied: int = 0
    probes: dict[str, int] = field(factory=dict)
    broken: list[Result] = field(factory=list)

    def add(self, result: Result) -> None:
        """Count one more run."""
        self.runs += 1
        self.simulated_s += result.simulated_s
        self.cpu_s += result.cpu_s
        self.records += result.records
        self.applied += result.applied
        for name, count in result.probes.items():
            self.probes[name] = self.probes.get(name, 0) + count
        if result.checker:
            self.broken.append(result)

    @property
    def speed(self) -> float:
        """Simulated seconds per second of one core."""
        return self.simulated_s / self.cpu_s if self.cpu_s else 0.0

    @property
    def applied_per_s(self) -> float:
        """Applied entries per second of one core."""
        return self.applied / self.cpu_s if self.cpu_s else 0.0
