"""A unique key with a period has one task in each period, and ``keep`` and ``refuse`` never change that task.

The period of a task is that of the time in its id.  It does not depend on the clock of any node.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import define, field

from onyxq.client.values import Task
from onyxq.core.ids import TaskId, ms_of
from simulation.checkers import Checker
from simulation.checkers.ledger import Ledger
from simulation.world.history import Sent

Period = tuple[str, str, int, int]
"""Queue, unique key, length of the periods in ms, and number of the period from the epoch."""


@define(eq=False)
class OncePerPeriod(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "once per period"
    ledger: Ledger
    held: dict[Period, TaskId] = field(factory=dict)
    """The task of each period, as it was named first."""

    def acknowledged(self, task_id: TaskId, sent: Sent) -> None:
        """An enqueue was answered with the task that holds the key."""
        assert sent.said.unique_key is not None and sent.said.period_ms is not None
        self._one(sent.queue, sent.said.unique_key, sent.said.period_ms, task_id, "acknowledged")

    def heard(self, header: dict[str, Any], task_id: TaskId) -> None:
        """A worker was given a task."""
        self._one(header["queue"], header["unique_key"], header["unique_period_ms"], task_id, "granted")

    def finish(self) -> None:
        """Judge all tasks that are stored."""
        for task in self.ledger.read.values():
            if task.unique_key is not None and task.unique_period_ms is not None:
                self._one(task.queue, task.unique_key, task.unique_period_ms, task.id, "stored")
                if task.on_conflict in ("keep", "refuse"):
                    self._unchanged(task)

    def _one(self, queue: str, key: str, period_ms: int, task_id: TaskId, what: str) -> None:
        number = ms_of(task_id) // period_ms
        other = self.held.setdefault((queue, key, period_ms, number), task_id)
        if other != task_id:
            raise self.broken(f"{task_id.hex()} was {what} for key {key} in period {number}, which {other.hex()} has")

    def _unchanged(self, task: Task) -> None:
        mine = self.history.sent.get(task.data)
        if mine is None:
            return
        for data, sent in self.history.sent.items():
            if sent.task == task.id and sent.answered_s < mine.invoked_s:
                raise self.broken(f"{task.id.hex()} has {task.data!r}, which was sent after {data!r} was acknowledged")
