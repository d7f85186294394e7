"""What follows from one row with rules, and who is first among the rows of a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onyxq.facts import STOPPED
from onyxq.ids import TaskId, id_at, mask_of, stretch_of
from onyxq.store.heads import Rules
from onyxq.store.records import dead_key, expiring_key, first_at, keyed_key, lowest, unpack_mask
from onyxq.store.stretches import Owner, Stretch
from onyxq.store.tables import Tables


class Facets(NamedTuple):
    """The tasks of one row by what becomes of them, as masks."""

    live: int
    """Unfinished."""
    free: int
    """Unfinished, and waiting for no dependency."""
    held: int
    """In their ordering key."""
    waiting: int
    expiring: int
    dead: int


def facets(stretch: Stretch, owner: Owner, rules: Rules) -> Facets:
    """What becomes of a row's tasks, if it is not superseded."""
    live = owner.tasks & ~stretch.finished
    waiting = live & ~stretch.resolved if rules.depends else 0
    held = live | (owner.tasks & stretch.done[STOPPED]) if rules.key else 0
    expiring = live & ~stretch.granted if rules.expires_ms is not None else 0
    return Facets(live, live & ~waiting, held, waiting, expiring, owner.tasks & stretch.failed)


def row_entries(stretch: Stretch, owner: Owner) -> Iterator[tuple[str, bytes, int]]:
    """The entries (table, key, bits) that follow from a row with rules alone, if it stands."""
    rules = owner.queue.rules
    assert rules is not None
    first = id_at(stretch.key[7:], owner.offset)
    found = facets(stretch, owner, rules)
    if found.waiting:
        yield "waiting", first[6:8] + first, found.waiting
    if found.expiring:
        yield "expiring", expiring_key(rules.expires_ms or 0, first), found.expiring
    if found.dead:
        yield "dead", dead_key(owner.queue.digest, first), found.dead
    if found.held:
        yield "keyed", keyed_key(rules.key, rules.order_of(first), first, scheduled=rules.scheduled), found.held


def head_of(tables: Tables, prefix: bytes) -> TaskId | None:
    """The first task of an ordering key, ``prefix`` being the partition and its digest."""
    best: tuple[bytes, bytes] | None = None
    for flag in (b"\0", b"\1"):
        for key, value in tables.keyed.ascend(prefix + flag):
            if key[:19] == prefix + flag and (best is None or key[19:] < best[0]):
                best = (bytes(key[19:]), bytes(value))
            break
    return lowest(stretch_of(best[0][24:]), unpack_mask(best[1])) if best is not None else None


def holder_of(tables: Tables, prefix: bytes) -> TaskId | None:
    """The task that stands for a unique key, ``prefix`` being the partition and its digest."""
    for key, _ in tables.unique.descend(prefix + b"\xff" * 45):
        return first_at(key) if key[:18] == prefix else None
    return None


def stands(tables: Tables, stretch: Stretch, owner: Owner) -> bool:
    """Whether no other row stands for a row's unique key."""
    rules = owner.queue.rules
    if rules is None or not rules.unique:
        return True
    first = id_at(stretch.key[7:], owner.offset)
    return holder_of(tables, first[6:8] + rules.unique) == first


def free_bits(tables: Tables, stretch: Stretch, owner: Owner) -> int:
    """The tasks of a row that stands which are to be ready or due."""
    rules = owner.queue.rules
    if rules is None:
        return owner.tasks & ~stretch.finished
    free = facets(stretch, owner, rules).free
    if not rules.key:
        return free
    head = head_of(tables, stretch.key[:2] + rules.key)
    return free & mask_of(head, 1) if head is not None and stretch_of(head) == stretch.key[7:] else 0
