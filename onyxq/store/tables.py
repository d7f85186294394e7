"""The ordered tables that a store consists of, as the index logic sees them.

LMDB and memory differ only in how they make these; `onyxq.store.index.records` says what each
table holds.
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
"""What is worked out from rows, entry by entry."""
PARTITION_TABLES = ("rows", *INDEX_TABLES, "stretch", "counts", "hours", "leaves", "pending")
"""What `Batch.drop` empties."""
LOG_POSITION = b"\0log_position"
LOG_DIGEST = b"\0log_digest"
FORMAT_KEY = b"\0format"
"""Named values of the store itself; the last has no checksum."""
PURGED_KEY = b"\0purged/"
"""What the names begin with under which watermarks are kept; the partition's bytes follow."""


class Table(Protocol):
    """One ordered map of byte strings inside a transaction. Values may be views."""

    @property
    def get(self) -> Callable[[bytes], bytes | None]:
        """The value of a key, or None."""
        ...

    @property
    def put(self) -> Callable[[bytes, bytes], object]:
        """Set the value of a key."""
        ...

    @property
    def add(self) -> Callable[[bytes, bytes], bool]:
        """Put unless the key exists; whether it was put."""
        ...

    @property
    def delete(self) -> Callable[[bytes], object]:
        """Forget a key, if it is there."""
        ...

    def ascend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries from ``start`` on; the table must not change meanwhile."""
        ...

    def descend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries from ``start`` down; the table must not change meanwhile."""
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
