"""The purged tasks of a partition: all below a watermark except a few stretches (design: retention).

Pure.  The watermark is a time.  Tasks with ids from before it are purged, except those in the
*kept* stretches.  A stretch is kept if it contained an unfinished or too recent task when the watermark rose.
The watermark never goes back, and a purged stretch is never kept again, so a purged id stays purged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from attrs import frozen

from onyxq.core.ids import ms_of, stretch_of
from onyxq.core.replica import Partition, Replica

KEPT_MAX = 256
"""Most stretches of a partition that can be kept below its watermark, because the replica holds them."""
MARGIN_MS = 5_000
"""Least distance of the watermark from the log's clock, in ms: ids are made by clocks that differ."""
PURGED = "purged"
"""Verdict on entries about tasks that are purged."""


@frozen
class Watermark:
    """What is purged of a partition, in the form that stores and leaders use."""

    before_ms: int = 0
    kept: frozenset[bytes] = frozenset()

    def covers(self, task_id: bytes) -> bool:
        """Return whether a task is purged."""
        return ms_of(task_id) < self.before_ms and stretch_of(task_id) not in self.kept

    def reaches(self, other: Watermark) -> bool:
        """Return whether this watermark purges everything that the other one purges."""
        return self.before_ms > other.before_ms or (self.before_ms == other.before_ms and self.kept <= other.kept)


NOTHING = Watermark()


def watermark_of(found: Partition) -> Watermark:
    """Return the partition's watermark."""
    return Watermark(found.purged_ms, frozenset(found.kept)) if found.purged_ms else NOTHING


def is_purged(found: Partition, task_id: bytes) -> bool:
    """Return whether a task of the partition is purged."""
    return ms_of(task_id) < found.purged_ms and not contains(found.kept, stretch_of(task_id))


def names_purged(replica: Replica, partition: int, ids: Iterable[bytes]) -> bool:
    """Return whether any of these ids of a partition is purged."""
    found = replica.partitions[partition]
    return found.purged_ms > 0 and any(is_purged(found, one) for one in ids)


def contains(stretches: Sequence[bytes], stretch: bytes) -> bool:
    """Return whether a sorted sequence holds a stretch."""
    place = bisect_left(stretches, stretch)
    return place < len(stretches) and stretches[place] == stretch
