"""Damage inside a store: whatever was flipped, added or lost, a round finds it and mends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyxq.core.facts import Row
from onyxq.store.interface import Batch
from onyxq.store.memory import MemoryTable
from onyxq.store.tables import INDEX_TABLES
from tests.conformance.store_world import NOW_MS, AnyStore, World, counts, first_id, in_trio, put, tasks
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


@in_trio
async def test_an_entry_of_an_ordering_key_that_was_emptied_is_mended() -> None:
    """The key still has a head, and the entry comes back."""

    def empty(table: MemoryTable, key: bytes) -> None:
        table.put(key, b"\0")

    rows = [tasks(first_id(counter), 1, ordering_key="k") for counter in (0, 1_024)]
    for place in range(2):
        await vandalise(World("memory", Path()), rows, [("keyed", place, empty)])


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


ROTTEN = tasks(first_id(0), 1)
"""A row of which `SIXTEEN_MORE` makes one that says it holds its neighbours."""
NEIGHBOUR = (tasks(first_id(1), 1), tasks(first_id(1), 2))
"""A row, and another leader's longer one under its key, for which the stretch is indexed anew."""
SIXTEEN_MORE = 36
"""The bit of a row's count."""


@in_trio
async def test_a_row_that_rotted_to_hold_its_neighbours_has_none_of_them_once_repaired() -> None:
    """They came meanwhile."""
    await rot_and_repair(World("memory", Path()), [ROTTEN], list(NEIGHBOUR), [(0, SIXTEEN_MORE)])


@in_trio
async def test_the_neighbours_of_a_row_that_rotted_to_hold_them_are_ready_meanwhile() -> None:
    """Also those that come later still."""
    world = World("memory", Path())
    async with world.store() as store:
        await put(store, ROTTEN)
        world.disk.rot(ROTTEN.key, bit=SIXTEEN_MORE)
        for row in (*NEIGHBOUR, tasks(first_id(4), 2)):
            await put(store, row)
        ready = {piece.row_first: piece.bits for piece in store.ready(3, "mail")}
        assert ready[first_id(1)] == 0b110
        assert ready[first_id(4)] == 0b110000


@in_trio
async def test_overlapping_rows_share_their_tasks_as_before_once_their_record_is_lost() -> None:
    """The first of them keeps what both hold."""
    rows = [tasks(first_id(0), 3), tasks(first_id(2), 3, expires_ms=NOW_MS + 1), tasks(first_id(4), 2)]
    for vandal in (flip, lose):
        await vandalise(World("memory", Path()), rows, [("stretch", 0, vandal)])


@in_trio
async def test_overlapping_rows_that_came_in_any_order_hold_each_task_once_when_their_record_is_lost() -> None:
    """Which came first cannot be told any more."""
    rows = [tasks(first_id(4), 2), tasks(first_id(2), 3, expires_ms=NOW_MS + 1), tasks(first_id(0), 3)]
    async with World("memory", Path()).store() as store:
        for row in rows:
            await put(store, row)
        (key, _), *_ = store._tables.stretch.ascend(b"")
        flip(store._tables.stretch, key)
        await scrub(store)
        pieces = store.ready(3, "mail", limit=10)
        assert sum(piece.bits.bit_count() for piece in pieces) == 6
        assert store.counts(3) == {"mail": counts(total=6)}
