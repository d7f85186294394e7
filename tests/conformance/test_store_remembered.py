"""Records of stretches in memory, which are valid only while they match the stored bytes."""

from __future__ import annotations

from onyxq.core.ids import mask_of, stretch_of
from onyxq.store.index.key_heads import HEADS_MAX, KeyHeads
from onyxq.store.index.records import pack_mask, stretch_key
from onyxq.store.index.stretches import Remembered, State, Stretch
from onyxq.store.memory import MemoryTable, MemoryTables
from onyxq.store.tables import CheckedTable
from tests.conformance.store_world import first_id


def full_record() -> Stretch:
    """Return a record with a value in every field."""
    record = Stretch(stretch_key(stretch_of(first_id())))
    record.known, record.done = 0b111111, [1, 2, 4, 8]
    record.moved = {State(70, 0, 5_000, 2, 60, 1, 65): 0b110000}
    record.owned = {4: 0b110000}
    record.ruled, record.resolved, record.granted = 0b1000, 0b1100, 0b1001
    return record


def test_a_record_is_found_only_while_its_bytes_are_what_is_stored() -> None:
    """They are not found before they are written, nor after a change: a transaction may fail, a file be damaged."""
    raw, remembered, record = MemoryTable(), Remembered(), full_record()
    table = CheckedTable(raw, lambda _: None, strict=True)
    name = stretch_of(first_id())
    remembered.put(name, record.pack(), record)
    assert remembered.find(table, name) is None
    table.put(record.key, record.pack())
    assert remembered.find(table, name) is record
    assert remembered.find(table, stretch_of(first_id(9 * 1024))) is None
    damaged = bytearray(record.pack())
    damaged[3] ^= 1
    table.put(record.key, bytes(damaged))
    assert remembered.find(table, name) is None


def test_a_copy_is_equal_and_its_changes_are_its_own() -> None:
    """Changes are made to a copy, and readers continue with the stored record."""
    record = full_record()
    packed = record.pack()
    copy = record.copy()
    assert copy.pack() == packed
    copy.known |= 1 << 9
    copy.done[0] |= 1 << 9
    copy.moved.clear()
    copy.owned[9] = 1 << 9
    copy.ruled = copy.resolved = copy.granted = 0
    assert record.pack() == packed


def test_heads_are_kept_in_bounded_memory_and_read_again() -> None:
    """What the cache does not have is read from the table; changes of a transaction take the place of what it had."""
    tables, heads = MemoryTables(), KeyHeads()
    tables.keyed = CheckedTable(MemoryTable(), lambda _: None, strict=False)
    first, second = first_id(), first_id(1)
    for number in range(HEADS_MAX + 2):
        prefix = b"\0\3" + number.to_bytes(16, "big")
        tables.keyed.put(prefix + b"\0" + bytes(24) + first, pack_mask(mask_of(first, 1)))
        assert heads.find(tables, prefix) == first
        assert len(heads) <= HEADS_MAX
    heads.take({prefix: second})
    assert heads.find(tables, prefix) == second
    heads.forget()
    assert heads.find(tables, prefix) == first
    assert heads.find(tables, b"\0\4" + bytes(16)) is None
