"""Applies batches of facts to an ordered key-value transaction: rows, indexes, digests.

All index logic of the store is here, once, for LMDB and memory: they differ only in the
`Tables` they give.  A store opens a transaction, applies every batch that waits through
one `Applier`, calls `Applier.flush`, and commits.

The indexes are a function of the set of rows, whatever order, grouping or repetition
they arrived in; only which of ``ready`` and ``due`` holds a piece depends on when it was
indexed.  Work is per run, never per task of a run.  Records of stretches, counts and
digests are read and written once per transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from attrs import frozen

from onyxq.errors import BadRequest, Corrupt
from onyxq.facts import COMPLETION, EXPIRED, HISTORY, KINDS, RETRIED, TASK, History, completion_head, rank, unseal
from onyxq.ids import STRETCH_TASKS, TaskId, id_at, mask_of, ms_of, offset_of
from onyxq.store.interface import Batch, Piece, Written
from onyxq.store.records import (
    COUNTS,
    DIGEST,
    EPOCH,
    HASH_MASK,
    Prepared,
    QueueKey,
    Stretch,
    bits_of,
    due_key,
    due_ms_of,
    moved_by,
    pack_piece,
    prepare,
    ready_key,
    row_hash,
    stretch_key,
    task_head,
    unpack_ready,
    with_bits,
)

PROMOTE_PIECES_MAX = 4096
"""Pieces that one promotion moves; the rest stays due and is moved by the next."""
LOG_POSITION = b"\0log_position"
SCHEDULED = 4
"""Place of the scheduled tasks in a counts record."""


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
    """All tables of one transaction; see `onyxq.store.records` for what they hold."""

    @property
    def rows(self) -> Table: ...

    @property
    def ready(self) -> Table: ...

    @property
    def due(self) -> Table: ...

    @property
    def stretch(self) -> Table: ...

    @property
    def counts(self) -> Table: ...

    @property
    def hours(self) -> Table: ...

    @property
    def leaves(self) -> Table: ...

    @property
    def epochs(self) -> Table: ...

    @property
    def meta(self) -> Table: ...


TABLE_NAMES = ("rows", "ready", "due", "stretch", "counts", "hours", "leaves", "epochs", "meta")
PARTITION_TABLES = ("rows", "ready", "due", "stretch", "counts", "hours", "leaves")
"""What `Batch.drop` empties."""


@frozen
class PreparedBatch:
    """A batch whose rows passed all checks."""

    batch: Batch
    rows: tuple[Prepared, ...]
    bytes: int
    """Size of its rows."""


def prepare_batch(batch: Batch) -> PreparedBatch:
    """Check a batch before any transaction; raises `BadRequest`."""
    for partition, number in (*batch.epochs, *batch.promote):
        if not 0 <= partition < 1 << 16 or not 0 <= number < 1 << 63:
            raise BadRequest("a partition or epoch is out of range", field="epochs")
    if any(not name for name, _ in batch.meta):
        raise BadRequest("a named value needs a name", field="meta")
    rows = tuple(map(prepare, batch.rows))
    return PreparedBatch(batch, rows, sum(len(row.key) + len(row.value) for row in rows))


class Owner(NamedTuple):
    """A task row and the tasks that count as its own."""

    offset: int
    tasks: int
    queue: QueueKey


def owners(tables: Tables, stretch: Stretch, wanted: int) -> Iterator[Owner]:
    """The task rows that hold the known tasks among ``wanted``, last first."""
    wanted &= stretch.known
    if not wanted:
        return
    first_key = stretch.key[:2] + TASK + stretch.key[7:]
    start = stretch.key[:2] + TASK + id_at(stretch.key[7:], wanted.bit_length() - 1)
    for key, value in tables.rows.descend(start):
        if key < first_key:
            return
        try:
            count, queue = task_head(value)
        except BadRequest:
            continue  # a damaged row; its tasks wait for the repair
        offset = offset_of(key[3:])
        tasks = stretch.owned.get(offset, ((1 << count) - 1) << offset)
        if tasks & wanted:
            yield Owner(offset, tasks, queue)
            wanted &= ~tasks
            if not wanted:
                return


def groups(stretch: Stretch, tasks: int) -> dict[tuple[int, int], int]:
    """Tasks of one row by (due time, attempts), finished ones included.

    The lowest task of a group names its piece, so completions never rename a piece.
    """
    origin_ms = ms_of(stretch.key[7:])
    if not stretch.moved:
        return {(origin_ms, 0): tasks}
    out: dict[tuple[int, int], int] = {}
    for (position, _, due_ms, attempts), bits in stretch.moved.items():
        if bits & tasks:
            alike = (due_ms if position >= 0 else origin_ms, attempts)
            out[alike] = out.get(alike, 0) | (bits & tasks)
            tasks &= ~bits
    if tasks:
        out[(origin_ms, 0)] = out.get((origin_ms, 0), 0) | tasks
    return out


def lowest(stretch: bytes, bits: int) -> TaskId:
    """Id of the lowest task in a mask."""
    return id_at(stretch, (bits & -bits).bit_length() - 1)


class Applier:
    """Applies prepared batches to one write transaction."""

    def __init__(self, tables: Tables, now_ms: int) -> None:
        self._tables = tables
        self._now_ms = now_ms
        self._stretches: dict[bytes, Stretch] = {}
        self._counts: dict[bytes, list[int]] = {}
        self._names: dict[bytes, str] = {}
        self._leaves: dict[bytes, list[int]] = {}
        self._added: dict[bytes, Piece] = {}
        self._recount: set[bytes] = set()
        """Leaves whose digests are worked out from the rows anew."""

    def apply(self, prepared: PreparedBatch) -> Written:
        """Apply one batch; what it changed is visible to later ones of the transaction."""
        batch = prepared.batch
        self._added = {}
        new_rows = self._add_rows(prepared.rows)
        for partition, epoch in batch.epochs:
            self._raise_to(self._tables.epochs, partition.to_bytes(2, "big"), epoch)
        if batch.log_position is not None and batch.log_position >= 0:
            self._raise_to(self._tables.meta, LOG_POSITION, batch.log_position)
        for name, value in batch.meta:
            self._tables.meta.put(name.encode(), value)
        for partition in batch.drop:
            self._drop(partition.to_bytes(2, "big"))
        for partition, now_ms in batch.promote:
            self._promote(partition.to_bytes(2, "big"), now_ms)
        return Written(new_rows=new_rows, pieces=tuple(self._added.values()))

    def flush(self) -> None:
        """Write the records that were gathered; the transaction may commit after it."""
        for stretch in self._stretches.values():
            if stretch.dirty:
                self._tables.stretch.put(stretch.key, stretch.pack())
        for key, changes in self._counts.items():
            stored = self._tables.counts.get(key)
            old = COUNTS.unpack_from(stored) if stored is not None else (0,) * 5
            numbers = [max(0, was + change) for was, change in zip(old, changes, strict=True)]
            self._tables.counts.put(key, COUNTS.pack(*numbers) + self._names[key].encode())
        hours: dict[bytes, list[int]] = {}
        for key, (rows, total) in self._leaves.items():
            _add_digest(self._tables.leaves, key, rows, total)
            hour = hours.setdefault(key[:6], [0, 0])
            hour[0] += rows
            hour[1] += total
        for key, (rows, total) in hours.items():
            _add_digest(self._tables.hours, key, rows, total)
        self._stretches, self._counts, self._leaves = {}, {}, {}
        for key in sorted(self._recount):
            self._count_leaf(key)
        self._recount = set()

    def _count_leaf(self, leaf: bytes) -> None:
        rows, total = 0, 0
        stretches = []
        for key, _ in self._tables.stretch.ascend(leaf):
            if key[:7] != leaf:
                break
            stretches.append(bytes(key[7:]))
        for kind in KINDS:
            for stretch in stretches:
                prefix = leaf[:2] + kind
                last = prefix + id_at(stretch, STRETCH_TASKS - 1) + b"\xff" * 12
                for key, value in self._upto(prefix + stretch, last):
                    rows += 1
                    total += row_hash(bytes(key), bytes(value[-4:]))
        old_rows, old_total = DIGEST.unpack(self._tables.leaves.get(leaf) or DIGEST.pack(0, 0))
        _add_digest(self._tables.leaves, leaf, rows - old_rows, total - old_total)
        _add_digest(self._tables.hours, leaf[:6], rows - old_rows, total - old_total)

    @staticmethod
    def _raise_to(table: Table, key: bytes, number: int) -> None:
        stored = table.get(key)
        if stored is None or EPOCH.unpack(stored)[0] < number:
            table.put(key, EPOCH.pack(number))

    # --- rows -------------------------------------------------------------------

    def _add_rows(self, rows: Sequence[Prepared]) -> int:
        added = 0
        table = self._tables.rows
        for row in rows:
            key, value, kind, first, stretch_id, mask, detail = row
            if not table.add(key, value):
                self._merge(row)
                continue
            added += 1
            stretch = self._stretch(stretch_id)
            leaf = self._leaves.get(stretch.key[:7])
            if leaf is None:
                leaf = self._leaves[stretch.key[:7]] = [0, 0]
            leaf[0] += 1
            leaf[1] += row_hash(key, value)
            if kind == TASK:
                self._add_task(stretch, offset_of(first), mask, detail)  # type: ignore[arg-type]
            elif kind == COMPLETION:
                self._add_completion(stretch, mask, detail)  # type: ignore[arg-type]
            elif kind == HISTORY and isinstance(detail, History) and detail.event in (RETRIED, EXPIRED):
                self._add_move(stretch, mask, detail)
        return added

    def _merge(self, row: Prepared) -> None:
        """Of two values under one key the higher ranks; a damaged one gives way to a sound one."""
        key, value = row.key, row.value
        found = self._tables.rows.get(key)
        stored = bytes(found) if found is not None else b""
        if stored == value:
            return
        stretch = self._stretch(row.stretch)
        try:
            unseal(key, stored)
        except Corrupt:
            # What it added to the digests cannot be told any more.
            self._recount.add(stretch.key[:7])
            self._tables.rows.put(key, value)
        else:
            if rank(key, stored) >= rank(key, value):
                return
            leaf = self._leaves.setdefault(stretch.key[:7], [0, 0])
            leaf[1] += row_hash(key, value) - row_hash(key, stored)
            if row.kind == TASK and task_head(stored) != task_head(value):
                self._replace_task(stretch, key, value)
                return
            self._tables.rows.put(key, value)
        if row.kind == COMPLETION:
            self._add_completion(stretch, row.mask, row.detail)  # type: ignore[arg-type]

    def _replace_task(self, stretch: Stretch, key: bytes, value: bytes) -> None:
        """Put another task row under a key and index all tasks of the stretch anew."""
        for owner in owners(self._tables, stretch, stretch.known):
            changes = self._counts_of(stretch.key[:2], owner.queue)
            changes[0] -= owner.tasks.bit_count()
            for outcome, done in enumerate(stretch.done):
                changes[1 + outcome] -= (owner.tasks & done).bit_count()
            for (due_ms, _), bits in groups(stretch, owner.tasks).items():
                self._shrink(stretch, owner, due_ms=due_ms, group=bits, gone=bits)
        self._tables.rows.put(key, value)
        stretch.known, stretch.owned = 0, {}
        prefix = stretch.key[:2] + TASK
        last = prefix + id_at(stretch.key[7:], STRETCH_TASKS - 1)
        rows = [(bytes(key), bytes(value)) for key, value in self._upto(prefix + stretch.key[7:], last)]
        for found, stored in rows:
            try:
                count, queue = task_head(stored)
            except BadRequest:
                continue  # damaged
            self._add_task(stretch, offset_of(found[3:]), mask_of(found[3:], count), queue)

    def _upto(self, start: bytes, last: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._tables.rows.ascend(start):
            if key > last:
                return
            yield key, value

    def _stretch(self, stretch_id: bytes) -> Stretch:
        found = self._stretches.get(stretch_id)
        if found is None:
            key = stretch_key(stretch_id)
            stored = self._tables.stretch.get(key)
            found = Stretch(key) if stored is None else Stretch.unpack(key, stored)
            # The record also says that the stretch has rows, so a new one is always written.
            found.dirty = stored is None
            self._stretches[stretch_id] = found
        return found

    def _add_task(self, stretch: Stretch, offset: int, mask: int, queue: QueueKey) -> None:
        tasks = mask & ~stretch.known
        if tasks != mask:
            stretch.owned[offset] = tasks
        stretch.known |= mask
        stretch.dirty = True
        if not tasks:
            return
        changes = self._counts_of(stretch.key[:2], queue)
        changes[0] += tasks.bit_count()
        finished = 0
        for outcome, done in enumerate(stretch.done):
            if done:
                changes[1 + outcome] += (tasks & done).bit_count()
                finished |= done
        owner = Owner(offset, tasks, queue)
        for (due_ms, attempts), bits in groups(stretch, tasks).items():
            self._place(stretch, owner, due_ms=due_ms, attempts=attempts, group=bits, live=bits & ~finished)

    def _counts_of(self, partition: bytes, queue: QueueKey) -> list[int]:
        key = partition + queue.digest
        changes = self._counts.get(key)
        if changes is None:
            changes = self._counts[key] = [0, 0, 0, 0, 0]
            self._names[key] = queue.name
        return changes

    # --- completions ------------------------------------------------------------

    def _add_completion(self, stretch: Stretch, mask: int, detail: tuple[int, int]) -> None:
        before = stretch.done
        finished = stretch.finished
        if mask & finished:
            stretch.done = self._winners(stretch)
        else:
            stretch.done = before.copy()
            stretch.done[detail[1]] |= mask
        stretch.dirty = True
        changed = 0
        for was, now in zip(before, stretch.done, strict=True):
            changed |= was ^ now
        newly = changed & ~finished
        for owner in owners(self._tables, stretch, changed):
            counts = self._counts_of(stretch.key[:2], owner.queue)
            for outcome, (was, now) in enumerate(zip(before, stretch.done, strict=True)):
                if was != now:
                    counts[1 + outcome] += (owner.tasks & now).bit_count() - (owner.tasks & was).bit_count()
            if owner.tasks & newly:
                for (due_ms, _), bits in groups(stretch, owner.tasks).items():
                    if bits & newly:
                        self._shrink(stretch, owner, due_ms=due_ms, group=bits, gone=newly)

    def _winners(self, stretch: Stretch) -> list[int]:
        """Finished tasks per outcome where completions overlap: the highest mark, then token, counts."""
        prefix = stretch.key[:2] + COMPLETION
        last = prefix + id_at(stretch.key[7:], STRETCH_TASKS - 1) + b"\xff" * 12
        found = []
        for key, value in self._upto(prefix + stretch.key[7:], last):
            try:
                token, count, outcome, mark = completion_head(unseal(key, bytes(value)))
            except Corrupt:
                continue
            found.append((mark, token, key, mask_of(key[3:23], count), outcome))
        out = [0, 0, 0]
        taken = 0
        for *_, mask, outcome in sorted(found, reverse=True):
            out[outcome] |= mask & ~taken
            taken |= mask
        # What a damaged row finished stays finished.
        return [bits | (was & ~taken) for bits, was in zip(out, stretch.done, strict=True)]

    # --- history ----------------------------------------------------------------

    def _add_move(self, stretch: Stretch, mask: int, event: History) -> None:
        moved = moved_by(stretch.moved, mask, event)
        if moved == stretch.moved:
            return
        rows = [(owner, groups(stretch, owner.tasks)) for owner in owners(self._tables, stretch, mask)]
        stretch.moved = moved
        stretch.dirty = True
        unfinished = ~stretch.finished
        for owner, before in rows:
            after = groups(stretch, owner.tasks)
            for (due_ms, attempts), bits in before.items():
                if bits & unfinished and after.get((due_ms, attempts)) != bits:
                    self._shrink(stretch, owner, due_ms=due_ms, group=bits, gone=bits)
            for (due_ms, attempts), bits in after.items():
                if before.get((due_ms, attempts)) != bits:
                    self._place(stretch, owner, due_ms=due_ms, attempts=attempts, group=bits, live=bits & unfinished)

    # --- pieces -----------------------------------------------------------------

    def _place(self, stretch: Stretch, owner: Owner, *, due_ms: int, attempts: int, group: int, live: int) -> None:
        """Index the unfinished tasks ``live`` of a group."""
        if not live:
            return
        stretch_id = stretch.key[7:]
        first = lowest(stretch_id, group)
        value = pack_piece(attempts, owner.offset, live)
        queue = owner.queue
        if due_ms <= self._now_ms:
            key = ready_key(queue, due_ms, first)
            self._tables.ready.put(key, value)
            row_first = id_at(stretch_id, owner.offset)
            self._added[key] = Piece(queue.name, queue.priority, due_ms, first, live, attempts, row_first)
        else:
            self._tables.due.put(due_key(due_ms, first), queue.place + value)
            self._counts_of(stretch.key[:2], queue)[SCHEDULED] += live.bit_count()

    def _shrink(self, stretch: Stretch, owner: Owner, *, due_ms: int, group: int, gone: int) -> None:
        """Take the tasks ``gone`` out of the piece of a group."""
        first = lowest(stretch.key[7:], group)
        key = ready_key(owner.queue, due_ms, first)
        value = self._tables.ready.get(key)
        if value is not None:
            bits = bits_of(value) & ~gone
            added = self._added.pop(key, None)
            if not bits:
                self._tables.ready.delete(key)
                return
            self._tables.ready.put(key, with_bits(value, bits))
            if added is not None:
                self._added[key] = added._replace(bits=bits)
            return
        key = due_key(due_ms, first)
        value = self._tables.due.get(key)
        if value is None:
            return
        place, rest = bytes(value[:20]), bytes(value[20:])
        bits = bits_of(rest)
        self._counts_of(stretch.key[:2], owner.queue)[SCHEDULED] -= (bits & gone).bit_count()
        if bits & ~gone:
            self._tables.due.put(key, place + with_bits(rest, bits & ~gone))
        else:
            self._tables.due.delete(key)

    def _promote(self, partition: bytes, now_ms: int) -> None:
        """Move at most `PROMOTE_PIECES_MAX` pieces that are due, earliest first."""
        moving: list[tuple[bytes, bytes]] = []
        for key, value in self._tables.due.ascend(partition):
            if key[:2] != partition or due_ms_of(key) > now_ms or len(moving) == PROMOTE_PIECES_MAX:
                break
            moving.append((bytes(key), bytes(value)))
        for key, value in moving:
            digest, rest = value[:16], value[20:]
            queue = self._name_of(partition + digest)
            self._tables.due.delete(key)
            moved_key = partition + value[:20] + key[2:]
            self._tables.ready.put(moved_key, rest)
            piece = unpack_ready(queue, moved_key, rest)
            self._added[moved_key] = piece
            changes = self._counts.setdefault(partition + digest, [0, 0, 0, 0, 0])
            changes[SCHEDULED] -= piece.bits.bit_count()

    def _name_of(self, key: bytes) -> str:
        name = self._names.get(key)
        if name is None:
            stored = self._tables.counts.get(key)
            name = bytes(stored[COUNTS.size :]).decode() if stored is not None else ""
            self._names[key] = name
        return name

    def _drop(self, partition: bytes) -> None:
        self.flush()
        for name in PARTITION_TABLES:
            table: Table = getattr(self._tables, name)
            table.clear(partition)
        self._added = {key: piece for key, piece in self._added.items() if key[:2] != partition}


def _add_digest(table: Table, key: bytes, rows: int, total: int) -> None:
    stored = table.get(key)
    if stored is not None:
        old_rows, old_total = DIGEST.unpack(stored)
        rows, total = rows + old_rows, total + old_total
    table.put(key, DIGEST.pack(rows, total & HASH_MASK))
