"""Applies batches of facts to an ordered key-value transaction: rows, indexes, digests.

All index logic of the store is here and in the modules that this one uses.  LMDB and memory
share it; they differ only in their `Tables`.  A store opens a transaction, applies every waiting
batch through one `Applier`, calls `Applier.flush`, and commits.

The indexes are a function of the set of rows.  The order, grouping or repetition of arrivals
does not matter.  Only the choice between ``ready`` and ``due`` depends on when a piece was
indexed.  Work is per run, never per task of a run.  Records of stretches, counts and
digests are read and written once per transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, frozen

from onyxq.core.errors import BadRequest, Corrupt
from onyxq.core.facts import (
    COMPLETION,
    GRANTED,
    HISTORY,
    REOPENED,
    RESOLUTION,
    TASK,
    History,
    rank,
    seal,
    sealed,
    unpack_resolution,
    unseal,
)
from onyxq.core.ids import STRETCH_TASKS, TaskId, id_at, mask_of, offset_of, partition_of, stretch_of
from onyxq.core.purged import Watermark
from onyxq.store.index.digests import Digests
from onyxq.store.index.heads import QueueKey, task_head
from onyxq.store.index.key_index import Ruled
from onyxq.store.index.pending_rows import check_pending, check_transaction, drop_pending, put_pending
from onyxq.store.index.pieces import PROMOTE_PIECES_MAX, Pieces
from onyxq.store.index.purge import Purger
from onyxq.store.index.records import OUTCOME_PLACES, TOTAL, Alike, dead_key, pack_mask, pack_number, unpack_number
from onyxq.store.index.stretches import MOVING, Owner, Remembered, Stretch, groups, moved_by, owners, void_bits, winners
from onyxq.store.integrity.index_repair import Mender
from onyxq.store.interface import Batch, Mending, Written
from onyxq.store.kept_log import add_part, add_records, check_kept
from onyxq.store.row_checks import Prepared, prepare
from onyxq.store.tables import LOG_DIGEST, LOG_POSITION, PARTITION_TABLES, Table, Tables

__all__ = ["PROMOTE_PIECES_MAX", "Applier", "PreparedBatch", "prepare_batch"]


@frozen
class PreparedBatch:
    """A batch whose rows passed all checks."""

    batch: Batch
    rows: tuple[Prepared, ...]
    bytes: int
    """Bytes of its rows, and of what it adds to the copy of the log."""


def prepare_batch(batch: Batch) -> PreparedBatch:
    """Check a batch before any transaction; raises `BadRequest`."""
    for partition, number in (*batch.epochs, *batch.promote):
        if not 0 <= partition < 1 << 16 or not 0 <= number < 1 << 63:
            raise BadRequest("a partition or epoch is out of range", field="epochs")
    if any(not name for name, _ in batch.meta):
        raise BadRequest("a named value needs a name", field="meta")
    for partition, transaction in batch.drop_pending:
        check_transaction(partition, transaction)
    size = 0
    for row in batch.pending:
        check_pending(row)
        size += len(row.body)
    check_kept(batch.records, batch.snapshot)
    size += sum(len(record.data) for record in batch.records) + (len(batch.snapshot.data) if batch.snapshot else 0)
    rows = tuple(row if isinstance(row, Prepared) else prepare(row) for row in batch.rows)
    return PreparedBatch(batch, rows, size + sum(len(row.key) + len(row.value) for row in rows))


class Applier:
    """Applies prepared batches to one write transaction."""

    def __init__(
        self, tables: Tables, now_ms: int, watermarks: Mapping[bytes, Watermark], records: Remembered | None = None
    ) -> None:
        self._tables = tables
        self._watermarks = watermarks
        """Watermark per partition (as two bytes)."""
        self._pieces = Pieces(tables, now_ms, records if records is not None else Remembered())
        self._ruled = Ruled(self._pieces)
        self._digests = Digests(tables)
        self._mender = Mender(tables, pieces=self._pieces, ruled=self._ruled, digests=self._digests)
        self._purger = Purger(tables, pieces=self._pieces, ruled=self._ruled, digests=self._digests, leave=self._leave)
        self._healed: set[TaskId] = set()
        """Stretches whose damaged rows were replaced. What followed from those rows was unknown."""

    def apply(self, prepared: PreparedBatch) -> Written:
        """Apply one batch; later batches of the transaction see what it changed."""
        batch = prepared.batch
        self._pieces.added = {}
        new_rows = self._add_rows(prepared.rows)
        superseded = tuple(sorted(self._ruled.settle())) if self._ruled.unsettled else ()
        if self._healed or batch.mend is not None:
            self._mend(batch.mend or Mending())
        for partition, epoch in batch.epochs:
            self._raise_to(self._tables.epochs, partition.to_bytes(2, "big"), epoch)
        if batch.log_position is not None and batch.log_position >= 0:
            if self._raise_to(self._tables.meta, LOG_POSITION, batch.log_position):
                self._tables.meta.put(LOG_DIGEST, seal(LOG_DIGEST, batch.log_digest))
        if batch.snapshot is not None:
            add_part(self._tables.log, batch.snapshot)
        if batch.records:
            add_records(self._tables.log, batch.records)
        for name, value in batch.meta:
            self._tables.meta.put(name.encode(), seal(name.encode(), value))
        for partition, transaction in batch.drop_pending:
            drop_pending(self._tables.pending, partition, transaction)
        if batch.pending:
            put_pending(self._tables.pending, batch.pending)
        for partition in batch.drop:
            self._drop(partition.to_bytes(2, "big"))
        for partition, now_ms in batch.promote:
            self._pieces.promote(partition.to_bytes(2, "big"), now_ms)
        purged = self._purger.purge(batch.purge) if batch.purge is not None else (0, b"")
        pieces = tuple(self._pieces.added.values())
        if self._watermarks:
            pieces = tuple(piece for piece in pieces if not self._is_purged(piece.first))
        return Written(new_rows, pieces, superseded, *purged)

    def _is_purged(self, task_id: bytes) -> bool:
        watermark = self._watermarks.get(task_id[6:8])
        return watermark is not None and watermark.covers(task_id)

    def _mend(self, found: Mending) -> None:
        misplaced = [row for key in found.rows if (row := self._mender.take_misplaced(key))]
        self._add_rows([prepare(row) for row in misplaced])
        self._healed.update(stretch_of(row.key[3:23]) for row in misplaced)
        if self._ruled.unsettled:
            self._ruled.settle()
        healed, self._healed = self._healed, set()
        # While a row was damaged, changes to its tasks may have been counted for another queue.
        partitions = {partition_of(stretch) for stretch in healed} | set(found.partitions)
        stretches = (*found.stretches, *sorted(healed))
        self._mender.mend(evolve(found, stretches=stretches, partitions=tuple(sorted(partitions))))

    def flush(self) -> None:
        """Write the gathered records. The transaction may commit after it."""
        self._pieces.flush()
        self._digests.flush()

    @staticmethod
    def _raise_to(table: Table, key: bytes, number: int) -> bool:
        """Store a number unless one as high is stored; return whether it was stored."""
        stored = table.get(key)
        if stored is not None and unpack_number(key, stored) >= number:
            return False
        table.put(key, pack_number(key, number))
        return True

    def _drop(self, partition: bytes) -> None:
        self.flush()
        for name in PARTITION_TABLES:
            table: Table = getattr(self._tables, name)
            table.clear(partition)
        added = self._pieces.added
        self._pieces.added = {key: piece for key, piece in added.items() if key[:2] != partition}

    # --- rows -------------------------------------------------------------------

    def _add_rows(self, rows: Sequence[Prepared]) -> int:
        added = 0
        add, stretch_of, digests = self._tables.rows.add, self._pieces.stretch, self._digests
        purges = bool(self._watermarks)
        for row in rows:
            key, value, stretch_id = row.key, row.value, row.stretch
            if purges and self._is_purged(stretch_id):
                continue
            if not add(key, value):
                self._merge(row)
                continue
            added += 1
            stretch = stretch_of(stretch_id)
            digests.add(stretch.key[:7], key, value)
            self._index(stretch, row)
        return added

    def _index(self, stretch: Stretch, row: Prepared) -> None:
        _, _, kind, first, _, mask, detail = row
        if kind == TASK:
            self._add_task(stretch, offset_of(first), mask, detail)  # type: ignore[arg-type]
        elif kind == COMPLETION:
            self._add_completion(stretch, mask, detail)  # type: ignore[arg-type]
        elif kind == HISTORY and isinstance(detail, History):
            if detail.event in MOVING:
                self._add_move(stretch, mask, detail)
            elif detail.event == GRANTED and mask & stretch.ruled & ~stretch.granted:
                self._ruled.grant(stretch, mask)
        elif kind == RESOLUTION:
            self._add_resolution(stretch, stretch.resolved | mask)

    def _merge(self, row: Prepared) -> None:
        """Keep the higher-ranked of two values under one key; replace a damaged value by a sound one."""
        key, value = row.key, row.value
        found = self._tables.rows.get(key)
        stored = bytes(found) if found is not None else b""
        if stored == value:
            return
        stretch = self._pieces.stretch(row.stretch)
        try:
            unseal(key, stored)
        except Corrupt:
            # What it added to the digests is unknown now.
            self._digests.recount(stretch.key[:7])
            self._healed.add(row.stretch)
            self._tables.rows.put(key, value)
        else:
            if rank(key, stored) >= rank(key, value):
                return
            self._digests.replace(stretch.key[:7], key, stored, value)
            if row.kind == TASK and task_head(stored) != task_head(value):
                self._replace_task(stretch, key, value)
                return
            self._tables.rows.put(key, value)
        if row.kind == COMPLETION:
            self._add_completion(stretch, row.mask, row.detail)  # type: ignore[arg-type]
        elif row.kind == RESOLUTION:
            self._add_resolution(stretch, self._resolved(stretch))

    def _upto(self, kind: bytes, stretch: Stretch) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a kind of a stretch."""
        prefix = stretch.key[:2] + kind
        last = prefix + id_at(stretch.key[7:], STRETCH_TASKS - 1) + b"\xff" * 12
        for key, value in self._tables.rows.ascend(prefix + stretch.key[7:]):
            if key > last:
                return
            yield key, value

    # --- tasks ------------------------------------------------------------------

    def _add_task(self, stretch: Stretch, offset: int, mask: int, queue: QueueKey) -> None:
        tasks = mask & ~stretch.known
        if tasks != mask:
            mine = mask & ~self._others(stretch, offset)
            if mine & stretch.known:
                # The record includes this row already: the row was lost, and is back.
                self._healed.add(TaskId(stretch.key[7:]))
                return
            stretch.owned[offset] = tasks
        stretch.known |= mask
        stretch.dirty = True
        if not tasks:
            return
        owner = Owner(offset, tasks, queue)
        if queue.rules is not None:
            self._ruled.insert(stretch, owner, new=True)
        else:
            self._enter(stretch, owner)

    def _others(self, stretch: Stretch, offset: int) -> int:
        """Return the tasks that other rows of a stretch hold."""
        out = 0
        for key, value in self._upto(TASK, stretch):
            try:
                count, _ = task_head(value)
            except BadRequest:
                continue  # damaged
            if offset_of(key[3:]) != offset:
                out |= stretch.owned.get(offset_of(key[3:]), mask_of(key[3:], count))
        return out

    def _enter(self, stretch: Stretch, owner: Owner) -> None:
        """Count and index a plain row."""
        tasks = owner.tasks
        changes = self._pieces.counts_of(stretch.key[:2], owner.queue)
        changes[TOTAL] += tasks.bit_count()
        finished = stretch.finished
        if finished & tasks:
            for place, done in zip(OUTCOME_PLACES, stretch.done, strict=True):
                changes[place] += (tasks & done).bit_count()
            if tasks & stretch.failed:
                self._note_dead(stretch, owner)
        for alike, bits in groups(stretch, tasks).items():
            self._pieces.place(stretch, owner, alike=alike, group=bits, live=bits & ~finished)

    def _leave(self, stretch: Stretch, owner: Owner) -> None:
        """Undo `_enter`."""
        tasks = owner.tasks
        changes = self._pieces.counts_of(stretch.key[:2], owner.queue)
        changes[TOTAL] -= tasks.bit_count()
        for place, done in zip(OUTCOME_PLACES, stretch.done, strict=True):
            changes[place] -= (tasks & done).bit_count()
        self._tables.dead.delete(dead_key(owner.queue.digest, id_at(stretch.key[7:], owner.offset)))
        for alike, bits in groups(stretch, tasks).items():
            self._pieces.shrink(stretch, owner, due_ms=alike.due_ms, group=bits, gone=bits)

    def _note_dead(self, stretch: Stretch, owner: Owner) -> None:
        key = dead_key(owner.queue.digest, id_at(stretch.key[7:], owner.offset))
        bits = owner.tasks & stretch.failed
        if bits:
            self._tables.dead.put(key, pack_mask(bits))
        else:
            self._tables.dead.delete(key)

    def _replace_task(self, stretch: Stretch, key: bytes, value: bytes) -> None:
        """Put another task row under a key and index all tasks of the stretch anew."""
        self._ruled.retract(stretch, stretch.known)
        for owner in owners(self._tables, stretch, stretch.known & ~stretch.ruled):
            self._leave(stretch, owner)
        self._tables.rows.put(key, value)
        known = stretch.known
        stretch.known, stretch.owned, stretch.ruled, stretch.granted = 0, {}, 0, 0
        rows = [(bytes(key), bytes(value)) for key, value in self._upto(TASK, stretch)]
        # A damaged row may claim more tasks than it holds, so the sound rows come first.
        for damaged, found, stored in sorted((not sealed(*row), *row) for row in rows):
            try:
                count, queue = task_head(stored)
            except BadRequest:
                continue
            mask = mask_of(found[3:], count)
            self._add_task(stretch, offset_of(found[3:]), mask & known if damaged else mask, queue)

    # --- completions ------------------------------------------------------------

    def _add_completion(self, stretch: Stretch, mask: int, detail: tuple[int, int]) -> None:
        token, outcome = detail
        if mask & (stretch.finished | void_bits(stretch, token)):
            self._finish(stretch, self._winners(stretch))
        else:
            done = stretch.done.copy()
            done[outcome] |= mask
            self._finish(stretch, done)

    def _finish(self, stretch: Stretch, done: list[int]) -> None:
        """Replace the finished tasks of a stretch; all that were finished must still be."""
        before, finished = stretch.done, stretch.finished
        changed = 0
        for was, now in zip(before, done, strict=True):
            changed |= was ^ now
        if not changed:
            return
        ruled = self._ruled.retract(stretch, changed) if changed & stretch.ruled else ()
        stretch.done = done
        stretch.dirty = True
        newly = changed & ~finished
        for owner in owners(self._tables, stretch, changed & ~stretch.ruled):
            counts = self._pieces.counts_of(stretch.key[:2], owner.queue)
            for place, was, now in zip(OUTCOME_PLACES, before, done, strict=True):
                if was != now:
                    counts[place] += (owner.tasks & now).bit_count() - (owner.tasks & was).bit_count()
            if owner.tasks & (before[1] ^ done[1] | before[3] ^ done[3]):
                self._note_dead(stretch, owner)
            if owner.tasks & newly:
                for alike, bits in groups(stretch, owner.tasks).items():
                    if bits & newly:
                        self._pieces.shrink(stretch, owner, due_ms=alike.due_ms, group=bits, gone=newly)
        for owner in ruled:
            self._ruled.insert(stretch, owner)

    def _winners(self, stretch: Stretch) -> list[int]:
        return winners(stretch, self._upto(COMPLETION, stretch))

    # --- history and resolutions ------------------------------------------------

    def _add_move(self, stretch: Stretch, mask: int, event: History) -> None:
        moved = moved_by(stretch.moved, mask, event)
        if moved == stretch.moved:
            return

        ruled = self._ruled.retract(stretch, mask)
        plain = list(owners(self._tables, stretch, mask & ~stretch.ruled))
        if event.event == REOPENED or mask & stretch.finished:
            # Completions that counted may stop counting.
            for owner in plain:
                self._leave(stretch, owner)
            stretch.moved = moved
            stretch.done = self._winners(stretch)
            for owner in plain:
                self._enter(stretch, owner)
        else:
            before = [groups(stretch, owner.tasks) for owner in plain]
            stretch.moved = moved
            for owner, were in zip(plain, before, strict=True):
                self._regroup(stretch, owner, were)
        stretch.dirty = True
        for owner in ruled:
            self._ruled.insert(stretch, owner)

    def _regroup(self, stretch: Stretch, owner: Owner, before: dict[Alike, int]) -> None:
        """Index those pieces of a plain row that have changed."""
        unfinished = ~stretch.finished
        after = groups(stretch, owner.tasks)
        for alike, bits in before.items():
            if bits & unfinished and after.get(alike) != bits:
                self._pieces.shrink(stretch, owner, due_ms=alike.due_ms, group=bits, gone=bits)
        for alike, bits in after.items():
            if before.get(alike) != bits:
                self._pieces.place(stretch, owner, alike=alike, group=bits, live=bits & unfinished)

    def _add_resolution(self, stretch: Stretch, resolved: int) -> None:
        changed = resolved ^ stretch.resolved
        ruled = self._ruled.retract(stretch, changed) if changed & stretch.ruled else ()
        stretch.resolved = resolved
        stretch.dirty = True
        for owner in ruled:
            self._ruled.insert(stretch, owner)

    def _resolved(self, stretch: Stretch) -> int:
        """Return the tasks that wait for nothing, from the rows. Tasks that a damaged row resolved stay resolved."""
        out = 0
        for key, value in self._upto(RESOLUTION, stretch):
            try:
                out |= mask_of(key[3:23], unpack_resolution(unseal(key, bytes(value))).count)
            except Corrupt:
                out |= stretch.resolved & ~(mask_of(key[3:23], 1) - 1)
        return out
