"""Values of the store of a node's facts, and the meaning of its indexes; `onyxq.store.store` has the store.

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
* ``keyed``: tasks with an ordering key, in the key's order: unfinished tasks, and failed
  tasks that block their key.  Only the first task of a key, its head, can be ready or due
  (or wait for its dependencies).  A head that failed is neither, and blocks the key.
* ``unique``: rows with a unique key.  The row of the highest mark holds the key until it releases it; the others
  are *superseded*: in no other index and in no count.
* ``expiring``: unfinished tasks that were never granted, by expiry time.
* ``dead``: dead letters by queue.
* counts per partition and queue; digests per partition, hour and leaf.

Purged tasks (see `onyxq.core.purged`) are in no answer, even before their rows are deleted.
Counts may still include them.  The store ignores new rows about them.

Pending rows of transactions are not facts.  They have a table of their own, and digests and
indexes do not include them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from attrs import field, frozen

from onyxq.core.errors import OnyxqError
from onyxq.core.facts import Row
from onyxq.core.ids import TaskId
from onyxq.core.log.interface import Record
from onyxq.core.purged import Watermark
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
    replaced: frozenset[TaskId] = frozenset()
    """Other stretches with tasks that gave way to these for a unique key. None of them may outlive these tasks."""


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
    """Promises to store, as ``(partition, epoch)``. A promise lower than the stored one is ignored."""
    log_position: int | None = None
    """Log position up to which history is stored with this batch. A lower one than the stored one is ignored."""
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
    """``(partition, now_ms)``: move the pieces that are due at ``now_ms`` from ``due`` to ``ready``."""
    discard: tuple[bytes, ...] = ()
    """Keys of damaged rows to delete. Sound rows stay."""
    mark: tuple[int, ...] = ()
    """Partitions whose indexes are to be rebuilt, because they disagree with the rows."""
    rebuild: Rebuild | None = None
    drop_pending: tuple[tuple[int, str], ...] = ()
    """Transactions whose pending rows are deleted before `pending` is stored, as ``(partition, transaction)``."""
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
    """Number of purged rows that `Batch.purge` or `Batch.rebuild` deleted."""
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

    def heard(self, outcome: Written | OnyxqError) -> None:
        """Learn whether the last batch from `take` is stored."""
