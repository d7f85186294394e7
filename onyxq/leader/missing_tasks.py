"""What is said of a task that is not there: that it never was, or is purged."""

from __future__ import annotations

from onyxq.core.errors import NotFound
from onyxq.core.ids import TaskId, partition_of
from onyxq.store.interface import Store


def missing(store: Store, task_id: TaskId, field: str = "id") -> NotFound:
    """The error about a task that a store does not have."""
    if not store.watermark(partition_of(task_id)).covers(task_id):
        return NotFound(f"there is no task {task_id.hex()}", field=field)
    return NotFound(
        f"task {task_id.hex()} is purged, if there ever was one: finished tasks of its time are gone",
        field=field,
        hint="Where its queue archives tasks, onyxq task get ID --archive DIR reads it.",
    )
