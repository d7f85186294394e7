"""A task whose completion was acknowledged is never granted again and keeps its result; one cancelled stays so.

None is cancelled if all who asked for that were refused.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from onyxq.client.values import Task
from onyxq.core.ids import TaskId
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import Checker, granted_in
from simulation.world.history import GIVING_UP, REFUSED


@define(eq=False)
class DoneStaysDone(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "done stays done"
    granted: dict[TaskId, int] = field(factory=dict)
    """Last token of each task."""

    def step(self, before: Replica, step: Step) -> None:
        """Look for grants of tasks that are done."""
        for task_id in granted_in(step):
            self.granted[task_id] = step.replica.position
            self.check(task_id)

    def check(self, task_id: TaskId) -> None:
        """Compare a task's last grant with its completion, or cancel; called whenever either is heard of."""
        cancelled = self.history.cancelled.get(task_id)
        if cancelled is not None and self.granted.get(task_id, -1) >= cancelled:
            raise self.broken(
                f"{task_id.hex()} was granted under {self.granted[task_id]} although it had been acknowledged as "
                f"cancelled before position {cancelled}"
            )
        done = self.history.completed.get(task_id)
        if done is not None and self.granted.get(task_id, -1) >= done.position:
            raise self.broken(
                f"{task_id.hex()} was granted under {self.granted[task_id]} although its completion under "
                f"{done.token} had been acknowledged before position {done.position}"
            )

    def read_back(self, task: Task) -> None:
        """A task was read after the faults."""
        if task.id in self.history.cancelled and task.state != "cancelled":
            raise self.broken(f"{task.id.hex()} is {task.state} although it was acknowledged as cancelled")
        asked = [call for call in self.history.operations.get(task.id, ()) if call.kind in GIVING_UP]
        if task.state == "cancelled" and asked and all(call.outcome == REFUSED for call in asked) and not task.depends:
            raise self.broken(f"{task.id.hex()} is cancelled although all who asked for that were refused")
        done = self.history.completed.get(task.id)
        if done is None:
            return
        if task.state != "completed":
            raise self.broken(f"{task.id.hex()} is {task.state} although its completion was acknowledged")
        if task.result != done.result:
            raise self.broken(f"{task.id.hex()} has the result {task.result!r}, acknowledged was {done.result!r}")
