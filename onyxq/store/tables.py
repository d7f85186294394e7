"""The ordered tables of a store, as the index logic sees them.

LMDB and memory differ only in how they make these.  `onyxq.store.index.records` lists what
each table holds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from onyxq.core.errors import Corrupt
from onyxq.core.facts import SEALED, seal
from onyxq.core.ids import STRETCH_TASKS, id_at

TABLE_NAMES = (
    "rows",
    "ready",
    "due",
    "waiting",
    "keyed",
    "unique",
    "expiring",
    "dead",
    "stretch",
    "counts",
    "hours",
    "leaves",
    "pending",
    "epochs",
    "log",
    "meta",
)
INDEX_TABLES = ("ready", "due", "waiting", "keyed", "unique", "expiring", "dead")
"""Tables that are derived from rows, entry by entry."""
DERIVED_TABLES = (*INDEX_TABLES, "stretch", "counts", "hours", "leaves")
"""All tables that are derived from rows: the index."""
PARTITION_TABLES = ("rows", *DERIVED_TABLES, "pending")
"""Tables that `Batch.drop` empties."""
END = b"\xff" * 20
"""A key that no id of a task exceeds."""
LOG_POSITION = b"\0log_position"
LOG_DIGEST = b"\0log_digest"
FORMAT_KEY = b"\0format"
"""Name of the store's format. Of the store's own named values, only this one has no checksum."""
PURGED_KEY = b"\0purged/"
"""Prefix of the names of watermarks; the partition's bytes follow."""
REBUILD_KEY = b"\0rebuild"
"""Name of the rebuild marks (see `onyxq.store.integrity.rebuild`)."""


class Table(Protocol):
    """One ordered map of byte strings inside a transaction. Values may be views."""

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of a key, or None."""

    def put(self, key: bytes, value: bytes) -> object:
        """Set the value of a key."""

    def add(self, key: bytes, value: bytes) -> bool:
        """Put unless the key exists; return whether it was put."""

    def delete(self, key: bytes) -> bool:
        """Delete a key; return whether it existed."""

    def ascend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries from ``start`` upwards; the table must not change meanwhile."""

    def descend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries from ``start`` downwards; the table must not change meanwhile."""

    def first(self, start: bytes) -> tuple[bytes, bytes] | None:
        """Return the first entry from ``start`` upwards, or None."""

    def clear(self, prefix: bytes, limit: int | None = None) -> int:
        """Delete the keys that start with ``prefix``, at most ``limit``; return their number."""


class Tables:
    """All tables of one transaction."""

    rows: Table
    ready: Table
    due: Table
    waiting: Table
    keyed: Table
    unique: Table
    expiring: Table
    dead: Table
    stretch: Table
    counts: Table
    hours: Table
    leaves: Table
    pending: Table
    epochs: Table
    log: Table
    meta: Table


def within(table: Table, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries whose keys begin with ``prefix``, those from ``start`` on if it is given."""
    size = len(prefix)
    for key, value in table.ascend(start or prefix):
        if key[:size] != prefix:
            return
        yield key, value


def within_down(table: Table, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries whose keys begin with ``prefix``, from ``start`` downwards."""
    size = len(prefix)
    for key, value in table.descend(start):
        if key[:size] != prefix:
            return
        yield key, value


def rows_of(rows: Table, kind: bytes, stretch: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a kind about a stretch."""
    prefix = stretch[6:8] + kind
    last = prefix + id_at(stretch, STRETCH_TASKS - 1) + b"\xff" * 12
    for key, value in rows.ascend(prefix + stretch):
        if key > last:
            return
        yield key, value


class CheckedTable:
    """A table whose entries end with a checksum of key and value, which its users do not see.

    A damaged entry is reported and left out.  With ``strict``, `get` raises `Corrupt` for it instead.
    """

    __slots__ = ("_report", "_strict", "_table")

    def __init__(self, table: Table, report: Callable[[bytes], object], *, strict: bool) -> None:
        self._table = table
        self._report = report
        self._strict = strict

    def get(self, key: bytes) -> bytes | None:
        stored = self._table.get(key)
        if stored is None:
            return None
        if zlib.crc32(stored, zlib.crc32(key)) == SEALED:
            return stored[:-4]
        self._report(key)
        if self._strict:
            raise Corrupt("an index entry does not match its checksum")
        return None

    def holds(self, key: bytes, value: bytes) -> bool:
        """Return whether a key has this value. The checksum is not looked at."""
        stored = self._table.get(key)
        return stored is not None and stored[:-4] == value

    def put(self, key: bytes, value: bytes) -> None:
        self._table.put(key, seal(key, value))

    def add(self, key: bytes, value: bytes) -> bool:
        return self._table.add(key, seal(key, value))

    def delete(self, key: bytes) -> bool:
        return self._table.delete(key)

    def clear(self, prefix: bytes, limit: int | None = None) -> int:
        return self._table.clear(prefix, limit)

    def ascend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._checked(self._table.ascend(start))

    def descend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._checked(self._table.descend(start))

    def first(self, start: bytes) -> tuple[bytes, bytes] | None:
        entry = self._table.first(start)
        if entry is None:
            return None
        key, stored = entry
        if zlib.crc32(stored, zlib.crc32(key)) == SEALED:
            return key, stored[:-4]
        return next(self.ascend(start), None)

    def _checked(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for key, stored in entries:
            if zlib.crc32(stored, zlib.crc32(key)) == SEALED:
                yield key, stored[:-4]
            else:
                self._report(key)


class CheckedTables(Tables):
    """The tables of a transaction, with those of the index checked.

    ``report`` is called with the key of each damaged entry that is met.
    """

    stretch: CheckedTable

    def __init__(self, raw: Tables, report: Callable[[bytes], object]) -> None:
        self.raw = raw
        """The tables with the checksums."""
        self._report = report

    def __getattr__(self, name: str) -> Any:
        # Made on first use: most transactions touch few tables.
        table = getattr(self.raw, name)
        if name in DERIVED_TABLES:
            # Tasks must not seem unfinished because their record is damaged.
            table = CheckedTable(table, self._report, strict=name == "stretch")
        setattr(self, name, table)
        return table
