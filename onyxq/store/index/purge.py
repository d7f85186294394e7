"""Deletes purged rows from the tables, a part at a time (design: retention).

A stretch is deleted as a whole: its rows, all that was derived from them, its part of the digests
and counts.  The watermark is stored in the same transaction.  So a store that is opened again
neither shows nor accepts purged tasks, even if the deletion was not finished.

Purged stretches are found by their records. While an index is rebuilt, those that it lacks are
deleted when their turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgpack

from onyxq.core.facts import seal, unseal
from onyxq.core.ids import TaskId
from onyxq.core.purged import NOTHING, Watermark
from onyxq.store.index.digests import Digests
from onyxq.store.index.expected import stretch_rows
from onyxq.store.index.key_index import Ruled
from onyxq.store.index.pieces import Pieces
from onyxq.store.index.records import HOUR_MS
from onyxq.store.index.stretches import Owner, Stretch, owners
from onyxq.store.interface import Purge
from onyxq.store.tables import PURGED_KEY, Table, Tables, within


def watermark_in(meta: Table, partition: bytes) -> Watermark:
    """Return the stored watermark of a partition; raises `Corrupt`."""
    key = PURGED_KEY + partition
    stored = meta.get(key)
    if stored is None:
        return NOTHING
    before_ms, kept = msgpack.unpackb(unseal(key, bytes(stored)))
    return Watermark(before_ms, frozenset(kept))


def watermarks_in(meta: Table) -> dict[bytes, Watermark]:
    """Return all stored watermarks, by the partitions' bytes; raises `Corrupt`."""
    found = [bytes(key[len(PURGED_KEY) :]) for key, _ in within(meta, PURGED_KEY)]
    return {partition: watermark_in(meta, partition) for partition in found}


def purged_stretches(
    table: Table, partition: bytes, watermark: Watermark, after: bytes
) -> Iterator[tuple[bytes, bool]]:
    """Yield keys of stretches after a place up to a watermark's hour, each with whether it is purged."""
    last = partition + (max(0, watermark.before_ms - 1) // HOUR_MS).to_bytes(4, "big")
    for key, _ in table.ascend(after + b"\0" if after else partition):
        if key[:6] > last:
            return
        yield bytes(key), len(key) == 27 and watermark.covers(key[7:])


class Purger:
    """Purges in one write transaction; ``leave`` takes a plain row out of the indexes.

    ``distrust`` is called with a partition whose index keeps entries of deleted rows.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        pieces: Pieces,
        ruled: Ruled,
        digests: Digests,
        leave: Callable[[Stretch, Owner], None],
        distrust: Callable[[bytes], object],
    ) -> None:
        self._tables = tables
        self._pieces = pieces
        self._ruled = ruled
        self._digests = digests
        self._leave = leave
        self._distrust = distrust

    def purge(self, asked: Purge) -> tuple[int, bytes]:
        """Delete part of the purged rows.

        Returns the number of rows, and the place reached, which is empty at the end.
        """
        self._pieces.flush()  # every stretch with rows is in the table then
        partition = asked.partition.to_bytes(2, "big")
        self._note(partition, asked.watermark)
        found, place = [], b""
        keys = purged_stretches(self._tables.stretch, partition, asked.watermark, asked.after)
        for looked, (key, goes) in enumerate(keys, 1):
            if goes:
                found.append(key)
            if looked >= asked.rows_max:
                place = key
                break
        deleted = 0
        for at, key in enumerate(found):
            deleted += self._delete(TaskId(key[7:]))
            if deleted >= asked.rows_max and at + 1 < len(found):
                place = key
                break
        if self._ruled.unsettled:
            self._ruled.settle()
        return deleted, place

    def purge_unindexed(self, stretch_id: bytes, watermark: Watermark) -> int:
        """Delete the rows of a stretch that is in no index; return their number."""
        self._note(stretch_id[6:8], watermark)
        keys = [key for key, _ in stretch_rows(self._tables, stretch_id)]
        for key in keys:
            self._tables.rows.delete(key)
        return len(keys)

    def _note(self, partition: bytes, watermark: Watermark) -> None:
        """Store a watermark, unless a higher one is stored."""
        if watermark.reaches(watermark_in(self._tables.meta, partition)):
            key = PURGED_KEY + partition
            value = msgpack.packb((watermark.before_ms, sorted(watermark.kept)))
            self._tables.meta.put(key, seal(key, value))

    def _delete(self, stretch_id: TaskId) -> int:
        stretch = self._pieces.stretch(stretch_id)
        indexed = 0
        for owner in self._ruled.retract(stretch, stretch.known):
            indexed |= owner.tasks
        for owner in list(owners(self._tables, stretch, stretch.known & ~stretch.ruled)):
            indexed |= owner.tasks
            self._leave(stretch, owner)
        if stretch.known & ~indexed:  # a damaged row, whose entries stay
            self._distrust(stretch.key[:2])
        rows = [(key, value[-4:]) for key, value in stretch_rows(self._tables, stretch_id)]
        for key, checksum in rows:
            self._digests.remove(stretch.key[:7], key, checksum)
            self._tables.rows.delete(key)
        self._tables.stretch.delete(stretch.key)
        self._pieces.forget_stretch(stretch_id)
        return len(rows)
