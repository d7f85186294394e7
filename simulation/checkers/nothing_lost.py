"""No acknowledged task and no acknowledged update is lost or changed, and workers get tasks as they were sent.

No answer denies that there is an acknowledged task, not even for a moment.  Only a leader that does not know yet
that it is deposed may do so, because it cannot have the tasks of the next one.  So answers count once all nodes
have read the log up to the acknowledgement.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable
from typing import ClassVar

from attrs import define, field

from onyxq.client.values import Task, TaskUpdate
from onyxq.core.errors import NotFound
from onyxq.core.ids import TaskId
from simulation.checkers import Checker
from simulation.world.history import REFUSED, Enqueued, Operation


@define(eq=False)
class NothingLost(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "nothing lost"
    read: set[TaskId] = field(factory=set)
    purged: Container[TaskId] = ()
    """Those that were to go."""
    ends: list[tuple[int, float]] = field(factory=list)
    """Last positions of the log, each with the second at which it was seen first."""
    followed: list[tuple[float, float]] = field(factory=list)
    """Seconds, each with an earlier one: all nodes that ran had read what the log had before that."""

    def looked(self, end: int, positions: Iterable[int], now_s: float) -> None:
        """Note the log's last position, and how far the nodes that run have read."""
        if not self.ends or self.ends[-1][0] < end:
            self.ends.append((end, now_s))
        unread = bisect_right(self.ends, (min(positions, default=end), math.inf))
        self.followed.append((now_s, now_s if unread == len(self.ends) else self.ends[unread][1]))

    def given(self, task_id: TaskId, queue: str, data: bytes) -> None:
        """A worker was given a task; one whose enqueue was not acknowledged yet is not known by its id."""
        known = self.history.enqueued.get(task_id)
        if known is not None and (queue != known.queue or not self._may_hold(known, data)):
            raise self.broken(f"a worker was given {task_id.hex()} with {data!r}, acknowledged was {known.data!r}")

    def read_back(self, task: Task, updates: list[TaskUpdate]) -> None:
        """A task was read after the faults."""
        self.read.add(task.id)
        known = self.history.enqueued[task.id]
        if task.queue != known.queue or not self._may_hold(known, task.data):
            raise self.broken(f"{task.id.hex()} holds {task.data!r}, acknowledged was {known.data!r}")
        stored = {(update.token, update.seq): update.data for update in updates}
        for (token, number), data in self.history.updates.get(task.id, {}).items():
            if stored.get((token, number)) != data:
                raise self.broken(f"update {number} of {task.id.hex()} under {token} is not {data!r} any more")

    def _may_hold(self, known: Enqueued, data: bytes) -> bool:
        """Whether a task may hold this: what was acknowledged, or what was sent for its unique key as well."""
        if data == known.data:
            return True
        other = self.history.sent.get(data)
        return (
            known.said.unique_key is not None and other is not None and other.said.unique_key == known.said.unique_key
        )

    def finish(self) -> None:
        """Everything that was acknowledged was found, and never said to be absent."""
        missing = [one for one in sorted(self.history.enqueued.keys() - self.read) if one not in self.purged]
        if missing:
            raise self.broken(f"{len(missing)} acknowledged tasks are gone, the first is {missing[0].hex()}")
        for task_id, calls in self.history.operations.items():
            known = self.history.enqueued.get(task_id)
            if known is None or task_id in self.purged or task_id in self.history.unsettled:
                continue
            for call in calls:
                if call.outcome == REFUSED and call.code == NotFound.code and known.at_s < self._known_s(call):
                    raise self.broken(f"{task_id.hex()} was acknowledged at {known.at_s:.3f}, and then {call}")

    def _known_s(self, call: Operation) -> float:
        """Return up to which second all nodes knew the log when a call was made."""
        looks = bisect_left(self.followed, (call.invoked_s, -math.inf))
        return self.followed[looks - 1][1] if looks else -math.inf
