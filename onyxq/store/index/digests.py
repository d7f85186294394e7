"""The digests that anti-entropy compares: rows and their hashes by leaf and by hour."""

from __future__ import annotations

from onyxq.core.facts import KINDS
from onyxq.store.index.records import DIGEST, HASH_MASK, row_hash
from onyxq.store.tables import Table, Tables, rows_of, within


class Digests:
    """Gathers the changes to digests by the rows of one write transaction."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._leaves: dict[bytes, list[int]] = {}

    def add(self, leaf: bytes, key: bytes, value: bytes) -> None:
        """Note a new row."""
        changes = self._leaves.get(leaf)
        if changes is None:
            changes = self._leaves[leaf] = [0, 0]
        changes[0] += 1
        changes[1] += row_hash(key, value)

    def remove(self, leaf: bytes, key: bytes, value: bytes) -> None:
        """Note a deleted row."""
        changes = self._leaves.setdefault(leaf, [0, 0])
        changes[0] -= 1
        changes[1] -= row_hash(key, value)

    def replace(self, leaf: bytes, key: bytes, old: bytes, new: bytes) -> None:
        """Note that a row's value was replaced."""
        changes = self._leaves.setdefault(leaf, [0, 0])
        changes[1] += row_hash(key, new) - row_hash(key, old)

    def flush(self) -> None:
        """Write the gathered changes."""
        hours: dict[bytes, list[int]] = {}
        for key, (rows, total) in self._leaves.items():
            _add(self._tables.leaves, key, rows, total)
            hour = hours.setdefault(key[:6], [0, 0])
            hour[0] += rows
            hour[1] += total
        for key, (rows, total) in hours.items():
            _add(self._tables.hours, key, rows, total)
        self._leaves = {}


def count_leaf(tables: Tables, leaf: bytes) -> tuple[int, int]:
    """Return the digest of a leaf, computed from its rows."""
    rows, total = 0, 0
    stretches = [key[7:] for key, _ in within(tables.stretch, leaf)]
    for kind in KINDS:
        for stretch in stretches:
            for key, value in rows_of(tables.rows, kind, stretch):
                rows += 1
                total += row_hash(bytes(key), bytes(value[-4:]))
    return rows, total & HASH_MASK


def _add(table: Table, key: bytes, rows: int, total: int) -> None:
    stored = table.get(key)
    if stored is not None:
        old_rows, old_total = DIGEST.unpack(stored)
        rows, total = rows + old_rows, total + old_total
    rows, total = rows & HASH_MASK, total & HASH_MASK
    if rows or total:
        table.put(key, DIGEST.pack(rows, total))
    elif stored is not None:
        table.delete(key)
