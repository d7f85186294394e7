"""The properties that every simulated run must keep, one module each.

A log checker judges each record of a log by the replica before it and the step that it caused. `Course` steps a log
and calls the checkers after each record: of a search, a simulated cluster, or a dump. A `Checker` also knows the
history of the clients, and judges it when the faults are over. Both raise `Broken`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from attrs import define, field

from log_entries import grant_claims, grant_limited_claims
from log_entries.registry import ENTRIES
from onyxq.core.entry import APPLIED, Entries
from onyxq.core.ids import TaskId, ids_of
from onyxq.core.log.interface import Record
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import Step, step
from simulation.world.history import History

GRANTS = (grant_claims.Args, grant_limited_claims.Args)
"""The entries that grant claims."""


class Broken(AssertionError):
    """A property does not hold; the text begins with the name of the check and a colon."""

    @property
    def check(self) -> str:
        """The name of the check."""
        return str(self).partition(":")[0]


@define(eq=False)
class LogChecker:
    """One property of a log."""

    name: ClassVar[str] = ""

    def step(self, before: Replica, step: Step) -> None:
        """Judge a record."""

    def broken(self, what: str) -> Broken:
        """Return the error to raise."""
        return Broken(f"{self.name}: {what}")


@define(eq=False)
class Model(LogChecker):
    """A simple model of what entries do, without their code; the replica must do the same."""

    def step(self, before: Replica, step: Step) -> None:
        """Compare a record with the model."""
        if wrong := self.follow(before, step):
            raise self.broken(f"position {step.replica.position}: {wrong}")

    @abstractmethod
    def follow(self, before: Replica, done: Step) -> str:
        """Follow one record; return what is wrong, or an empty string."""


@define(eq=False)
class Checker(LogChecker):
    """One property of a run; ``history`` is shared with the clients."""

    history: History

    def finish(self) -> None:
        """Judge the whole run, after the faults and after every task was read."""


@define(eq=False)
class Course:
    """A log that is stepped record by record, with the checkers that judge every step."""

    entries: Entries = ENTRIES
    replica: Replica = EMPTY
    """The replica after the last record."""
    checkers: Sequence[LogChecker] = ()
    records: list[Record] = field(factory=list)
    applied: int = 0
    """Number of entries that changed something."""

    def step(self, record: Record) -> Step:
        """Step a record; raises `Broken`."""
        done = step(self.replica, record, self.entries)
        self.records.append(record)
        self.judge(done)
        return done

    def judge(self, done: Step) -> None:
        """Follow a step, and judge it; raises `Broken`."""
        before, self.replica = self.replica, done.replica
        self.applied += sum(outcome.verdict == APPLIED for outcome in done.outcomes)
        for checker in self.checkers:
            checker.step(before, done)


def granted_by(args: Any) -> Iterator[TaskId]:
    """Yield the tasks of an entry of `GRANTS`."""
    for grant in args.grants:
        for run in grant.runs:
            yield from ids_of(*run)


def granted_in(step: Step) -> Iterator[TaskId]:
    """Yield the tasks that a record granted."""
    for outcome in step.outcomes:
        if outcome.verdict == APPLIED and isinstance(outcome.args, GRANTS):
            yield from granted_by(outcome.args)
