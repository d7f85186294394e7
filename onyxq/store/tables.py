"""The ordered tables of a store, as the index logic sees them.

LMDB and memory differ only in how they make these.  `onyxq.store.index.records` lists what
each table holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

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
PARTITION_TABLES = ("rows", *INDEX_TABLES, "stretch", "counts", "hours", "leaves", "pending")
"""Tables that `Batch.drop` empties."""
LOG_POSITION = b"\0log_position"
LOG_DIGEST = b"\0log_digest"
FORMAT_KEY = b"\0format"
"""Name of the store's format. Of the store's own named values, only this one has no checksum."""
PURGED_KEY = b"\0purged/"
"""Prefix of the names of watermarks; the partition's bytes follow."""


class Table(Protocol):
    """One ordered map of byte strings inside a transaction. Values may be views."""

    @property
    def get(self) -> Callable[[bytes], bytes | None]:
        """Return the value of a key, or None."""
        ...

    @property
    def put(self) -> Callable[[bytes, bytes], object]:
        """Set the value of a key."""
        ...

    @property
    def add(self) -> Callable[[bytes, bytes], bool]:
        """Put unless the key exists; return whether it was put."""
        ...

    @property
    def delete(self) -> Callable[[bytes], object]:
        """Delete a key if it exists."""
        ...

    def ascend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries from ``start`` upwards; the table must not change meanwhile."""
        ...

    def descend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries from ``start`` downwards; the table must not change meanwhile."""
        ...

    def clear(self, prefix: bytes) -> None:
        """Delete every key that starts with ``prefix``."""
        ...


class Tables(Protocol):
    """All tables of one transaction."""

    @property
    def rows(self) -> Table: ...

    @property
    def ready(self) -> Table: ...

    @property
    def due(self) -> Table: ...

    @property
    def waiting(self) -> Table: ...

    @property
    def keyed(self) -> Table: ...

    @property
    def unique(self) -> Table: ...

    @property
    def expiring(self) -> Table: ...

    @property
    def dead(self) -> Table: ...

    @property
    def stretch(self) -> Table: ...

    @property
    def counts(self) -> Table: ...

    @property
    def hours(self) -> Table: ...

    @property
    def leaves(self) -> Table: ...

    @property
    def pending(self) -> Table: ...

    @property
    def epochs(self) -> Table: ...

    @property
    def log(self) -> Table: ...

    @property
    def meta(self) -> Table: ...
