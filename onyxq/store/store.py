"""The store of a node's facts: one class for LMDB and memory, which add the writing half.

Every method reads the tables of the last committed transaction and closes its cursors.  So the
snapshot may advance between any two calls, also while a caller iterates `Store.keys`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import msgpack

from onyxq.core.errors import BadRequest, Corrupt, StoreFailed, Unavailable
from onyxq.core.facts import (
    COMPLETION,
    HISTORY,
    KINDS,
    RESOLUTION,
    TASK,
    UPDATE,
    unpack_history,
    unpack_resolution,
    unseal,
)
from onyxq.core.ids import TaskId, counter_of, ms_of, offset_of, stretch_of
from onyxq.core.log.interface import START
from onyxq.core.purged import NOTHING, Watermark
from onyxq.store.condition import Condition
from onyxq.store.index.applier import PreparedBatch, prepare_batch
from onyxq.store.index.endings import ended
from onyxq.store.index.heads import queue_digest, task_head
from onyxq.store.index.key_heads import KeyHeads
from onyxq.store.index.purge import purged_stretches
from onyxq.store.index.records import (
    DIGEST,
    HOUR_MS,
    due_ms_of,
    due_start,
    ready_key_of,
    stretch_key,
    unpack_counts,
    unpack_number,
    unpack_ready,
)
from onyxq.store.index.stretches import Remembered
from onyxq.store.integrity.audit import Audit
from onyxq.store.integrity.rebuild import marks_in
from onyxq.store.interface import Batch, Digest, Ended, KeptLog, Piece, QueueCounts, Rider, Written
from onyxq.store.kept_log import ends_of, kept_log
from onyxq.store.row_checks import Prepared
from onyxq.store.state_lookup import FindingReads
from onyxq.store.tables import FORMAT_KEY, LOG_DIGEST, LOG_POSITION, rows_of, within

TELLING = (TASK, HISTORY, UPDATE, COMPLETION)
"""Kinds of rows with texts for people: names, data and errors."""
_COUNT = struct.Struct(">8xI")


class Store(FindingReads):
    """A node's facts and indexes. Reading methods are synchronous and cheap.

    All of them raise `StoreDamaged` if the file is damaged beyond its rows. LMDB and memory add the writing half.
    """

    def __init__(self) -> None:
        self.condition = Condition()
        self.damaged: set[bytes] = set()
        """Keys of rows that do not match their checksum, until they are repaired."""
        self._watermarks: dict[bytes, Watermark] = {}
        self._records = Remembered()
        self._heads = KeyHeads()
        self.damaged_indexes: set[int] = set()
        """Partitions whose index was found to be damaged, until they are marked."""
        self._followers: list[Callable[[Sequence[Prepared]], None]] = []
        self._riders: list[Rider] = []
        self._closed = False

    async def write(self, batch: Batch) -> Written:
        """Make a batch durable.

        Raises `StoreFailed` (it may or may not be stored; repeating it is safe), `StoreDamaged` (likewise; the node
        must end), and `BadRequest` for malformed rows (no row of the batch is stored). A cancelled write may or may
        not be stored.
        """
        raise NotImplementedError

    def begin_soon(self) -> None:
        """Begin a transaction in a moment, if a rider has a batch for it; see `accompany`.

        Raises `StoreFailed` or `StoreDamaged` if the store takes no more batches.
        """
        raise NotImplementedError

    def _check_open(self) -> None:
        """Raise the reason why the store takes no more batches, if there is one."""
        if self._closed:
            raise StoreFailed("the store is closed")
        if self.condition.fatal is not None:
            raise self.condition.fatal

    async def run(self) -> None:
        """Begin the transactions that `begin_soon` asks for, until cancelled."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Finish the waiting writes and release the lock. Later calls do nothing."""
        raise NotImplementedError

    def size_bytes(self) -> int:
        """Return the bytes used on disk (or in memory)."""
        raise NotImplementedError

    def accompany(self, rider: Rider) -> None:
        """Put a rider's batch into every later transaction, before all others of that transaction."""
        self._riders.append(rider)

    def _taken(self) -> list[tuple[Rider, PreparedBatch]]:
        """Return the batches that the riders put into the transaction that begins now; refuse malformed ones."""
        taken: list[tuple[Rider, PreparedBatch]] = []
        for rider in self._riders:
            if (batch := rider.take()) is not None:
                try:
                    taken.append((rider, prepare_batch(batch)))
                except BadRequest as error:
                    rider.heard(error)
        return taken

    def follow(self, told: Callable[[Sequence[Prepared]], None]) -> Callable[[], None]:
        """Call ``told`` with the rows of each batch as soon as they can be read.

        Every batch gets a call of its own. Call the returned function to stop.
        """
        self._followers.append(told)
        return lambda: self._followers.remove(told)

    def _tell(self, rows: Sequence[Prepared]) -> None:
        """Pass rows that can be read from now on to the followers."""
        for told in list(self._followers) if rows else ():
            told(rows)

    def scrub(self, after: bytes, limit_bytes: int) -> bytes:
        """Check about ``limit_bytes`` after a place: rows first, then the indexes.

        Adds findings to `damaged` and `damaged_indexes`. Returns the place reached; empty at the end of a round.
        """
        return Audit(self._tables.raw, self.damaged, self.damaged_indexes).step(after, limit_bytes)

    def unindexed(self) -> list[int]:
        """Return the partitions whose index is damaged, is to be rebuilt, or is being rebuilt.

        No leader may read them: an index that is being rebuilt lacks most tasks.
        """
        marked = (int.from_bytes(partition, "big") for partition in marks_in(self._tables.meta))
        return sorted({*marked, *self.damaged_indexes})

    def _check_indexed(self, partition: int) -> None:
        """Raise `Unavailable` if what was just read of a partition's index may be a part of it."""
        if partition in self.unindexed():
            raise Unavailable(f"the index of partition {partition} is being rebuilt on this node")

    def doubt(self) -> None:
        """Have the file, if there is one, examined page by page before it is opened the next time."""

    # --- promises and positions ---------------------------------------------------

    def epochs(self) -> dict[int, int]:
        """Return the epoch reached, per partition."""
        entries = self._tables.epochs.ascend(b"")
        return {int.from_bytes(key, "big"): unpack_number(key, value) for key, value in entries}

    def log_position(self) -> int:
        """Return the log position whose history is stored; -1 at first."""
        stored = self._tables.meta.get(LOG_POSITION)
        return -1 if stored is None else unpack_number(LOG_POSITION, stored)

    def log_digest(self) -> bytes:
        """Return `Replica.digest` at `log_position`; empty at first."""
        stored = self._tables.meta.get(LOG_DIGEST)
        return b"" if stored is None else unseal(LOG_DIGEST, bytes(stored))

    def kept_log(self) -> KeptLog:
        """Return the store's copy of the log, read from disk; raises `Corrupt`."""
        return kept_log(self._tables.log)

    def kept_ends(self) -> tuple[int, int]:
        """Return the positions of the copy's snapshot and of its end, each -1 at first, or if they are damaged."""
        try:
            ends = ends_of(self._tables.log)
        except Corrupt:
            return START, START  # The copy begins again with the next write.
        return ends.snapshot, ends.position

    def meta(self, name: str) -> bytes | None:
        """Return a named value, or None."""
        stored = self._tables.meta.get(name.encode())
        return None if stored is None else unseal(name.encode(), bytes(stored))

    def check_promises(self) -> None:
        """Raise `Corrupt` unless all promises, positions and named values can be read."""
        for key, value in self._tables.epochs.ascend(b""):
            if len(key) != 2:
                raise Corrupt("an epoch's key is malformed")
            unpack_number(key, value)
        for key, value in self._tables.meta.ascend(b""):
            if bytes(key) != FORMAT_KEY:
                unseal(bytes(key), bytes(value))

    # --- facts ----------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """Return the value of one row as stored (sealed; the caller checks it), or None."""
        stored = None if self.hides(key[3:]) else self._tables.rows.get(key)
        return None if stored is None else bytes(stored)

    def row_keys(self, kind: bytes, first: bytes, last: bytes, *, limit: int) -> list[bytes]:
        """Return the keys of rows of a kind whose first ids lie between two ids of one partition.

        Both ends are included. The keys are in order.
        """
        prefix = first[6:8] + kind
        out: list[bytes] = []
        for key, _ in within(self._tables.rows, prefix, prefix + first):
            if len(out) >= limit or key[3:23] > last:
                break
            out.append(key)
        return out

    def body(self, key: bytes) -> bytes:
        """Return the checked body of the row at a key; raises `Corrupt`, also if the row is missing."""
        stored = self._tables.rows.get(key)
        if stored is None:
            raise Corrupt(f"the row of kind {key[2:3]!r} at task {key[3:23].hex()} is not there")
        return self._unseal(key, stored)

    def task_row(self, task_id: bytes) -> tuple[TaskId, bytes] | None:
        """Return first id and checked body of the task row that covers an id; raises `Corrupt`."""
        stretch_id = stretch_of(task_id)
        offset = offset_of(task_id)
        stretch = self._stretch(stretch_id)
        if not stretch.known >> offset & 1:
            return None
        low, start = task_id[6:8] + TASK + stretch_id, task_id[6:8] + TASK + task_id
        if (alone := self._tables.rows.get(start)) is not None and _covers(TASK, start, alone, task_id):
            return TaskId(start[3:]), self._unseal(start, alone)  # without a cursor
        for key, value in self._tables.rows.descend(start):
            if key < low:
                break
            if _covers(TASK, key, value, task_id):
                return TaskId(key[3:]), self._unseal(key, value)
        return None

    def covering(self, kind: bytes, task_id: bytes) -> list[tuple[TaskId, bytes]]:
        """Return first ids and checked bodies of the rows of a kind that cover an id, oldest first.

        Raises `Corrupt`.
        """
        prefix = task_id[6:8] + kind
        start = prefix + (task_id if kind == UPDATE else stretch_of(task_id))
        last = prefix + task_id + b"\xff" * 12
        found = []
        for key, value in self._tables.rows.ascend(start) if not self.hides(task_id) else ():
            if key > last:
                break
            if _covers(kind, key, value, task_id):
                found.append((key[23:], key, self._unseal(key, value)))
        return [(TaskId(key[3:23]), body) for _, key, body in sorted(found)]

    def completions(self, stretch: bytes) -> list[tuple[TaskId, bytes]]:
        """Return first ids and checked bodies of the completion rows of a stretch; raises `Corrupt`."""
        found = rows_of(self._tables.rows, COMPLETION, stretch) if not self.hides(stretch) else ()
        return [(TaskId(key[3:23]), self._unseal(key, value)) for key, value in found]

    def may_say(self, stretch: bytes, texts: Sequence[bytes]) -> tuple[bool, int]:
        """Return whether one of the texts is in a row about a task of a stretch, and how many bytes were read."""
        size = 0
        for kind in TELLING:
            for _, value in rows_of(self._tables.rows, kind, stretch):
                body = bytes(value)
                size += len(body)
                if any(text in body for text in texts):
                    return True, size
        return False, size

    def finished_bits(self, stretch: bytes) -> int:
        """Return the mask of the finished tasks of a stretch."""
        return self._stretch(stretch).finished

    def known_bits(self, stretch: bytes) -> int:
        """Return the mask of the tasks of a stretch that task rows cover."""
        return self._stretch(stretch).known

    # --- indexes ----------------------------------------------------------------------

    def queues(self, partition: int) -> list[str]:
        """Return the names of queues that have, or had, tasks in the partition."""
        return list(self.counts(partition))

    def ready(self, partition: int, queue: str, *, after: Piece | None = None, limit: int = 100) -> list[Piece]:
        """Return the ready pieces of a queue after ``after``, in order."""
        prefix = partition.to_bytes(2, "big") + queue_digest(queue)
        start = prefix if after is None else ready_key_of(after) + b"\0"
        out: list[Piece] = []
        for key, value in within(self._tables.ready, prefix, start):
            if len(out) >= limit:
                break
            if not self.hides(key[30:]):
                out.append(unpack_ready(queue, key, value))
        return out

    def due(self, partition: int, start_ms: int, end_ms: int, *, limit: int = 100) -> list[Piece]:
        """Return the pieces in ``due`` from ``start_ms`` to before ``end_ms``, earliest first."""
        prefix, names = partition.to_bytes(2, "big"), {}
        out: list[Piece] = []
        for key, value in within(self._tables.due, prefix, due_start(partition, start_ms)):
            if len(out) >= limit or due_ms_of(key) >= end_ms:
                break
            if self.hides(key[10:]):
                continue
            place, rest = bytes(value[:20]), value[20:]
            digest = place[:16]
            if digest not in names:
                names[digest] = self._queue_named(prefix + digest)
            if name := names[digest]:
                out.append(unpack_ready(name, prefix + place + key[2:], rest))
        return out

    def _queue_named(self, key: bytes) -> str:
        """Return the queue whose counts have a key; empty if they are missing or damaged."""
        stored = self._tables.counts.get(key)
        return unpack_counts(stored)[1] if stored is not None else ""

    def next_due_ms(self, partition: int, start_ms: int = 0) -> int | None:
        """Return the earliest due time in ``due`` that is not before ``start_ms``, or None."""
        found = within(self._tables.due, partition.to_bytes(2, "big"), due_start(partition, start_ms))
        return next((due_ms_of(key) for key, _ in found), None)

    def counts(self, partition: int, queue: str | None = None) -> dict[str, QueueCounts]:
        """Return the counts per queue, in the order of names, or of one queue if it has any.

        For one queue, no counts of others are read.
        """
        prefix = partition.to_bytes(2, "big") + (b"" if queue is None else queue_digest(queue))
        out = {}
        for _, value in within(self._tables.counts, prefix):
            numbers, name = unpack_counts(value)
            out[name] = QueueCounts(*numbers)
        return dict(sorted(out.items()))

    # --- retention --------------------------------------------------------------------

    def watermark(self, partition: int) -> Watermark:
        """Return the watermark of a partition: the store neither shows nor accepts what it covers."""
        return self._watermarks.get(partition.to_bytes(2, "big"), NOTHING)

    def raise_watermark(self, partition: int, watermark: Watermark) -> None:
        """Hide and refuse from now on what a watermark covers; a lower one changes nothing.

        `Batch.purge` deletes the rows and stores the watermark.
        """
        if watermark.before_ms and watermark.reaches(self.watermark(partition)):
            self._watermarks[partition.to_bytes(2, "big")] = watermark

    def _note_purge(self, batch: Batch) -> None:
        if batch.purge is not None:
            self.raise_watermark(batch.purge.partition, batch.purge.watermark)

    def stretches(self, partition: int, *, after: bytes = b"", before_ms: int, limit: int = 1_000) -> list[bytes]:
        """Return the names of stretches with rows from before ``before_ms``, in the order of hours.

        They start after ``after`` (the last name). Purged stretches are left out. The last 20 bytes
        of a name are the stretch. Raises `Unavailable` for a partition in `unindexed`: a stretch whose
        record is damaged is not listed, and must not be taken for one that has no tasks.
        """
        number, mark = partition.to_bytes(2, "big"), self.watermark(partition)
        # There may be any number of purged stretches: below the watermark's hour, only the kept ones are read.
        hour = number + (mark.before_ms // HOUR_MS).to_bytes(4, "big")
        kept = sorted(key for one in mark.kept if after < (key := stretch_key(one)) < hour)
        out = [key for key in kept if ms_of(key[7:]) < before_ms and self._tables.stretch.get(key) is not None][:limit]
        for key, below in purged_stretches(self._tables.stretch, number, Watermark(before_ms), max(after, hour)):
            if len(out) >= limit:
                break
            if below and not self.hides(key[7:]):
                out.append(key)
        self._check_indexed(partition)
        return out

    def purge_left(self, partition: int) -> bool:
        """Return whether rows of purged tasks are still to be deleted."""
        watermark = self.watermark(partition)
        if not watermark.before_ms:
            return False
        found = purged_stretches(self._tables.stretch, partition.to_bytes(2, "big"), watermark, b"")
        return any(purged for _, purged in found)

    def ended(self, stretch: bytes) -> Ended | None:
        """Return how the tasks of a stretch ended.

        None if some are unfinished or stop their ordering key, or if damage leaves it unknown.
        """
        return ended(self._tables, self._stretch(stretch))

    # --- anti-entropy -----------------------------------------------------------------

    def hours(self, partition: int) -> dict[int, Digest]:
        """Return the digest per hour bucket (ms of the id // 3,600,000).

        This method and the next two raise `Unavailable` for a partition in `unindexed`: a part of
        its rows must not be mistaken for all of them.
        """
        found = within(self._tables.hours, partition.to_bytes(2, "big"))
        out = {int.from_bytes(key[2:], "big"): Digest(*DIGEST.unpack(value)) for key, value in found}
        self._check_indexed(partition)
        return out

    def leaves(self, partition: int, hour: int) -> dict[int, Digest]:
        """Return the digest per leaf of an hour bucket; empty leaves are absent."""
        prefix = partition.to_bytes(2, "big") + hour.to_bytes(4, "big")
        out = {key[6]: Digest(*DIGEST.unpack(value)) for key, value in within(self._tables.leaves, prefix)}
        self._check_indexed(partition)
        return out

    def keys(self, partition: int, hour: int, leaf: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the row keys of a leaf, sorted, each with the checksum at the end of its value.

        Rows that arrive meanwhile may be among them.
        """
        prefix = partition.to_bytes(2, "big") + hour.to_bytes(4, "big") + bytes([leaf])
        stretches = [key[7:] for key, _ in within(self._tables.stretch, prefix) if not self.hides(key[7:])]
        self._check_indexed(partition)
        for kind in KINDS:
            for stretch in stretches:
                yield from [(key, bytes(value[-4:])) for key, value in rows_of(self._tables.rows, kind, stretch)]

    def partitions(self) -> list[int]:
        """Return the partitions that have rows."""
        out: list[int] = []
        while not out or out[-1] < 0xFFFF:
            start = (out[-1] + 1 if out else 0).to_bytes(2, "big")
            found = next(iter(self._tables.rows.ascend(start)), None)
            if found is None:
                break
            out.append(int.from_bytes(found[0][:2], "big"))
        return out


def _covers(kind: bytes, key: bytes, value: bytes, task_id: bytes) -> bool:
    """Return whether a row that starts at or before an id of its stretch covers it.

    A row too damaged to decide counts as covering. Checking it then raises.
    """
    if kind == UPDATE:
        return key[3:23] == task_id
    try:
        if kind == COMPLETION:
            count = int(_COUNT.unpack(key[23:])[0])
        elif kind == RESOLUTION:
            count = unpack_resolution(bytes(value[:-4])).count
        elif kind == HISTORY:
            count = unpack_history(bytes(value[:-4])).count
        else:
            count, _ = task_head(value)
        return counter_of(key[3:23]) + count > counter_of(task_id)
    except (BadRequest, struct.error, TypeError, ValueError, msgpack.UnpackException):
        return True
