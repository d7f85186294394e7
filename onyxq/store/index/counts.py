"""Counts the queues of a partition anew, where the stored counts cannot be trusted."""

from __future__ import annotations

from onyxq.core.errors import Corrupt
from onyxq.store.index.expected import load_stretch
from onyxq.store.index.facets import free_bits, stands
from onyxq.store.index.records import OUTCOME_PLACES, SCHEDULED, TOTAL, WAITING, bits_of, pack_counts, unpack_counts
from onyxq.store.index.stretches import owners
from onyxq.store.tables import Tables


def count_partition(tables: Tables, partition: bytes) -> None:
    """Count the queues of a partition anew, from the records of stretches and the rows."""
    numbers: dict[bytes, list[int]] = {}
    names: dict[bytes, str] = {}
    for key, _ in tables.counts.ascend(partition):
        if key[:2] != partition:
            break
        numbers[bytes(key)] = [0] * 6
    for key, _ in tables.stretch.ascend(partition):
        if key[:2] != partition:
            break
        stretch, _ = load_stretch(tables, key[7:])
        for owner in owners(tables, stretch, stretch.known):
            if not stands(tables, stretch, owner):
                continue
            counts = numbers.setdefault(partition + owner.queue.digest, [0] * 6)
            names[partition + owner.queue.digest] = owner.queue.name
            counts[TOTAL] += owner.tasks.bit_count()
            for place, done in zip(OUTCOME_PLACES, stretch.done, strict=True):
                counts[place] += (owner.tasks & done).bit_count()
            counts[WAITING] += (owner.tasks & ~stretch.finished & ~free_bits(tables, stretch, owner)).bit_count()
    for key, value in tables.due.ascend(partition):
        if key[:2] != partition:
            break
        if partition + bytes(value[:16]) in numbers:
            numbers[partition + bytes(value[:16])][SCHEDULED] += bits_of(value[20:]).bit_count()
    for key, counts in numbers.items():
        name = names.get(key) or _stored_name(tables, key)
        if name:
            tables.counts.put(key, pack_counts(key, counts, name))
        else:
            tables.counts.delete(key)


def _stored_name(tables: Tables, key: bytes) -> str:
    try:
        return unpack_counts(key, tables.counts.get(key) or b"")[1]
    except Corrupt:
        return ""
