"""The store of a node's facts: one interface for LMDB and memory.

Writes are batches of operations, durable when `Store.write` returns; all batches that
wait go into one transaction of one writer thread.  Reads are synchronous, from memory
maps, and see every batch whose write has returned.

Facts are the rows of `onyxq.core.facts`.  Putting a row that exists changes nothing; putting
another value under its key keeps the one of higher `onyxq.core.facts.rank`, and a sound one
takes the place of a damaged one.
Indexes are derived in the same transaction, are private to the node and are rebuilt by
nothing: takeover reads them as they are.

* ``stretch``: per stretch the mask of finished tasks, and *moved* pieces: tasks whose
  due time or attempt count was changed by a RETRIED, EXPIRED or REOPENED history row.
* ``ready``: unfinished pieces whose due time had come when they were indexed, ordered by
  queue, priority (higher first), due time, id; `Piece.bits` is a stretch mask.
  A claim in flight stays in it: claims are the replica's business.
* ``due``: unfinished pieces whose due time had not come, ordered by due time.
* ``waiting``: unfinished tasks of rows with dependencies that no resolution covers.  They
  are neither ready nor due.
* ``keys``: tasks with an ordering key that are unfinished or stopped it, in the key's
  order.  Only the first of a key, its head, can be ready or due (or wait for its
  dependencies); a stopped head is neither, and blocks.
* ``unique``: rows with a unique key.  The one of the highest mark stands; the others are
  *superseded*: in no other index and in no count.
* ``expiring``: unfinished tasks that were never granted, by the time they expire at.
* ``dead``: failed tasks by queue.
* counts per partition and queue; digests per partition, hour and leaf.

Purged tasks (see `onyxq.core.purged`) are in no answer, whether their rows are deleted yet or not,
but may still be counted; rows about them that come are passed over.

Pending rows of transactions are no facts: they have a table of their own, which digests
and indexes know nothing of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from attrs import field, frozen

from onyxq.core.errors import OnyxqError
from onyxq.core.facts import Row
from onyxq.core.ids import TaskId
from onyxq.core.purged import Watermark
from onyxq.store.condition import Condition
from onyxq.store.row_checks import Prepared


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
    base: int = 0
    """``attempts`` when they were reopened last: the retry limit counts from there."""
    key: bytes = b""
    """`onyxq.core.facts.key_digest` of their ordering key; empty without."""

    @property
    def sort_key(self) -> tuple[int, int, bytes]:
        """Highest priority first, then oldest, then id."""
        return (-self.priority, self.due_ms, self.first)


class QueueCounts(NamedTuple):
    """Tasks of one queue in one partition; ready = total - finished - due later - waiting - claimed."""

    total: int
    completed: int
    failed: int
    """Those that stopped their ordering key are among them."""
    cancelled: int
    scheduled: int
    waiting: int = 0
    """Unfinished, and neither ready nor due: behind their dependencies, or others of their key."""


class Digest(NamedTuple):
    """Rows and sum (mod 2^64) of row hashes of one bucket; equal sets give equal digests."""

    rows: int
    total: int


class Ended(NamedTuple):
    """How the tasks of a stretch ended, none of them being unfinished."""

    queues: dict[str, int]
    """Queue -> when, in wall-clock ms, the last of its tasks ended."""
    failed: int
    """Mask of the tasks that failed or were cancelled."""


class PendingRow(NamedTuple):
    """A row that a transaction will make a fact once it is committed."""

    transaction: str
    deadline_ms: int
    """Log time up to which the transaction can be committed; the same for all of its rows."""
    partition: int
    number: int
    """Names the row in its transaction and partition, 0 to 2^32 - 1."""
    body: bytes


class LogRecord(NamedTuple):
    """A record of the log as a store keeps it; see `onyxq.core.log.interface.Record`."""

    position: int
    ctime_ms: int
    data: bytes


class SnapshotPart(NamedTuple):
    """A piece of a snapshot of the replica, for a store's copy of the log; pieces come in order."""

    position: int
    """Of the snapshot."""
    number: int
    """From 0."""
    last: bool
    data: bytes


class KeptLog(NamedTuple):
    """A store's copy of the log; see `onyxq.store.kept_log`."""

    position: int
    """Of the snapshot; -1: the copy begins with the log's first record."""
    snapshot: bytes
    """As `onyxq.core.snapshot` packs it; empty if the position is -1."""
    records: tuple[LogRecord, ...]
    """All records after the snapshot that the node has read."""

    @property
    def end(self) -> int:
        """Position of the last record, or of the snapshot if there is none after it."""
        return self.records[-1].position if self.records else self.position


_T = TypeVar("_T")
LEAVES = 256
"""Leaves of an hour bucket; a row's leaf depends on its stretch only."""
MILESTONES_META = "log_milestones"
"""Key of `Store.meta`: msgpack of `Replica.milestones`, as of `Store.log_position`."""
PEERS_META = "peers"
"""Key of `Store.meta`: ids of the peers that ran on this directory since the node's latest, with spaces between."""


@frozen
class Mending:
    """What is to be put right; whatever is right already is left alone."""

    rows: tuple[bytes, ...] = ()
    """Keys of damaged rows that nobody has: if only its key was changed, a row gets it back."""
    stretches: tuple[TaskId, ...] = ()
    """Stretches whose record and entries are worked out from the rows anew."""
    entries: tuple[tuple[str, bytes], ...] = ()
    """(table, key): entries of indexes that do not follow from any row."""
    partitions: tuple[int, ...] = ()
    """Partitions whose queues are counted anew."""
    leaves: tuple[bytes, ...] = ()
    """Leaves and hours whose digests are worked out anew."""


class Crooked:
    """What was found not to agree with the rows, until it is mended."""

    def __init__(self) -> None:
        self.stretches: set[TaskId] = set()
        self.entries: set[tuple[str, bytes]] = set()
        self.partitions: set[int] = set()
        self.leaves: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.stretches) + len(self.entries) + len(self.partitions) + len(self.leaves)

    def take(self, limit: int) -> Mending:
        """Some of it, of each kind at most ``limit``, to put into a batch: it is forgotten here,
        and found again by a later round if that batch fails."""
        return Mending(
            stretches=tuple(_take(self.stretches, limit)),
            entries=tuple(_take(self.entries, limit)),
            partitions=tuple(_take(self.partitions, 1)),
            leaves=tuple(_take(self.leaves, limit)),
        )


def _take(found: set[_T], limit: int) -> list[_T]:
    taken = sorted(found)[:limit]  # type: ignore[type-var]
    found.difference_update(taken)
    return taken


@frozen
class Purge:
    """Deletes some of what is purged of a partition.

    From the moment the batch is given to the store on nothing that the watermark covers is
    shown or taken any more.
    """

    partition: int
    watermark: Watermark
    after: bytes = b""
    """Where the last part ended: its `Written.purged_after`."""
    rows_max: int = 1_000
    """After about so many rows it ends; a stretch goes as a whole."""


@frozen
class Batch:
    """Operations that become durable together, in this order."""

    rows: Sequence[Row | Prepared] = ()
    """Facts; those that are `Prepared` are not checked again."""
    epochs: tuple[tuple[int, int], ...] = ()
    """(partition, epoch) promises; a lower one than stored is ignored."""
    log_position: int | None = None
    """Position up to which history is in the store once this batch is; a lower one than stored is ignored."""
    log_digest: bytes = b""
    """`Replica.digest` at ``log_position``, which is stored together with it."""
    records: Sequence[LogRecord] = ()
    """Records of the log for the store's copy, in order; those it has are passed over."""
    snapshot: SnapshotPart | None = None
    """A piece of a snapshot for the store's copy of the log."""
    meta: tuple[tuple[str, bytes], ...] = ()
    """Small named values: node id, cluster id, ..."""
    drop: tuple[int, ...] = ()
    """Partitions whose rows and indexes go (their epochs stay)."""
    promote: tuple[tuple[int, int], ...] = ()
    """(partition, now_ms): move what became due from ``due`` to ``ready``."""
    mend: Mending | None = None
    """What `Store.scrub` found, to be put right."""
    drop_pending: tuple[tuple[int, str], ...] = ()
    """(partition, transaction): pending rows that go, before those of `pending` come."""
    pending: Sequence[PendingRow] = ()
    """Pending rows; the same number of a transaction again replaces what it was."""
    purge: Purge | None = None
    """What goes because it is purged, after all else."""


@frozen
class Written:
    """What a batch changed."""

    new_rows: int = 0
    pieces: tuple[Piece, ...] = field(default=())
    """Pieces added to ``ready`` or ``due`` by this batch (new tasks, retries, promotions, heads of keys)."""
    superseded: tuple[TaskId, ...] = field(default=())
    """Tasks that no longer stand for their unique key, or came and did not, in id order."""
    purged_rows: int = 0
    """How many rows `Batch.purge` deleted."""
    purged_after: bytes = b""
    """Where it ended; empty if nothing is left."""


class Rider(Protocol):
    """Something that goes into every transaction of a store; see `Store.accompany`."""

    def take(self) -> Batch | None:
        """What is to go into the transaction that begins now; None: nothing."""
        ...

    def heard(self, outcome: Written | OnyxqError) -> None:
        """Learn whether the batch that was taken last is stored."""
        ...


class Store(Protocol):
    """A node's facts and indexes. Reading methods are synchronous and cheap.

    All of them raise `StoreDamaged` if the file is damaged beyond its rows.
    """

    condition: Condition

    async def write(self, batch: Batch) -> Written:
        """Make a batch durable; raises `StoreFailed` (it may or may not be stored; repeating it is
        safe) and `BadRequest` for malformed rows (no row of the batch is stored)."""
        ...

    def doubt(self) -> None:
        """Have the file examined page by page before it is opened the next time."""
        ...

    async def aclose(self) -> None:
        """Finish what waits and release the lock."""
        ...

    def accompany(self, rider: Rider) -> None:
        """Have a rider's batch in every transaction from now on, before all others of that transaction."""
        ...

    def follow(self, told: Callable[[Sequence[Prepared]], None]) -> Callable[[], None]:
        """Have ``told`` hear of the rows of every batch as soon as they can be read, of each batch by itself,
        until the function that comes back is called."""
        ...

    # promises and positions
    def epochs(self) -> dict[int, int]:
        """Epoch reached per partition."""
        ...

    def log_position(self) -> int:
        """Position up to which history was stored; -1 at first."""
        ...

    def log_digest(self) -> bytes:
        """`Replica.digest` at `log_position`; empty at first."""
        ...

    def kept_log(self) -> KeptLog:
        """The store's copy of the log, read from disk; raises `Corrupt`."""
        ...

    def kept_ends(self) -> tuple[int, int]:
        """Positions of the copy's snapshot and of its end, each -1 at first."""
        ...

    def meta(self, name: str) -> bytes | None:
        """A named value."""
        ...

    # facts
    def get(self, key: bytes) -> bytes | None:
        """The value of one row as stored (sealed; the caller checks it)."""
        ...

    def row_keys(self, kind: bytes, first: bytes, last: bytes, *, limit: int) -> list[bytes]:
        """Keys of the rows of a kind whose first ids lie between two of one partition, both included, in order."""
        ...

    def body(self, key: bytes) -> bytes:
        """The checked body of the row at a key; raises `Corrupt`, also if there is no such row."""
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

    def look(
        self, partition: int, *, queue: str | None, state: str | None, now_ms: int, after: bytes = b"", limit: int = 100
    ) -> list[tuple[TaskId, int]]:
        """Stretches in id order with tasks behind ``after``, each with the mask of those of a queue, or of
        all, that may be in a state (claims are not considered); about ``limit`` task rows are looked at.
        Raises `Corrupt`."""
        ...

    def finished_bits(self, stretch: bytes) -> int:
        """Mask of the finished tasks of a stretch."""
        ...

    def known_bits(self, stretch: bytes) -> int:
        """Mask of the tasks of a stretch that task rows cover."""
        ...

    def moved(self, stretch: bytes) -> list[Piece]:
        """The stretch's unfinished pieces whose due time or attempts differ from their task row's; some may wait,
        as those of tasks that came to stand behind others of their keys while they were claimed."""
        ...

    def counts_from(self, task_id: bytes) -> int:
        """The lowest token of completions that count: the position at which a task was reopened last,
        or the token of a later claim that ended without one; 0 if there is neither."""
        ...

    def data(self, task_id: bytes) -> bytes | None:
        """The payload that replaced a unique task's; raises `Corrupt`."""
        ...

    def pieces(self, stretch: bytes, mask: int) -> list[Piece]:
        """The unfinished pieces among the tasks of a mask that are in ``ready`` or ``due``."""
        ...

    # indexes
    def queues(self, partition: int) -> list[str]:
        """Names of queues that have, or had, tasks in the partition."""
        ...

    def ready(self, partition: int, queue: str, *, after: Piece | None = None, limit: int = 100) -> list[Piece]:
        """Ready pieces of a queue in order, behind ``after``."""
        ...

    def due(self, partition: int, start_ms: int, end_ms: int, *, limit: int = 100) -> list[Piece]:
        """Pieces in ``due`` whose time lies from ``start_ms`` to before ``end_ms``, earliest first."""
        ...

    def next_due_ms(self, partition: int, start_ms: int = 0) -> int | None:
        """Earliest due time in ``due`` that is not before ``start_ms``."""
        ...

    def counts(self, partition: int, queue: str | None = None) -> dict[str, QueueCounts]:
        """Counts per queue, or of one queue, if there are any."""
        ...

    def failed(self, partition: int, queue: str | None = None, *, after: bytes = b"", limit: int = 100) -> list[TaskId]:
        """Failed tasks of a queue, or of all, in id order, behind ``after``."""
        ...

    def waiting(self, partition: int, *, after: bytes = b"", limit: int = 100) -> list[tuple[TaskId, bytes]]:
        """Unfinished runs that wait for their dependencies: first id and body, cut to the run,
        in id order behind ``after``; damaged rows are left out."""
        ...

    def expiring(self, partition: int, now_ms: int, *, limit: int = 100) -> list[TaskId]:
        """Unfinished tasks, never granted according to history, whose time is up, earliest first."""
        ...

    def next_expiry_ms(self, partition: int) -> int | None:
        """Earliest time at which such a task expires."""
        ...

    # keys: digests are those of `onyxq.core.facts.key_digest`
    def unique(self, partition: int, queue: str, key: str) -> TaskId | None:
        """The task that stands for a unique key, finished or not."""
        ...

    def key_head(self, partition: int, digest: bytes) -> TaskId | None:
        """The first unfinished or stopped task of an ordering key."""
        ...

    def key_tasks(self, partition: int, digest: bytes, *, limit: int = 100) -> list[TaskId]:
        """The first unfinished or stopped tasks of an ordering key, in order."""
        ...

    def last_immediate_ms(self, partition: int, digest: bytes) -> int:
        """Due time, by its ``order``, of the last such task that is not ``scheduled``; 0 if none."""
        ...

    # pending rows of transactions
    def pending(self, partition: int, transaction: str) -> list[PendingRow]:
        """A transaction's pending rows in a partition, by number; raises `Corrupt`."""
        ...

    def pending_transactions(self, partition: int) -> dict[str, int]:
        """Names of the transactions with pending rows, each with its deadline (log time), by name."""
        ...

    # retention
    def watermark(self, partition: int) -> Watermark:
        """What is purged of a partition: whatever it covers is neither shown nor taken."""
        ...

    def raise_watermark(self, partition: int, watermark: Watermark) -> None:
        """Hide and refuse from now on what a watermark covers; a lower one changes nothing.
        Rows are deleted, and the watermark is kept, by `Batch.purge`."""
        ...

    def stretches(self, partition: int, *, after: bytes = b"", before_ms: int, limit: int = 1_000) -> list[bytes]:
        """Names of stretches with rows whose time is before, purged ones left out: behind a place
        (the last name), in the order of hours, each with the stretch as its last 20 bytes."""
        ...

    def purge_left(self, partition: int) -> bool:
        """Whether rows of purged tasks are still to be deleted."""
        ...

    def ended(self, stretch: bytes) -> Ended | None:
        """How the tasks of a stretch ended; None if some are unfinished, or stop their ordering
        key, or if that cannot be told because something is damaged."""
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

    crooked: Crooked
    """Entries of indexes, counts and digests that were found not to agree with the rows."""

    def scrub(self, after: bytes, limit_bytes: int) -> bytes:
        """Check what lies behind a place, rows first, then all that is derived from them,
        about ``limit_bytes`` of it: note what is `damaged` and `crooked`, and return the place
        reached; empty at the end of a round."""
        ...

    def partitions(self) -> list[int]:
        """Partitions of which there are rows."""
        ...

    def size_bytes(self) -> int:
        """Bytes used on disk (or in memory)."""
        ...
