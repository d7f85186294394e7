"""The indexes of rows with rules: ordering keys, unique keys, dependencies, expiry times.

A row is put into the indexes by `Ruled.insert` and taken out by `Ruled.retract`.  Before its
tasks change, it is loosened (`Ruled.loosen`); after the change it is fastened (`Ruled.fasten`),
which writes only the entries that differ.  `Ruled.settle` decides at the end of a batch which row
is head of a key and which holds a unique key.  It reads that from the order of the entries.  So
each decision costs a few steps down a tree, however many tasks wait for a key.
"""

from __future__ import annotations

from onyxq.core.facts import GRANTED, HISTORY, unpack_history
from onyxq.core.ids import TaskId, id_at, mask_of, offset_of, stretch_of
from onyxq.store.index.facets import facets, has_released, head_of, holder_of, row_entries
from onyxq.store.index.heads import Rules
from onyxq.store.index.key_heads import KeyHeads
from onyxq.store.index.pieces import Pieces
from onyxq.store.index.records import (
    OUTCOME_PLACES,
    TOTAL,
    WAITING,
    Alike,
    expiring_key,
    pack_mask,
    unique_key,
    unpack_mask,
)
from onyxq.store.index.stretches import Owner, Stretch, alike_at, groups, owners
from onyxq.store.tables import Table, rows_of

Entries = dict[tuple[str, bytes], int]
"""Entries that follow from a row with rules: (table, key) -> mask."""
Loose = tuple[Owner, Entries | None]
"""A row that is being changed, and its entries, which are still stored. None: it has a unique key and was removed."""


class Ruled:
    """Keeps the indexes of rows with rules in one transaction."""

    def __init__(self, pieces: Pieces, known_heads: KeyHeads) -> None:
        self._pieces = pieces
        self._tables = pieces.tables
        self._known_heads = known_heads
        self._drops = False
        """Whether the transaction drops indexes, so that ``known_heads`` do not count."""
        self._settled: dict[bytes, TaskId | None] = {}
        """Heads of keys that the transaction changed."""
        self._heads: dict[bytes, TaskId | None] = {}
        """Changed keys, each with the head whose piece is indexed, until they are settled."""
        self._holders: dict[bytes, TaskId | None] = {}
        """Changed unique keys, each with the task that is indexed."""
        self._came: dict[bytes, set[TaskId]] = {}
        """Tasks that arrived with a unique key, or held it."""
        self._stood: set[TaskId] = set()
        """Tasks that were taken out while they held their unique key or had released it; most are put in again."""

    @property
    def unsettled(self) -> bool:
        """Whether `settle` has anything to do."""
        return bool(self._holders or self._heads)

    def forget_heads(self) -> None:
        """Read all heads from the tables from now on, because indexes are dropped."""
        self._drops = True
        self._settled.clear()

    def committed(self) -> None:
        """Note the heads of changed keys, after the transaction was committed."""
        if self._drops:
            self._known_heads.forget()
        else:
            self._known_heads.take(self._settled)

    def retract(self, stretch: Stretch, tasks: int) -> list[Owner]:
        """Remove from all indexes the rows with rules that contain any of these tasks, and return these rows."""
        found = self._owners(stretch, tasks)
        for owner in found:
            self._retract(stretch, owner)
        return found

    def loosen(self, stretch: Stretch, tasks: int) -> list[Loose]:
        """Before these tasks change, take their rows with rules out of the indexes and return the rows for `fasten`."""
        loose: list[Loose] = []
        for owner in self._owners(stretch, tasks):
            rules = owner.queue.rules
            if rules is None or rules.unique:
                self._retract(stretch, owner)
                loose.append((owner, None))
            else:
                loose.append((owner, self._loosen(stretch, owner, rules)))
        return loose

    def fasten(self, stretch: Stretch, loose: list[Loose]) -> None:
        """Index the rows from `loosen` again, after their tasks have changed."""
        for owner, entries in loose:
            if entries is None or owner.queue.rules is None:
                self.insert(stretch, owner)
            else:
                self._enter(stretch, owner, owner.queue.rules, entries)

    def _owners(self, stretch: Stretch, tasks: int) -> list[Owner]:
        tasks &= stretch.ruled
        return list(owners(self._tables, stretch, tasks)) if tasks else []

    def _retract(self, stretch: Stretch, owner: Owner) -> None:
        rules = owner.queue.rules
        if rules is None:  # its header is damaged
            return
        if not rules.unique:
            self._leave(stretch, owner, rules)
            return
        first, digest = _unique_of(stretch, owner, rules)
        released, holder = has_released(stretch, owner, rules), self._holder(first[6:8] + digest)
        if released:
            self._leave(stretch, owner, rules)
            self._stood.add(first)
        elif holder == first:
            self._leave(stretch, owner, rules)
            self._holders[first[6:8] + digest] = None
            self._stood.add(first)
        self._tables.unique.delete(unique_key(digest, rules.order_of(first), first, released=released))

    def insert(self, stretch: Stretch, owner: Owner, *, new: bool = False) -> None:
        """Put a row into the indexes; a row that claims a unique key waits for `settle`."""
        rules = owner.queue.rules
        if rules is None:
            return
        stretch.ruled |= owner.tasks
        stretch.dirty = True
        if not rules.watches_grants:
            stretch.unwatched |= owner.tasks
        else:
            stretch.unwatched &= ~owner.tasks
            if new:
                stretch.granted |= self._granted(stretch) & owner.tasks
        if not rules.unique:
            self._enter(stretch, owner, rules)
            return
        first, digest = _unique_of(stretch, owner, rules)
        prefix, released = first[6:8] + digest, has_released(stretch, owner, rules)
        self._holder(prefix)
        if released:
            self._came.get(prefix, set()).discard(first)
            self._enter(stretch, owner, rules)
        elif new or first in self._stood:
            self._came.setdefault(prefix, set()).add(first)
        self._tables.unique.put(unique_key(digest, rules.order_of(first), first, released=released), b"")

    def grant(self, stretch: Stretch, mask: int) -> None:
        """Note that tasks were granted: they cannot expire any more, and may release their unique key."""
        for owner in owners(self._tables, stretch, mask & stretch.ruled):
            rules = owner.queue.rules
            newly = owner.tasks & mask & ~stretch.granted
            if rules is None or not rules.watches_grants or not newly:
                continue
            stretch.dirty = True
            if rules.unique:
                self._retract(stretch, owner)
                stretch.granted |= newly
                self.insert(stretch, owner)
                continue
            stretch.granted |= newly
            assert rules.expires_ms is not None
            key = expiring_key(rules.expires_ms, id_at(stretch.key[7:], owner.offset))
            stored = self._tables.expiring.get(key)
            if stored is not None:
                _put_bits(self._tables.expiring, key, unpack_mask(stored) & ~newly)

    def _granted(self, stretch: Stretch) -> int:
        """Return the tasks that were ever granted according to history."""
        out = 0
        for key, value in rows_of(self._tables.rows, HISTORY, stretch.key[7:]):
            try:
                event = unpack_history(bytes(value[:-4]))
            except (ValueError, TypeError):
                continue  # damaged
            if event.event == GRANTED:
                out |= mask_of(key[3:23], event.count)
        return out

    # --- one row, while it is not superseded

    def _enter(self, stretch: Stretch, owner: Owner, rules: Rules, stored: Entries | None = None) -> None:
        """Add a row to the indexes, which already have its entries ``stored``."""
        self._count(stretch, owner, 1)
        if rules.key:
            self._head(stretch.key[:2] + rules.key)
        found = facets(stretch, owner, rules)
        left = stored or {}
        for name, key, bits in row_entries(stretch, owner, found):
            if left.pop((name, key), 0) != bits:
                getattr(self._tables, name).put(key, pack_mask(bits))
        for name, key in left:
            getattr(self._tables, name).delete(key)
        if not rules.key:
            for alike, bits in groups(stretch, owner).items():
                self._place(stretch, owner, alike, group=bits, live=bits & found.free)

    def _leave(self, stretch: Stretch, owner: Owner, rules: Rules) -> None:
        for name, key in self._loosen(stretch, owner, rules):
            getattr(self._tables, name).delete(key)

    def _loosen(self, stretch: Stretch, owner: Owner, rules: Rules) -> Entries:
        """Remove a row from the indexes, except for its entries, which are returned."""
        self._count(stretch, owner, -1)
        found = facets(stretch, owner, rules)
        if rules.key:
            prefix = stretch.key[:2] + rules.key
            head = self._head(prefix)
            if head is not None and stretch_of(head) == stretch.key[7:] and owner.tasks >> offset_of(head) & 1:
                self._move_head(stretch, owner, head, free=found.free, place=False)
                self._heads[prefix] = None
        else:
            for alike, bits in groups(stretch, owner).items():
                if bits & found.free:
                    self._take(stretch, owner, alike.due_ms, group=bits, gone=bits & found.free)
        return {(name, key): bits for name, key, bits in row_entries(stretch, owner, found)}

    def _count(self, stretch: Stretch, owner: Owner, sign: int) -> None:
        """Count a row's tasks, all unfinished ones as waiting."""
        changes, tasks, finished = self._pieces.counts_of(stretch.key[:2], owner.queue), owner.tasks, stretch.finished
        changes[TOTAL] += sign * tasks.bit_count()
        changes[WAITING] += sign * (tasks & ~finished).bit_count()
        if tasks & finished:
            for place, done in zip(OUTCOME_PLACES, stretch.done, strict=True):
                changes[place] += sign * (tasks & done).bit_count()

    def _place(self, stretch: Stretch, owner: Owner, alike: Alike, *, group: int, live: int) -> None:
        self._pieces.place(stretch, owner, alike=alike, group=group, live=live)
        self._pieces.counts_of(stretch.key[:2], owner.queue)[WAITING] -= live.bit_count()

    def _take(self, stretch: Stretch, owner: Owner, due_ms: int, *, group: int, gone: int) -> None:
        self._pieces.shrink(stretch, owner, due_ms=due_ms, group=group, gone=gone)
        self._pieces.counts_of(stretch.key[:2], owner.queue)[WAITING] += gone.bit_count()

    # --- heads and holders

    def _head(self, prefix: bytes) -> TaskId | None:
        """Return the head whose piece is indexed; call it before anything about its key changes."""
        if prefix not in self._heads:
            if prefix in self._settled:
                self._heads[prefix] = self._settled[prefix]
            else:
                find = head_of if self._drops else self._known_heads.find
                self._heads[prefix] = find(self._tables, prefix)
        return self._heads[prefix]

    def _holder(self, prefix: bytes) -> TaskId | None:
        """Return the task that is indexed for a unique key; call it before anything about the key changes."""
        if prefix not in self._holders:
            self._holders[prefix] = holder_of(self._tables, prefix)
        return self._holders[prefix]

    def _found(self, task_id: TaskId) -> tuple[Stretch, Owner, Rules] | None:
        stretch = self._pieces.stretch(stretch_of(task_id))
        for owner in owners(self._tables, stretch, 1 << offset_of(task_id)):
            if owner.queue.rules is not None:
                return stretch, owner, owner.queue.rules
        return None  # damaged

    def _move_head(self, stretch: Stretch, owner: Owner, head: TaskId, *, free: int, place: bool) -> None:
        offset = offset_of(head)
        bit = 1 << offset
        if not free & bit:
            return  # it waits for its dependencies, or stopped
        alike = alike_at(stretch, owner, offset)
        if place:
            self._place(stretch, owner, alike, group=bit, live=bit)
        else:
            self._take(stretch, owner, alike.due_ms, group=bit, gone=bit)

    def settle(self) -> set[TaskId]:
        """Index the holder of each changed unique key and the head of each changed ordering key.

        Returns the tasks that were superseded.
        """
        superseded: set[TaskId] = set()
        while self._holders:
            prefix, indexed = self._holders.popitem()
            came = self._came.pop(prefix, set())
            holder = holder_of(self._tables, prefix)
            if holder != indexed:
                if indexed is not None and (found := self._found(indexed)):
                    self._leave(*found)
                    came.add(indexed)
                if holder is not None and (found := self._found(holder)):
                    self._enter(*found)
            superseded |= came - ({holder} if holder is not None else set())
        self._stood.clear()
        while self._heads:
            prefix, indexed = self._heads.popitem()
            head = self._settled[prefix] = head_of(self._tables, prefix)
            if head == indexed:
                continue
            for task_id, place in ((indexed, False), (head, True)):
                if task_id is not None and (found := self._found(task_id)):
                    stretch, owner, _ = found
                    self._move_head(stretch, owner, task_id, free=facets(*found).free, place=place)
        return superseded


def _unique_of(stretch: Stretch, owner: Owner, rules: Rules) -> tuple[TaskId, bytes]:
    """Return the first id of a row with a unique key, and the digest of the key."""
    first = id_at(stretch.key[7:], owner.offset)
    return first, rules.unique_of(first)


def _put_bits(table: Table, key: bytes, bits: int) -> None:
    if bits:
        table.put(key, pack_mask(bits))
    else:
        table.delete(key)
