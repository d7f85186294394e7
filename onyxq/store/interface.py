"""The store of a node's facts: one interface for LMDB and memory.

Writes are batches of operations.  A batch is durable when `Store.write` returns.  One writer
thread puts all waiting batches into one transaction.  Reads are synchronous, from memory maps,
and see every batch whose write has returned.

Facts are the rows of `onyxq.core.facts`.  Putting a row that exists changes nothing.  Of two
values under one key, the store keeps the one of higher `onyxq.core.facts.rank`.  A sound value
replaces a damaged one.

Indexes are derived in the same transaction and are private to the node.  A takeover reads them
as they are; it does not rebuild them.

* ``stretch``: per stretch the mask of finished tasks, and *moved* pieces: tasks whose
  due time or attempt count was changed by a RETRIED, EXPIRED or REOPENED history row.
* ``ready``: unfinished pieces that were due when they were indexed, ordered by queue,
  priority (higher first), due time, id.  `Piece.bits` is a stretch mask.  A claimed task
  stays in it, because the replica keeps the claims.
* ``due``: unfinished pieces that were not due when they were indexed, ordered by due time.
* ``waiting``: unfinished tasks of rows with dependencies that no resolution covers.  They
  are neither ready nor due.
* ``keys``: tasks with an ordering key that are unfinished or stopped it, in the key's
  order.  Only the first task of a key, its head, can be ready or due (or wait for its
  dependencies).  A stopped head is neither, and blocks the key.
* ``unique``: rows with a unique key.  The row of the highest mark holds the key; the others
  are *superseded*: in no other index and in no count.
* ``expiring``: unfinished tasks that were never granted, by expiry time.
* ``dead``: failed tasks by queue.
* counts per partition and queue; digests per partition, hour and leaf.

Purged tasks (see `onyxq.core.purged`) are in no answer, even before their rows are deleted.
Counts may still include them.  The store ignores new rows about them.

Pending rows of transactions are not facts.  They have a table of their own, and digests and
indexes do not include them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from attrs import field, frozen

from onyxq.core.errors import OnyxqError
from onyxq.core.facts import Row
from onyxq.core.ids import TaskId
from onyxq.core.log.interface import Record
from onyxq.core.purged import Watermark
from onyxq.store.condition import Condition
from onyxq.store.row_checks import Prepared


class Piece(NamedTuple):
    """Unfinished tasks of one task row that are alike; ordered by `sort_key`."""

    queue: str
    priority: int
    due_ms: int
    first: TaskId
    """First id of the piece when it was made. It only names the piece."""
    bits: int
    """The tasks, as a mask of the stretch of ``first``."""
    attempts: int
    """Number of counted attempts that failed or expired before."""
    row_first: TaskId
    """First id of the task row that holds them."""
    base: int = 0
    """``attempts`` at the last reopening. The retry limit counts from there."""
    key: bytes = b""
    """`onyxq.core.facts.key_digest` of their ordering key; empty without one."""

    @property
    def sort_key(self) -> tuple[int, int, bytes]:
        """Sort key: highest priority first, then oldest, then id."""
        return (-self.priority, self.due_ms, self.first)


class QueueCounts(NamedTuple):
    """Tasks of one queue in one partition.

    Ready = total - finished - due later - waiting - claimed.
    """

    total: int
    completed: int
    failed: int
    """Failed tasks, including those that stopped their ordering key."""
    cancelled: int
    scheduled: int
    waiting: int = 0
    """Unfinished tasks that wait for dependencies, or for earlier tasks of their key."""


class Digest(NamedTuple):
    """Number of rows and sum (mod 2^64) of row hashes of one bucket.

    Equal sets of rows give equal digests.
    """

    rows: int
    total: int


class Ended(NamedTuple):
    """Ending of the tasks of a stretch; all of them are finished."""

    queues: dict[str, int]
    """Queue -> wall-clock ms at which the last of its tasks ended."""
    failed: int
    """Mask of the tasks that failed or were cancelled."""


class PendingRow(NamedTuple):
    """A row that becomes a fact when its transaction is committed."""

    transaction: str
    deadline_ms: int
    """Log time in ms until which the transaction can be committed; the same for all of its rows."""
    partition: int
    number: int
    """Number of the row in its transaction and partition, 0 to 2^32 - 1."""
    body: bytes


class SnapshotPart(NamedTuple):
    """A piece of a snapshot of the replica, for a store's copy of the log.

    Pieces arrive in order.
    """

    position: int
    """Position of the snapshot."""
    number: int
    """Number of the piece, from 0."""
    last: bool
    data: bytes


class KeptLog(NamedTuple):
    """A store's copy of the log; see `onyxq.store.kept_log`."""

    position: int
    """Position of the snapshot. If -1, the copy begins with the log's first record."""
    snapshot: bytes
    """The snapshot as `onyxq.core.snapshot` packs it; empty if the position is -1."""
    records: tuple[Record, ...]
    """All records after the snapshot that the node has read."""

    @property
    def end(self) -> int:
        """Position of the last record, or of the snapshot if no record follows it."""
        return self.records[-1].position if self.records else self.position


LEAVES = 256
"""Number of leaves of an hour bucket. A row's leaf depends on its stretch only."""
MILESTONES_META = "log_milestones"
"""Key of `Store.meta`: msgpack of `Replica.milestones`, as of `Store.log_position`."""
NODE_META = "node_id"
CLUSTER_META = "cluster_id"
STORE_META = "store_id"
"""Key of `Store.meta`: random id of the store, by which the log recognises that a node lost its store."""
ADMITTED_META = "admitted"
"""Key of `Store.meta`: the store's id, once a peer of the node is in the log with it, and epochs are promised."""
PEERS_META = "peers"
"""Key of `Store.meta`: space-separated ids of the peers that ran on this directory since the node's latest."""


@frozen
class Rebuild:
    """A slice of the rebuild of a marked partition's index; the first slices drop it."""

    partition: int
    rows_max: int = 64
    """Approximate number of rows or entries after which it ends. A stretch is indexed as a whole."""
    without: frozenset[bytes] = frozenset()
    """Damaged rows that no other node can replace. They are left out; at any other the rebuild stops."""


@frozen
class Purge:
    """An order to delete part of the purged rows of a partition.

    As soon as the store receives the batch, it neither shows nor accepts anything that the
    watermark covers.
    """

    partition: int
    watermark: Watermark
    after: bytes = b""
    """Place where the last part ended: its `Written.purged_after`."""
    rows_max: int = 1_000
    """Approximate number of rows after which it ends. A stretch is deleted as a whole."""


@frozen
class Batch:
    """Operations that become durable together, in this order."""

    rows: Sequence[Row | Prepared] = ()
    """Facts. Rows that are `Prepared` are not checked again."""
    epochs: tuple[tuple[int, int], ...] = ()
    """(partition, epoch) promises; one lower than the stored one is ignored."""
    log_position: int | None = None
    """Log position whose history is stored once this batch is; one lower than the stored one is ignored."""
    log_digest: bytes = b""
    """`Replica.digest` at ``log_position``, stored together with it."""
    records: Sequence[Record] = ()
    """Records of the log for the store's copy, in order. Records that it has are skipped."""
    snapshot: SnapshotPart | None = None
    """A piece of a snapshot for the store's copy of the log."""
    meta: tuple[tuple[str, bytes], ...] = ()
    """Small named values: node id, cluster id, ..."""
    drop: tuple[int, ...] = ()
    """Partitions whose rows and indexes are deleted (their epochs stay)."""
    promote: tuple[tuple[int, int], ...] = ()
    """(partition, now_ms): move the pieces that are due by then from ``due`` to ``ready``."""
    discard: tuple[bytes, ...] = ()
    """Keys of damaged rows to delete. Sound rows stay."""
    mark: tuple[int, ...] = ()
    """Partitions whose indexes are to be rebuilt, because they disagree with the rows."""
    rebuild: Rebuild | None = None
    drop_pending: tuple[tuple[int, str], ...] = ()
    """(partition, transaction): pending rows to delete before those of `pending` are put."""
    pending: Sequence[PendingRow] = ()
    """Pending rows. A row replaces an earlier one of the same transaction and number."""
    purge: Purge | None = None
    """Purged rows to delete, after all else."""


@frozen
class Written:
    """Changes by a batch."""

    new_rows: int = 0
    pieces: tuple[Piece, ...] = field(default=())
    """Pieces added to ``ready`` or ``due`` by this batch (new tasks, retries, promotions, heads of keys)."""
    superseded: tuple[TaskId, ...] = field(default=())
    """Tasks that lost their unique key, or arrived and did not get it, in id order."""
    purged_rows: int = 0
    """Number of rows that `Batch.purge` deleted."""
    purged_after: bytes = b""
    """Place where the purge ended; empty if none is left."""
    damaged: tuple[bytes, ...] = ()
    """Keys of damaged rows at which `Batch.rebuild` stopped."""
    rebuilt: bool = False
    """Whether the index of that partition is complete."""


class Rider(Protocol):
    """A source of batches for every transaction of a store; see `Store.accompany`."""

    def take(self) -> Batch | None:
        """Return the batch for the transaction that begins now, or None."""
        ...

    def heard(self, outcome: Written | OnyxqError) -> None:
        """Learn whether the last batch from `take` is stored."""
        ...


class Store(Protocol):
    """A node's facts and indexes. Reading methods are synchronous and cheap.

    All of them raise `StoreDamaged` if the file is damaged beyond its rows.
    """

    condition: Condition

    async def write(self, batch: Batch) -> Written:
        """Make a batch durable.

        Raises `StoreFailed` (it may or may not be stored; repeating it is safe), and `BadRequest`
        for malformed rows (no row of the batch is stored).
        """
        ...

    def doubt(self) -> None:
        """Have the file examined page by page before it is opened the next time."""
        ...

    async def aclose(self) -> None:
        """Finish the waiting writes and release the lock."""
        ...

    def accompany(self, rider: Rider) -> None:
        """Put a rider's batch into every later transaction, before all others of that transaction."""
        ...

    def follow(self, told: Callable[[Sequence[Prepared]], None]) -> Callable[[], None]:
        """Call ``told`` with the rows of each batch as soon as they can be read.

        Every batch gets a call of its own. Call the returned function to stop.
        """
        ...

    # promises and positions
    def epochs(self) -> dict[int, int]:
        """Return the epoch reached, per partition."""
        ...

    def log_position(self) -> int:
        """Return the log position whose history is stored; -1 at first."""
        ...

    def log_digest(self) -> bytes:
        """Return `Replica.digest` at `log_position`; empty at first."""
        ...

    def kept_log(self) -> KeptLog:
        """Return the store's copy of the log, read from disk; raises `Corrupt`."""
        ...

    def kept_ends(self) -> tuple[int, int]:
        """Return the positions of the copy's snapshot and of its end, each -1 at first."""
        ...

    def meta(self, name: str) -> bytes | None:
        """Return a named value, or None."""
        ...

    # facts
    def get(self, key: bytes) -> bytes | None:
        """Return the value of one row as stored (sealed; the caller checks it), or None."""
        ...

    def row_keys(self, kind: bytes, first: bytes, last: bytes, *, limit: int) -> list[bytes]:
        """Return the keys of rows of a kind whose first ids lie between two ids of one partition.

        Both ends are included. The keys are in order.
        """
        ...

    def body(self, key: bytes) -> bytes:
        """Return the checked body of the row at a key; raises `Corrupt`, also if the row is missing."""
        ...

    def task_row(self, task_id: bytes) -> tuple[TaskId, bytes] | None:
        """Return first id and checked body of the task row that covers an id; raises `Corrupt`."""
        ...

    def completions(self, stretch: bytes) -> list[tuple[TaskId, bytes]]:
        """Return first ids and checked bodies of the completion rows of a stretch; raises `Corrupt`."""
        ...

    def covering(self, kind: bytes, task_id: bytes) -> list[tuple[TaskId, bytes]]:
        """Return first ids and checked bodies of the rows of a kind that cover an id, oldest first.

        Raises `Corrupt`.
        """
        ...

    def task_rows(self, partition: int, *, after: bytes = b"", limit: int = 100) -> list[tuple[TaskId, bytes]]:
        """Return the task rows that start after ``after``: first id and checked body, in id order.

        Raises `Corrupt`.
        """
        ...

    def look(
        self, partition: int, *, queue: str | None, state: str | None, now_ms: int, after: bytes = b"", limit: int = 100
    ) -> list[tuple[TaskId, int]]:
        """Return stretches with tasks after ``after``, in id order, each with a mask of tasks.

        The mask holds the tasks of a queue (None: of all) that may be in ``state``. Claims are not
        considered. About ``limit`` task rows are read. Raises `Corrupt`.
        """
        ...

    def finished_bits(self, stretch: bytes) -> int:
        """Return the mask of the finished tasks of a stretch."""
        ...

    def known_bits(self, stretch: bytes) -> int:
        """Return the mask of the tasks of a stretch that task rows cover."""
        ...

    def moved(self, stretch: bytes) -> list[Piece]:
        """Return the stretch's unfinished pieces whose due time or attempts differ from their task row's.

        Some may wait: a claimed task can get earlier tasks of its ordering key.
        """
        ...

    def counts_from(self, task_id: bytes) -> int:
        """Return the lowest fencing token of completions of a task that count.

        It is the position at which the task was last reopened, or the token of a later claim that
        ended without a completion. It is 0 if there is neither.
        """
        ...

    def data(self, task_id: bytes) -> bytes | None:
        """Return the payload that replaced a unique task's, or None; raises `Corrupt`."""
        ...

    def pieces(self, stretch: bytes, mask: int) -> list[Piece]:
        """Return the unfinished pieces among the tasks of a mask that are in ``ready`` or ``due``."""
        ...

    # indexes
    def queues(self, partition: int) -> list[str]:
        """Return the names of queues that have, or had, tasks in the partition."""
        ...

    def ready(self, partition: int, queue: str, *, after: Piece | None = None, limit: int = 100) -> list[Piece]:
        """Return the ready pieces of a queue after ``after``, in order."""
        ...

    def due(self, partition: int, start_ms: int, end_ms: int, *, limit: int = 100) -> list[Piece]:
        """Return the pieces in ``due`` from ``start_ms`` to before ``end_ms``, earliest first."""
        ...

    def next_due_ms(self, partition: int, start_ms: int = 0) -> int | None:
        """Return the earliest due time in ``due`` that is not before ``start_ms``, or None."""
        ...

    def counts(self, partition: int, queue: str | None = None) -> dict[str, QueueCounts]:
        """Return the counts per queue, or of one queue if it has any."""
        ...

    def failed(self, partition: int, queue: str | None = None, *, after: bytes = b"", limit: int = 100) -> list[TaskId]:
        """Return the failed tasks of a queue (None: of all) after ``after``, in id order."""
        ...

    def waiting(self, partition: int, *, after: bytes = b"", limit: int = 100) -> list[tuple[TaskId, bytes]]:
        """Return unfinished runs that wait for their dependencies: first id, and body cut to the run.

        They are in id order, after ``after``. Damaged rows are left out.
        """
        ...

    def expiring(self, partition: int, now_ms: int, *, limit: int = 100) -> list[TaskId]:
        """Return unfinished tasks, never granted according to history, that expire by ``now_ms``, earliest first."""
        ...

    def next_expiry_ms(self, partition: int) -> int | None:
        """Return the earliest time at which such a task expires, or None."""
        ...

    # keys: digests are those of `onyxq.core.facts.key_digest`
    def unique(self, partition: int, queue: str, key: str) -> TaskId | None:
        """Return the task that holds a unique key, finished or not, or None."""
        ...

    def key_head(self, partition: int, digest: bytes) -> TaskId | None:
        """Return the first unfinished or stopped task of an ordering key, or None."""
        ...

    def key_tasks(self, partition: int, digest: bytes, *, limit: int = 100) -> list[TaskId]:
        """Return the first unfinished or stopped tasks of an ordering key, in order."""
        ...

    def last_immediate_ms(self, partition: int, digest: bytes) -> int:
        """Return the due time, by its ``order``, of the last such task that is not ``scheduled``; 0 if none."""
        ...

    # pending rows of transactions
    def pending(self, partition: int, transaction: str) -> list[PendingRow]:
        """Return a transaction's pending rows in a partition, by number; raises `Corrupt`."""
        ...

    def pending_transactions(self, partition: int) -> dict[str, int]:
        """Return the transactions with pending rows: name -> deadline in ms of log time, by name."""
        ...

    # retention
    def watermark(self, partition: int) -> Watermark:
        """Return the watermark of a partition: the store neither shows nor accepts what it covers."""
        ...

    def raise_watermark(self, partition: int, watermark: Watermark) -> None:
        """Hide and refuse from now on what a watermark covers; a lower one changes nothing.

        `Batch.purge` deletes the rows and stores the watermark.
        """
        ...

    def stretches(self, partition: int, *, after: bytes = b"", before_ms: int, limit: int = 1_000) -> list[bytes]:
        """Return the names of stretches with rows from before ``before_ms``, in the order of hours.

        They start after ``after`` (the last name). Purged stretches are left out. The last 20 bytes
        of a name are the stretch.
        """
        ...

    def purge_left(self, partition: int) -> bool:
        """Return whether rows of purged tasks are still to be deleted."""
        ...

    def ended(self, stretch: bytes) -> Ended | None:
        """Return how the tasks of a stretch ended.

        None if some are unfinished or stop their ordering key, or if damage leaves it unknown.
        """
        ...

    # anti-entropy
    def hours(self, partition: int) -> dict[int, Digest]:
        """Return the digest per hour bucket (ms of the id // 3,600,000).

        This method and the next two raise `Unavailable` for a partition in `unindexed`: a part of
        its rows must not be mistaken for all of them.
        """
        ...

    def leaves(self, partition: int, hour: int) -> dict[int, Digest]:
        """Return the digest per leaf of an hour bucket; empty leaves are absent."""
        ...

    def keys(self, partition: int, hour: int, leaf: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the row keys of a leaf, sorted, each with the checksum at the end of its value."""
        ...

    def unindexed(self) -> list[int]:
        """Return the partitions whose index is damaged, is to be rebuilt, or is being rebuilt.

        No leader may read them: an index that is being rebuilt lacks most tasks.
        """
        ...

    damaged: set[bytes]
    """Keys of rows that do not match their checksum, until they are repaired."""

    damaged_indexes: set[int]
    """Partitions whose index was found to be damaged, until they are marked (`Batch.mark`)."""

    def scrub(self, after: bytes, limit_bytes: int) -> bytes:
        """Check about ``limit_bytes`` after a place: rows first, then the indexes.

        Adds findings to `damaged` and `damaged_indexes`. Returns the place reached; empty at the end of a round.
        """
        ...

    def partitions(self) -> list[int]:
        """Return the partitions that have rows."""
        ...

    def size_bytes(self) -> int:
        """Return the bytes used on disk (or in memory)."""
        ...
