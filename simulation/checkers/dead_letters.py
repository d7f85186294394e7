"""A requeued dead letter runs again, with all its retries; a discarded one never does.

Nothing that happened in its earlier life finishes a task that was opened again.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from onyxq.client.values import Task
from onyxq.core.ids import TaskId
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import Checker, granted_in
from simulation.checkers.ledger import Ledger
from simulation.world.history import OK, REQUEUE

WITHOUT_RUNNING = ("expired: ", "task ")
"""How the errors begin of tasks that failed without being run: in time, or for others."""


@define(eq=False)
class DeadLetters(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "dead letters"
    ledger: Ledger

    def step(self, before: Replica, step: Step) -> None:
        """Look for grants of what was discarded."""
        if self.history.discarded:
            for task_id in granted_in(step):
                since = self.history.discarded.get(task_id)
                if since is not None and since <= step.replica.position:
                    raise self.broken(f"{task_id.hex()} was granted at {step.replica.position} although discarded")

    def finish(self) -> None:
        """Judge what was requeued and discarded."""
        for task_id, calls in self.history.operations.items():
            for call in calls:
                if call.kind == REQUEUE and call.outcome == OK:
                    self._opened(task_id, call.answered_s)
        for task_id in self.history.discarded:
            task = self.ledger.read.get(task_id)
            if task_id in self.ledger.purged:
                continue
            if task is None or task.state != "cancelled":
                raise self.broken(f"{task_id.hex()} was discarded and is {task.state if task else 'gone'}")
        for task_id in self.ledger.reopened:
            task = self.ledger.read.get(task_id)
            if task_id in self.ledger.purged:
                continue
            if task is None:
                raise self.broken(f"{task_id.hex()} was requeued and is gone")
            self._lived(task)
        for task in self.ledger.read.values():
            if task.state == "failed" and not (task.error or "").startswith(WITHOUT_RUNNING):
                self._tried(task)

    def _tried(self, task: Task) -> None:
        """Raise if a task failed for good before it was tried as often as it may be."""
        opened = self.ledger.reopened.get(task.id)
        since = opened[-1].position if opened else -1
        tries = sum(grant.position > since for grant in self.ledger.grants.get(task.id, ()))
        if task.retries is None or tries <= task.retries:
            raise self.broken(f"{task.id.hex()} was given up after {tries} tries; retries: {task.retries}")

    def _opened(self, task_id: TaskId, answered_s: float) -> None:
        if not any(event.landed_s <= answered_s for event in self.ledger.reopened.get(task_id, ())):
            raise self.broken(f"{task_id.hex()} was told to be requeued; the log does not open it again")

    def _lived(self, task: Task) -> None:
        """Raise if a task has ended since it was opened last without having run, and without another reason."""
        opened = self.ledger.reopened[task.id][-1].position
        if task.state == "cancelled" or any(one.position > opened for one in self.ledger.grants.get(task.id, ())):
            return
        if task.state != "failed" or not (task.error or "").startswith(WITHOUT_RUNNING):
            raise self.broken(f"{task.id.hex()} was requeued at {opened}, never granted since, and is {task.state}")
