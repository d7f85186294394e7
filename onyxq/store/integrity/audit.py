"""Checks everything that a store holds against its checksums, a little at a time.

A damaged row is fetched from another node.  The index of a partition with a damaged entry is
dropped and built again from the rows (`onyxq.store.integrity.rebuild`).  One round covers all
rows and all entries of the index.
"""

from __future__ import annotations

from collections.abc import Iterable

from onyxq.core.facts import sealed
from onyxq.core.ids import stretch_of
from onyxq.store.index.digests import count_leaf
from onyxq.store.index.records import DIGEST, stretch_key
from onyxq.store.integrity.rebuild import marks_in
from onyxq.store.tables import DERIVED_TABLES, Table, Tables

# Costs of work are given as equivalent bytes read; one MiB is about 5 ms of work.
ENTRY_BYTES = 512
"""Cost of checking an index entry, or a row in addition to its own bytes."""
COUNTED_BYTES = 1024
"""Cost of reading a row again to check the digest of its leaf."""
PHASES = ("rows", *DERIVED_TABLES)
"""Tables in the order of a round. A place in the round is a table's index here, followed by a key."""
WORK = (35, 8, 1, 1, 1, 1, 1, 1, 8, 1, 1, 41)
"""Approximate share of a round that each phase takes, in percent."""


def progress(place: bytes, partitions: int) -> float:
    """Return the approximate share of a round, 0 to 1, that is done at a place; an empty place is the end."""
    if not place:
        return 1.0
    inside = min(1.0, int.from_bytes(place[1:3], "big") / max(1, partitions))
    return (sum(WORK[: place[0]]) + inside * WORK[place[0]]) / sum(WORK)


class Audit:
    """Checks the tables of one snapshot, step by step.

    ``damaged`` and ``indexes`` get the keys of damaged rows and the partitions with a damaged index.
    """

    def __init__(self, tables: Tables, damaged: set[bytes], indexes: set[int]) -> None:
        self._tables = tables
        self._damaged = damaged
        self._indexes = indexes
        self._partial = marks_in(tables.meta)
        self._stretch = b""
        """The stretch of the last row."""

    def step(self, after: bytes, limit_bytes: int) -> bytes:
        """Check about ``limit_bytes`` after a place, at least one item.

        Returns the place reached; empty at the end of a round.
        """
        phase, key = (after[0], after[1:]) if after else (0, b"")
        left = limit_bytes
        while phase < len(PHASES):
            name, before = PHASES[phase], key
            table: Table = getattr(self._tables, name)
            for found, value in table.ascend(key + b"\0" if key else b""):
                key = bytes(found)
                left -= ENTRY_BYTES
                if name == "rows":
                    left -= self._row(key, value)
                elif not sealed(key, value):
                    self._indexes.update(self._partitions(name, table, before, key))
                elif name == "leaves":
                    left -= self._leaf(key, value)
                if left <= 0:
                    return bytes([phase]) + key
                before = key
            phase, key = phase + 1, b""
        return b""

    def _row(self, key: bytes, value: bytes) -> int:
        if not sealed(key, value):
            self._damaged.add(key)
        elif self._stretch != (stretch := stretch_of(key[3:23])) and key[:2] not in self._partial:
            self._stretch, record, tables = stretch, stretch_key(stretch), self._tables
            found = (tables.stretch.get(record), tables.leaves.get(record[:7]), tables.hours.get(record[:6]))
            if None in found:
                self._indexes.add(int.from_bytes(key[:2], "big"))
        return len(value)

    def _leaf(self, key: bytes, value: bytes) -> int:
        if key[:2] in self._partial:
            return 0
        rows, total = count_leaf(self._tables, key)
        if bytes(value[:-4]) != DIGEST.pack(rows, total):
            self._indexes.add(int.from_bytes(key[:2], "big"))
        return rows * COUNTED_BYTES

    @staticmethod
    def _partitions(name: str, table: Table, before: bytes, key: bytes) -> Iterable[int]:
        """Return the partitions that a damaged entry may belong to: its key may be damaged too."""
        if name in ("counts", "hours", "leaves"):  # their keys name it once; every partition with rows has some
            after = next((bytes(found) for found, _ in table.ascend(key + b"\0")), key)
            first, *_, last = sorted(int.from_bytes(one[:2], "big") for one in (before or key, key, after))
            return range(first, last + 1)
        return {int.from_bytes(one, "big") for one in (key[:2], key[-14:-12])}
