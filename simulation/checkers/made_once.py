"""However often an enqueue is repeated on its way, it makes one task; and no task comes from nowhere.

Every payload that a run sends is different, so the payload identifies the task.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from onyxq.client.values import Task
from onyxq.core.ids import TaskId
from simulation.checkers import Checker


@define(eq=False)
class MadeOnce(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "made once"
    found: dict[bytes, list[TaskId]] = field(factory=dict)

    def read_back(self, task: Task) -> None:
        """A task was read after the faults."""
        made = self.found.setdefault(task.data, [])
        if task.id not in made:
            made.append(task.id)
        wanted = self.history.payloads.get(task.data)
        if wanted is not None and len(made) > wanted:
            raise self.broken(f"{task.data!r} was sent once and is {len(made)} tasks: {[one.hex() for one in made]}")
