"""A store's file whose bytes were changed while it was closed."""

from __future__ import annotations

import logging
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import lmdb
import pytest
import trio

from onyxq.core.facts import FAILED, Row, pack_task, sealed, task_row
from onyxq.errors import Corrupt, StoreDamaged, StoreFailed, Unavailable
from onyxq.store.environment import judge
from onyxq.store.integrity import lmdb_check
from onyxq.store.integrity.lmdb_pages import check_file
from onyxq.store.interface import Batch
from onyxq.store.lmdb_store import LmdbStore
from onyxq.store.tables import DERIVED_TABLES
from tests.conformance.store_world import NOW_MS, World, done, first_id, in_trio, put, rebuild, tasks
from tests.conformance.test_store_rebuild import scrub, tables

PAGE = 4096


async def filled(world: World) -> list[Row]:
    """Make a closed store with pages of all kinds; return its rows."""
    rows = [tasks(first_id(number * 4, maker=number), 3) for number in range(150)]
    rows += [done(first_id(number * 4, maker=number), 2) for number in range(0, 150, 3)]
    large = [task_row(first_id(number, maker=500), pack_task({"queue": "mail"}, [bytes(9000)])) for number in range(5)]
    async with world.store() as store:
        await store.write(Batch(rows=rows))
        for row in large:
            await put(store, row)
        await store.write(Batch(rows=[tasks(first_id(partition=9), 1)], epochs=((3, 7),)))
        await store.write(Batch(drop=(9,)))
        await store.write(Batch(meta=(("node", b"n1"),)))
    return rows + large


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A store on disk."""
    return World("lmdb", tmp_path)


def flip(path: Path, places: list[int]) -> None:
    """Change bytes of a file."""
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= 0x11
    path.write_bytes(data)


@in_trio
async def test_a_closed_store_leaves_a_note_that_is_gone_while_it_is_open(world: World) -> None:
    """So a process that dies leaves no note."""
    note = world.directory / lmdb_check.CLOSED
    async with world.store() as store:
        assert not note.exists()
        await put(store, tasks(first_id(), 1))
    assert note.exists()
    async with world.store():
        assert not note.exists()


@in_trio
async def test_a_sound_file_passes(world: World) -> None:
    """The check passes with large rows, free pages and every table in use."""
    await filled(world)
    check_file(world.directory / lmdb_check.DATA)
    check_file(Path("/dev/null"))


FIELDS = {"page number": 1, "flags": 10, "lower": 12, "upper": 15, "pointer": 17}
"""Places in a page where damage would crash LMDB."""


@pytest.mark.parametrize("name", FIELDS)
@in_trio
async def test_damage_to_a_page_is_found_before_the_file_is_opened(world: World, name: str) -> None:
    """The store is refused for damage in any used page, whatever LMDB would do with it."""
    await filled(world)
    path = world.directory / lmdb_check.DATA
    sound = path.read_bytes()
    found = 0
    for page in range(2, len(sound) // PAGE):
        flip(path, [page * PAGE + FIELDS[name]])
        try:
            check_file(path)
        except Corrupt:
            found += 1
        path.write_bytes(sound)
    assert found > 15, name


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("place", [16, 20, 40, 88 + 40, 136, 144])
@in_trio
async def test_damage_to_a_meta_page_is_found(world: World, page: int, place: int) -> None:
    """Damage is found in magic number, version, page size, root, last page and transaction of the valid meta page."""
    await filled(world)
    path = world.directory / lmdb_check.DATA
    with lmdb.open(str(world.directory), max_dbs=16, lock=False, readonly=True) as env:
        newest = env.info()["last_txnid"] & 1
    flip(path, [page * PAGE + place])
    if page == newest or place in (16, 20, 40):
        with pytest.raises(Corrupt):
            check_file(path)


@pytest.mark.parametrize("seed", range(3))
@in_trio
async def test_a_thousand_flipped_bytes_are_met_with_an_error(world: World, seed: int) -> None:
    """The store is not opened; its file is kept under another name, and the node starts empty."""
    await filled(world)
    path = world.directory / lmdb_check.DATA
    random_bytes = random.Random(seed)
    flip(path, [random_bytes.randrange(path.stat().st_size) for _ in range(1000)])
    damaged = path.read_bytes()
    with pytest.raises(Corrupt):
        LmdbStore.open(world.directory)
    store = LmdbStore.open_or_begin_anew(world.directory)
    assert (store.meta("node"), store.epochs(), store.partitions()) == (None, {}, [])
    await put(store, tasks(first_id(), 1))
    await store.aclose()
    assert (world.directory / "data.mdb.damaged-1").read_bytes() == damaged


@in_trio
async def test_what_is_set_aside_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The log has an error with the file's name."""
    await filled(world)
    flip(world.directory / lmdb_check.DATA, [2 * PAGE, 16])
    with caplog.at_level(logging.ERROR):
        await LmdbStore.open_or_begin_anew(world.directory).aclose()
    assert "data.mdb.damaged-1" in caplog.text


@pytest.mark.parametrize("seed", range(3))
@in_trio
async def test_flipped_bytes_of_rows_and_entries_are_found_and_repaired(world: World, seed: int) -> None:
    """If the pages are intact, every row that is read as valid is unchanged."""
    rows = await filled(world)
    path = world.directory / lmdb_check.DATA
    sound, values = path.read_bytes(), {row.key: row.value for row in rows}
    chosen, places = random.Random(seed), []
    while len(places) < 40:
        place = chosen.randrange(2 * PAGE, len(sound))
        flip(path, [place])
        try:
            check_file(path)
            places.append(place)
        except Corrupt:
            flip(path, [place])
    async with world.store() as store:
        after = store.scrub(b"", 1 << 16)
        while after:
            after = store.scrub(after, 1 << 16)
        for key, value in store._tables.rows.ascend(b""):
            assert sealed(key, value) == (key not in store.damaged)
            assert key in store.damaged or values[key] == value
        await put(store, *rows)
        # A damaged row still has a key, which no other node has.
        await store.write(Batch(discard=tuple(sorted(store.damaged))))
        store.damaged.clear()
        scrub(store)
        await rebuild(store)
        async with World("memory", world.directory).store() as whole:
            await put(whole, *rows)
            assert tables(store) == tables(whole)
            assert all(store.get(key) == whole.get(key) for key in values)


@in_trio
async def test_a_damaged_promise_is_never_taken_for_another(world: World) -> None:
    """A node whose promise is unreadable must not continue."""
    await filled(world)
    with lmdb.open(str(world.directory), max_dbs=16, lock=False) as env, env.begin(write=True) as txn:
        epochs = env.open_db(b"epochs", txn)
        value = bytearray(txn.get(b"\0\3", db=epochs) or b"")
        value[0] ^= 4
        txn.put(b"\0\3", bytes(value), db=epochs)
    with pytest.raises(Corrupt):
        world.open()
    await LmdbStore.open_or_begin_anew(world.directory).aclose()


async def left_by_a_dead_process(world: World) -> Path:
    """Make a store whose process died and whose pages are inconsistent."""
    await filled(world)
    directory = world.directory
    lmdb_check.examine(directory)
    flip(directory / lmdb_check.DATA, [144, PAGE + 144])
    return directory


@in_trio
async def test_after_two_deaths_a_large_file_is_followed_too(world: World) -> None:
    """The first restart of a large store does not wait for that check."""
    directory = await left_by_a_dead_process(world)
    lmdb_check.examine(directory, follow_bytes_max=10)
    with pytest.raises(Corrupt):
        lmdb_check.examine(directory, follow_bytes_max=10)
    with pytest.raises(Corrupt):
        lmdb_check.examine(directory)


def test_a_large_file_is_followed_after_a_fatal_signal(world: World) -> None:
    """Damage that kills the process is met only once."""
    directory = trio.run(left_by_a_dead_process, world)
    code = "import os, pathlib, sys; from onyxq.store.integrity.lmdb_check import fatal_signals_noted as noted\n"
    code += "with noted(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), int(sys.argv[2]))"
    done = subprocess.run([sys.executable, "-c", code, str(directory), str(int(signal.SIGBUS))], check=False)
    assert done.returncode == -signal.SIGBUS
    with pytest.raises(Corrupt):
        lmdb_check.examine(directory, follow_bytes_max=10)


@in_trio
async def test_a_large_file_in_which_damage_was_met_is_followed(world: World) -> None:
    """This holds even if a full disk prevents a note of the damage."""
    directory = await left_by_a_dead_process(world)
    lmdb_check.note_doubt(directory)
    with pytest.raises(Corrupt):
        lmdb_check.examine(directory, follow_bytes_max=10)


@in_trio
async def test_a_large_file_that_was_closed_in_order_is_trusted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds however often it is opened and closed."""
    await filled(world)
    monkeypatch.setattr(lmdb_check, "SUM_BYTES_MAX", 10)
    monkeypatch.setattr(lmdb_check, "check_file", lambda _: pytest.fail("it was followed"))
    for _ in range(3):
        lmdb_check.note_closed(world.directory)
        lmdb_check.examine(world.directory, follow_bytes_max=10)


def swap_leaves(directory: Path) -> None:
    """Turn all leaf pages into branch pages while the file is open."""
    with (directory / lmdb_check.DATA).open("r+b") as file:
        data = file.read()
        for page in range(2 * PAGE, len(data), PAGE):
            if data[page + 10 : page + 12] == b"\2\0":
                file.seek(page + 10)
                file.write(b"\1\0")


async def read_all(store: LmdbStore) -> None:
    """Read every table."""
    while store.scrub(b"", 1 << 20):
        pass


async def write_one(store: LmdbStore) -> None:
    """Write a row among others."""
    await put(store, tasks(first_id(4001, maker=17), 1))


@pytest.mark.parametrize("use", [read_all, write_one])
@in_trio
async def test_damage_met_while_the_file_is_open_ends_the_store(
    world: World, use: Callable[[LmdbStore], Awaitable[None]]
) -> None:
    """There is one error, no later read or write succeeds, and the next start sets the file aside."""
    await filled(world)
    store = LmdbStore.open(world.directory)
    ended: list[str] = []
    store.condition.on_end(lambda: ended.append("now"))
    swap_leaves(world.directory)
    with pytest.raises(StoreDamaged, match="is damaged"):
        await use(store)
    with pytest.raises(StoreDamaged):
        await write_one(store)
    await store.aclose()
    assert ended == ["now"]
    assert not (world.directory / lmdb_check.CLOSED).exists()
    with pytest.raises(Corrupt):
        LmdbStore.open(world.directory)
    store = LmdbStore.open_or_begin_anew(world.directory)
    assert (store.meta("node"), store.partitions()) == (None, [])
    await store.aclose()
    assert (world.directory / "data.mdb.damaged-1").exists()


def longer_key(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Make an entry whose key has an additional byte."""
    return key + b"\1", value


def shorter_key(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Make an entry without the last byte of its key."""
    return key[:-1], value


def shorter_value(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Make an entry whose value is one byte long."""
    return key, value[:1]


def longer_value(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Make an entry whose value has 40 bytes too many."""
    return key, value + bytes(40)


async def read_indexes(store: LmdbStore) -> None:
    """Read what claims, timers, the comparison of copies and the scrub read."""
    for partition in store.partitions():
        for queue in store.queues(partition):
            store.ready(partition, queue)
        store.due(partition, 0, 1 << 60)
        with suppress(Unavailable):
            for hour in store.hours(partition):
                store.leaves(partition, hour)
    after = b""
    while after := store.scrub(after, 1 << 20):
        pass


@pytest.mark.parametrize("change", [longer_key, shorter_key, shorter_value, longer_value])
@pytest.mark.parametrize("table", DERIVED_TABLES)
@in_trio
async def test_an_entry_that_nobody_can_have_written_is_damage(
    world: World, table: str, change: Callable[[bytes, bytes], tuple[bytes, bytes]]
) -> None:
    """Reads and writes skip it, and the index is rebuilt; if keys are out of order, the store ends."""
    async with world.store() as store:
        for partition in (3, 4):
            ids = [first_id(number * 1024, maker=number, partition=partition) for number in range(6)]
            rules: list[dict[str, object]] = [
                {"priority": 3},
                {"expires_ms": NOW_MS + 90_000},
                {"ordering_key": "k", "order": [NOW_MS, 1, 1]},
                {"depends": [ids[0]]},
            ]
            rows = [tasks(first, 4, **header) for first, header in zip(ids, rules, strict=False)]
            rows += [tasks(ids[4], 1, unique_key="u", order=[NOW_MS, 1, 2])]
            await put(store, *rows, tasks(ids[5], 2), done(ids[5], 2, outcome=FAILED))
            await put(store, tasks(first_id(ms=NOW_MS + 60_000, partition=partition), 2))
    with lmdb.open(str(world.directory), max_dbs=16, lock=False) as env, env.begin(write=True) as txn:
        db = env.open_db(table.encode(), txn=txn)
        found = list(txn.cursor(db))
        assert found
        for key, value in found:
            txn.delete(key, db=db)
            txn.put(*change(key, value), db=db)
    store = LmdbStore.open(world.directory)
    try:
        await read_indexes(store)
        await write_one(store)
        assert set(store.unindexed()) >= {3, 4}
        await rebuild(store)
        await read_indexes(store)
        assert store.unindexed() == []
    except StoreDamaged as error:
        assert "out of order" in error.message
    await store.aclose()


@in_trio
async def test_a_file_in_which_damage_is_met_twice_is_set_aside_though_its_pages_hang_together(world: World) -> None:
    """One case may be a fault of the memory; after two the file is set aside even if its pages are consistent."""
    await filled(world)
    lmdb_check.note_doubt(world.directory, "CorruptedError: page type")
    await world.open().aclose()
    for number in (1, 2):
        store = world.open()
        assert isinstance(store, LmdbStore), number
        store._met_damage(lmdb.CorruptedError("page\ntype"))
        await store.aclose()
    with pytest.raises(Corrupt, match="CorruptedError: page type"):
        world.open()


@in_trio
async def test_a_page_that_cannot_be_read_is_damage(world: World, tmp_path: Path) -> None:
    """The file is refused without a memory map, whose read error would kill the process."""
    with pytest.raises(Corrupt, match="cannot be read"):
        lmdb_check._check(tmp_path)  # a directory cannot be read like a file


@in_trio
async def test_a_store_in_doubt_leaves_no_note(world: World) -> None:
    """After an unknown error the whole file is checked once."""
    await filled(world)
    store = world.open()
    store.doubt()
    await store.aclose()
    assert not (world.directory / lmdb_check.CLOSED).exists()
    await world.open().aclose()


def test_every_error_of_lmdb_has_one_meaning() -> None:
    """Each error is damage, a failed write, a reason to open again, or a bug."""
    errors = [one for one in vars(lmdb).values() if isinstance(one, type) and issubclass(one, lmdb.Error)]
    found = {one.__name__: judge(one("x")).name for one in errors}
    assert found == {
        "Error": "WRITE",
        "MapFullError": "FULL",
        "PanicError": "STOPPED",
        **dict.fromkeys(("DiskError", "LockError", "MapResizedError", "MemoryError"), "WRITE"),
        **dict.fromkeys(("NotFoundError", "ReadonlyError", "TxnFullError"), "WRITE"),
        **dict.fromkeys(("BadChecksumError", "BadTxnError", "CorruptedError", "CursorFullError"), "DAMAGE"),
        **dict.fromkeys(("IncompatibleError", "InvalidError", "PageFullError", "PageNotFoundError"), "DAMAGE"),
        **dict.fromkeys(("ProblemError", "VersionMismatchError"), "DAMAGE"),
        **dict.fromkeys(("BadDbiError", "BadRslotError", "BadValsizeError", "CryptoFailError"), "BUG"),
        **dict.fromkeys(("DbsFullError", "EnvEncryptionError", "InvalidParameterError", "KeyExistsError"), "BUG"),
        **dict.fromkeys(("ReadersFullError", "TlsFullError"), "BUG"),
    }


@in_trio
async def test_a_file_that_is_no_store_is_told(world: World) -> None:
    """`open` does not touch a directory whose file is something else."""
    world.directory.mkdir(exist_ok=True)
    (world.directory / lmdb_check.DATA).write_bytes(b"hello")
    with pytest.raises((Corrupt, StoreFailed)):
        world.open()
    assert (world.directory / lmdb_check.DATA).read_bytes() == b"hello"
