"""The error about a missing task: it never existed, or it is purged."""

from __future__ import annotations

from onyxq.core.errors import NotFound
from onyxq.core.ids import TaskId, partition_of
from onyxq.leader.state.view import Index


def missing(store: Index, task_id: TaskId, field: str = "id") -> NotFound:
    """Return the error about a task that a store does not have."""
    if not store.watermark(partition_of(task_id)).covers(task_id):
        return NotFound(f"there is no task {task_id.hex()}", field=field)
    return NotFound(
        f"task {task_id.hex()} is purged or never existed: finished tasks of its time are purged",
        field=field,
        hint="If its queue archives tasks, read it with: onyxq task get ID --archive DIR",
    )
