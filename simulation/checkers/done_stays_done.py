"""A task whose completion was acknowledged is never granted again and keeps its result."""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from log_entries import grant_claims
from onyxq.client.values import Task
from onyxq.entry import APPLIED
from onyxq.ids import TaskId, ids_of
from onyxq.replica import Replica
from onyxq.step import Step
from simulation.checkers import Checker


@define(eq=False)
class DoneStaysDone(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "done stays done"
    granted: dict[TaskId, int] = field(factory=dict)
    """Last token of each task."""

    def step(self, before: Replica, step: Step) -> None:
        """Look for grants of tasks that are done."""
        for outcome in step.outcomes:
            if outcome.verdict == APPLIED and isinstance(outcome.args, grant_claims.Args):
                for run in (run for grant in outcome.args.grants for run in grant.runs):
                    for task_id in ids_of(*run):
                        self.granted[task_id] = step.replica.position
                        self.check(task_id)

    def check(self, task_id: TaskId) -> None:
        """Compare a task's last grant with its completion; called whenever either is heard of."""
        done = self.history.completed.get(task_id)
        if done is not None and self.granted.get(task_id, -1) >= done.position:
            raise self.broken(
                f"{task_id.hex()} was granted under {self.granted[task_id]} although its completion under "
                f"{done.token} had been acknowledged before position {done.position}"
            )

    def read_back(self, task: Task) -> None:
        """A task was read after the faults."""
        done = self.history.completed.get(task.id)
        if done is None:
            return
        if task.state != "completed":
            raise self.broken(f"{task.id.hex()} is {task.state} although its completion was acknowledged")
        if task.result != done.result:
            raise self.broken(f"{task.id.hex()} has the result {task.result!r}, acknowledged was {done.result!r}")
