"""How and when the tasks of a stretch ended, for retention."""

from __future__ import annotations

import struct

import msgpack

from onyxq.core.facts import CANCELLED, COMPLETION, STOPPED, completion_time, sealed
from onyxq.core.ids import TaskId, id_at, mask_of, ms_of, stretch_of
from onyxq.store.index.facets import latest_of, stands
from onyxq.store.index.records import CLAIMANT, first_at
from onyxq.store.index.stretches import Owner, Stretch, owners
from onyxq.store.interface import Ended
from onyxq.store.tables import Tables, rows_of, within

_COUNT = struct.Struct(">8xI")


def ended(tables: Tables, stretch: Stretch) -> Ended | None:
    """Return how the tasks of a stretch ended; see `onyxq.store.store.Store.ended`.

    Work is per row, not per task.
    """
    times = _times(tables, stretch)
    if times is None:
        return None
    queues: dict[str, int] = {}
    replaced: set[TaskId] = set()
    told = 0
    for owner in owners(tables, stretch, stretch.known):
        told |= owner.tasks
        superseded = owner.queue.rules is not None and not stands(tables, stretch, owner)
        if _open_bits(stretch, owner) and not superseded:
            return None
        if not superseded:
            replaced |= _replaced(tables, stretch, owner)
        at_ms = max([ms_of(stretch.key[7:]), *(at_ms for mask, at_ms in times if mask & owner.tasks)])
        queues[owner.queue.name] = max(at_ms, queues.get(owner.queue.name, 0))
    if stretch.known & ~told:
        return None  # a row is damaged
    return Ended(queues, stretch.failed | stretch.done[CANCELLED], frozenset(replaced))


def _open_bits(stretch: Stretch, owner: Owner) -> int:
    """Return the tasks of a row that may still run, or whose ordering key waits for a decision about them."""
    return owner.tasks & (~stretch.finished | stretch.done[STOPPED])


def _replaced(tables: Tables, stretch: Stretch, owner: Owner) -> set[TaskId]:
    """Return the other stretches with a row that would get a row's unique key if that row were deleted."""
    rules = owner.queue.rules
    if rules is None or not rules.unique:
        return set()
    first = id_at(stretch.key[7:], owner.offset)
    prefix = stretch.key[:2] + rules.unique_of(first)
    latest = latest_of(tables, prefix)
    if latest is None or latest.task != first:
        return set()
    found = {stretch_of(first_at(key)) for key, _ in within(tables.unique, prefix + CLAIMANT)}
    return found - {stretch_of(first)}


def _times(tables: Tables, stretch: Stretch) -> list[tuple[int, int]] | None:
    """Return the tasks and time of each completion; None if one is damaged."""
    found = []
    for key, value in rows_of(tables.rows, COMPLETION, stretch.key[7:]):
        try:
            if not sealed(key, value):
                return None
            found.append((mask_of(key[3:23], _COUNT.unpack(key[23:])[0]), completion_time(bytes(value[:64]))))
        except (ValueError, TypeError, struct.error, msgpack.UnpackException):
            return None
    return found
