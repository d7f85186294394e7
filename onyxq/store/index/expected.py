"""The correct contents of the indexes, derived from a stretch's rows alone."""

from __future__ import annotations

from collections.abc import Iterator

from onyxq.core.errors import Corrupt
from onyxq.core.facts import (
    COMPLETION,
    GRANTED,
    HISTORY,
    KINDS,
    RESOLUTION,
    TASK,
    sealed,
    unpack_history,
    unpack_resolution,
)
from onyxq.core.ids import STRETCH_TASKS, id_at, mask_of, offset_of
from onyxq.store.index.facets import free_bits, row_entries, stands
from onyxq.store.index.heads import Rules, task_head
from onyxq.store.index.records import dead_key, lowest, pack_mask, pack_piece, ready_key, stretch_key, unique_key
from onyxq.store.index.stretches import MOVING, Stretch, groups, moved_by, owners, winners
from onyxq.store.tables import Tables


def stretch_rows(tables: Tables, stretch_id: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield all rows about a stretch, by kind."""
    for kind in KINDS:
        prefix = stretch_id[6:8] + kind
        last = prefix + id_at(stretch_id, STRETCH_TASKS - 1) + b"\xff" * 12
        for key, value in tables.rows.ascend(prefix + stretch_id):
            if key > last:
                break
            yield bytes(key), bytes(value)


def true_stretch(tables: Tables, stretch_id: bytes, owned: dict[int, int]) -> tuple[Stretch, bool]:
    """Return the record that follows from a stretch's sound rows, and whether all rows are sound.

    Only the stored record knows which of overlapping rows came first: ``owned`` is taken from it.
    """
    out = Stretch(stretch_key(stretch_id))
    expiring = granted = 0
    held: dict[int, tuple[int, Rules | None]] = {}
    completions = []
    sound = True
    for key, value in stretch_rows(tables, stretch_id):
        kind, body = key[2:3], value[:-4]
        if not sealed(key, value):
            sound = False
        elif kind == TASK:
            count, queue = task_head(value)
            held[offset_of(key[3:23])] = (mask_of(key[3:23], count), queue.rules)
        elif kind == COMPLETION:
            completions.append((key, value))
        elif kind == RESOLUTION:
            out.resolved |= mask_of(key[3:23], unpack_resolution(body).count)
        elif kind == HISTORY:
            event = unpack_history(body)
            mask = mask_of(key[3:23], event.count)
            if event.event in MOVING:
                out.moved = moved_by(out.moved, mask, event)
            elif event.event == GRANTED:
                granted |= mask
    out.owned = true_owned({offset: mask for offset, (mask, _) in held.items()}, owned)
    for offset, (mask, rules) in held.items():
        out.known |= mask
        if rules is not None:
            tasks = out.owned.get(offset, mask)
            out.ruled |= tasks
            expiring |= tasks if rules.expires_ms is not None else 0
    out.done = winners(out, completions)
    out.granted = granted & expiring
    return out, sound


def true_owned(masks: dict[int, int], owned: dict[int, int]) -> dict[int, int]:
    """Return for the offset of each row that overlaps others the tasks that count as its own.

    ``masks``: the tasks that the rows hold, by offset. ``owned``, from a stored record, stays if
    it gives each task to one row that holds it.  Otherwise a row was damaged when that was written,
    and seemed to hold more or fewer tasks.  Then each row gets the tasks that earlier rows leave.
    """
    kept = {offset: owned[offset] for offset, mask in masks.items() if owned.get(offset, mask) != mask}
    out: dict[int, int] = {}
    known = taken = 0
    fits = True
    for offset, mask in masks.items():
        tasks = kept.get(offset, mask)
        fits = fits and not tasks & (taken | ~mask)
        taken |= tasks
        if mask & known:
            out[offset] = mask & ~known
        known |= mask
    return kept if fits and taken == known else out


def load_stretch(tables: Tables, stretch_id: bytes) -> tuple[Stretch, bool]:
    """Return the record of a stretch, and whether it was readable.

    If it was not, the record is derived from the rows.
    """
    key = stretch_key(stretch_id)
    stored = tables.stretch.get(key)
    if stored is None:
        return Stretch(key), True
    try:
        return Stretch.unpack(key, stored), True
    except Corrupt:
        return true_stretch(tables, stretch_id, {})[0], False


def true_entries(tables: Tables, stretch: Stretch, wanted: int | None = None) -> dict[tuple[str, bytes], bytes]:
    """Return the index entries (table, key) -> value that follow from a stretch's record and rows.

    Heads and holders are taken from the tables. Pieces are given as if all were ready. With
    ``wanted``, only the rows that hold these tasks count.
    """
    out: dict[tuple[str, bytes], bytes] = {}
    stretch_id = stretch.key[7:]
    for owner in owners(tables, stretch, stretch.known if wanted is None else wanted):
        first = id_at(stretch_id, owner.offset)
        rules = owner.queue.rules
        if rules is not None and rules.unique:
            out["unique", unique_key(rules.unique, rules.order_of(first), first)] = b""
            if not stands(tables, stretch, owner):
                continue
        if rules is None:
            if dead := owner.tasks & stretch.failed:
                out["dead", dead_key(owner.queue.digest, first)] = pack_mask(dead)
        else:
            for name, key, bits in row_entries(stretch, owner):
                out[name, key] = pack_mask(bits)
        free = free_bits(tables, stretch, owner)
        for alike, bits in groups(stretch, owner.tasks).items():
            if bits & free:
                named = lowest(stretch_id, bits & free if owner.key else bits)
                value = pack_piece(alike, owner.offset, bits & free, owner.key)
                out["ready", ready_key(owner.queue, alike.due_ms, named)] = value
    return out
