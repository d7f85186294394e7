"""The indexes of rows with rules: ordering keys, unique keys, dependencies, expiry times.

Before such a row changes, it is taken out of the indexes (`Ruled.retract`); after the change
it is put in again (`Ruled.insert`).  `Ruled.settle` decides at the end of a batch which row is
head of a key and which holds a unique key.  It reads that from the order of the entries.  So
each decision costs a few steps down a tree, however many tasks wait for a key.
"""

from __future__ import annotations

from onyxq.core.facts import GRANTED, HISTORY, unpack_history
from onyxq.core.ids import TaskId, id_at, mask_of, offset_of, stretch_of
from onyxq.store.index.facets import facets, has_released, head_of, holder_of, row_entries
from onyxq.store.index.heads import Rules
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


class Ruled:
    """Keeps the indexes of rows with rules in one transaction."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._tables = pieces.tables
        self._heads: dict[bytes, TaskId | None] = {}
        """Changed keys, each with the head whose piece is indexed."""
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

    def retract(self, stretch: Stretch, tasks: int) -> list[Owner]:
        """Take the rows with rules that hold some of these tasks out of all indexes, and return them."""
        found = list(owners(self._tables, stretch, tasks & stretch.ruled)) if tasks & stretch.ruled else []
        for owner in found:
            self._retract(stretch, owner)
        return found

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
        if new and rules.watches_grants:
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

    def _enter(self, stretch: Stretch, owner: Owner, rules: Rules) -> None:
        self._count(stretch, owner, 1)
        if rules.key:
            self._head(stretch.key[:2] + rules.key)
        for name, key, bits in row_entries(stretch, owner):
            getattr(self._tables, name).put(key, pack_mask(bits))
        if not rules.key:
            free = facets(stretch, owner, rules).free
            for alike, bits in groups(stretch, owner).items():
                self._place(stretch, owner, alike, group=bits, live=bits & free)

    def _leave(self, stretch: Stretch, owner: Owner, rules: Rules) -> None:
        self._count(stretch, owner, -1)
        free = facets(stretch, owner, rules).free
        if rules.key:
            prefix = stretch.key[:2] + rules.key
            head = self._head(prefix)
            if head is not None and stretch_of(head) == stretch.key[7:] and owner.tasks >> offset_of(head) & 1:
                self._move_head(stretch, owner, head, place=False)
                self._heads[prefix] = None
        else:
            for alike, bits in groups(stretch, owner).items():
                if bits & free:
                    self._take(stretch, owner, alike.due_ms, group=bits, gone=bits & free)
        for name, key, _ in row_entries(stretch, owner):
            getattr(self._tables, name).delete(key)

    def _count(self, stretch: Stretch, owner: Owner, sign: int) -> None:
        """Count a row's tasks, all unfinished ones as waiting."""
        changes = self._pieces.counts_of(stretch.key[:2], owner.queue)
        changes[TOTAL] += sign * owner.tasks.bit_count()
        changes[WAITING] += sign * (owner.tasks & ~stretch.finished).bit_count()
        for place, done in zip(OUTCOME_PLACES, stretch.done, strict=True):
            changes[place] += sign * (owner.tasks & done).bit_count()

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
            self._heads[prefix] = head_of(self._tables, prefix)
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

    def _move_head(self, stretch: Stretch, owner: Owner, head: TaskId, *, place: bool) -> None:
        rules = owner.queue.rules
        offset = offset_of(head)
        bit = 1 << offset
        if rules is None or not facets(stretch, owner, rules).free & bit:
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
            head = head_of(self._tables, prefix)
            if head == indexed:
                continue
            for task_id, place in ((indexed, False), (head, True)):
                if task_id is not None and (found := self._found(task_id)):
                    self._move_head(found[0], found[1], task_id, place=place)
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
