"""One task at a time holds a unique key, however often it is enqueued, and runs with the data of its first grant.

Until it is granted a repeat replaces its data; afterwards nothing does.  Another task of the key comes only after the
first one has released it: after its first grant, after its end, or once it is purged.
"""

from __future__ import annotations

from collections.abc import Container
from typing import ClassVar

from attrs import define, field

from onyxq.client.values import Task
from onyxq.core.ids import TaskId
from simulation.checkers import Checker
from simulation.checkers.ledger import Event, Ledger
from simulation.world.history import Sent

Key = tuple[str, str]
"""Queue and unique key."""
ENDED = ("completed", "failed", "cancelled")


@define(eq=False)
class UniqueStands(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "unique stands"
    ledger: Ledger
    standing: dict[Key, TaskId] = field(factory=dict)
    """The task of each key, as the first answer named it."""
    until: dict[Key, str] = field(factory=dict)
    """When each key is free again, as its enqueues say."""
    purged: Container[TaskId] = ()
    """Tasks whose keys are free again."""
    sent_s: dict[TaskId, dict[int, float]] = field(factory=dict)
    """When the requests were sent that were answered with these grants, by token."""

    def stands(self, task_id: TaskId, sent: Sent) -> None:
        """An enqueue was answered with the task that stands."""
        assert sent.said.unique_key is not None
        key = sent.queue, sent.said.unique_key
        if self.until.setdefault(key, sent.said.unique_until) != sent.said.unique_until:
            raise self.broken(f"key {key} is enqueued with two values of unique_until, which this does not judge")
        self._same(key, task_id, "told to stand")

    def heard(self, key: Key, task_id: TaskId, data: bytes, token: int, sent_s: float) -> None:
        """A worker was given a task of a unique key."""
        if key not in self.until or self.until[key] == "purged":
            self._same(key, task_id, "granted")
        self.sent_s.setdefault(task_id, {})[token] = sent_s
        given = self.history.given.setdefault(task_id, data)
        if given != data:
            raise self.broken(f"{task_id.hex()} of key {key} was granted with {given!r} first, and now with {data!r}")

    def _same(self, key: Key, task_id: TaskId, what: str) -> None:
        if (known := self.standing.get(key)) is not None and (known in self.purged or self._may_release(key, known)):
            del self.standing[key]
        standing = self.standing.setdefault(key, task_id)
        if standing != task_id:
            raise self.broken(f"{task_id.hex()} was {what} for key {key}; {standing.hex()} stands for it")

    def _may_release(self, key: Key, task_id: TaskId) -> bool:
        """Return whether a task may not need its key any more: it was granted, or an end of it was requested."""
        if self.until.get(key, "purged") == "purged":
            return False
        return task_id in self.ledger.grants or task_id in self.history.operations

    def finish(self) -> None:
        """Compare what is stored, and what was given first, with what was sent."""
        seen: dict[Key, TaskId] = {}
        for task in self.ledger.read.values():
            if task.unique_key is None or task.unique_period_ms is not None:
                continue  # `simulation.checkers.once_per_period` judges keys with periods
            key = task.queue, task.unique_key
            if task.unique_until != "purged" and (task.state in ENDED or self.ledger.grants.get(task.id)):
                continue
            other = seen.setdefault(key, task.id)
            if other != task.id:
                raise self.broken(f"{task.id.hex()} and {other.hex()} are both stored for key {key}")
            given = self.history.given.get(task.id)
            if given is not None and given != task.data:
                raise self.broken(f"{task.id.hex()} of key {key} ran with {given!r} and holds {task.data!r} now")
            self._newest(key, task)

    def _newest(self, key: Key, task: Task) -> None:
        """The data is none that was replaced: whatever was acknowledged later, and before the first grant."""
        first = next(iter(self.ledger.grants.get(task.id, ())), None)
        mine = self.history.sent.get(task.data)
        if mine is None:
            return
        for data, sent in self.history.sent.items():
            if (sent.queue, sent.said.unique_key) != key or sent.task != task.id or sent.invoked_s <= mine.answered_s:
                continue
            if sent.answered_s != float("inf") and self._was_free(task.id, first, sent):
                raise self.broken(f"{task.id.hex()} of key {key} holds {task.data!r}; {data!r} replaced that")

    def _was_free(self, task_id: TaskId, first: Event | None, sent: Sent) -> bool:
        """Return whether the task had certainly not been granted when an enqueue was answered."""
        if any(lost_s < sent.answered_s and given_up_s > sent.invoked_s for lost_s, given_up_s in self._unanswered()):
            return False
        if first is None:
            return task_id not in self.history.operations
        return self.sent_s.get(task_id, {}).get(first.position, -1.0) > sent.answered_s

    def _unanswered(self) -> list[tuple[float, float]]:
        return self.history.claims_lost
