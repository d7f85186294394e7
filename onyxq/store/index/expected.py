"""The record of a stretch, as stored or as it follows from the rows."""

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
from onyxq.core.ids import mask_of, offset_of
from onyxq.store.index.heads import Rules, task_head
from onyxq.store.index.records import stretch_key
from onyxq.store.index.stretches import MOVING, Stretch, moved_by, winners
from onyxq.store.tables import CheckedTables, Tables, rows_of


def stretch_rows(tables: Tables, stretch_id: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield all rows about a stretch, by kind."""
    for kind in KINDS:
        for key, value in rows_of(tables.rows, kind, stretch_id):
            yield bytes(key), bytes(value)


def true_stretch(tables: Tables, stretch_id: bytes) -> Stretch:
    """Return the record that follows from a stretch's sound rows."""
    out = Stretch(stretch_key(stretch_id))
    watching = granted = 0
    held: dict[int, tuple[int, Rules | None]] = {}
    completions = []
    for key, value in stretch_rows(tables, stretch_id):
        kind, body = key[2:3], value[:-4]
        if not sealed(key, value):
            continue
        if kind == TASK:
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
    for offset, (mask, rules) in sorted(held.items(), reverse=True):
        tasks = mask & ~out.known
        if tasks != mask:
            out.owned[offset] = tasks
        out.known |= mask
        if rules is not None:
            out.ruled |= tasks
            watching |= tasks if rules.watches_grants else 0
    out.done = winners(out, completions)
    out.granted = granted & watching
    return out


def load_stretch(tables: CheckedTables, stretch_id: bytes) -> tuple[Stretch, bytes]:
    """Return the record of a stretch, and its stored bytes; these are empty if it is new or damaged.

    Instead of a damaged record, the one that follows from the rows is returned.
    """
    key = stretch_key(stretch_id)
    try:
        stored = tables.stretch.get(key)
    except Corrupt:
        return true_stretch(tables, stretch_id), b""
    return (Stretch(key), b"") if stored is None else (Stretch.unpack(key, stored), bytes(stored))
