"""The properties that every simulated run must keep, one module each (design: simulation).

A checker sees every record of the log as an independent replica steps it (`Checker.step`)
and, when the faults are over, the whole history (`Checker.finish`).  It raises `Broken`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from attrs import define

from log_entries import grant_claims, grant_limited_claims
from onyxq.core.entry import APPLIED
from onyxq.core.ids import TaskId, ids_of
from onyxq.core.replica import Replica
from onyxq.core.step import Step
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
class Checker:
    """One property; ``history`` is shared with the clients."""

    name: ClassVar[str] = ""
    history: History

    def step(self, before: Replica, step: Step) -> None:
        """A record was stepped."""

    def finish(self) -> None:
        """The run is over and everything was read back."""

    def broken(self, what: str) -> Broken:
        """The error that says so."""
        return Broken(f"{self.name}: {what}")


def granted_by(args: Any) -> Iterator[TaskId]:
    """The tasks that an entry of `GRANTS` is about."""
    for grant in args.grants:
        for run in grant.runs:
            yield from ids_of(*run)


def granted_in(step: Step) -> Iterator[TaskId]:
    """The tasks that a record granted."""
    for outcome in step.outcomes:
        if outcome.verdict == APPLIED and isinstance(outcome.args, GRANTS):
            yield from granted_by(outcome.args)
