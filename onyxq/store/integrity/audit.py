"""Checks that the indexes agree with the rows, a little at a time.

A flipped bit in an index is found by deriving the index from the rows again.  It is repaired
the same way (`onyxq.store.integrity.index_repair`), without asking another node.  One round
covers all rows, all records of stretches, all entries of indexes and all sums.
"""

from __future__ import annotations

from collections.abc import Callable

from onyxq.core.errors import Corrupt
from onyxq.core.facts import sealed
from onyxq.core.ids import TaskId, offset_of, stretch_of
from onyxq.store.index.digests import count_leaf, sum_leaves
from onyxq.store.index.expected import load_stretch, true_entries, true_stretch
from onyxq.store.index.records import DIGEST, HASH_MASK, first_at, stretch_at, stretch_key, unpack_counts
from onyxq.store.index.stretches import Stretch, owners
from onyxq.store.interface import Crooked
from onyxq.store.tables import INDEX_TABLES, Table, Tables

# Costs are given in bytes; one MiB is about 5 ms of work.
STRETCH_BYTES = 8 * 1024
"""Cost of checking one stretch, for each of its task rows."""
ENTRY_BYTES = 2 * 1024
"""Cost of an index entry, or a sum."""
ROW_BYTES = 512
"""Cost of a row, besides its own bytes."""
COUNTED_BYTES = 2 * 1024
"""Cost of a row that is counted for its leaf."""
KEY_BYTES = {"ready": 50, "due": 30, "waiting": 22, "keyed": 63, "unique": 62, "expiring": 30, "dead": 38}
PHASES = ("rows", "stretch", *INDEX_TABLES, "counts", "leaves", "hours")
"""Tables in the order of a round; a place in it is a table's number and a key."""
WORK = (5, 60, 15, 1, 1, 1, 1, 1, 1, 1, 12, 1)
"""Approximate share of a round that each phase takes, in percent."""


def progress(place: bytes, partitions: int) -> float:
    """Return about what part of a round, 0 to 1, is done at a place, given the number of partitions."""
    if not place:
        return 1.0
    inside = min(1.0, int.from_bytes(place[1:3], "big") / max(1, partitions))
    return (sum(WORK[: place[0]]) + inside * WORK[place[0]]) / sum(WORK)


def true_value(tables: Tables, name: str, key: bytes, value: bytes) -> bytes | None:
    """Return the correct value of an index entry, or None if it should not exist."""
    if len(key) != KEY_BYTES[name]:
        return None
    record, _ = load_stretch(tables, stretch_at(key))
    # An entry names a task of the row it follows from, or the first place of that row.
    offset = offset_of(first_at(key))
    entries = true_entries(tables, record, 1 << offset | record.owned.get(offset, 0))
    if name != "due":
        return entries.get((name, key))
    place = bytes(value[:20])
    ready = entries.get(("ready", key[:2] + place + key[2:]))
    return None if ready is None else place + ready


def missing_entries(tables: Tables, stretch: Stretch) -> dict[tuple[str, bytes], bytes]:
    """Return the entries that follow from a stretch's record and are missing or different."""
    out = {}
    for (name, key), value in true_entries(tables, stretch).items():
        stored = getattr(tables, name).get(key)
        if stored is not None and bytes(stored) == value:
            continue
        if name == "ready" and stored is None:
            later = tables.due.get(key[:2] + key[22:])
            if later is not None and bytes(later) == key[2:22] + value:
                continue
        out[name, key] = value
    return out


class Audit:
    """Checks the tables of one snapshot, step by step."""

    def __init__(self, tables: Tables, damaged: set[bytes], crooked: Crooked) -> None:
        self._tables = tables
        self._damaged = damaged
        self._crooked = crooked

    def step(self, after: bytes, limit_bytes: int) -> bytes:
        """Check about ``limit_bytes`` after a place, at least one item.

        Returns the place reached; empty at the end of a round.
        """
        phase, key = (after[0], after[1:]) if after else (0, b"")
        looks: dict[str, Callable[[str, bytes, bytes], int]] = {
            "rows": self._row,
            "stretch": self._stretch,
            "counts": self._counts,
            "leaves": self._leaf,
            "hours": self._hour,
        }
        left = limit_bytes
        while phase < len(PHASES):
            name = PHASES[phase]
            look = looks.get(name, self._entry)
            table: Table = getattr(self._tables, name)
            for found, value in table.ascend(key + b"\0" if key else b""):
                key = bytes(found)
                left -= look(name, key, value)
                if left <= 0:
                    return bytes([phase]) + key
            phase, key = phase + 1, b""
        return b""

    def _row(self, name: str, key: bytes, value: bytes) -> int:
        if not sealed(key, value):
            self._damaged.add(key)
        else:
            stretch = stretch_of(key[3:23])
            if self._tables.stretch.get(stretch_key(stretch)) is None:
                self._crooked.stretches.add(stretch)
        return len(value) + ROW_BYTES

    def _stretch(self, name: str, key: bytes, value: bytes) -> int:
        stretch_id = TaskId(key[7:])
        if len(key) != 27 or stretch_key(stretch_id) != key:
            self._crooked.entries.add((name, key))
            return STRETCH_BYTES
        record, readable = load_stretch(self._tables, stretch_id)
        true, sound = true_stretch(self._tables, stretch_id, record.owned)
        if not sound:
            return STRETCH_BYTES  # checked again once its rows are repaired
        if not readable or true.pack() != bytes(value) or missing_entries(self._tables, true):
            self._crooked.stretches.add(stretch_id)
        rows = 0
        for owner in owners(self._tables, true, true.known):
            rows += 1
            if self._tables.counts.get(key[:2] + owner.queue.digest) is None:
                self._crooked.partitions.add(int.from_bytes(key[:2], "big"))
        for table, sums in ((self._tables.leaves, key[:7]), (self._tables.hours, key[:6])):
            if table.get(sums) is None:
                self._crooked.leaves.add(sums)
        return STRETCH_BYTES * max(1, rows)

    def _entry(self, name: str, key: bytes, value: bytes) -> int:
        true = true_value(self._tables, name, key, value)
        if true is None or true != bytes(value):
            self._crooked.entries.add((name, key))
        return ENTRY_BYTES

    def _counts(self, name: str, key: bytes, value: bytes) -> int:
        try:
            unpack_counts(key, value)
        except Corrupt:
            self._crooked.partitions.add(int.from_bytes(key[:2], "big"))
        return ENTRY_BYTES

    def _leaf(self, name: str, key: bytes, value: bytes) -> int:
        rows, total = count_leaf(self._tables, key)
        if bytes(value) != DIGEST.pack(rows, total & HASH_MASK):
            self._crooked.leaves.add(key)
        return ENTRY_BYTES + rows * COUNTED_BYTES

    def _hour(self, name: str, key: bytes, value: bytes) -> int:
        if bytes(value) != DIGEST.pack(*sum_leaves(self._tables, key)):
            self._crooked.leaves.add(key)
        return ENTRY_BYTES
