"""Purged tasks are in no answer, are refused, and leave no rows; on every store."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyxq.core.facts import CANCELLED, FAILED, GRANTED, RETRIED, STOPPED, TASK, Row, key_digest, key_of
from onyxq.core.ids import TaskId, id_at, make_id, mask_of, stretch_of
from onyxq.core.purged import Watermark
from onyxq.store.interface import Batch, Ended, Purge
from onyxq.store.tables import PARTITION_TABLES
from tests.conformance.store_world import (
    NOW_MS,
    AnyStore,
    World,
    counts,
    done,
    event,
    first_id,
    in_trio,
    put,
    tasks,
)
from tests.conformance.test_store_model import nonzero
from tests.conformance.test_store_rules_model import histories

HOUR = 3_600_000
OLD_MS = NOW_MS - 10 * HOUR
ALL = Watermark(NOW_MS)


def old(counter: int = 0, *, hours: int = 0) -> TaskId:
    """Return an old id."""
    return first_id(counter, ms=OLD_MS + hours * HOUR)


async def purge(store: AnyStore, watermark: Watermark, *, partition: int = 3, rows_max: int = 1_000) -> int:
    """Delete all purged rows; return how many."""
    rows, after = 0, b""
    while True:
        written = await store.write(Batch(purge=Purge(partition, watermark, after, rows_max)))
        rows, after = rows + written.purged_rows, written.purged_after
        if not after:
            return rows


def contents(store: AnyStore) -> dict[tuple[str, bytes], bytes]:
    """Return all tables except promises, without counts of zero."""
    found = {}
    for name in PARTITION_TABLES:
        for key, value in getattr(store._tables, name).ascend(b""):
            if name != "counts":
                found[name, bytes(key)] = bytes(value)
    return found


@in_trio
async def test_purged_tasks_are_in_no_answer_from_the_moment_the_watermark_rises(store: AnyStore) -> None:
    """This holds while their rows still exist."""
    await put(
        store,
        tasks(old(), 3),
        done(old(), 1, outcome=FAILED),
        tasks(old(2048), 1, unique_key="k"),
        tasks(old(4096), 1),
        event(old(4096), 1, RETRIED, position=1, retry_ms=NOW_MS + 9),
    )
    store.raise_watermark(3, ALL)
    assert store.watermark(3) == ALL and store.watermark(4) == Watermark()
    assert store.task_row(old()) is None and store.get(key_of(TASK, old())) is None
    assert store.covering(TASK, old()) == store.completions(old()) == []
    assert store.known_bits(old()) == store.finished_bits(old()) == 0
    assert store.pieces(old(), mask_of(old(), 3)) == store.ready(3, "mail") == []
    assert store.due(3, 0, NOW_MS + HOUR) == []
    assert store.failed(3) == [] and store.unique(3, key_digest("mail", "k")) is None
    hour = OLD_MS // HOUR
    assert [key for leaf in store.leaves(3, hour) for key in store.keys(3, hour, leaf)] == []
    assert store.purge_left(3)


@in_trio
async def test_rows_about_purged_tasks_are_passed_over(world: World) -> None:
    """This holds for every kind, in a batch with others, after the deletion, and after a restart."""
    rows = [tasks(old(), 3), done(old(), 2), event(old(), 3, GRANTED, position=1)]
    async with world.store() as store:
        await purge(store, ALL)
        written = await put(store, *rows, tasks(first_id(ms=NOW_MS), 1))
        assert (written.new_rows, len(written.pieces)) == (1, 1)
        assert store.known_bits(old()) == 0
    async with world.store() as store:
        assert store.watermark(3) == ALL
        assert (await put(store, *rows)).new_rows == 0


@in_trio
async def test_a_purge_leaves_nothing_of_what_went_and_all_of_what_stays(store: AnyStore) -> None:
    """Rows, indexes, counts and digests are as if only the remaining rows had ever existed."""
    kept, young = old(4096), first_id(ms=NOW_MS - 10)
    await put(store, tasks(kept, 2), tasks(young, 3), done(young, 1))
    before = contents(store)
    await put(store, tasks(old(), 600), done(old(), 600), tasks(old(1024, hours=1), 2, ordering_key="k"))
    await put(store, *[tasks(old(8192 + 1024 * at, hours=2), 1) for at in range(20)])
    assert await purge(store, Watermark(NOW_MS - 100, frozenset({stretch_of(kept)})), rows_max=3) == 23
    assert contents(store) == before
    assert store.counts(3)["mail"] == counts(total=5, completed=1)
    assert not store.purge_left(3)


@in_trio
async def test_a_watermark_never_sinks(world: World) -> None:
    """It goes down neither in time nor by more exceptions; fewer exceptions are a rise."""
    kept = frozenset({stretch_of(old())})
    async with world.store() as store:
        await put(store, tasks(old(), 1))
        store.raise_watermark(3, Watermark(NOW_MS, kept))
        for lower in (Watermark(NOW_MS - 1), Watermark(NOW_MS, kept | {stretch_of(old(1024))}), Watermark()):
            store.raise_watermark(3, lower)
            assert store.watermark(3) == Watermark(NOW_MS, kept)
        assert store.task_row(old()) is not None
        store.raise_watermark(3, ALL)
        assert store.task_row(old()) is None
        await purge(store, ALL)
        await purge(store, Watermark(NOW_MS - 1, kept))
    async with world.store() as store:
        assert store.watermark(3) == ALL


@in_trio
async def test_a_unique_key_is_free_once_its_task_is_purged(store: AnyStore) -> None:
    """It is free even before the row is deleted."""
    await put(store, tasks(old(), 1, unique_key="k", order=[1, 9, 9]), done(old(), 1))
    store.raise_watermark(3, Watermark(NOW_MS - 2000))
    fresh = first_id(7)
    await put(store, tasks(fresh, 1, unique_key="k", order=[2, 10, 1]))
    await purge(store, Watermark(NOW_MS - 2000))
    assert store.unique(3, key_digest("mail", "k")) == fresh
    assert [piece.first for piece in store.ready(3, "mail")] == [fresh]


@in_trio
async def test_stretches_are_listed_up_to_a_time_and_tell_how_they_ended(store: AnyStore) -> None:
    """A stretch has no end while a task in it is unfinished or stops its key."""
    busy, failed, whole = old(), old(2048), old(4096, hours=1)
    await put(store, tasks(busy, 2), done(busy, 1), tasks(failed, 1, ordering_key="a"), tasks(whole, 3))
    await put(store, done(failed, 1, outcome=STOPPED), done(whole, 1), done(id_at(whole, 1), 1, outcome=FAILED))
    await put(store, done(id_at(whole, 2), 1, outcome=CANCELLED))
    await put(store, tasks(first_id(), 1))
    names = store.stretches(3, before_ms=NOW_MS - 2000)
    assert sorted(name[-20:] for name in names) == [busy, failed, whole]
    assert names[-1][-20:] == whole
    assert store.stretches(3, after=names[1], before_ms=NOW_MS - 2000, limit=5) == names[2:]
    assert store.stretches(3, before_ms=OLD_MS) == []
    assert store.ended(busy) is None and store.ended(failed) is None
    assert store.ended(whole) == Ended({"mail": NOW_MS}, 0b110)
    store.raise_watermark(3, Watermark(OLD_MS + 1, frozenset({busy})))
    assert sorted(name[-20:] for name in store.stretches(3, before_ms=NOW_MS - 2000)) == [busy, whole]


@in_trio
async def test_a_stretch_with_a_damaged_task_row_has_no_end(world: World, store: AnyStore) -> None:
    """Its tasks may be unfinished. A purge would delete them before the row is repaired."""
    damaged = old(4)
    await put(store, tasks(old(), 2), done(old(), 2), tasks(damaged, 1))
    key = b"\0\3T" + damaged
    if world.kind == "memory":
        world.disk.tables.rows.put(key, b"\xff" * 40)
    else:
        with store._env.begin(write=True) as txn:
            txn.put(key, b"\xff" * 40, db=store._dbs["rows"])
        store._renew()
    assert store.ended(old()) is None


@in_trio
async def test_what_is_purged_and_not_deleted_yet_is_not_listed(store: AnyStore) -> None:
    """Kept stretches below the watermark are listed, in any hour and page by page."""
    kept = [old(1024 * at, hours=at) for at in (0, 1, 3)]
    for at in range(5):
        await put(store, tasks(old(1024 * at, hours=at), 1), tasks(old(10_240, hours=at), 1))
    store.raise_watermark(3, Watermark(OLD_MS + 4 * HOUR, frozenset(kept)))
    whole = store.stretches(3, before_ms=NOW_MS - 2000)
    assert [name[-20:] for name in whole][:3] == kept
    assert sorted(name[-20:] for name in whole[3:]) == sorted([old(4096, hours=4), old(10_240, hours=4)])
    paged: list[bytes] = []
    while page := store.stretches(3, after=paged[-1] if paged else b"", before_ms=NOW_MS - 2000, limit=2):
        paged += page
    assert paged == whole
    assert [name[-20:] for name in store.stretches(3, before_ms=OLD_MS + 2 * HOUR)] == kept[:2]


@pytest.mark.parametrize("hours", [0, 2])
@in_trio
async def test_a_task_that_gave_way_for_its_unique_key_does_not_come_back(store: AnyStore, hours: int) -> None:
    """The current task of the key names the younger one, which may not outlive it."""
    stands, gave_way = old(), old(2048, hours=hours)
    await put(store, tasks(stands, 1, unique_key="k", order=[1, 2, 1]), done(stands, 1))
    await put(store, tasks(gave_way, 1, unique_key="k", order=[1, 1, 1]))
    assert store.latest(3, key_digest("mail", "k")) == (stands, True)
    assert store.ended(stands) == Ended({"mail": NOW_MS}, 0, frozenset({gave_way}))
    assert store.ended(gave_way) is not None
    await purge(store, Watermark(NOW_MS - 100, frozenset({stands})))
    assert store.ended(stands) == Ended({"mail": NOW_MS}, 0)


@in_trio
async def test_a_task_names_the_older_stretches_that_gave_way_to_it(store: AnyStore) -> None:
    """If one of them is kept while this task is purged, its task gets the unique key back."""
    key = {"unique_key": "k", "unique_until": "purged"}
    stands, gave_way = old(2048, hours=1), old()
    await put(store, tasks(stands, 1, order=[1, 2, 1], **key), done(stands, 1))
    await put(store, tasks(gave_way, 1, order=[1, 1, 1], **key), tasks(id_at(gave_way, 1), 1))
    assert store.ended(stands) == Ended({"mail": NOW_MS}, 0, frozenset({gave_way}))
    assert store.ended(gave_way) is None
    await put(store, done(id_at(gave_way, 1), 1))
    ended = store.ended(gave_way)
    assert ended is not None and not ended.replaced
    await purge(store, Watermark(NOW_MS - 100, frozenset({gave_way})))
    assert store.unique(3, key_digest("mail", "k")) == gave_way


@in_trio
async def test_pieces_that_a_purge_uncovers_are_told_unless_they_are_purged(store: AnyStore) -> None:
    """On an incomplete copy, the head of a key may be purged first."""
    for at in range(3):
        await put(store, tasks(old(1024 * at), 1, ordering_key="k", order=[at + 1, 1, 1]))
    later = first_id(9)
    await put(store, tasks(later, 1, ordering_key="k", order=[9, 1, 1]))
    written = await store.write(Batch(purge=Purge(3, Watermark(NOW_MS - 2000))))
    assert [piece.first for piece in written.pieces] == [later]
    assert store.key_head(3, key_digest("mail", "k")) == later


@pytest.mark.long
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.booleans(), st.integers(1, 4), st.sampled_from(["memory", "lmdb"]))
def test_purging_leaves_what_the_other_rows_alone_would_have_made(
    history: tuple[list[Row], list[list[Row]]], keep: bool, rows_max: int, kind: str
) -> None:
    """This holds for any rows, order and size of the deletion steps."""
    rows, batches = history
    stretch = make_id(NOW_MS - 4_000_000, 3, 7, 0)
    watermark = Watermark(NOW_MS - 1, frozenset({stretch}) if keep else frozenset())
    left = [row for row in rows if row.key[:2] != b"\0\3" or not watermark.covers(row.key[3:23])]

    async def compare() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with World(kind, Path(directory) / "a").store() as store:
                for batch in batches:
                    await put(store, *batch)
                await purge(store, watermark, rows_max=rows_max)
                async with World("memory", Path(directory) / "b").store() as other:
                    await put(other, *left)
                    assert contents(store) == contents(other)
                    for partition in (3, 4):
                        assert nonzero(store.counts(partition)) == nonzero(other.counts(partition))

    trio.run(compare)
