"""Reading of all rows of a partition as of one moment, from a store that still writes.

A walk returns the stored rows page by page. Meanwhile the keys of new rows are noted, and their rows are returned
too.  With the last page, all rows of the store at that moment were returned, and no others.  So no row is returned
without those that were stored before it: rows are only added, or replaced by rows that count more.

The place at the end of a page contains the progress in the notes and in the walk. So a page whose answer was lost is
returned again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import trio

from onyxq.core.errors import Conflict, Corrupt
from onyxq.core.facts import partition_of_key, sealed
from onyxq.store.row_checks import Prepared
from onyxq.store.store import Store

PAGE_BYTES = 1024 * 1024
"""Bytes of rows that end a page."""
PAGE_ROWS = 2_048
NOTED_MAX = 200_000
"""Most noted keys of new rows; above it reading begins again."""
NAME_BYTES = 8
_PLACE = struct.Struct(f">{NAME_BYTES}sQB")
"""Name of the reading, number of returned notes, and whether the walk is over; its position follows."""
_LEAF_BYTES = 5
"""Bytes of the hour and the leaf in a position; the key follows."""


class Reading:
    """One reading; ``name`` distinguishes it from others."""

    def __init__(self, store: Store, partition: int, *, name: bytes) -> None:
        self.used_at = trio.current_time()
        self._store = store
        self._partition = partition
        self._name = name
        self._noted: dict[int, bytes] = {}
        self._count = 0
        self._too_many = False
        self.end = store.follow(self._note)
        """Function that ends it."""

    def _note(self, rows: Sequence[Prepared]) -> None:
        for row in rows:
            if partition_of_key(row.key) == self._partition and not self._too_many:
                self._noted[self._count] = row.key
                self._count += 1
        if len(self._noted) > NOTED_MAX:
            self._noted, self._too_many = {}, True

    def knows(self, after: bytes) -> bool:
        """Return whether a place (empty: the beginning) belongs to this reading."""
        return not after or (len(after) >= _PLACE.size and after[:NAME_BYTES] == self._name)

    def page(self, after: bytes) -> tuple[list[list[bytes]], bytes | None]:
        """Return the rows after a place, and the place that they reach or None; raises `Conflict`, `Corrupt`."""
        if self._too_many:
            raise Conflict(f"rows of partition {self._partition} come faster than they are read", field="after")
        _, given, over = _PLACE.unpack_from(after) if after else (b"", 0, 0)
        for number in [number for number in self._noted if number < given]:
            del self._noted[number]
        taken = _Page(self._store, self._partition)
        for number, key in self._noted.items():
            if taken.full:
                break
            taken.add(key)
            given = number + 1
        reached = after[_PLACE.size :]
        if not over:
            for place in self._places(reached):
                if taken.full:
                    break
                taken.add(place[_LEAF_BYTES:])
                reached = place
            else:
                over = 1
        if over and given == self._count:
            return taken.rows, None
        return taken.rows, _PLACE.pack(self._name, given, over) + reached

    def _places(self, after: bytes) -> Iterator[bytes]:
        """Yield hour, leaf and key of every row after a place, in this order."""
        store, partition = self._store, self._partition
        for hour in sorted(store.hours(partition)):
            if hour.to_bytes(4, "big") < after[:4]:
                continue
            for leaf in sorted(store.leaves(partition, hour)):
                name = hour.to_bytes(4, "big") + bytes([leaf])
                if name >= after[:_LEAF_BYTES]:
                    yield from (name + key for key, _ in store.keys(partition, hour, leaf) if name + key > after)


class _Page:
    """Rows that are returned together."""

    def __init__(self, store: Store, partition: int) -> None:
        self.rows: list[list[bytes]] = []
        self._size = 0
        self._store = store
        self._partition = partition

    @property
    def full(self) -> bool:
        """Return whether the page is complete."""
        return self._size >= PAGE_BYTES or len(self.rows) >= PAGE_ROWS

    def add(self, key: bytes) -> None:
        """Add a row, unless it is purged; raises `Corrupt`."""
        value = self._store.get(key)
        if value is None:
            return
        if not sealed(key, value):
            self._store.damaged.add(key)
            raise Corrupt(f"a row of partition {self._partition} is damaged here, until it is repaired")
        self.rows.append([key, value])
        self._size += len(value)
