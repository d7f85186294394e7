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

from collections.abc import Mapping, Sequence

from attrs import frozen

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
from onyxq.core.ids import id_at, mask_of, offset_of
from onyxq.core.purged import NOTHING, Watermark
from onyxq.store.index.digests import Digests
from onyxq.store.index.heads import QueueKey, task_head
from onyxq.store.index.key_heads import KeyHeads
from onyxq.store.index.key_index import Ruled
from onyxq.store.index.pending_rows import check_pending, check_transaction, drop_pending, put_pending
from onyxq.store.index.pieces import PROMOTE_PIECES_MAX, Pieces
from onyxq.store.index.purge import Purger
from onyxq.store.index.records import OUTCOME_PLACES, TOTAL, Alike, dead_key, pack_mask, pack_number, unpack_number
from onyxq.store.index.stretches import MOVING, Owner, Remembered, Stretch, groups, moved_by, owners, void_bits, winners
from onyxq.store.integrity.rebuild import Marks, rebuild
from onyxq.store.interface import Batch, Rebuild, Written
from onyxq.store.kept_log import add_part, add_records, check_kept
from onyxq.store.row_checks import Prepared, prepare
from onyxq.store.tables import LOG_DIGEST, LOG_POSITION, PARTITION_TABLES, CheckedTables, Table, Tables, rows_of

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
        self,
        tables: Tables,
        now_ms: int,
        watermarks: Mapping[bytes, Watermark],
        records: Remembered | None = None,
        heads: KeyHeads | None = None,
    ) -> None:
        self._raw = tables
        self._tables = CheckedTables(tables, self._distrust)
        self._watermarks = watermarks
        """Watermark per partition (as two bytes)."""
        self._marks = Marks(tables.meta)
        self._distrusted: set[bytes] = set()
        """Partitions whose index was found to disagree with the rows."""
        self._pieces = Pieces(self._tables, now_ms, records if records is not None else Remembered())
        self._ruled = Ruled(self._pieces, heads if heads is not None else KeyHeads())
        self._digests = Digests(self._tables)
        self._purger = Purger(
            self._tables,
            pieces=self._pieces,
            ruled=self._ruled,
            digests=self._digests,
            leave=self._leave,
            distrust=self._distrust,
        )

    def _distrust(self, key: bytes) -> None:
        """Have the index of a key's partition rebuilt."""
        self._distrusted.add(bytes(key[:2]))

    def apply(self, prepared: PreparedBatch) -> Written:
        """Apply one batch; later batches of the transaction see what it changed."""
        batch = prepared.batch
        self._pieces.added = {}
        new_rows = self._add_rows(prepared.rows)
        superseded = tuple(sorted(self._ruled.settle())) if self._ruled.unsettled else ()
        for key in batch.discard:
            self._discard(key)
        for partition in batch.mark:
            self._distrust(partition.to_bytes(2, "big"))
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
        purged, place = self._purger.purge(batch.purge) if batch.purge is not None else (0, b"")
        pieces = tuple(self._pieces.added.values())
        if self._watermarks:
            pieces = tuple(piece for piece in pieces if not self._is_purged(piece.first))
        more, damaged, rebuilt = self._rebuild(batch.rebuild) if batch.rebuild is not None else (0, (), False)
        return Written(new_rows, pieces, superseded, purged + more, place, damaged, rebuilt)

    def _is_refused(self, row: Prepared) -> bool:
        """Return whether a row is of purged tasks: neither copies nor the log bring them back."""
        return self._is_purged(row.stretch)

    def _is_purged(self, task_id: bytes) -> bool:
        watermark = self._watermarks.get(task_id[6:8])
        return watermark is not None and watermark.covers(task_id)

    def _discard(self, key: bytes) -> None:
        stored = self._tables.rows.get(key)
        if stored is not None and not sealed(key, stored):
            self._tables.rows.delete(key)
            self._distrust(key)

    def _rebuild(self, asked: Rebuild) -> tuple[int, tuple[bytes, ...], bool]:
        self.flush()
        self._ruled.forget_heads()
        watermark = self._watermarks.get(asked.partition.to_bytes(2, "big"), NOTHING)
        purged = 0

        def index(row: Prepared) -> None:
            stretch = self._pieces.stretch(row.stretch)
            self._digests.add(stretch.key[:7], row.key, row.value)
            self._index(stretch, row)

        def purge(stretch_id: bytes) -> int:
            nonlocal purged
            rows = self._purger.purge_unindexed(stretch_id, watermark) if watermark.covers(stretch_id) else 0
            purged += rows
            return rows

        found = rebuild(self._raw, self._marks, asked, index=index, purge=purge)
        self._ruled.settle()
        self._pieces.added = {}
        return purged, *found

    def flush(self) -> None:
        """Write the gathered records. The transaction may commit after it."""
        self._pieces.flush()
        self._digests.flush()
        for partition in sorted(self._distrusted):
            self._marks.put(partition)
        self._distrusted.clear()

    def committed(self) -> None:
        """Let readers and later transactions know the changed heads of keys; call it after the commit."""
        self._ruled.committed()

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
        self._ruled.forget_heads()
        for name in PARTITION_TABLES:
            table: Table = getattr(self._tables, name)
            table.clear(partition)
        self._marks.remove(partition)
        added = self._pieces.added
        self._pieces.added = {key: piece for key, piece in added.items() if key[:2] != partition}

    # --- rows -------------------------------------------------------------------

    def _add_rows(self, rows: Sequence[Prepared]) -> int:
        added = 0
        add, stretch_of, digests, later = self._tables.rows.add, self._pieces.stretch, self._digests, self._marks.later
        purges = bool(self._watermarks)
        for row in rows:
            key, value, stretch_id = row.key, row.value, row.stretch
            if purges and self._is_refused(row):
                continue
            if later(stretch_id):
                added += self._keep(row)
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
            elif detail.event == GRANTED and mask & stretch.ruled & ~(stretch.granted | stretch.unwatched):
                self._ruled.grant(stretch, mask)
        elif kind == RESOLUTION:
            self._add_resolution(stretch, stretch.resolved | mask)

    def _keep(self, row: Prepared) -> bool:
        """Store a row that a rebuild will index; return whether it is new."""
        key, value = row.key, row.value
        stored = self._tables.rows.get(key)
        if stored is None or not sealed(key, stored) or rank(key, bytes(stored)) < rank(key, value):
            self._tables.rows.put(key, value)
        return stored is None

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
            # What it added to the digests, and what was done while it was damaged, is unknown.
            self._distrust(key)
            self._tables.rows.put(key, value)
        else:
            if rank(key, stored) >= rank(key, value):
                return
            self._digests.replace(stretch.key[:7], key, stored, value)
            if row.kind == TASK and task_head(stored) != task_head(value):
                self._replace_task(stretch, row, stored)
                return
            self._tables.rows.put(key, value)
        if row.kind == COMPLETION:
            self._add_completion(stretch, row.mask, row.detail)  # type: ignore[arg-type]
        elif row.kind == RESOLUTION:
            self._add_resolution(stretch, self._resolved(stretch))

    # --- tasks ------------------------------------------------------------------

    def _add_task(self, stretch: Stretch, offset: int, mask: int, queue: QueueKey) -> None:
        """Index a task row. A task of several rows belongs to the one that starts last.

        All stored rows of the stretch that start later are indexed before.
        """
        tasks, overlap = mask, mask & stretch.known
        if overlap:
            stretch.owned[offset] = 0
            for other in list(owners(self._tables, stretch, overlap)):
                overlap &= ~other.tasks
                if other.offset > offset:
                    tasks &= ~other.tasks
                else:
                    self._narrow(stretch, other, other.tasks & ~mask)
            if overlap:  # a row of the index is damaged, or was lost and is back
                self._distrust(stretch.key)
            stretch.owned[offset] = tasks
            if tasks == mask:
                del stretch.owned[offset]
        stretch.known |= mask
        stretch.dirty = True
        self._put_owner(stretch, Owner(offset, tasks, queue))

    def _narrow(self, stretch: Stretch, owner: Owner, tasks: int) -> None:
        """Leave a row only some of its tasks."""
        if owner.queue.rules is not None:
            self._ruled.retract(stretch, owner.tasks)
        else:
            self._leave(stretch, owner)
        stretch.owned[owner.offset] = tasks
        stretch.ruled &= ~owner.tasks
        stretch.granted &= ~owner.tasks
        self._put_owner(stretch, owner._replace(tasks=tasks))

    def _put_owner(self, stretch: Stretch, owner: Owner) -> None:
        if not owner.tasks:
            return
        if owner.queue.rules is not None:
            self._ruled.insert(stretch, owner, new=True)
        else:
            self._enter(stretch, owner)

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
        for alike, bits in groups(stretch, owner).items():
            self._pieces.place(stretch, owner, alike=alike, group=bits, live=bits & ~finished)

    def _leave(self, stretch: Stretch, owner: Owner) -> None:
        """Undo `_enter`."""
        tasks = owner.tasks
        changes = self._pieces.counts_of(stretch.key[:2], owner.queue)
        changes[TOTAL] -= tasks.bit_count()
        for place, done in zip(OUTCOME_PLACES, stretch.done, strict=True):
            changes[place] -= (tasks & done).bit_count()
        self._tables.dead.delete(dead_key(owner.queue.digest, id_at(stretch.key[7:], owner.offset)))
        for alike, bits in groups(stretch, owner).items():
            self._pieces.shrink(stretch, owner, due_ms=alike.due_ms, group=bits, gone=bits)

    def _note_dead(self, stretch: Stretch, owner: Owner) -> None:
        key = dead_key(owner.queue.digest, id_at(stretch.key[7:], owner.offset))
        bits = owner.tasks & stretch.failed
        if bits:
            self._tables.dead.put(key, pack_mask(bits))
        else:
            self._tables.dead.delete(key)

    def _replace_task(self, stretch: Stretch, row: Prepared, stored: bytes) -> None:
        """Put another task row in place of ``stored`` and index it: alone if it has rules, or with its stretch."""
        key, value, offset = row.key, row.value, offset_of(row.first)
        same = task_head(stored)[0] == task_head(value)[0] and offset not in stretch.owned
        if same and row.mask & stretch.ruled and isinstance(row.detail, QueueKey) and row.detail.rules is not None:
            self._ruled.retract(stretch, row.mask)
            self._tables.rows.put(key, value)
            stretch.granted &= ~row.mask
            self._ruled.insert(stretch, Owner(offset, row.mask, row.detail), new=True)
            return
        self._ruled.retract(stretch, stretch.known)
        for owner in owners(self._tables, stretch, stretch.known & ~stretch.ruled):
            self._leave(stretch, owner)
        self._tables.rows.put(key, value)
        stretch.known, stretch.owned, stretch.ruled, stretch.granted = 0, {}, 0, 0
        # Last first: see `_add_task`.
        for found, stored in [
            (bytes(key), bytes(value)) for key, value in rows_of(self._tables.rows, TASK, stretch.key[7:])
        ][::-1]:
            try:
                count, queue = task_head(stored)
            except BadRequest:
                continue  # damaged
            self._add_task(stretch, offset_of(found[3:]), mask_of(found[3:], count), queue)

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
        ruled = self._ruled.loosen(stretch, changed)
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
                for alike, bits in groups(stretch, owner).items():
                    if bits & newly:
                        self._pieces.shrink(stretch, owner, due_ms=alike.due_ms, group=bits, gone=newly)
        self._ruled.fasten(stretch, ruled)

    def _winners(self, stretch: Stretch) -> list[int]:
        return winners(stretch, rows_of(self._tables.rows, COMPLETION, stretch.key[7:]))

    # --- history and resolutions ------------------------------------------------

    def _add_move(self, stretch: Stretch, mask: int, event: History) -> None:
        moved = moved_by(stretch.moved, mask, event)
        if moved == stretch.moved:
            return

        ruled = self._ruled.loosen(stretch, mask)
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
            before = [groups(stretch, owner) for owner in plain]
            stretch.moved = moved
            for owner, were in zip(plain, before, strict=True):
                self._regroup(stretch, owner, were)
        stretch.dirty = True
        self._ruled.fasten(stretch, ruled)

    def _regroup(self, stretch: Stretch, owner: Owner, before: dict[Alike, int]) -> None:
        """Index those pieces of a plain row that have changed."""
        unfinished = ~stretch.finished
        after = groups(stretch, owner)
        for alike, bits in before.items():
            if bits & unfinished and after.get(alike) != bits:
                self._pieces.shrink(stretch, owner, due_ms=alike.due_ms, group=bits, gone=bits)
        for alike, bits in after.items():
            if before.get(alike) != bits:
                self._pieces.place(stretch, owner, alike=alike, group=bits, live=bits & unfinished)

    def _add_resolution(self, stretch: Stretch, resolved: int) -> None:
        changed = resolved ^ stretch.resolved
        ruled = self._ruled.loosen(stretch, changed)
        stretch.resolved = resolved
        stretch.dirty = True
        self._ruled.fasten(stretch, ruled)

    def _resolved(self, stretch: Stretch) -> int:
        """Return the tasks that wait for nothing, from the rows. Tasks that a damaged row resolved stay resolved."""
        out = 0
        for key, value in rows_of(self._tables.rows, RESOLUTION, stretch.key[7:]):
            try:
                out |= mask_of(key[3:23], unpack_resolution(unseal(key, bytes(value))).count)
            except Corrupt:
                out |= stretch.resolved & ~(mask_of(key[3:23], 1) - 1)
        return out
