"""What is purged of a partition: everything below a watermark but a few stretches (design: retention).

Pure.  The watermark is a time: of ids made, or due, before it nothing stands any more but
the *kept* stretches, which held something unfinished, or too young, when it rose.  It never
sinks, and what is purged is never kept again, so an id that is purged stays so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from attrs import frozen

from onyxq.core.ids import ms_of, stretch_of
from onyxq.core.replica import Partition, Replica

KEPT_MAX = 256
"""Stretches of a partition that can stand below its watermark: the replica holds them."""
MARGIN_MS = 5_000
"""How far the watermark stays behind the log's clock at least: ids are made by clocks that differ."""
PURGED = "purged"
"""The verdict on entries about tasks that are purged."""


@frozen
class Watermark:
    """What of a partition is purged, as stores and leaders ask for it."""

    before_ms: int = 0
    kept: frozenset[bytes] = frozenset()

    def covers(self, task_id: bytes) -> bool:
        """Return whether a task is purged."""
        return ms_of(task_id) < self.before_ms and stretch_of(task_id) not in self.kept

    def reaches(self, other: Watermark) -> bool:
        """Return whether all that is purged by the other is so by this one."""
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
