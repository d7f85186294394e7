"""A worker holds nothing for long that it does not run: others could."""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from simulation.checkers import Checker

HELD_S = 1.5
"""A worker gives back after a second what it has not begun; the rest is for a scheduler that is late."""


@define(eq=False)
class NothingHoarded(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "nothing hoarded"

    def look(self, workers: frozenset[str], now_s: float) -> None:
        """Judge what these workers hold now."""
        for task_id, grants in self.history.heard.items():
            begun = {run.token for run in self.history.worked.get(task_id, ())}
            for token, grant in grants.items():
                held_s = now_s - grant.heard_s
                if grant.worker in workers and not grant.ended and token not in begun and held_s > HELD_S:
                    raise self.broken(f"{grant.worker} has held {task_id.hex()} for {held_s:.1f} s and not begun")
