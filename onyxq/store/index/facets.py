"""What follows from one row with rules, and which row comes first for a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from onyxq.core.facts import STOPPED
from onyxq.core.ids import TaskId, id_at, mask_of, stretch_of
from onyxq.store.index.heads import Rules
from onyxq.store.index.records import (
    CLAIMANT,
    RELEASED,
    dead_key,
    expiring_key,
    first_at,
    keyed_key,
    lowest,
    unpack_mask,
)
from onyxq.store.index.stretches import Owner, Stretch
from onyxq.store.tables import Tables


class Facets(NamedTuple):
    """The tasks of one row by their place in the indexes, as masks."""

    live: int
    """Unfinished tasks."""
    free: int
    """Unfinished tasks that wait for no dependency."""
    held: int
    """Tasks in their ordering key."""
    waiting: int
    expiring: int
    dead: int


def facets(stretch: Stretch, owner: Owner, rules: Rules) -> Facets:
    """Return the facets of a row's tasks, for a row that is not superseded."""
    live = owner.tasks & ~stretch.finished
    waiting = live & ~stretch.resolved if rules.depends else 0
    held = live | (owner.tasks & stretch.done[STOPPED]) if rules.key else 0
    expiring = live & ~stretch.granted if rules.expires_ms is not None else 0
    return Facets(live, live & ~waiting, held, waiting, expiring, owner.tasks & stretch.failed)


def row_entries(stretch: Stretch, owner: Owner, found: Facets) -> Iterator[tuple[str, bytes, int]]:
    """Yield the entries (table, key, bits) that follow from a row with rules alone, if it is not superseded."""
    rules = owner.queue.rules
    assert rules is not None
    first = id_at(stretch.key[7:], owner.offset)
    if found.waiting:
        yield "waiting", first[6:8] + first, found.waiting
    if found.expiring:
        yield "expiring", expiring_key(rules.expires_ms or 0, first), found.expiring
    if found.dead:
        yield "dead", dead_key(owner.queue.digest, first), found.dead
    if found.held:
        yield "keyed", keyed_key(rules.key, rules.order_of(first), first, scheduled=rules.scheduled), found.held


def head_of(tables: Tables, prefix: bytes) -> TaskId | None:
    """Return the first task of an ordering key, or None; ``prefix`` is the partition and its digest."""
    heads = [head for flag in (b"\0", b"\1") if (head := _first_of(tables, prefix + flag)) is not None]
    if not heads:
        return None
    key, bits = _earliest(heads)
    return lowest(stretch_of(key[24:]), bits)


def _earliest(heads: list[tuple[bytes, int]]) -> tuple[bytes, int]:
    """Return the entry that is due first; immediate and scheduled tasks of a key are in one order."""
    return min(heads)


def _first_of(tables: Tables, prefix: bytes) -> tuple[bytes, int] | None:
    """Return the first entry of an ordering key: the rest of its key, and its mask."""
    found = tables.keyed.first(prefix)
    return (found[0][19:], unpack_mask(found[1])) if found is not None and found[0][:19] == prefix else None


class Latest(NamedTuple):
    """The task of a unique key whose row has the highest mark."""

    task: TaskId
    released: bool
    """Whether it has released the key, so that the key is free. Tasks with lower marks never get it."""


def latest_of(tables: Tables, prefix: bytes) -> Latest | None:
    """Return the latest task of a unique key, or None; ``prefix`` is the partition and its digest."""
    found = [
        (bytes(key[19:]), flag == RELEASED)
        for flag in (RELEASED, CLAIMANT)
        for key, _ in islice(tables.unique.descend(prefix + flag + b"\xff" * 45), 1)
        if key[:19] == prefix + flag
    ]
    return Latest(first_at(max(found)[0]), max(found)[1]) if found else None


def holder_of(tables: Tables, prefix: bytes) -> TaskId | None:
    """Return the task that holds a unique key, or None; ``prefix`` is the partition and its digest."""
    latest = latest_of(tables, prefix)
    return None if latest is None or latest.released else latest.task


def has_released(stretch: Stretch, owner: Owner, rules: Rules) -> bool:
    """Return whether a row with a unique key has released it for good: its task started, or ended.

    A task that is reopened does not take its key back, because another task may hold it by then.
    """
    if rules.until == "purged":
        return False
    over = stretch.finished | stretch.reopened
    if rules.until == "started":
        over |= stretch.granted | stretch.returned
    return bool(over & owner.tasks)


def stands(tables: Tables, stretch: Stretch, owner: Owner) -> bool:
    """Return whether a row holds its unique key, has released it, or has none."""
    rules = owner.queue.rules
    if rules is None or not rules.unique or has_released(stretch, owner, rules):
        return True
    first = id_at(stretch.key[7:], owner.offset)
    return holder_of(tables, first[6:8] + rules.unique_of(first)) == first


def free_bits(head: Callable[[bytes], TaskId | None], stretch: Stretch, owner: Owner) -> int:
    """Return the tasks of a row that belong into ``ready`` or ``due``; the row must not be superseded.

    ``head``: as `head_of`, for the partition and digest of an ordering key.
    """
    rules = owner.queue.rules
    if rules is None:
        return owner.tasks & ~stretch.finished
    free = facets(stretch, owner, rules).free
    if not rules.key:
        return free
    first = head(stretch.key[:2] + rules.key)
    return free & mask_of(first, 1) if first is not None and stretch_of(first) == stretch.key[7:] else 0
