"""Ordering keys at a leader: one task of a key at a time, in order.

The store knows the first task of each key. This module adds what the store cannot know: a worker
holds a task of the key, or the task is being finished and the outcome is unknown. Until that ends,
the next task of the key is not granted. A key whose task failed waits for that task. Other keys are
not affected.
"""

from __future__ import annotations

from collections.abc import Callable

from onyxq.core.facts import key_digest, task_header
from onyxq.core.ids import Run, TaskId, ids_of, mask_of, offset_of, partition_of, stretch_of
from onyxq.core.replica import Replica
from onyxq.core.task_headers import ORDERING_KEY, may_say

INTERVAL_MS = 1_000_000
"""A rate is in tasks per this time."""
TIMES_MAX = 1_000
"""Keys with a rate that are remembered. With more, keys whose interval is over are forgotten."""


class OrderingKeys:
    """Ordering keys of the partitions that a node leads, as far as their tasks are being worked on."""

    def __init__(self, holding: dict[bytes, int], is_busy: Callable[[TaskId, Replica], bool]) -> None:
        self._holding = holding
        """The tasks that hold their keys, as masks of stretches: a column of `LeaderState`."""
        self._is_busy = is_busy
        """Returns whether a task is claimed, being granted or being finished."""
        self._holders: dict[bytes, dict[TaskId, None]] = {}
        self._digests: dict[TaskId, bytes] = {}
        self._since_ms: dict[int, int] = {}
        """Partition -> wall-clock time since which it serves here."""
        self._granted_ms: dict[int, dict[bytes, tuple[int, int]]] = {}
        """Partition -> key with a rate -> wall-clock times of its last grant, and of the end of its interval."""

    def begin_leadership(self, partition: int, now_ms: int) -> None:
        """Start with a partition that serves from now on."""
        self._since_ms.setdefault(partition, now_ms)

    def leads(self, partition: int) -> bool:
        """Return whether a partition serves here."""
        return partition in self._since_ms

    def end_leadership(self, partition: int) -> None:
        """Stop with a partition that is no longer led from here."""
        for task_id in [one for one in self._digests if partition_of(one) == partition]:
            self.release(task_id)
        self._granted_ms.pop(partition, None)
        self._since_ms.pop(partition, None)

    def hold(self, digest: bytes, task_id: TaskId) -> None:
        """Keep other tasks of the key from being granted while this one is busy, or until `release`."""
        self._holders.setdefault(digest, {})[task_id] = None
        self._digests[task_id] = digest
        stretch = stretch_of(task_id)
        self._holding[stretch] = self._holding.get(stretch, 0) | mask_of(task_id, 1)

    def note(self, task_id: TaskId, body: bytes) -> None:
        """Hold the task's key if its row has one."""
        if may_say(body, ORDERING_KEY):
            header, _ = task_header(body)
            if ORDERING_KEY in header:
                self.hold(key_digest(header["queue"], header[ORDERING_KEY]), task_id)

    def release(self, task_id: TaskId) -> None:
        """Stop holding the key of a task."""
        digest = self._digests.pop(task_id, None)
        if digest is None:
            return
        holders = self._holders[digest]
        del holders[task_id]
        if not holders:
            del self._holders[digest]
        stretch = stretch_of(task_id)
        left = self._holding[stretch] & ~mask_of(task_id, 1)
        if left:
            self._holding[stretch] = left
        else:
            del self._holding[stretch]

    def held(self, run: Run) -> list[tuple[TaskId, bytes]]:
        """Return the tasks of a run that hold their keys, with these keys."""
        mask = self._holding.get(stretch_of(run.first), 0) & mask_of(*run) if self._holding else 0
        if not mask:
            return []
        return [(one, self._digests[one]) for one in ids_of(*run) if mask >> offset_of(one) & 1]

    def is_held(self, digest: bytes, task_id: TaskId, replica: Replica) -> bool:
        """Return whether another task of a key is busy; forget holders that are not busy any more."""
        for holder in list(self._holders.get(digest, ())):
            if holder == task_id:
                continue
            if self._is_busy(holder, replica):
                return True
            self.release(holder)
        return False

    # --- rates

    def granted(self, digest: bytes, task_id: TaskId, *, key_rate: int, now_ms: int) -> None:
        """Take note of a grant of a task of a key with a rate."""
        times = self._granted_ms.setdefault(partition_of(task_id), {})
        times[digest] = now_ms, now_ms + INTERVAL_MS // key_rate
        if len(times) > 2 * len(self._holders) + TIMES_MAX:
            for key in [key for key, (_, over_ms) in times.items() if over_ms <= now_ms]:
                del times[key]

    def next_ms(self, digest: bytes, task_id: TaskId, *, key_rate: int) -> int:
        """Return when the next task of a key may be granted at the present rate.

        Grants before this node served the partition are unknown here. The last one may have been just before that.
        """
        partition = partition_of(task_id)
        known = self._granted_ms.get(partition, {}).get(digest)
        return (self._since_ms[partition] if known is None else known[0]) + INTERVAL_MS // key_rate
