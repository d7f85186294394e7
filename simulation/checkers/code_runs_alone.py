"""A worker's code ends with its lease: two runs of a task never overlap."""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from onyxq.core.ids import TaskId
from simulation.checkers import Checker
from simulation.world.history import RUNNING, Worked


@define(eq=False)
class CodeRunsAlone(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "code runs alone"

    def begun(self, task_id: TaskId, mine: Worked) -> None:
        """A worker has begun with a task."""
        for other in self.history.worked[task_id]:
            if other is not mine and other.outcome == RUNNING:
                raise self.broken(
                    f"{mine.worker} began with {task_id.hex()} under {mine.token} at {mine.begun_s:.3f} s while "
                    f"{other.worker} works on it under {other.token} since {other.begun_s:.3f} s"
                )
