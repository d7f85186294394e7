"""What an answer to a write does not promise, in words; empty for the usual promise. Pure.

The usual promise: the write is on the disks of a majority of the partition's nodes, with the leader among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from onyxq.core import facts
from onyxq.core.ids import TaskId, partition_of
from onyxq.core.queues import settings_of
from onyxq.core.replica import Replica
from onyxq.core.task_headers import ORDERING_KEY, UNIQUE_KEY
from onyxq.leader.cohort.unflushed_writes import WINDOW_S

OPPORTUNISTIC = "opportunistic"
EARLY = (
    "in the memory of a majority of the nodes, not on their disks: what they took within the last "
    f"{WINDOW_S * 1000:.0f} ms is lost if all that have it stop"
)


def early(replica: Replica, header: dict[str, Any]) -> bool:
    """Return whether runs with a header are acknowledged from memory."""
    if not replica.queues or ORDERING_KEY in header or UNIQUE_KEY in header:
        return False
    return settings_of(replica, header.get("queue", "")).durability == OPPORTUNISTIC


def few(replica: Replica, acks: Iterable[tuple[TaskId, Any]]) -> str:
    """Return what is not promised of tasks, from the number of nodes that have each; other values are skipped."""
    worst: tuple[int, int] | None = None
    for task_id, count in acks:
        placed = replica.partitions.get(partition_of(task_id))
        if type(count) is int and placed is not None and 0 < 2 * count <= len(placed.members):
            worst = min(worst or (count, len(placed.members)), (count, len(placed.members)))
    if worst is None:
        return ""
    return f"on {worst[0]} of {worst[1]} nodes, no majority: lost if these are lost before others have a copy"


def of_enqueue(replica: Replica, runs: Sequence[Sequence[Any]], acks: Sequence[Any]) -> str:
    """Return what is not promised of the task runs ``(first, body, ...)`` that were stored."""
    stored = [(run[0], ack) for run, ack in zip(runs, acks, strict=True)]
    said = few(replica, stored)
    if replica.queues and any(
        type(ack) is int and early(replica, facts.task_header(run[1])[0]) for run, ack in zip(runs, acks, strict=True)
    ):
        said = f"{said}; {EARLY}" if said else EARLY
    return said
