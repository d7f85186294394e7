"""The store with damage, crashes, full disks and many writers at once."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest
import trio
import trio.testing

from onyxq.core.facts import (
    EXPIRED,
    FAILED,
    TASK,
    Mark,
    Row,
    completion_row,
    pack_task,
    task_row,
    unpack_completion,
)
from onyxq.errors import Conflict, Corrupt, StoreFailed
from onyxq.store.interface import Batch, Written
from simulation.world.disk import SimulatedDisk
from tests.conformance.store_world import (
    NOW_MS,
    AnyStore,
    World,
    completion_of,
    digests,
    done,
    event,
    first_id,
    in_trio,
    put,
    rebuild,
    tasks,
)


@pytest.fixture
def lmdb_world(tmp_path: Path) -> World:
    """A world for tests of stores on disk."""
    return World("lmdb", tmp_path)


# --- damage, crashes, full disks --------------------------------------------------------


def rot(world: World, key: bytes) -> None:
    """Flip a bit in a stored row while no store is open."""
    if world.kind == "memory":
        assert world.disk.rot(key, bit=333)
        return
    with lmdb.open(str(world.directory), max_dbs=16, lock=False) as env, env.begin(write=True) as txn:
        rows = env.open_db(b"rows", txn)
        value = bytearray(txn.get(key, db=rows) or b"")
        value[41 % len(value)] ^= 1
        txn.put(key, bytes(value), db=rows)


@in_trio
async def test_a_flipped_bit_is_told_and_repaired_by_the_sound_row(world: World) -> None:
    """No wrong payload is returned; writing the row again repairs it with unchanged digests."""
    row = tasks(first_id(0), 4)
    async with world.store() as store:
        await put(store, row)
        sound = digests(store)
    rot(world, row.key)
    async with world.store() as store:
        with pytest.raises(Corrupt):
            store.task_row(first_id(1))
        with pytest.raises(Corrupt):
            store.covering(TASK, first_id(1))
        with pytest.raises(Corrupt):
            store.body(row.key)
        await put(store, row)
        assert store.task_row(first_id(1)) == (first_id(0), row.value[:-4])
        await rebuild(store)
        assert digests(store) == sound


@in_trio
async def test_a_damaged_row_gives_way_to_another_sound_value(world: World) -> None:
    """Digests are those of the undamaged value alone."""
    old, new = done(first_id(0), 2, mark=Mark(1, 1)), done(first_id(0), 2, outcome=FAILED, mark=Mark(2, 1))
    rows: list[Row] = []
    for maker, kept in ((7, old), (8, new)):
        damaged, sound = completion_of(new, maker), completion_of(kept, maker)
        rows += [tasks(first_id(0, maker=maker), 4), sound]
        async with world.store() as store:
            await put(store, rows[-2], damaged)
        rot(world, damaged.key)
        async with world.store() as store:
            await put(store, sound)
            assert store.get(sound.key) == sound.value
    async with world.store() as store, World("memory", world.directory).store() as alone:
        await rebuild(store)
        await put(alone, *rows)
        assert digests(store) == digests(alone)
        assert store.counts(3) == alone.counts(3)


@in_trio
async def test_scrubbing_finds_what_rotted(world: World) -> None:
    """The scrub checks all rows in pages; reads also note damage, and nothing else is noted."""
    rows = [tasks(first_id(counter), 1) for counter in range(0, 40, 4)] + [done(first_id(4), 1)]
    async with world.store() as store:
        await put(store, *rows)
    rot(world, rows[3].key)
    async with world.store() as store:
        assert store.damaged == set()
        after, pages = store.scrub(b"", 100), 1
        while after:
            after, pages = store.scrub(after, 100), pages + 1
        assert pages > 3
        assert store.damaged == {rows[3].key}
    async with world.store() as store:
        with pytest.raises(Corrupt):
            store.covering(TASK, first_id(12))
        assert store.damaged == {rows[3].key}


@in_trio
async def test_completions_gives_those_of_a_stretch(store: AnyStore) -> None:
    """All completions of the stretch are returned, and none of its neighbours."""
    mine = [done(first_id(1024), 3), done(first_id(1025), 1, token=12), done(first_id(2047), 1)]
    await put(store, *mine, done(first_id(1023), 1), done(first_id(2048), 1), tasks(first_id(1024), 1))
    found = store.completions(first_id(1024))
    assert [completion_row(first, unpack_completion(body)) for first, body in found] == sorted(mine)


@in_trio
async def test_reopening_keeps_everything(world: World) -> None:
    """Rows, indexes, counts, digests, promises and positions."""

    rows = (tasks(first_id(0), 9), tasks(first_id(0, ms=NOW_MS + 4), 1), done(first_id(2), 2))

    def state(store: AnyStore) -> list[Any]:
        return [
            store.counts(3),
            digests(store),
            store.ready(3, "mail"),
            store.moved(first_id(0)),
            store.next_due_ms(3),
            store.epochs(),
            store.log_position(),
            store.meta("node"),
            [(row.key, store.body(row.key)) for row in rows],
        ]

    async with world.store() as store:
        await store.write(Batch(rows=rows, epochs=((3, 2),), log_position=9, meta=(("node", b"n1"),)))
        await put(store, event(first_id(4), 2, EXPIRED, position=4, attempts=2))
        before = state(store)
    async with world.store() as store:
        assert state(store) == before


@in_trio
async def test_batches_that_wait_together_each_get_their_own_answer(store: AnyStore) -> None:
    """This holds if they are about the same tasks."""
    answers: dict[int, Written] = {}

    async def write(number: int) -> None:
        answers[number] = await put(store, tasks(first_id(number // 2 * 4), 4))

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(write, number)
    assert sum(answer.new_rows for answer in answers.values()) == 50
    assert all(answers[n].new_rows + answers[n + 1].new_rows == 1 for n in range(0, 100, 2))
    assert store.counts(3)["mail"].total == 200


@in_trio
async def test_a_cancelled_write_disturbs_nobody(store: AnyStore) -> None:
    """Its batch may be stored; other batches are, and the store continues."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, store, tasks(first_id(0), 1))
        with trio.CancelScope() as scope:
            scope.cancel()
            await put(store, tasks(first_id(1), 1))
    await put(store, tasks(first_id(2), 1))
    assert store.known_bits(first_id(0)) & 0b101 == 0b101


@in_trio
async def test_a_closed_store_refuses_writes(world: World) -> None:
    """Writes that waited when it was closed are stored."""
    store = world.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, store, tasks(first_id(0), 1))
        await trio.testing.wait_all_tasks_blocked()
        await store.aclose()
    await store.aclose()
    with pytest.raises(StoreFailed):
        await put(store, tasks(first_id(1), 1))
    async with world.store() as store:
        assert store.known_bits(first_id(0)) == 1


@in_trio
async def test_the_map_grows_by_itself(lmdb_world: World) -> None:
    """A small map does not limit the store."""
    body = pack_task({"queue": "mail"}, [bytes(100_000)])
    async with lmdb_world.store(map_bytes=1 << 20) as store:
        for counter in range(40):
            await put(store, task_row(first_id(counter), body))
        assert store.size_bytes() > 4_000_000
        assert store.known_bits(first_id(0)) == (1 << 40) - 1


@in_trio
async def test_a_disk_that_refuses_bytes_fails_the_write_only(lmdb_world: World) -> None:
    """No row of the batch is stored; once there is room again, writes succeed."""
    body = pack_task({"queue": "mail"}, [bytes(200_000)])
    async with lmdb_world.store() as store:
        await put(store, tasks(first_id(0), 1))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (store.size_bytes() + 8192, limits[1]))
        try:
            with pytest.raises(StoreFailed):
                await put(store, task_row(first_id(1), body))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert store.known_bits(first_id(0)) == 0b1
        await put(store, task_row(first_id(1), body))
        assert store.known_bits(first_id(0)) == 0b11


@in_trio
async def test_a_data_directory_admits_one_store(lmdb_world: World) -> None:
    """The second one gets an error with the owner; after a close it can be opened."""
    async with lmdb_world.store():
        with pytest.raises(Conflict, match="in use by process"):
            lmdb_world.open()
    async with lmdb_world.store():
        pass


@in_trio
async def test_a_killed_process_leaves_what_it_acknowledged(lmdb_world: World) -> None:
    """The lock ends with the process, and every acknowledged batch is stored."""
    program = (
        "import os, sys, trio\n"
        "from tests.conformance import store_world as t\n"
        "from onyxq.store.lmdb_store import LmdbStore\n"
        "async def main():\n"
        "    store = LmdbStore.open(sys.argv[1])\n"
        "    for counter in range(20):\n"
        "        await t.put(store, t.tasks(t.first_id(counter), 1))\n"
        "    os.kill(os.getpid(), 9)\n"
        "trio.run(main)\n"
    )
    root = Path(__file__).parents[2]
    arguments = [sys.executable, "-c", program, str(lmdb_world.directory)]
    finished = await trio.run_process(arguments, check=False, cwd=root, capture_stderr=True)
    assert finished.returncode == -9, finished.stderr.decode()
    async with lmdb_world.store() as store:
        assert store.known_bits(first_id(0)) == (1 << 20) - 1


# --- the simulated disk -----------------------------------------------------------------


@in_trio
async def test_a_failing_disk_fails_writes_until_it_is_well(tmp_path: Path) -> None:
    """No row of a failed batch is stored."""
    world = World("memory", tmp_path)
    async with world.store() as store:
        world.disk.failing = True
        with pytest.raises(StoreFailed):
            await put(store, tasks(first_id(0), 1))
        assert store.known_bits(first_id(0)) == 0
        world.disk.failing = False
        await put(store, tasks(first_id(0), 1))
        assert store.known_bits(first_id(0)) == 1


def test_a_disk_is_in_trouble_from_its_first_refusal_until_it_takes_a_write(tmp_path: Path) -> None:
    """Attempts in between do not restart the time after which the peer leaves the ring."""

    async def main() -> None:
        world = World("memory", tmp_path)
        async with world.store() as store:
            assert store.condition.trouble_s() == 0
            world.disk.failing = True
            for _ in range(3):
                with pytest.raises(StoreFailed):
                    await put(store, tasks(first_id(0), 1))
                await trio.sleep(2)
            assert store.condition.trouble_s() == 6
            world.disk.failing = False
            await put(store, tasks(first_id(0), 1))
            assert store.condition.trouble_s() == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("keep", [False, True])
def test_a_crash_decides_what_was_not_yet_synced(tmp_path: Path, *, keep: bool) -> None:
    """Acknowledged rows stay; a running write is completely stored or lost."""

    async def main() -> None:
        world = World("memory", tmp_path)
        world.disk = SimulatedDisk(delay_ms=lambda: 50)
        store = world.open()
        await put(store, tasks(first_id(0), 1))
        async with trio.open_nursery() as nursery:

            async def doomed() -> None:
                with pytest.raises(StoreFailed):
                    await put(store, tasks(first_id(1), 1), done(first_id(0), 1))

            nursery.start_soon(doomed)
            await trio.testing.wait_all_tasks_blocked()
            world.disk.crash(keep_unsynced=keep)
        async with world.store() as reopened:
            assert reopened.known_bits(first_id(0)) == (0b11 if keep else 0b1)
            assert reopened.finished_bits(first_id(0)) == (0b1 if keep else 0)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
