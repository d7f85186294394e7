"""The digests that anti-entropy compares: rows and their hashes by leaf and by hour."""

from __future__ import annotations

from onyxq.core.facts import KINDS
from onyxq.core.ids import STRETCH_TASKS, id_at
from onyxq.store.index.records import DIGEST, HASH_MASK, row_hash
from onyxq.store.tables import Table, Tables

LEAF_BYTES = 7
"""Bytes of a leaf's key; an hour's has one less."""


class Digests:
    """Gathers the changes to digests by the rows of one write transaction."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._leaves: dict[bytes, list[int]] = {}
        self._recount: set[bytes] = set()
        """Leaves and hours whose digests are computed anew."""

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

    def recount(self, leaf: bytes) -> None:
        """Compute the digest of a leaf, or an hour, anew, because its true change is unknown."""
        self._recount.add(leaf)

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
        for key in sorted(self._recount, reverse=True):  # leaves before their hour
            if len(key) == LEAF_BYTES:
                rows, total = count_leaf(self._tables, key)
                old_rows, old_total = DIGEST.unpack(self._tables.leaves.get(key) or DIGEST.pack(0, 0))
                _add(self._tables.leaves, key, rows - old_rows, total - old_total)
                _add(self._tables.hours, key[:6], rows - old_rows, total - old_total)
                if not rows:
                    self._tables.leaves.delete(key)
            else:
                rows, total = sum_leaves(self._tables, key)
                self._tables.hours.put(key, DIGEST.pack(rows, total))
                if not rows:
                    self._tables.hours.delete(key)
        self._recount = set()


def count_leaf(tables: Tables, leaf: bytes) -> tuple[int, int]:
    """Return the digest of a leaf, computed from its rows."""
    rows, total = 0, 0
    stretches = []
    for key, _ in tables.stretch.ascend(leaf):
        if key[:7] != leaf:
            break
        stretches.append(bytes(key[7:]))
    for kind in KINDS:
        for stretch in stretches:
            prefix = leaf[:2] + kind
            last = prefix + id_at(stretch, STRETCH_TASKS - 1) + b"\xff" * 12
            for key, value in tables.rows.ascend(prefix + stretch):
                if key > last:
                    break
                rows += 1
                total += row_hash(bytes(key), bytes(value[-4:]))
    return rows, total


def sum_leaves(tables: Tables, hour: bytes) -> tuple[int, int]:
    """Return the digest of an hour, computed from its leaves."""
    rows = total = 0
    for key, value in tables.leaves.ascend(hour):
        if key[:6] != hour:
            break
        more_rows, more = DIGEST.unpack(value)
        rows, total = rows + more_rows, total + more
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
