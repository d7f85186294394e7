"""Finished tasks in Parquet: tasks written from each kind of store are read as the live cluster shows them."""

from __future__ import annotations

from collections.abc import Callable
from io import FileIO
from pathlib import Path
from random import Random
from threading import get_ident
from typing import Any

import pytest
from pyarrow import array, dataset, parquet

from onyxq.core import facts
from onyxq.core.facts import Mark, key_of
from onyxq.core.ids import TaskId, stretch_of, with_counter
from onyxq.core.queue_settings import Queue
from onyxq.core.replica import Replica
from onyxq.errors import Conflict, Corrupt, NotFound, StoreFailed
from onyxq.history.parquet.bucket import Bucket
from onyxq.history.parquet.layout import encoded
from onyxq.history.parquet.reader import find
from onyxq.history.parquet.writer import Written, write_bucket
from onyxq.store.interface import Batch
from tests.conformance.store_world import NOW_MS, AnyStore, World, in_trio, put, tasks
from tests.conformance.task_archive_world import (
    BEFORE_MS,
    BUCKET,
    FROM_MS,
    PARTITION,
    REPLICA,
    archived,
    bucket_keeping,
    completed,
    files,
    found,
    live,
    progress,
    random_life,
    said,
    task_id,
)


@pytest.fixture(params=["memory", "lmdb"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Each kind of store in turn."""
    return World(request.param, tmp_path / "store")


@pytest.mark.long
@in_trio
async def test_a_task_is_read_back_as_the_live_cluster_says_it(store: AnyStore, tmp_path: Path) -> None:
    """For many runs of all kinds and outcomes, every field, claim and update is the same."""
    random, ids = Random(5), []
    for counter in range(0, 60 * 64, 64):
        rows, some = random_life(random, counter)
        await put(store, *rows)
        ids += some
    written = await archived(store, tmp_path)
    assert written.tasks == len(ids)
    for one in ids:
        assert found(tmp_path, one) == live(store, one)


@in_trio
async def test_results_of_all_sorts_come_back_as_they_were(store: AnyStore, tmp_path: Path) -> None:
    """Results of None, empty ones and bytes that are not text can be in one row."""
    first = task_id()
    await put(store, tasks(first, 4), completed(first, [None, b"", b"\xff\0", b"{}"]))
    await archived(store, tmp_path)
    results = [found(tmp_path, with_counter(first, i)).task["result"] for i in range(4)]  # type: ignore[union-attr]
    assert results == [None, b"", b"\xff\0", b"{}"]


@in_trio
async def test_the_due_time_that_a_unique_task_got_and_its_flow_are_kept(store: AnyStore, tmp_path: Path) -> None:
    """Its row was changed before its first grant."""
    first = task_id()
    header = {"unique_key": "u", "order": [FROM_MS, 1, 1], "mark": [1, 2], "due_ms": FROM_MS + 7, "flow": task_id(9)}
    await put(store, tasks(first, 1, **header), completed(first, [b"ok"]))
    await archived(store, tmp_path)
    kept = found(tmp_path, first)
    assert kept is not None and (kept.task["at_ms"], kept.task["flow"]) == (FROM_MS + 7, task_id(9))
    assert kept == live(store, first)


@in_trio
async def test_a_task_that_gave_way_to_another_is_not_archived(store: AnyStore, tmp_path: Path) -> None:
    """Of two rows of a unique key, only that of the current task is archived."""
    loser, winner = task_id(0), task_id(2048)
    for first, number in ((loser, 1), (winner, 2)):
        await put(store, tasks(first, 1, unique_key="u", order=[FROM_MS, 1, number]))
    await put(store, completed(winner, [b"ok"]))
    assert await archived(store, tmp_path) == Written(tasks=1, claims=0, updates=0, files=1)
    assert found(tmp_path, loser) is None is live(store, loser)
    assert found(tmp_path, winner) is not None


@in_trio
async def test_a_requeued_task_is_archived_with_its_second_end(store: AnyStore, tmp_path: Path) -> None:
    """It failed, was requeued and completed: the archive has the last result and both claims."""
    first = task_id()
    await put(
        store,
        tasks(first, 1),
        said(first, 1, facts.GRANTED, 10),
        completed(first, [b"no such host"], outcome=facts.FAILED, mark=Mark(9, 9)),
        said(first, 1, facts.REOPENED, 20, token=20, retry_ms=NOW_MS, attempts=1),
        said(first, 1, facts.GRANTED, 30, token=30),
        completed(first, [b"sent"], token=30),
    )
    await archived(store, tmp_path)
    got = found(tmp_path, first)
    assert got == live(store, first)
    assert got is not None
    assert (got.task["state"], got.task["result"], got.task["error"]) == ("completed", b"sent", None)
    assert [claim["outcome"] for claim in got.task["claims"]] == ["failed", "completed"]


@in_trio
async def test_only_queues_that_ask_for_it_are_archived(store: AnyStore, tmp_path: Path) -> None:
    """Other queues are not archived and may have unfinished tasks."""
    mine, other = task_id(0), task_id(2048)
    await put(store, tasks(mine, 3), completed(mine, [], count=3), tasks(other, 3, queue="noise"))
    assert (await archived(store, tmp_path)).tasks == 3
    assert found(tmp_path, other) is None


@in_trio
async def test_a_bucket_is_cut_by_time_and_by_what_is_kept(store: AnyStore, tmp_path: Path) -> None:
    """Tasks outside the time and kept stretches are left out; a kept stretch follows once it is purged."""
    inside, kept = task_id(0), task_id(4096)
    early, late = task_id(0, ms=FROM_MS - 1), task_id(0, ms=BEFORE_MS)
    for first in (inside, kept, early, late):
        await put(store, tasks(first, 2), completed(first, [], count=2))
    await archived(store, tmp_path, bucket_keeping(kept))
    assert [found(tmp_path, one) is not None for one in (inside, kept, early, late)] == [True, False, False, False]
    later = Bucket(partition=PARTITION, from_ms=BEFORE_MS, before_ms=BEFORE_MS, again=[stretch_of(kept)])
    assert (await archived(store, tmp_path, later)).tasks == 2
    assert found(tmp_path, kept) == live(store, kept)


@in_trio
async def test_a_bucket_with_an_unfinished_task_is_refused(store: AnyStore, tmp_path: Path) -> None:
    """No file of it is visible."""
    first = task_id()
    await put(store, tasks(first, 3), completed(first, [], count=2))
    with pytest.raises(Conflict, match="is not finished"):
        await archived(store, tmp_path / "archive")
    assert files(tmp_path / "archive") == {}


@in_trio
async def test_a_damaged_row_keeps_its_bucket_from_being_archived(store: AnyStore, tmp_path: Path) -> None:
    """The error names the row, which is noted for repair."""
    first = task_id()
    row = completed(first, [], count=2)
    await put(store, tasks(first, 2), row)
    _spoil(store, row.key)
    with pytest.raises(Corrupt):
        await archived(store, tmp_path / "archive")
    assert row.key in store.damaged
    assert files(tmp_path / "archive") == {}


def _spoil(store: AnyStore, key: bytes) -> None:
    value = bytearray(store.get(key) or b"")
    value[3] ^= 1
    if hasattr(store, "_env"):
        with store._env.begin(write=True, db=store._dbs["rows"]) as txn:
            txn.put(key, bytes(value))
        store._renew()
    else:
        store._tables.rows.put(key, bytes(value))


@in_trio
async def test_a_repeat_overwrites_what_it_wrote(store: AnyStore, tmp_path: Path) -> None:
    """The same names and the same bytes."""
    random = Random(2)
    for counter in range(0, 10 * 64, 64):
        await put(store, *random_life(random, counter)[0])
    first = await archived(store, tmp_path / "archive")
    before = files(tmp_path / "archive")
    assert await archived(store, tmp_path / "archive") == first
    assert files(tmp_path / "archive") == before
    assert len(before) == first.files


class Killed(BaseException):
    """The process has died."""


def dying(step: str) -> Callable[..., Any]:
    """Return an ``offload`` of a process that dies at a step: nothing happens after it."""
    dead = False

    async def offload(function: Callable[..., Any], *args: Any) -> Any:
        nonlocal dead
        if dead:
            return None
        if function.__name__ == step:
            dead = True
            for file in function.__self__._files.values():
                file.finish()
            raise Killed
        return function(*args)

    return offload


@in_trio
async def test_a_crash_before_files_get_their_names_leaves_nothing_that_is_read(
    store: AnyStore, tmp_path: Path
) -> None:
    """The leftovers are hidden, and go when the bucket is written again."""
    first = task_id()
    await put(store, tasks(first, 5), said(first, 5, facts.GRANTED, 10), completed(first, [], count=5))
    with pytest.raises(Killed):
        await archived(store, tmp_path / "archive", offload=dying("finish"))
    left = files(tmp_path / "archive")
    assert len(left) == 2
    assert all("/." in name and name.endswith(".part") for name in left)
    assert found(tmp_path / "archive", first) is None
    await archived(store, tmp_path / "archive")
    assert found(tmp_path / "archive", first) == live(store, first)
    assert all(name.endswith(".parquet") for name in files(tmp_path / "archive"))


@in_trio
async def test_the_archives_of_two_nodes_are_read_as_one(store: AnyStore, tmp_path: Path) -> None:
    """A task in both counts once; for a task that was requeued later, the later end counts."""
    first, other = task_id(0), task_id(2048)
    one, two = tmp_path / "one", tmp_path / "two"
    rows = [tasks(first, 1), said(first, 1, facts.GRANTED, 10), progress(first, 0)]
    await put(store, *rows, completed(first, [b"bad"], outcome=facts.FAILED))
    await archived(store, one)
    await put(store, tasks(other, 1), completed(other, [b"ok"]))
    await put(store, said(first, 1, facts.REOPENED, 20, token=20, retry_ms=NOW_MS, attempts=1))
    await put(store, said(first, 1, facts.GRANTED, 30, token=30), completed(first, [b"good"], token=30))
    await archived(store, two)
    for order in ([one, two], [two, one]):
        assert find(order, other) == live(store, other)
        both = find(order, first)
        assert both is not None
        assert both.task["result"] == b"good"
        assert [claim["token"] for claim in both.task["claims"]] == [10, 30]
        assert len(both.updates) == 1


@pytest.mark.long
@in_trio
async def test_more_queues_than_are_written_at_a_time(store: AnyStore, tmp_path: Path) -> None:
    """The bucket is read again, and nothing is written twice."""
    names = [f"queue {number}" for number in range(230)]
    replica = Replica(queues=REPLICA.queues.update({name: Queue(archive=True) for name in names}))
    ids = [task_id(2048 * number) for number in range(len(names))]
    rows = [tasks(one, 2, queue=name) for one, name in zip(ids, names, strict=True)]
    await store.write(Batch(rows=[*rows, *(completed(one, [], count=2) for one in ids)]))
    written = await write_bucket(replica, store, tmp_path / "archive", BUCKET)
    assert written == Written(tasks=460, claims=0, updates=0, files=230)
    assert found(tmp_path / "archive", ids[-1]) == live(store, ids[-1], replica)


@pytest.mark.parametrize("queue", ["a/b", "..", "día=5%", "x" * 200, "件" * 200, "~", "%41"])
@in_trio
async def test_any_queue_name_makes_a_directory(tmp_path: Path, queue: str) -> None:
    """Slashes, dots, other scripts, and names that are longer than a directory's may be."""
    replica = Replica(queues=REPLICA.queues.set(queue, Queue(archive=True)))
    first = task_id()
    async with World("memory", tmp_path / "store").store() as store:
        await put(store, tasks(first, 1, queue=queue), completed(first, [b"ok"]))
        await write_bucket(replica, store, tmp_path / "archive", BUCKET)
        assert found(tmp_path / "archive", first) == live(store, first, replica)


def test_names_of_directories_differ_where_queues_do() -> None:
    """Also those that are cut."""
    names = ["a/b", "a%2Fb", "a~b", "件" * 199, "件" * 200, "x" * 199 + "/", "x" * 200]
    assert len({encoded(name) for name in names}) == len(names)
    assert all(len(encoded(name).encode()) <= 248 for name in names)


@in_trio
async def test_the_directory_is_a_partitioned_table(world: World, tmp_path: Path) -> None:
    """Readers of Hive's layout see queue and day as columns."""
    async with world.store() as store:
        for counter, queue in ((0, "mail"), (2048, "bills")):
            first = task_id(counter)
            await put(store, tasks(first, 3, queue=queue), completed(first, [], count=3))
        await archived(store, tmp_path / "archive")
    table = dataset.dataset(tmp_path / "archive" / "tasks", partitioning="hive").to_table()
    assert sorted(table["queue"].to_pylist()) == ["bills"] * 3 + ["mail"] * 3
    assert set(map(str, table["day"].to_pylist())) == {"2023-11-14"}


@in_trio
async def test_a_large_run_is_read_by_a_row_group(store: AnyStore, tmp_path: Path) -> None:
    """Payloads of several row groups' worth."""
    ids = [task_id(2048 * number) for number in range(12)]
    for number, one in enumerate(ids):
        body = facts.pack_task({"queue": "mail"}, [Random(number).randbytes(1_000_000)])
        await put(store, facts.task_row(one, body), completed(one, [b"x" * number]))
    await archived(store, tmp_path / "archive")
    for one in ids:
        assert found(tmp_path / "archive", one) == live(store, one)


@in_trio
async def test_a_directory_that_cannot_be_written_is_named(store: AnyStore, tmp_path: Path) -> None:
    """The error names the directory and the consequence."""
    first = task_id()
    (tmp_path / "archive").write_text("a file")
    await put(store, tasks(first, 1), completed(first, [b"ok"]))
    with pytest.raises(StoreFailed, match=r"the archive of tasks in .*archive cannot be written"):
        await archived(store, tmp_path / "archive")


@in_trio
async def test_no_thread_of_pyarrow_reads_a_file(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that found a task ends; a thread that still held a file ended its process by a signal."""
    readers: set[int] = set()

    class Watched(FileIO):
        """A file that notes the threads that read it."""

        def readinto(self, *args: Any) -> int:
            readers.add(get_ident())
            return super().readinto(*args) or 0

        def read(self, *args: Any) -> bytes:
            readers.add(get_ident())
            return super().read(*args) or b""

    monkeypatch.setattr("onyxq.history.parquet.reader.open_regular", Watched)
    async with world.store() as store:
        rows, ids = random_life(Random(5), 0)
        await put(store, *rows)
        await archived(store, tmp_path)
    assert find([tmp_path], ids[0]) is not None
    assert readers == {get_ident()}


def test_a_wrong_directory_is_named(tmp_path: Path) -> None:
    """A missing directory is named, and so is one without an archive."""
    with pytest.raises(NotFound, match="there is no directory"):
        find([tmp_path / "none"], task_id())
    with pytest.raises(NotFound, match="is not an archive of tasks"):
        find([tmp_path], task_id())


def test_an_id_of_a_time_without_a_day_is_in_no_archive(tmp_path: Path) -> None:
    """Ids may hold times after the year 9999. Directories cannot."""
    (tmp_path / "tasks").mkdir()
    assert find([tmp_path], TaskId(b"\xff" * 20)) is None


async def one_archived(tmp_path: Path) -> TaskId:
    """Return the id of a completed task in an archive of its own."""
    first = task_id()
    async with World("memory", tmp_path / "store").store() as store:
        await put(store, tasks(first, 1), completed(first, [b"ok"]))
        await archived(store, tmp_path / "archive")
    return first


@in_trio
async def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """The error names the file, instead of a missing task."""
    first = await one_archived(tmp_path)
    (file,) = (tmp_path / "archive").rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(Corrupt, match=r"\.parquet cannot be read"):
        find([tmp_path / "archive"], first)
    with pytest.raises(Corrupt):
        found(tmp_path / "archive", TaskId(with_counter(first, 5)))


@in_trio
async def test_a_file_of_other_types_is_named(tmp_path: Path) -> None:
    """A file that looks like an archive's but has numbers instead of texts is refused."""
    first = await one_archived(tmp_path)
    (file,) = (tmp_path / "archive" / "tasks").rglob("*.parquet")
    table = parquet.read_table(file, partitioning=None)
    place = table.schema.get_field_index("error")
    numbers = array([7] * len(table))
    parquet.write_table(table.set_column(place, "error", numbers), file)
    with pytest.raises(Corrupt, match="column error is int64"):
        find([tmp_path / "archive"], first)


@in_trio
async def test_rows_of_a_kind_are_found_between_two_ids(store: AnyStore) -> None:
    """Both ends included, in id order, no more than asked for, and never of another kind or partition."""
    ids = [task_id(counter, maker=maker) for maker in (7, 8) for counter in range(5)]
    for one in ids:
        await put(store, tasks(one, 1), completed(one, [b"ok"]))
    keys = [key_of(facts.TASK, one) for one in ids]
    assert store.row_keys(facts.TASK, ids[0], ids[-1], limit=100) == keys
    assert store.row_keys(facts.TASK, ids[2], ids[6], limit=100) == keys[2:7]
    assert store.row_keys(facts.TASK, ids[2], ids[6], limit=2) == keys[2:4]
    assert store.row_keys(facts.UPDATE, ids[0], ids[-1], limit=100) == []
    with pytest.raises(Corrupt, match="is not there"):
        store.body(key_of(facts.TASK, task_id(77)))
