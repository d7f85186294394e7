"""The copy of the log in a node's store: it never exceeds the node's position and never has a gap."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from attrs import evolve

from onyxq.core.log.interface import Record
from onyxq.core.replica import EMPTY
from onyxq.errors import StoreFailed
from onyxq.history.claim_rows import IDLE_FLUSH_S, LAZY_FLUSH_S, SNAPSHOT_PART_BYTES, HistoryWriter
from onyxq.store.interface import Batch, KeptLog
from tests.conformance.store_world import AnyStore, World, first_id, in_trio, tasks

LARGE = bytes(range(256)) * (3 * SNAPSHOT_PART_BYTES // 256)
"""A snapshot of three pieces."""


def read(writer: HistoryWriter, first: int, last: int) -> tuple[Record, ...]:
    """Let the node read records; return what its copy must have."""
    records = [Record(position, 7, b"record %d" % position) for position in range(first, last + 1)]
    for record in records:
        writer.add(evolve(EMPTY, position=record.position), (), record=record)
    return tuple(records)


@in_trio
async def test_what_was_read_is_in_whatever_is_written_next(store: AnyStore) -> None:
    """It is in the next write although no caller waits for it and no background task writes it."""
    writer = HistoryWriter(store, lambda written: None)
    records = read(writer, 0, 3)
    await store.write(Batch(rows=[tasks(first_id(), 1)]))
    assert store.kept_log() == KeptLog(-1, b"", records)
    assert store.log_position() == writer.stored == 3


@in_trio
async def test_a_snapshot_after_a_gap_comes_whole_before_anything_after_it(store: AnyStore) -> None:
    """After each transaction the copy reaches the position up to which the node has read."""
    writer = HistoryWriter(store, lambda written: None)
    old = read(writer, 0, 3)
    await store.write(Batch())
    writer.keep(50, LARGE)
    writer.add(evolve(EMPTY, position=50), ())
    new = read(writer, 51, 52)
    seen = []
    while store.log_position() < 52:
        await store.write(Batch())
        seen.append((store.log_position(), store.kept_log()))
    assert seen[:-1] == [(3, KeptLog(-1, b"", old))] * 2
    assert seen[-1] == (52, KeptLog(50, LARGE, new))


@in_trio
async def test_a_newer_snapshot_of_what_was_read_holds_nothing_up(store: AnyStore) -> None:
    """Records are still stored while its pieces are written; then older ones are no longer needed."""
    writer = HistoryWriter(store, lambda written: None)
    read(writer, 0, 9)
    writer.keep(6, LARGE)
    read(writer, 10, 10)
    await store.write(Batch())
    assert store.log_position() == 10 and store.kept_log().position == -1
    await store.write(Batch())
    await store.write(Batch())
    kept = store.kept_log()
    assert (kept.position, kept.end, len(kept.records)) == (6, 10, 4)


@in_trio
async def test_a_node_that_starts_again_keeps_on_where_its_copy_ends(world: World) -> None:
    """Records that it reads again are skipped."""
    async with world.store() as store:
        writer = HistoryWriter(store, lambda written: None)
        first = read(writer, 0, 5)
        await store.write(Batch())
    async with world.store() as store:
        writer = HistoryWriter(store, lambda written: None)
        again = read(writer, 0, 7)
        await store.write(Batch())
        assert store.kept_log().records == again and again[:6] == first


@in_trio
async def test_a_node_starts_although_the_ends_of_its_copy_are_damaged(tmp_path: Path) -> None:
    """Its copy is complete again once it has read the log again."""
    world = World("memory", tmp_path)
    async with world.store() as store:
        read(HistoryWriter(store, lambda written: None), 0, 5)
        await store.write(Batch())
    assert world.disk.rot(b"E", name="log")
    async with world.store() as store:
        again = read(HistoryWriter(store, lambda written: None), 0, 7)
        await store.write(Batch())
        assert store.kept_log() == KeptLog(-1, b"", again)


@in_trio
async def test_what_a_full_disk_refused_is_stored_later(tmp_path: Path) -> None:
    """No record is lost or stored out of order."""
    world = World("memory", tmp_path)
    async with world.store() as store:
        writer = HistoryWriter(store, lambda written: None)
        records = read(writer, 0, 3)
        world.disk.failing = True
        with pytest.raises(StoreFailed):
            await store.write(Batch())
        world.disk.failing = False
        more = read(writer, 4, 5)
        await store.write(Batch())
        assert store.kept_log().records == records + more


@in_trio
async def test_news_is_stored_although_nothing_else_is_written(world: World) -> None:
    """It is stored in the background: claims soon, and at once if a caller waits for them."""
    async with world.store() as store, trio.open_nursery() as nursery:
        writer = HistoryWriter(store, lambda written: None)
        nursery.start_soon(writer.run)
        writer.add(evolve(EMPTY, position=0), (), record=Record(0, 7, b"entries"), claims=True)
        with trio.fail_after(3):
            while writer.stored < 0:
                await trio.sleep(LAZY_FLUSH_S)
        assert store.kept_log().end == 0
        writer.add(evolve(EMPTY, position=1), (), record=Record(1, 8, b"entries"))
        with trio.fail_after(IDLE_FLUSH_S):
            await writer.reached(1)
        assert store.kept_log().end == 1
        nursery.cancel_scope.cancel()
