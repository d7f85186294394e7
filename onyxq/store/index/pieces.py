"""The pieces in ``ready`` and ``due``, the counts of queues, and the records of stretches.

One write transaction shares a `Pieces`.  It reads and writes each record and count once, and
gathers the pieces that became ready, for the answer.
"""

from __future__ import annotations

from onyxq.core.ids import id_at, offset_of, stretch_of
from onyxq.store.index.expected import load_stretch
from onyxq.store.index.heads import QueueKey
from onyxq.store.index.records import (
    SCHEDULED,
    Alike,
    bits_of,
    due_key,
    due_ms_of,
    first_at,
    lowest,
    pack_counts,
    pack_piece,
    ready_key,
    unpack_counts,
    unpack_ready,
    with_bits,
)
from onyxq.store.index.stretches import Owner, Remembered, Stretch, owners
from onyxq.store.interface import Piece
from onyxq.store.tables import CheckedTables, within

PROMOTE_PIECES_MAX = 4096
"""Pieces that one promotion moves at most; the next promotion moves the rest."""


class Pieces:
    """Pieces, counts and stretch records of one write transaction."""

    def __init__(self, tables: CheckedTables, now_ms: int, records: Remembered) -> None:
        self.tables = tables
        self.added: dict[bytes, Piece] = {}
        """Pieces that this batch added to ``ready`` or ``due``, by key."""
        self._now_ms = now_ms
        self._records = records
        self._stretches: dict[bytes, Stretch] = {}
        self._counts: dict[bytes, list[int]] = {}
        self._names: dict[bytes, str] = {}

    def stretch(self, stretch_id: bytes) -> Stretch:
        """Return the record of a stretch, the same object for the whole transaction."""
        found = self._stretches.get(stretch_id)
        if found is None:
            known = self._records.find(self.tables.stretch, stretch_id)
            if known is not None:
                found = known.copy()
            else:
                found, stored = load_stretch(self.tables, stretch_id)
                # The record also shows that the stretch has rows, so a new one is always written.
                found.dirty = not stored
            self._stretches[stretch_id] = found
        return found

    def forget_stretch(self, stretch_id: bytes) -> None:
        """Drop the record of a stretch that has no rows any more."""
        self._stretches.pop(stretch_id, None)

    def counts_of(self, partition: bytes, queue: QueueKey) -> list[int]:
        """Return the changes to a queue's counts."""
        key = partition + queue.digest
        changes = self._counts.get(key)
        if changes is None:
            changes = self._counts[key] = [0, 0, 0, 0, 0, 0]
            self._names[key] = queue.name
        return changes

    def flush(self) -> None:
        """Write the gathered records."""
        for stretch_id, stretch in self._stretches.items():
            if stretch.dirty:
                packed = stretch.pack()
                self.tables.stretch.put(stretch.key, packed)
                self._records.put(stretch_id, packed, stretch)
        for key, changes in self._counts.items():
            stored = self.tables.counts.get(key)
            old, name = ((0,) * 6, "") if stored is None else unpack_counts(stored)
            numbers = [max(0, was + change) for was, change in zip(old, changes, strict=True)]
            self.tables.counts.put(key, pack_counts(numbers, self._names.get(key, name)))
        self._stretches, self._counts = {}, {}

    def place(self, stretch: Stretch, owner: Owner, *, alike: Alike, group: int, live: int) -> None:
        """Index the unfinished tasks ``live`` of a group."""
        if not live:
            return
        stretch_id = stretch.key[7:]
        first = lowest(stretch_id, group)
        queue = owner.queue
        value = pack_piece(alike, owner.offset, live, owner.key)
        due_ms, attempts, base = alike
        row_first = id_at(stretch_id, owner.offset)
        piece = Piece(queue.name, queue.priority, due_ms, first, live, attempts, row_first, base, owner.key)
        if due_ms <= self._now_ms:
            key = ready_key(queue, due_ms, first)
            self.tables.ready.put(key, value)
        else:
            key = due_key(due_ms, first)
            self.tables.due.put(key, queue.place + value)
            self.counts_of(stretch.key[:2], queue)[SCHEDULED] += live.bit_count()
        self.added[key] = piece

    def shrink(self, stretch: Stretch, owner: Owner, *, due_ms: int, group: int, gone: int) -> None:
        """Take the tasks ``gone`` out of the piece of a group."""
        first = lowest(stretch.key[7:], group)
        table, key, place = self.tables.ready, ready_key(owner.queue, due_ms, first), b""
        if not group & ~gone and table.delete(key):
            self.added.pop(key, None)
            return
        value = table.get(key)
        if value is None:
            table, key = self.tables.due, due_key(due_ms, first)
            value = table.get(key)
            if value is None:
                return
            place, value = bytes(value[:20]), bytes(value[20:])
            self.counts_of(stretch.key[:2], owner.queue)[SCHEDULED] -= (bits_of(value) & gone).bit_count()
        bits = bits_of(value) & ~gone
        added = self.added.pop(key, None)
        if not bits:
            table.delete(key)
            return
        table.put(key, place + with_bits(value, bits))
        if added is not None:
            self.added[key] = added._replace(bits=bits)

    def promote(self, partition: bytes, now_ms: int) -> None:
        """Move at most `PROMOTE_PIECES_MAX` pieces that are due, earliest first."""
        moving: list[tuple[bytes, bytes]] = []
        for key, value in within(self.tables.due, partition):
            if due_ms_of(key) > now_ms or len(moving) == PROMOTE_PIECES_MAX:
                break
            moving.append((bytes(key), bytes(value)))
        for key, value in moving:
            digest, rest = value[:16], value[20:]
            queue = self._name_of(partition + digest) or self._name_in_row(key)
            self.tables.due.delete(key)
            self.added.pop(key, None)
            moved_key = partition + value[:20] + key[2:]
            self.tables.ready.put(moved_key, rest)
            piece = unpack_ready(queue, moved_key, rest)
            self.added[moved_key] = piece
            changes = self._counts.setdefault(partition + digest, [0, 0, 0, 0, 0, 0])
            changes[SCHEDULED] -= piece.bits.bit_count()

    def _name_of(self, key: bytes) -> str:
        name = self._names.get(key)
        if name is None:
            stored = self.tables.counts.get(key)
            name = self._names[key] = unpack_counts(stored)[1] if stored is not None else ""
        return name

    def _name_in_row(self, key: bytes) -> str:
        """Return the queue of a piece from its row, where its counts cannot be read."""
        task_id = first_at(key)
        for owner in owners(self.tables, self.stretch(stretch_of(task_id)), 1 << offset_of(task_id)):
            return owner.queue.name
        return ""
