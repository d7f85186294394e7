"""Ordering keys at a leader: one task of a key at a time, in order.

The store knows the first task of each key. This module adds what the store cannot know: a worker
holds a task of the key, or the task is being finished and the outcome is unknown. Until that ends,
the next task of the key is not granted. A key whose task failed waits for that task. Other keys are
not affected.
"""

from __future__ import annotations

from collections.abc import Callable

from onyxq.core.facts import key_digest, task_header
from onyxq.core.ids import Run, TaskId, ids_of, mask_of, offset_of, stretch_of
from onyxq.core.task_headers import ORDERING_KEY, may_say
from onyxq.store.interface import Piece
from onyxq.store.store import Store

INTERVAL_MS = 1_000_000
"""A rate is in tasks per this time."""
TIMES_MAX = 1_000
"""Keys with a rate that are remembered. With more, keys whose interval is over are forgotten."""


class OrderingKeys:
    """Ordering keys of the partitions that a node leads, as far as their tasks are being worked on."""

    def __init__(self, store: Store, busy: Callable[[TaskId], bool]) -> None:
        self._store = store
        self._busy = busy
        """Returns whether a task is claimed, being granted or being finished."""
        self._holders: dict[bytes, dict[TaskId, None]] = {}
        self._digests: dict[TaskId, bytes] = {}
        self._masks: dict[bytes, int] = {}
        """Tasks of ``_digests``, per stretch."""
        self._next_ms: dict[int, dict[bytes, int]] = {}
        """Partition -> key with a rate -> wall-clock time at which its next task may be granted."""

    def hold(self, digest: bytes, task_id: TaskId) -> None:
        """Keep other tasks of the key from being granted while this one is busy, or until `release`."""
        self._holders.setdefault(digest, {})[task_id] = None
        self._digests[task_id] = digest
        stretch = stretch_of(task_id)
        self._masks[stretch] = self._masks.get(stretch, 0) | mask_of(task_id, 1)

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
        left = self._masks[stretch] & ~mask_of(task_id, 1)
        if left:
            self._masks[stretch] = left
        else:
            del self._masks[stretch]

    def held(self, run: Run) -> list[tuple[TaskId, bytes]]:
        """Return the tasks of a run that hold their keys, with these keys."""
        mask = self._masks.get(stretch_of(run.first), 0) & mask_of(*run) if self._masks else 0
        if not mask:
            return []
        return [(one, self._digests[one]) for one in ids_of(*run) if mask >> offset_of(one) & 1]

    def drop(self, partition: int) -> None:
        """Stop with a partition that is no longer led from here."""
        prefix = partition.to_bytes(2, "big")
        for task_id in [one for one in self._digests if one[6:8] == prefix]:
            self.release(task_id)
        self._next_ms.pop(partition, None)

    def free(self, piece: Piece) -> bool:
        """Return whether a task is the first of its key and no other task of the key is busy."""
        task_id = piece.row_first
        if self._store.key_head(int.from_bytes(task_id[6:8], "big"), piece.key) != task_id:
            return False
        for holder in list(self._holders.get(piece.key, ())):
            if holder == task_id:
                continue
            if self._busy(holder):
                return False
            self.release(holder)
        return True

    # --- rates

    def granted(self, piece: Piece, key_rate: int, now_ms: int) -> None:
        """Take note of a grant of a task of a key with a rate."""
        times = self._next_ms.setdefault(int.from_bytes(piece.row_first[6:8], "big"), {})
        times[piece.key] = now_ms + INTERVAL_MS // key_rate
        if len(times) > 2 * len(self._holders) + TIMES_MAX:
            for key in [key for key, at_ms in times.items() if at_ms <= now_ms]:
                del times[key]

    def next_ms(self, piece: Piece, since_ms: int, key_rate: int) -> int:
        """Return when the next task of a key may be granted.

        Grants before ``since_ms``, when this node began to lead, are unknown here. The last one may have been
        just before that.
        """
        times = self._next_ms.get(int.from_bytes(piece.row_first[6:8], "big"), {})
        return times.get(piece.key, since_ms + INTERVAL_MS // key_rate)
