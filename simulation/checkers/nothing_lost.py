"""No acknowledged task and no acknowledged update is lost or changed."""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from onyxq.client.values import Task, TaskUpdate
from onyxq.errors import OnyxqError
from onyxq.ids import TaskId
from simulation.checkers import Checker


@define(eq=False)
class NothingLost(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "nothing lost"

    def missing(self, task_id: TaskId, error: OnyxqError) -> None:
        """A task that was acknowledged cannot be read after the faults."""
        raise self.broken(f"{task_id.hex()} cannot be read: {error.message}")

    def read_back(self, task: Task, updates: list[TaskUpdate]) -> None:
        """A task was read after the faults."""
        known = self.history.enqueued[task.id]
        if (task.queue, task.data) != (known.queue, known.data):
            raise self.broken(f"{task.id.hex()} holds {task.data!r}, acknowledged was {known.data!r}")
        stored = {(update.token, update.seq): update.data for update in updates}
        for (task_id, token), heard in self.history.updates.items():
            for number, data in heard.items() if task_id == task.id else ():
                if stored.get((token, number)) != data:
                    raise self.broken(f"update {number} of {task.id.hex()} under {token} is not {data!r} any more")
