"""Damage inside a store: whatever was flipped, added or lost, a round finds it and mends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyxq.facts import Row
from onyxq.store.interface import Batch
from onyxq.store.memory import MemoryTable
from onyxq.store.tables import INDEX_TABLES
from tests.conformance.store_world import (
    NOW_MS,
    AnyStore,
    World,
    put,
)
from tests.conformance.test_store_rules_model import histories

DERIVED = (*INDEX_TABLES, "stretch", "counts", "leaves", "hours")
PROMOTE = Batch(promote=((3, NOW_MS + 10_000), (4, NOW_MS + 10_000)))


def tables(store: AnyStore) -> dict[str, dict[bytes, bytes]]:
    """The entries of all that is derived from rows, without queues that have no tasks any more."""
    out = {
        name: {bytes(key): bytes(value) for key, value in getattr(store._tables, name).ascend(b"")} for name in DERIVED
    }
    out["counts"] = {key: value for key, value in out["counts"].items() if any(value[:48])}
    return out


async def scrub(store: AnyStore) -> int:
    """Scrub and mend until nothing is found; how many rounds found something."""
    for rounds in range(10):
        after = store.scrub(b"", 1 << 20)
        while after:
            after = store.scrub(after, 1 << 20)
        if not store.crooked:
            return rounds
        while store.crooked:
            await store.write(Batch(mend=store.crooked.take(100)))
    raise AssertionError("it is never right")


Vandal = Callable[[MemoryTable, bytes], None]


def flip(table: MemoryTable, key: bytes) -> None:
    """Flip a bit of a value."""
    value = bytearray(table.get(key) or b"")
    if value:
        value[len(key) * 7 % len(value)] ^= 4
        table.put(key, bytes(value))


def lose(table: MemoryTable, key: bytes) -> None:
    """Lose an entry."""
    table.delete(key)


def move(table: MemoryTable, key: bytes) -> None:
    """Flip a bit of a key."""
    value = table.get(key) or b""
    table.delete(key)
    place = 2 + len(value) * 5 % (len(key) - 2)
    table.put(key[:place] + bytes([key[place] ^ 1]) + key[place + 1 :], value)


def copy(table: MemoryTable, key: bytes) -> None:
    """Leave a second entry under another key."""
    table.put(key[:-3] + b"\0\3\7", table.get(key) or b"")


async def vandalise(world: World, rows: list[Row], damage: list[tuple[str, int, Vandal]]) -> None:
    """Put the rows, damage what is derived, and have it mended."""
    async with world.store() as store:
        await put(store, *rows)
        await store.write(PROMOTE)
        assert await scrub(store) == 0
        before = tables(store)
        for name, place, vandal in damage:
            table: MemoryTable = getattr(store._tables, name)
            keys = [key for key, _ in table.ascend(b"")]
            if keys:
                vandal(table, keys[place % len(keys)])
        await scrub(store)
        await store.write(PROMOTE)
        assert tables(store) == before
        assert not store.damaged


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    history=histories(),
    damage=st.lists(
        st.tuples(st.sampled_from(DERIVED), st.integers(0, 50), st.sampled_from([flip, lose, move, copy])), max_size=4
    ),
)
def test_whatever_is_derived_is_mended_from_the_rows(
    history: tuple[list[Row], list[list[Row]]], damage: list[tuple[str, int, Vandal]]
) -> None:
    """Records, entries, counts and digests: flipped, lost, moved or copied."""
    trio.run(vandalise, World("memory", Path()), history[0], damage)


async def rot_and_repair(world: World, rows: list[Row], later: list[Row], rotten: list[tuple[int, int]]) -> None:
    """Rows rot, others come meanwhile, then the sound ones come back."""
    async with world.store() as store:
        await put(store, *rows)
        for place, bit in rotten:
            world.disk.rot(rows[place % len(rows)].key, bit=bit)
        store.scrub(b"", 1 << 20)
        await put(store, *later)
        await put(store, *rows, *later)
        store.damaged.clear()
        await store.write(PROMOTE)
        await scrub(store)
        await store.write(PROMOTE)
        async with World("memory", world.directory).store() as sound:
            await put(sound, *rows, *later)
            await sound.write(PROMOTE)
            assert tables(store) == tables(sound)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    history=histories(),
    cut=st.integers(0, 20),
    rotten=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2000)), min_size=1, max_size=3),
)
def test_rows_that_rotted_leave_no_trace_once_repaired(
    history: tuple[list[Row], list[list[Row]]], cut: int, rotten: list[tuple[int, int]]
) -> None:
    """Whatever came while nobody could tell what they had said."""
    rows = history[0]
    cut = 1 + cut % len(rows)
    trio.run(rot_and_repair, World("memory", Path()), rows[:cut], rows[cut:], rotten)
