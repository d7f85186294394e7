"""The reading half of the store for keys, waiting tasks and dead letters."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator

from onyxq.core.errors import BadRequest, Corrupt
from onyxq.core.facts import TASK, key_of, slice_task, unseal
from onyxq.core.ids import TaskId, id_at, ids_of, offset_of, runs_of, stretch_of
from onyxq.core.purged import Watermark
from onyxq.store.index.expected import load_stretch
from onyxq.store.index.facets import Latest, free_bits, latest_of, stands
from onyxq.store.index.heads import queue_digest
from onyxq.store.index.key_heads import KeyHeads
from onyxq.store.index.pending_rows import pending_rows, pending_transactions
from onyxq.store.index.records import Alike, due_ms_of, first_at, lowest, order_ms_of, stretch_key, unpack_mask
from onyxq.store.index.stretches import Owner, Remembered, Stretch, groups, owners
from onyxq.store.interface import PendingRow, Piece
from onyxq.store.tables import END, CheckedTables, Table, within, within_down


class RuledReads:
    """Reading methods of `onyxq.store.store.Store` about keys, waiting and failed tasks."""

    _tables: CheckedTables
    damaged: set[bytes]
    damaged_indexes: set[int]
    _watermarks: dict[bytes, Watermark]
    """Watermark per partition (as two bytes)."""
    _records: Remembered
    _heads: KeyHeads

    def _unseal(self, key: bytes, value: bytes) -> bytes:
        """Return the checked body; note a damaged row and raise `Corrupt`."""
        try:
            return unseal(key, bytes(value))
        except Corrupt:
            self.damaged.add(bytes(key))
            raise

    def hides(self, task_id: bytes) -> bool:
        """Return whether a task is purged."""
        marks = self._watermarks
        return bool(marks) and (found := marks.get(task_id[6:8])) is not None and found.covers(task_id)

    def _stretch(self, stretch: bytes) -> Stretch:
        """Return the record of a stretch, for reading only."""
        if self.hides(stretch):
            return Stretch(stretch_key(stretch))
        if (known := self._records.find(self._tables.stretch, stretch)) is not None:
            return known
        record, stored = load_stretch(self._tables, stretch)
        if stored:
            self._records.put(bytes(stretch), stored, record)
        return record

    def _met_entry(self, key: bytes) -> None:
        """Note the partition of a damaged entry of the index."""
        self.damaged_indexes.add(int.from_bytes(key[:2], "big"))

    # --- pieces of a stretch ------------------------------------------------------

    def pieces(self, stretch: bytes, mask: int) -> list[Piece]:
        """Return the unfinished pieces among the tasks of a mask that are in ``ready`` or ``due``."""
        record = self._stretch(stretch)
        wanted = mask & ~record.finished
        if not wanted:
            return []
        out = [piece for owner in owners(self._tables, record, wanted) for piece in self._pieces(record, owner, wanted)]
        return sorted(out, key=lambda piece: piece.first)

    def finished_and_moved(self, stretch: bytes) -> tuple[int, list[Piece]]:
        """Return the mask of the finished tasks of a stretch, and its `moved` pieces."""
        record = self._stretch(stretch)
        return record.finished, self._moved(record) if record.moved else []

    def moved(self, stretch: bytes) -> list[Piece]:
        """Return the stretch's unfinished pieces whose due time or attempts differ from their task row's.

        Some may wait: a claimed task can get earlier tasks of its ordering key.
        """
        return self.finished_and_moved(stretch)[1]

    def _moved(self, record: Stretch) -> list[Piece]:
        wanted = 0
        for bits in record.moved.values():
            wanted |= bits
        out = [
            _piece(record, owner, alike, held, held if owner.key else bits)
            for owner in owners(self._tables, record, wanted)
            for alike, bits in groups(record, owner).items()
            if alike != Alike(owner.due_ms(record), 0, 0) and (held := bits & ~record.finished)
        ]
        return sorted(out, key=lambda piece: piece.first)

    def _pieces(self, stretch: Stretch, owner: Owner, wanted: int) -> Iterator[Piece]:
        """Yield a row's pieces that can be ready or due."""
        if not stands(self._tables, stretch, owner):
            return
        free = free_bits(self._head, stretch, owner)
        for alike, bits in groups(stretch, owner).items():
            if held := bits & free & wanted:
                yield _piece(stretch, owner, alike, held, bits & free if owner.key else bits)

    def counts_from(self, task_id: bytes) -> int:
        """Return the lowest fencing token of completions of a task that count.

        It is the position at which the task was last reopened, or the token of a later claim that
        ended without a completion. It is 0 if there is neither.
        """
        return self._stretch(stretch_of(task_id)).counts_from(offset_of(task_id))

    def mentioned_bits(self, stretch: bytes) -> int:
        """Return the mask of the tasks of a stretch with a task row, a completion or an ended claim."""
        record = self._stretch(stretch)
        bits = record.known | record.finished
        for moved in record.moved.values():
            bits |= moved
        return bits

    # --- tasks that failed, wait, or expire -----------------------------------------

    def failed(
        self,
        partition: int,
        queue: str | None = None,
        *,
        after: bytes = b"",
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[TaskId]:
        """Return the failed tasks of a queue (None: of all) after ``after``, in id order or, newest first, reversed."""
        prefix = partition.to_bytes(2, "big")
        digests = [queue_digest(queue)] if queue is not None else list(self._digests_of_dead(prefix))
        out: list[TaskId] = []
        masks = self._masks_down if newest_first else self._masks
        rows = (masks(self._tables.dead, prefix + digest, after) for digest in digests)
        for first, bits in heapq.merge(*rows, reverse=newest_first):
            if len(out) >= limit:
                break
            found = [task for run in runs_of(stretch_of(first), bits) for task in ids_of(*run)]
            if self.hides(first):
                continue
            if newest_first:
                out += [task for task in reversed(found) if not after or task < after]
            else:
                out += [task for task in found if task > after]
        return out[:limit]

    def _digests_of_dead(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the queues of a partition that have failed tasks, without reading those that have none."""
        start = prefix
        while (found := next(iter(self._tables.dead.ascend(start)), None)) is not None:
            digest = bytes(found[0][2:18])
            if found[0][:2] != prefix:
                return
            yield digest
            start = prefix + digest + b"\xff" * 21  # after every id

    @staticmethod
    def _masks_down(table: Table, prefix: bytes, after: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield rows (first id, mask) of a range from the last one, or the row of the task ``after``, downwards."""
        for key, value in within_down(table, prefix, prefix + (after or END)):
            yield bytes(key[-20:]), unpack_mask(bytes(value))

    @staticmethod
    def _masks(table: Table, prefix: bytes, after: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield rows (first id, mask) of a range, from the row that may hold the task ``after``."""
        start = prefix
        if after:
            for key, value in table.descend(prefix + after):
                if key[:-20] == prefix and key[-20:-4] == after[:16]:
                    yield bytes(key[-20:]), unpack_mask(bytes(value))
                break
            start = prefix + after + b"\0"
        for key, value in within(table, prefix, start):
            yield bytes(key[-20:]), unpack_mask(bytes(value))

    def waiting(self, partition: int, *, after: bytes = b"", limit: int = 100) -> list[tuple[TaskId, bytes]]:
        """Return unfinished runs that wait for their dependencies: first id, and body cut to the run.

        They are in id order, after ``after``. Damaged rows are left out.
        """
        out: list[tuple[TaskId, bytes]] = []
        for first, bits in self._masks(self._tables.waiting, partition.to_bytes(2, "big"), after):
            if len(out) >= limit:
                break
            key = key_of(TASK, first)
            stored = self._tables.rows.get(key)
            if stored is None or self.hides(first):
                continue
            try:
                body = self._unseal(key, stored)
                for run in runs_of(stretch_of(first), bits):
                    if run.first > after:
                        cut = slice_task(body, offset_of(run.first) - offset_of(first), run.count)
                        out.append((run.first, cut))
            except (Corrupt, BadRequest, struct.error):
                continue
        return out[:limit]

    def expiring(self, partition: int, now_ms: int, *, limit: int = 100) -> list[TaskId]:
        """Return unfinished tasks, never granted according to history, that expire by ``now_ms``, earliest first.

        Tasks of rows that are known to be damaged are left out.
        """
        prefix = partition.to_bytes(2, "big")
        out: list[TaskId] = []
        for key, value in within(self._tables.expiring, prefix):
            if due_ms_of(key) > now_ms or len(out) >= limit:
                break
            if key_of(TASK, first_at(key)) in self.damaged:
                continue
            for run in runs_of(stretch_of(first_at(key)), unpack_mask(bytes(value))):
                out += ids_of(*run) if not self.hides(run.first) else ()
        return out[:limit]

    def next_expiry_ms(self, partition: int) -> int | None:
        """Return the earliest time at which such a task expires, or None."""
        return next((due_ms_of(key) for key, _ in within(self._tables.expiring, partition.to_bytes(2, "big"))), None)

    # --- keys -----------------------------------------------------------------------

    def unique(self, partition: int, digest: bytes) -> TaskId | None:
        """Return the task that holds a unique key, from its `unique_digest`, or None if the key is free."""
        found = self.latest(partition, digest)
        return None if found is None or found.released else found.task

    def latest(self, partition: int, digest: bytes) -> Latest | None:
        """Return the latest task of a unique key, whether it still holds the key or not; None if there is none."""
        found = latest_of(self._tables, partition.to_bytes(2, "big") + digest)
        return None if found is None or self.hides(found.task) else found

    def superseded_by(self, task_id: bytes) -> TaskId | None:
        """Return the task that got a task's unique key in its place, or None.

        Clients do not see a superseded task: its producer got the id of the other one.
        """
        record, bit = self._stretch(stretch_of(task_id)), 1 << offset_of(task_id)
        for owner in owners(self._tables, record, bit & record.ruled):
            rules = owner.queue.rules
            if rules is not None and not stands(self._tables, record, owner):
                digest = rules.unique_of(id_at(record.key[7:], owner.offset))
                latest = self.latest(int.from_bytes(task_id[6:8], "big"), digest)
                return None if latest is None else latest.task
        return None

    def key_head(self, partition: int, digest: bytes) -> TaskId | None:
        """Return the first unfinished or stopped task of an ordering key, or None."""
        return self._head(partition.to_bytes(2, "big") + digest)

    def _head(self, prefix: bytes) -> TaskId | None:
        return self._heads.find(self._tables, prefix)

    def last_immediate_ms(self, partition: int, digest: bytes) -> int:
        """Return the due time, by its ``order``, of the last such task that is not ``scheduled``; 0 if none."""
        prefix = partition.to_bytes(2, "big") + digest + b"\0"
        for key, _ in self._tables.keyed.descend(prefix + b"\xff" * 44):
            return order_ms_of(key) if key[:19] == prefix else 0
        return 0

    # --- pending rows ---------------------------------------------------------------

    def pending(self, partition: int, transaction: str) -> list[PendingRow]:
        """Return a transaction's pending rows in a partition, by number; raises `Corrupt`."""
        return pending_rows(self._tables.pending, partition, transaction)

    def pending_transactions(self, partition: int) -> dict[str, int]:
        """Return the transactions with pending rows: name -> deadline in ms of log time, by name."""
        return pending_transactions(self._tables.pending, partition)


def _piece(stretch: Stretch, owner: Owner, alike: Alike, held: int, group: int) -> Piece:
    """Return the piece of the tasks ``held``; the first task of ``group`` names it."""
    stretch_id, queue, (due_ms, attempts, base) = stretch.key[7:], owner.queue, alike
    first, row_first = lowest(stretch_id, group), id_at(stretch_id, owner.offset)
    return Piece(queue.name, queue.priority, due_ms, first, held, attempts, row_first, base, owner.key)
