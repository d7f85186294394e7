"""The properties that every simulated run must keep, one module each (design: simulation).

A checker sees every record of the log as an independent replica steps it (`Checker.step`)
and, when the faults are over, the whole history (`Checker.finish`).  It raises `Broken`.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from onyxq.replica import Replica
from onyxq.step import Step
from simulation.history import History


class Broken(AssertionError):
    """A property does not hold."""


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
