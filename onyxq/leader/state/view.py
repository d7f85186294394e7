"""What the decisions of a leader read: the log's replica, the index of the store, and the leader's own state.

The index is a function of the stored rows, so a decision depends on nothing else and can be
repeated. A node is a view of itself.
"""

from __future__ import annotations

from typing import Any, Protocol

from onyxq.core.ids import TaskId
from onyxq.core.purged import Watermark
from onyxq.core.replica import Replica
from onyxq.leader.state.leader_state import LeaderState

Refused = list[Any]
"""``[first, count, error map]`` of the refused part of an item."""


class Index(Protocol):
    """The part of a store that decisions about claims and completions read; see `onyxq.store.store.Store`."""

    def task_row(self, task_id: bytes) -> tuple[TaskId, bytes] | None:
        """Return first id and body of the task row that covers an id; raises `Corrupt`."""
        ...

    def covering(self, kind: bytes, task_id: bytes) -> list[tuple[TaskId, bytes]]:
        """Return first ids and bodies of the rows of a kind that cover an id; raises `Corrupt`."""
        ...

    def completions(self, stretch: bytes) -> list[tuple[TaskId, bytes]]:
        """Return first ids and bodies of the completion rows of a stretch; raises `Corrupt`."""
        ...

    def finished_bits(self, stretch: bytes) -> int:
        """Return the mask of the finished tasks of a stretch."""
        ...

    def counts_from(self, task_id: bytes) -> int:
        """Return the lowest fencing token of completions of a task that count."""
        ...

    def watermark(self, partition: int) -> Watermark:
        """Return the watermark of a partition: tasks that it covers are purged."""
        ...


class View(Protocol):
    """Everything that a decision reads."""

    @property
    def replica(self) -> Replica:
        """The replica after the last record of the log."""
        ...

    @property
    def store(self) -> Index:
        """The index of the node's rows."""
        ...

    @property
    def leader_state(self) -> LeaderState:
        """What happens to tasks here. A decision may change it."""
        ...
