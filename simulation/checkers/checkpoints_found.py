"""Later attempts find the updates that were acknowledged to an attempt, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import define

from onyxq.core.ids import TaskId
from onyxq.worker.attempts import LogEntry, unpack
from simulation.checkers import Checker


@define(eq=False)
class CheckpointsFound(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "checkpoints found"

    def logged(self, task_id: TaskId, token: int) -> list[tuple[int, int, Any]]:
        """What attempts before the one under ``token`` have logged: (token, number, value)."""
        known = self.history.updates.get(task_id, {})
        return [(*place, unpack(data)) for place, data in sorted(known.items()) if place[0] < token]

    def found(self, task_id: TaskId, known: Sequence[tuple[int, int, Any]], found: Sequence[LogEntry]) -> None:
        """Judge what an attempt found that asked when ``known`` was acknowledged; it may find more."""
        given = [(one.token, one.seq, one.value) for one in found]
        missing = [one for one in known if one not in given]
        if missing or given != sorted(given, key=lambda one: one[:2]):
            raise self.broken(f"an attempt at {task_id.hex()} found {given}; logged before: {list(known)}")
