"""The store of a node's facts: one interface for LMDB and memory.

Writes are batches of operations, durable when `Store.write` returns; all batches that
wait go into one transaction of one writer thread.  Reads are synchronous, from memory
maps, and see every batch whose write has returned.

Facts are the rows of `onyxq.facts`.  Putting a row that exists changes nothing; putting
another value under its key keeps the one of higher `onyxq.facts.rank`, and a sound one
takes the place of a damaged one.
Indexes are derived in the same transaction, are private to the node and are rebuilt by
nothing: takeover reads them as they are.

* ``stretch``: per stretch the mask of finished tasks, and *moved* pieces: tasks whose
  due time or attempt count was changed by a RETRIED or EXPIRED history row.
* ``ready``: unfinished pieces whose due time had come when they were indexed, ordered by
  queue, priority (higher first), due time, id; `Piece.bits` is a stretch mask.
  A claim in flight stays in it: claims are the replica's business.
* ``due``: unfinished pieces whose due time had not come, ordered by due time.
* counts per partition and queue; digests per partition, hour and leaf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from attrs import field, frozen

from onyxq.facts import Row
from onyxq.ids import TaskId


class Piece(NamedTuple):
    """Unfinished tasks of one task row that are alike; ordered by `sort_key`."""

    queue: str
    priority: int
    due_ms: int
    first: TaskId
    """First id of the piece when it was made: only names it."""
    bits: int
    """Which tasks, as a mask of the stretch of ``first``."""
    attempts: int
    """How many counted attempts failed or expired before."""
    row_first: TaskId
    """First id of the task row that holds them."""

    @property
    def sort_key(self) -> tuple[int, int, bytes]:
        """Highest priority first, then oldest, then id."""
        return (-self.priority, self.due_ms, self.first)


class QueueCounts(NamedTuple):
    """Tasks of one queue in one partition; ready = total - finished - due later - claimed."""

    total: int
    completed: int
    failed: int
    cancelled: int
    scheduled: int


class Digest(NamedTuple):
    """Rows and sum (mod 2^64) of row hashes of one bucket; equal sets give equal digests."""

    rows: int
    total: int


LEAVES = 256
"""Leaves of an hour bucket; a row's leaf depends on its stretch only."""


@frozen
class Batch:
    """Operations that become durable together, in this order."""

    rows: Sequence[Row] = ()
    epochs: tuple[tuple[int, int], ...] = ()
    """(partition, epoch) promises; a lower one than stored is ignored."""
    log_position: int | None = None
    """Position up to which history is in the store once this batch is."""
    meta: tuple[tuple[str, bytes], ...] = ()
    """Small named values: node id, cluster id, ..."""
    drop: tuple[int, ...] = ()
    """Partitions whose rows and indexes go (their epochs stay)."""
    promote: tuple[tuple[int, int], ...] = ()
    """(partition, now_ms): move what became due from ``due`` to ``ready``."""


@frozen
class Written:
    """What a batch changed."""

    new_rows: int = 0
    pieces: tuple[Piece, ...] = field(default=())
    """Pieces added to ``ready`` by this batch (new tasks, retries, promotions)."""


class Store(Protocol):
    """A node's facts and indexes. Reading methods are synchronous and cheap."""

    async def write(self, batch: Batch) -> Written:
        """Make a batch durable; raises `StoreFailed` (nothing of it is stored) and
        `BadRequest` for malformed rows (likewise)."""
        ...

    async def aclose(self) -> None:
        """Finish what waits and release the lock."""
        ...

    # promises and positions
    def epochs(self) -> dict[int, int]:
        """Epoch reached per partition."""
        ...

    def log_position(self) -> int:
        """Position up to which history was stored; -1 at first."""
        ...

    def meta(self, name: str) -> bytes | None:
        """A named value."""
        ...

    # facts
    def get(self, key: bytes) -> bytes | None:
        """The value of one row as stored (sealed; the caller checks it)."""
        ...

    def task_row(self, task_id: bytes) -> tuple[TaskId, bytes] | None:
        """First id and checked body of the task row that covers an id; raises `Corrupt`."""
        ...

    def completions(self, stretch: bytes) -> list[tuple[TaskId, bytes]]:
        """First ids and checked bodies of the completion rows of a stretch; raises `Corrupt`."""
        ...

    def covering(self, kind: bytes, task_id: bytes) -> list[tuple[TaskId, bytes]]:
        """First ids and checked bodies of rows of a kind that cover an id, oldest first."""
        ...

    def task_rows(self, partition: int, *, after: bytes = b"", limit: int = 100) -> list[tuple[TaskId, bytes]]:
        """Task rows (first id, checked body) in id order, of rows that start behind ``after``."""
        ...

    def finished_bits(self, stretch: bytes) -> int:
        """Mask of the finished tasks of a stretch."""
        ...

    def known_bits(self, stretch: bytes) -> int:
        """Mask of the tasks of a stretch that task rows cover."""
        ...

    def moved(self, stretch: bytes) -> list[Piece]:
        """The stretch's pieces whose due time or attempts differ from their task row's."""
        ...

    # indexes
    def queues(self, partition: int) -> list[str]:
        """Names of queues that have, or had, tasks in the partition."""
        ...

    def ready(self, partition: int, queue: str, *, after: Piece | None = None, limit: int = 100) -> list[Piece]:
        """Ready pieces of a queue in order, behind ``after``."""
        ...

    def next_due_ms(self, partition: int) -> int | None:
        """Earliest due time in ``due``."""
        ...

    def counts(self, partition: int) -> dict[str, QueueCounts]:
        """Counts per queue."""
        ...

    # anti-entropy
    def hours(self, partition: int) -> dict[int, Digest]:
        """Digest per hour bucket (ms of the id // 3,600,000)."""
        ...

    def leaves(self, partition: int, hour: int) -> dict[int, Digest]:
        """Digest per leaf of an hour bucket; empty leaves are absent."""
        ...

    def keys(self, partition: int, hour: int, leaf: int) -> Iterator[tuple[bytes, bytes]]:
        """Row keys of a leaf, sorted, each with the checksum that its value ends with."""
        ...

    damaged: set[bytes]
    """Keys of rows that were found not to match their checksum, until they are repaired."""

    def scrub(self, after: bytes, limit_bytes: int) -> bytes:
        """Check rows behind a key, at least one, about ``limit_bytes``: note the `damaged` and
        return the last key; empty at the end of all rows."""
        ...

    def partitions(self) -> list[int]:
        """Partitions of which there are rows."""
        ...

    def size_bytes(self) -> int:
        """Bytes used on disk (or in memory)."""
        ...
