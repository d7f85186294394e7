"""Repairs what an audit found: indexes are derived from the rows anew, a part at a time.

It runs inside a write transaction and checks everything again.  So entries that are correct,
or were repaired meanwhile, stay unchanged.
"""

from __future__ import annotations

from onyxq.core.errors import BadRequest
from onyxq.core.facts import Row, sealed
from onyxq.core.ids import stretch_of
from onyxq.store.index.digests import Digests
from onyxq.store.index.expected import load_stretch, stretch_rows, true_stretch
from onyxq.store.index.key_index import Ruled
from onyxq.store.index.pieces import Pieces
from onyxq.store.index.records import leaf_key, stretch_key
from onyxq.store.integrity.audit import missing_entries, true_value
from onyxq.store.interface import Mending
from onyxq.store.row_checks import prepare
from onyxq.store.tables import INDEX_TABLES, Table, Tables

MISPLACED_BYTES_MAX = 4096
"""Size of the largest rows that are searched for under other keys, in bytes."""


class Mender:
    """Repairs derived data in one write transaction."""

    def __init__(self, tables: Tables, *, pieces: Pieces, ruled: Ruled, digests: Digests) -> None:
        self._tables = tables
        self._pieces = pieces
        self._ruled = ruled
        self._digests = digests

    def mend(self, found: Mending) -> None:
        """Repair what was found."""
        self._pieces.flush()  # the following reads the records of stretches from their table
        for name, key in found.entries:
            self._drop_entry(name, key)
        for stretch in found.stretches:
            self.mend_stretch(stretch)
        for partition in found.partitions:
            self._pieces.recount.add(partition.to_bytes(2, "big"))
        for leaf in found.leaves:
            self._digests.recount(leaf)

    def take_misplaced(self, key: bytes) -> Row | None:
        """Remove a damaged row with only one byte of its key changed, and return the sound row.

        The search runs only where it is cheap. Any other damaged row stays.
        """
        stored = self._tables.rows.get(key)
        value = bytes(stored) if stored is not None else b""
        if not value or len(value) > MISPLACED_BYTES_MAX or sealed(key, value):
            return None
        for place in range(len(key)):
            for byte in range(256):
                true = key[:place] + bytes([byte]) + key[place + 1 :]
                if sealed(true, value) and _well_formed(Row(true, value)):
                    self._tables.rows.delete(key)
                    if self._tables.stretch.get(stretch_key(stretch_of(key[3:23]))) is not None:
                        self._digests.recount(leaf_key(stretch_of(key[3:23])))
                    return Row(true, value)
        return None

    def mend_stretch(self, stretch_id: bytes) -> None:
        """Correct a stretch's record and entries by its rows; entries of other stretches stay."""
        stored, readable = load_stretch(self._tables, stretch_id)
        true, sound = true_stretch(self._tables, stretch_id, stored.owned)
        if not sound and readable:
            return  # the record may contain what a damaged row said
        missing = missing_entries(self._tables, true)
        was = self._tables.stretch.get(true.key)
        if was is not None and bytes(was) == true.pack() and not missing:
            return
        rowless = next(stretch_rows(self._tables, stretch_id), None) is None
        if rowless and was is None:
            return
        self._digests.recount(true.key[:7])
        self._pieces.recount.add(true.key[:2])
        if rowless:
            self._tables.stretch.delete(true.key)
            self._pieces.forget_stretch(stretch_id)
            return
        self._pieces.put_stretch(true)
        for name, key in missing:
            self._ruled.touch(name, key)
        for (name, key), value in missing.items():
            if name != "ready":
                getattr(self._tables, name).put(key, value)
        self._ruled.settle()
        for (name, key), value in missing_entries(self._tables, true).items():
            if name == "ready":
                self._pieces.put_piece(key, value)

    def _drop_entry(self, name: str, key: bytes) -> None:
        if name == "stretch":
            self._tables.stretch.delete(key)
            return
        if name not in INDEX_TABLES:
            return
        table: Table = getattr(self._tables, name)
        value = table.get(key)
        if value is None or true_value(self._tables, name, key, value) == bytes(value):
            return
        self._pieces.recount.add(key[:2])
        self._ruled.touch(name, key)
        table.delete(key)
        self._ruled.settle()
        if len(key) >= 20:
            self.mend_stretch(stretch_of(key[-20:]))


def _well_formed(row: Row) -> bool:
    try:
        prepare(row)
    except BadRequest:
        return False
    return True
