"""Reading all rows of a partition from a store that goes on writing, as they were at one moment.

A walk gives the rows that are there, page by page; meanwhile the keys of rows that come are noted, and
their rows are given too.  With the page behind which neither is left, all rows that the store has at
that moment were given, and none that it did not have.  So one is never there without those that were
stored before it: rows are only added, or replaced by what counts more.

A place, which a page ends at, tells how much of the notes and of the walk was given, so a page whose
answer was lost is given again.
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
"""A page ends behind the row that reaches this."""
PAGE_ROWS = 2_048
NOTED_MAX = 200_000
"""Keys of new rows that wait to be given; above it reading begins anew."""
NAME_BYTES = 8
_PLACE = struct.Struct(f">{NAME_BYTES}sQB")
"""The reading's name, how many notes were given, whether the walk is over; how far it is follows."""
_LEAF_BYTES = 5
"""Of that: the hour and the leaf; the key follows."""


class Reading:
    """See the module's first paragraph; ``name`` tells it from others."""

    def __init__(self, store: Store, partition: int, *, name: bytes) -> None:
        self.used_at = trio.current_time()
        self._store = store
        self._partition = partition
        self._name = name
        self._noted: dict[int, bytes] = {}
        self._count = 0
        self._too_many = False
        self.end = store.follow(self._note)
        """Ends it."""

    def _note(self, rows: Sequence[Prepared]) -> None:
        for row in rows:
            if partition_of_key(row.key) == self._partition and not self._too_many:
                self._noted[self._count] = row.key
                self._count += 1
        if len(self._noted) > NOTED_MAX:
            self._noted, self._too_many = {}, True

    def knows(self, after: bytes) -> bool:
        """Whether a place (empty: the beginning) is of this reading."""
        return not after or (len(after) >= _PLACE.size and after[:NAME_BYTES] == self._name)

    def page(self, after: bytes) -> tuple[list[list[bytes]], bytes | None]:
        """Rows behind a place, and the place that they reach, None at the end; raises `Conflict`, `Corrupt`."""
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
        """Hour, leaf and key of every row behind such a place, in this order."""
        store, partition = self._store, self._partition
        for hour in sorted(store.hours(partition)):
            if hour.to_bytes(4, "big") < after[:4]:
                continue
            for leaf in sorted(store.leaves(partition, hour)):
                name = hour.to_bytes(4, "big") + bytes([leaf])
                if name >= after[:_LEAF_BYTES]:
                    yield from (name + key for key, _ in store.keys(partition, hour, leaf) if name + key > after)


class _Page:
    """Rows that are given together."""

    def __init__(self, store: Store, partition: int) -> None:
        self.rows: list[list[bytes]] = []
        self._size = 0
        self._store = store
        self._partition = partition

    @property
    def full(self) -> bool:
        """Whether nothing more is to come."""
        return self._size >= PAGE_BYTES or len(self.rows) >= PAGE_ROWS

    def add(self, key: bytes) -> None:
        """Take a row, unless it is purged; raises `Corrupt`."""
        value = self._store.get(key)
        if value is None:
            return
        if not sealed(key, value):
            self._store.damaged.add(key)
            raise Corrupt(f"a row of partition {self._partition} is damaged here, until it is repaired")
        self.rows.append([key, value])
        self._size += len(value)
