"""Damage inside a store: for any flipped byte of a row or an entry, the index is rebuilt from the rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyxq.core.facts import FAILED, Mark, Row, sealed
from onyxq.core.ids import ids_of, runs_of, stretch_of
from onyxq.core.purged import Watermark
from onyxq.errors import Corrupt, Unavailable
from onyxq.store.interface import Batch, Purge, Rebuild
from onyxq.store.memory import MemoryTable
from onyxq.store.tables import DERIVED_TABLES
from tests.conformance.store_world import NOW_MS, AnyStore, World, counts, done, first_id, in_trio, put, rebuild, tasks
from tests.conformance.test_store_rules_model import histories

PROMOTE = Batch(promote=((3, NOW_MS + 10_000), (4, NOW_MS + 10_000)))


def tables(store: AnyStore) -> dict[str, dict[bytes, bytes]]:
    """Return all entries that are derived from rows, without empty queues."""
    out = {
        name: {bytes(key): bytes(value) for key, value in getattr(store._tables, name).ascend(b"")}
        for name in DERIVED_TABLES
    }
    out["counts"] = {key: value for key, value in out["counts"].items() if any(value[:48])}
    return out


def scrub(store: AnyStore) -> None:
    """Check everything once."""
    after = store.scrub(b"", 1 << 20)
    while after:
        after = store.scrub(after, 1 << 20)


Change = Callable[[bytes, bytes], tuple[bytes, bytes] | None]
"""Turns a stored entry into a damaged one, or removes it."""


def flip_value(place: int) -> Change:
    """Flip a bit of a stored value, its checksum included."""

    def change(key: bytes, value: bytes) -> tuple[bytes, bytes]:
        flipped = bytearray(value)
        flipped[place % len(flipped)] ^= 1 << place % 8
        return key, bytes(flipped)

    return change


def flip_key(place: int) -> Change:
    """Flip a bit of a key after its partition."""

    def change(key: bytes, value: bytes) -> tuple[bytes, bytes]:
        at = 2 + place % (len(key) - 2)
        return key[:at] + bytes([key[at] ^ 1]) + key[at + 1 :], value

    return change


def lose(key: bytes, value: bytes) -> None:
    """Remove an entry."""


def damage(world: World, name: str, place: int, change: Change) -> bytes | None:
    """Change one entry of a table under a store, and return its key; None if the table is empty."""
    if world.kind == "memory":
        table: MemoryTable = getattr(world.disk.tables, name)
        return _change(list(table.ascend(b"")), place, change, table.delete, table.put)
    with lmdb.open(str(world.directory), max_dbs=16, lock=False) as env, env.begin(write=True) as txn:
        db = env.open_db(name.encode(), txn=txn)
        entries = [(bytes(key), bytes(value)) for key, value in txn.cursor(db)]
        return _change(
            entries, place, change, lambda key: txn.delete(key, db=db), lambda key, value: txn.put(key, value, db=db)
        )


def _change(
    entries: list[tuple[bytes, bytes]], place: int, change: Change, delete: Callable[..., Any], put: Callable[..., Any]
) -> bytes | None:
    if not entries:
        return None
    key, value = entries[place % len(entries)]
    delete(key)
    if (changed := change(key, value)) is not None:
        put(*changed)
    return key


Damages = list[tuple[str, int, Change]]


async def damage_and_rebuild(world: World, rows: list[Row], damages: Damages) -> None:
    """Write the rows, damage the index, and rebuild it."""
    async with world.store(map_bytes=1 << 24) as store:
        await put(store, *rows)
        await store.write(PROMOTE)
        scrub(store)
        assert store.unindexed() == []
        before = tables(store)
    hit = {int.from_bytes(key[:2], "big") for one in damages if (key := damage(world, *one)) is not None}
    async with world.store(map_bytes=1 << 24) as store:
        scrub(store)
        assert hit <= set(store.unindexed())
        await rebuild(store)
        await store.write(PROMOTE)
        assert tables(store) == before
        scrub(store)
        assert store.unindexed() == [] and not store.damaged


def damages() -> st.SearchStrategy[Damages]:
    """A few flips in any tables of the index."""
    flips = st.builds(lambda flip, place: flip(place), st.sampled_from([flip_value, flip_key]), st.integers(0, 500))
    one = st.tuples(st.sampled_from(DERIVED_TABLES), st.integers(0, 50), flips)
    return st.lists(one, min_size=1, max_size=4, unique_by=lambda found: found[0])


@pytest.mark.long
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories(), damages=damages())
def test_a_flipped_byte_of_any_entry_is_found_and_the_index_rebuilt(
    history: tuple[list[Row], list[list[Row]]], damages: Damages
) -> None:
    """Keys, values and checksums of every table, in memory."""
    trio.run(damage_and_rebuild, World("memory", Path()), history[0], damages)


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories(), damages=damages())
def test_a_flipped_byte_of_any_entry_on_disk_is_found_and_the_index_rebuilt(
    history: tuple[list[Row], list[list[Row]]], damages: Damages
) -> None:
    """Keys, values and checksums of every table, in LMDB."""
    with tempfile.TemporaryDirectory() as directory:
        trio.run(damage_and_rebuild, World("lmdb", Path(directory)), history[0], damages)


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize("name", ["stretch", "hours", "leaves"])
@in_trio
async def test_a_lost_record_or_digest_is_found(tmp_path: Path, kind: str, name: str) -> None:
    """Without it, other nodes would not see some rows."""
    rows = [tasks(first_id(number * 1024), 2) for number in range(3)]
    await damage_and_rebuild(World(kind, tmp_path), rows, [(name, 0, lose)])


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@in_trio
async def test_a_row_that_vanished_is_found(tmp_path: Path, kind: str) -> None:
    """The digests still count it, so other nodes would never send it."""
    world, rows = World(kind, tmp_path), [tasks(first_id(number), 1) for number in range(3)]
    async with world.store() as store:
        await put(store, *rows)
    damage(world, "rows", 1, lose)
    async with world.store() as store:
        scrub(store)
        await rebuild(store)
        assert sum(digest.rows for digest in store.hours(3).values()) == 2
        await put(store, *rows)
        async with World("memory", tmp_path).store() as sound:
            await put(sound, *rows)
            assert tables(store) == tables(sound)


async def rot_and_repair(world: World, rows: list[Row], later: list[Row], rotten: list[tuple[int, int]]) -> None:
    """Damage rows, write others, then restore the undamaged ones; no damaged payload is read at any time."""
    async with world.store() as store:
        await put(store, *rows)
        for place, bit in rotten:
            world.disk.rot(rows[place % len(rows)].key, bit=bit)
        store.scrub(b"", 1 << 20)
        await put(store, *later)
        check_payloads(store, [*rows, *later])
        await put(store, *rows, *later)
        store.damaged.clear()
        await rebuild(store)
        await store.write(PROMOTE)
        check_payloads(store, [*rows, *later])
        async with World("memory", world.directory).store() as sound:
            await put(sound, *rows, *later)
            await sound.write(PROMOTE)
            assert tables(store) == tables(sound)


def check_payloads(store: AnyStore, rows: list[Row]) -> None:
    """Check that every readable body is one that was written."""
    written: dict[bytes, set[bytes]] = {}
    for row in rows:
        written.setdefault(row.key, set()).add(row.value[:-4])
    for key, bodies in written.items():
        try:
            assert store.body(key) in bodies
        except Corrupt:
            assert not sealed(key, store.get(key) or b"")


@pytest.mark.long
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    history=histories(),
    cut=st.integers(0, 20),
    rotten=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2000)), min_size=1, max_size=3),
)
def test_rows_that_rotted_leave_no_trace_once_repaired(
    history: tuple[list[Row], list[list[Row]]], cut: int, rotten: list[tuple[int, int]]
) -> None:
    """This holds for rows that arrived while the damaged ones were unreadable."""
    rows = history[0]
    cut = 1 + cut % len(rows)
    trio.run(rot_and_repair, World("memory", Path()), rows[:cut], rows[cut:], rotten)


async def write_during_rebuild(world: World, rows: list[Row], batches: list[list[Row]], slice_rows: int) -> None:
    """Rebuild in small slices, with a batch of rows between two slices."""
    async with world.store(map_bytes=1 << 24) as store:
        await put(store, *rows)
        await store.write(Batch(mark=(3, 4)))
        for partition in (3, 4):
            while not (await store.write(Batch(rebuild=Rebuild(partition, rows_max=slice_rows)))).rebuilt:
                if batches:
                    await put(store, *batches.pop())
        await put(store, *[row for batch in batches for row in batch])
        await store.write(PROMOTE)
        async with World("memory", world.directory).store() as sound:
            for row in rows:
                await put(sound, row)
            await put(sound, *[row for batch in world_rows(store) for row in batch])
            await sound.write(PROMOTE)
            assert tables(store) == tables(sound)


def world_rows(store: AnyStore) -> list[list[Row]]:
    """All rows of a store, in one batch."""
    return [[Row(bytes(key), bytes(value)) for key, value in store._tables.rows.ascend(b"")]]


@pytest.mark.long
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories(), cut=st.integers(0, 20), slice_rows=st.integers(1, 6))
def test_rows_that_come_during_a_rebuild_are_indexed_once(
    history: tuple[list[Row], list[list[Row]]], cut: int, slice_rows: int
) -> None:
    """This holds before and after the position of the rebuild."""
    rows, batches = history
    trio.run(write_during_rebuild, World("memory", Path()), rows[: cut % len(rows)], list(batches), slice_rows)


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize("comes", [0, 1])
@in_trio
async def test_of_two_values_under_a_key_the_same_stays_during_a_rebuild(tmp_path: Path, kind: str, comes: int) -> None:
    """An acknowledged row is not lost because a refused one was stored before it."""
    last = first_id(4096)
    values = [done(last, 1, outcome=FAILED, mark=Mark(1, 1)), done(last, 1, mark=Mark(2, 1))]
    async with World(kind, tmp_path).store() as store:
        await put(store, tasks(first_id(), 1), tasks(last, 1), values[1 - comes])
        await store.write(Batch(mark=(3,)))
        await store.write(Batch(rebuild=Rebuild(3, rows_max=1)))
        await put(store, values[comes])
        assert store.unindexed() == [3]
        await rebuild(store)
        assert store.get(values[1].key) == values[1].value
        assert store.counts(3)["mail"].completed == 1


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@in_trio
async def test_a_rebuild_continues_after_a_restart(tmp_path: Path, kind: str) -> None:
    """Until it is complete, copies of the partition are not compared."""
    world, rows = World(kind, tmp_path), [tasks(first_id(number * 1024), 2) for number in range(8)]
    async with world.store() as store:
        await put(store, *rows)
        before = tables(store)
        await store.write(Batch(mark=(3,)))
        await store.write(Batch(rebuild=Rebuild(3, rows_max=30)))
    async with world.store() as store:
        assert store.unindexed() == [3] and store.partitions() == [3]
        for read in (
            lambda: store.hours(3),
            lambda: store.leaves(3, 0),
            lambda: list(store.keys(3, 0, 0)),
            lambda: store.stretches(3, before_ms=NOW_MS),
        ):
            with pytest.raises(Unavailable):
                read()
        await rebuild(store)
        assert store.unindexed() == []
        assert tables(store) == before


@in_trio
async def test_a_rebuild_stops_at_a_damaged_row_until_it_is_repaired(tmp_path: Path) -> None:
    """A finished task does not become ready because its completion cannot be read."""
    world = World("memory", tmp_path)
    rows = [tasks(first_id(), 2), done(first_id(), 2)]
    async with world.store() as store:
        await put(store, *rows)
        before = tables(store)
        world.disk.rot(rows[1].key, bit=200)
        await store.write(Batch(mark=(3,)))
        for _ in range(3):
            written = await store.write(Batch(rebuild=Rebuild(3)))
            assert (written.damaged, written.rebuilt) == ((rows[1].key,), False)
        await put(store, rows[1])
        await rebuild(store)
        assert tables(store) == before


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize("bit", [7, 200])
@in_trio
async def test_a_rebuild_deletes_purged_rows_also_damaged_ones(tmp_path: Path, kind: str, bit: int) -> None:
    """No other node has them to repair them, and without records `Batch.purge` does not find them."""
    world = World(kind, tmp_path)
    before, old, after = first_id(ms=NOW_MS - 9_000), first_id(1024, ms=NOW_MS - 8_000), first_id(2048, ms=NOW_MS)
    kept = [tasks(before, 3), done(before, 1), tasks(after, 2)]
    mark = Watermark(NOW_MS, frozenset({stretch_of(before)}))
    async with world.store() as store:
        await put(store, *kept, tasks(old, 2), done(old, 2))
    damage(world, "rows", 1, flip_value(bit))  # the completions come first
    async with world.store() as store, World("memory", tmp_path).store() as sound:
        await put(sound, *kept)
        await store.write(Batch(mark=(3,)))
        assert (await store.write(Batch(rebuild=Rebuild(3)))).damaged == (done(old, 2).key,)
        store.raise_watermark(3, mark)
        await store.write(Batch(purge=Purge(3, mark)))
        written = await store.write(Batch(rebuild=Rebuild(3)))
        assert (written.damaged, written.rebuilt, written.purged_rows) == ((), True, 2)
        assert world_rows(store) == world_rows(sound)
        assert tables(store) == tables(sound)
        assert not store.purge_left(3)


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@in_trio
async def test_a_stretch_with_a_damaged_record_is_not_taken_for_one_without_tasks(tmp_path: Path, kind: str) -> None:
    """A leader would purge its unfinished tasks: whatever is not listed below a watermark is purged."""
    world = World(kind, tmp_path)
    async with world.store() as store:
        await put(store, *[tasks(first_id(number * 1024), 2) for number in range(3)])
        assert len(store.stretches(3, before_ms=NOW_MS)) == 3
    damage(world, "stretch", 1, flip_value(3))
    async with world.store() as store:
        with pytest.raises(Unavailable):
            store.stretches(3, before_ms=NOW_MS)


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@in_trio
async def test_what_a_rebuild_purged_stays_purged_after_a_restart(tmp_path: Path, kind: str) -> None:
    """The watermark is stored with the first deletion."""
    world, rows = World(kind, tmp_path), [tasks(first_id(), 2), done(first_id(), 2)]
    async with world.store() as store:
        await put(store, *rows)
        await store.write(Batch(mark=(3,)))
        store.raise_watermark(3, Watermark(NOW_MS))
        await rebuild(store)
    async with world.store() as store:
        assert store.watermark(3) == Watermark(NOW_MS) and store.partitions() == []
        assert (await put(store, *rows)).new_rows == 0


@in_trio
async def test_a_row_that_is_discarded_leaves_no_trace(tmp_path: Path) -> None:
    """Only a damaged row is deleted; an intact one stays."""
    world, rows = World("memory", tmp_path), [tasks(first_id(number), 1) for number in range(3)]
    async with world.store() as store, World("memory", tmp_path).store() as other:
        await put(store, *rows)
        await put(other, *rows[1:])
        world.disk.rot(rows[0].key, bit=7)
        await store.write(Batch(discard=tuple(row.key for row in rows)))
        await rebuild(store)
        assert tables(store) == tables(other)


ROTTEN = tasks(first_id(0), 1)
"""A row that `SIXTEEN_MORE` changes so that it seems to cover its neighbours."""
NEIGHBOUR = (tasks(first_id(1), 1), tasks(first_id(1), 2))
"""A row, and another leader's longer one under its key, after which the stretch is indexed again."""
SIXTEEN_MORE = 36
"""The bit of a row's count."""


@in_trio
async def test_a_row_that_rotted_to_hold_its_neighbours_has_none_of_them_once_repaired() -> None:
    """The neighbours arrived meanwhile."""
    await rot_and_repair(World("memory", Path()), [ROTTEN], list(NEIGHBOUR), [(0, SIXTEEN_MORE)])


@in_trio
async def test_the_neighbours_of_a_row_that_rotted_to_hold_them_are_ready_meanwhile() -> None:
    """This includes neighbours that arrive later."""
    world = World("memory", Path())
    async with world.store() as store:
        await put(store, ROTTEN)
        world.disk.rot(ROTTEN.key, bit=SIXTEEN_MORE)
        for row in (*NEIGHBOUR, tasks(first_id(4), 2)):
            await put(store, row)
        ready = {piece.row_first: piece.bits for piece in store.ready(3, "mail")}
        assert ready[first_id(1)] == 0b110
        assert ready[first_id(4)] == 0b110000


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@in_trio
async def test_a_rebuild_of_a_row_that_covers_two_others_is_complete(tmp_path: Path, kind: str) -> None:
    """Otherwise the partition would stay marked and be rebuilt without end."""
    async with World(kind, tmp_path).store() as store:
        for start, count in (0, 6), (2, 3), (4, 2):
            await put(store, tasks(first_id(start), count))
        before = tables(store)
        await store.write(Batch(mark=(3,)))
        written = await store.write(Batch(rebuild=Rebuild(3)))
        assert written.rebuilt and store.unindexed() == []
        assert tables(store) == before


OVERLAPPING = [tasks(first_id(0), 3), tasks(first_id(2), 3, expires_ms=NOW_MS + 1), tasks(first_id(4), 2)]


@settings(max_examples=50, deadline=None)
@given(order=st.permutations(OVERLAPPING), together=st.booleans(), longer=st.booleans())
def test_a_task_of_several_rows_belongs_to_the_one_that_starts_last(
    order: list[Row], together: bool, longer: bool
) -> None:
    """This holds in any order and after a rebuild: its payload is read from that row."""

    async def check() -> None:
        async with World("memory", Path()).store() as store:
            rows = [*order, tasks(first_id(0), 6)] if longer else order
            for batch in [rows] if together else [[row] for row in rows]:
                await put(store, *batch)
            held = {}
            for piece in store.ready(3, "mail", limit=10):
                for run in runs_of(stretch_of(piece.first), piece.bits):
                    held.update(dict.fromkeys(ids_of(*run), piece.row_first))
            assert held == {first_id(number): first_id(start) for number, start in enumerate((0, 0, 2, 2, 4, 4))}
            assert all(store.task_row(task) == (first, store.body(b"\0\3T" + first)) for task, first in held.items())
            assert store.counts(3) == {"mail": counts(total=6)}
            before = tables(store)
            await store.write(Batch(mark=(3,)))
            await rebuild(store)
            assert tables(store) == before

    trio.run(check)
