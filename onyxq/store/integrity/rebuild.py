"""Builds the index of a partition again from its rows, a slice at a time.

The *marks*, a map among the store's named values, name each partition whose index disagrees with its rows.
At first the index is only marked, and is kept up to date as before.  The first slice drops it.
The mark then holds the last stretch that was indexed: rows of later stretches are stored only,
and indexed when their turn comes.  After the last stretch the mark is deleted.

A rebuild stops at a damaged row until that is repaired, because a task must not seem unfinished
while its completion cannot be read.  Purged stretches are deleted instead, damaged or not: no other
node has their rows, and `onyxq.store.index.purge.Purger.purge` finds only what is indexed.

Nothing may read the index of a marked partition that could mistake a part of it for the whole: see
`onyxq.store.store.Store.unindexed`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgpack

from onyxq.core.errors import BadRequest
from onyxq.core.facts import KINDS, TASK, Row, seal, unseal
from onyxq.core.ids import STRETCH_TASKS, id_at, stretch_of
from onyxq.store.index.expected import stretch_rows
from onyxq.store.interface import Rebuild
from onyxq.store.row_checks import Prepared, prepare
from onyxq.store.tables import DERIVED_TABLES, REBUILD_KEY, Table, Tables

WANTED = b""
"""Place of a mark whose index was not dropped yet."""
START = b"\0"
"""Place before all stretches."""


def marks_in(meta: Table) -> dict[bytes, bytes]:
    """Return the place of each marked partition (as two bytes); raises `Corrupt`."""
    stored = meta.get(REBUILD_KEY)
    if stored is None:
        return {}
    found: dict[bytes, bytes] = msgpack.unpackb(unseal(REBUILD_KEY, bytes(stored)))
    return found


class Marks:
    """The marks in one write transaction."""

    def __init__(self, meta: Table) -> None:
        self._meta = meta
        self._places = marks_in(meta)

    def put(self, partition: bytes, place: bytes = WANTED) -> None:
        """Mark a partition. Without a place, its index is to be dropped (again)."""
        self._places[partition] = place
        self._write()

    def remove(self, partition: bytes) -> None:
        """Remove a partition's mark, if it has one."""
        if self._places.pop(partition, None) is not None:
            self._write()

    def _write(self) -> None:
        if self._places:
            packed = msgpack.packb(dict(sorted(self._places.items())))
            self._meta.put(REBUILD_KEY, seal(REBUILD_KEY, packed))
        else:
            self._meta.delete(REBUILD_KEY)

    def place(self, partition: bytes) -> bytes | None:
        """Return the place of a partition's mark, or None."""
        return self._places.get(partition)

    def later(self, stretch_id: bytes) -> bool:
        """Return whether the rows of a stretch are indexed later."""
        place = self._places.get(stretch_id[6:8]) if self._places else None
        return bool(place) and stretch_id > (place or b"")


def rebuild(
    tables: Tables, marks: Marks, asked: Rebuild, *, index: Callable[[Prepared], None], purge: Callable[[bytes], int]
) -> tuple[tuple[bytes, ...], bool]:
    """Do one slice; ``index`` indexes a row, ``purge`` deletes the rows of a stretch if it is purged.

    ``purge`` returns their number. Returns the keys of damaged rows at which it stopped, and whether the index is
    complete.
    """
    partition, left = asked.partition.to_bytes(2, "big"), asked.rows_max
    place = marks.place(partition)
    if place is None:
        return (), True
    if place in (WANTED, START):
        place = START
        for name in DERIVED_TABLES:
            table: Table = getattr(tables, name)
            left -= table.clear(partition, left)
    while left > 0:
        stretch_id = _stretch_after(tables, partition, place)
        if stretch_id is None:
            marks.remove(partition)
            return (), True
        if deleted := purge(stretch_id):
            place, left = stretch_id, left - deleted
            continue
        rows, damaged = _read(tables, stretch_id)
        damaged -= asked.without
        if damaged:
            marks.put(partition, place)
            return tuple(sorted(damaged)), False
        # Indexing expects that task rows that start later, and all stored completions, were indexed before.
        for row in [one for one in reversed(rows) if one.kind == TASK] + [one for one in rows if one.kind != TASK]:
            index(row)
        place = stretch_id
        left -= max(1, len(rows))
    marks.put(partition, place)
    return (), False


def _stretch_after(tables: Tables, partition: bytes, place: bytes) -> bytes | None:
    """Return the first stretch with rows after a place, or None."""
    start = b"" if place == START else id_at(place, STRETCH_TASKS - 1) + b"\xff" * 13
    found = []
    for kind in KINDS:
        key = next((bytes(key) for key, _ in tables.rows.ascend(partition + kind + start)), b"")
        if key[:3] == partition + kind:
            found.append(stretch_of(key[3:23]))
    return min(found, default=None)


def _read(tables: Tables, stretch_id: bytes) -> tuple[list[Prepared], set[bytes]]:
    """Return the sound rows of a stretch, completions first, and the keys of the damaged ones."""
    rows, damaged = [], set()
    for key, value in stretch_rows(tables, stretch_id):
        try:
            rows.append(prepare(Row(key, value)))
        except BadRequest:
            damaged.add(key)
    return rows, damaged
