"""Tokens of a task strictly increase with every claim, so they can fence outside resources."""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from onyxq.core.ids import TaskId
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import LogChecker, granted_in


@define(eq=False)
class TokensIncrease(LogChecker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "tokens increase"
    last: dict[TaskId, int] = field(factory=dict)

    def step(self, before: Replica, step: Step) -> None:
        """Compare the tokens of granted tasks with the last ones."""
        token = step.replica.position
        for task_id in granted_in(step):
            if self.last.get(task_id, -1) >= token:
                raise self.broken(f"{task_id.hex()} was granted under {token} after {self.last[task_id]}")
            self.last[task_id] = token
