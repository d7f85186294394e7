"""The copy of the log that a store keeps, on LMDB and in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from onyxq.core.log.interface import Record
from onyxq.errors import BadRequest, Corrupt, OnyxqError, StoreFailed
from onyxq.store.interface import Batch, KeptLog, SnapshotPart, Written
from onyxq.store.kept_log import DROP_ROWS_MAX
from tests.conformance.store_world import AnyStore, World, first_id, in_trio, tasks


def record(position: int) -> Record:
    """The record at a position."""
    return Record(position, 1_000 + position, b"record %d" % position)


def records(first: int, last: int) -> tuple[Record, ...]:
    """The records from one position to another, both included."""
    return tuple(map(record, range(first, last + 1)))


def parts(position: int, *data: bytes) -> list[SnapshotPart]:
    """The pieces of a snapshot."""
    return [SnapshotPart(position, n, n == len(data) - 1, piece) for n, piece in enumerate(data)]


@in_trio
async def test_a_store_that_kept_nothing_has_an_empty_copy(store: AnyStore) -> None:
    """The copy begins and ends before the log's first record."""
    assert store.kept_log() == KeptLog(-1, b"", ())
    assert store.kept_ends() == (-1, -1)
    assert store.kept_log().end == -1


@in_trio
async def test_records_are_kept_in_order_and_outlive_the_store(world: World) -> None:
    """Records that the copy already has are skipped."""
    async with world.store() as store:
        await store.write(Batch(records=records(0, 2), log_position=2))
        await store.write(Batch(records=records(1, 4), log_position=4))
    async with world.store() as store:
        assert store.kept_log() == KeptLog(-1, b"", records(0, 4))
        assert store.kept_ends() == (-1, 4)


@in_trio
async def test_a_snapshot_counts_once_its_last_piece_is_there(store: AnyStore) -> None:
    """Until then the copy is as before; afterwards it begins with the snapshot, and older records are gone."""
    await store.write(Batch(records=records(0, 9)))
    first, last = parts(6, b"one ", b"two")
    await store.write(Batch(snapshot=first))
    assert store.kept_log() == KeptLog(-1, b"", records(0, 9))
    await store.write(Batch(snapshot=last))
    assert store.kept_log() == KeptLog(6, b"one two", records(7, 9))
    await store.write(Batch(snapshot=parts(4, b"older")[0]))
    assert store.kept_log().snapshot == b"one two"


@in_trio
async def test_a_snapshot_after_a_gap_begins_the_copy_anew(store: AnyStore) -> None:
    """A node that was away for long has no records between its last one and the snapshot."""
    await store.write(Batch(records=records(0, 3)))
    await store.write(Batch(snapshot=parts(50, b"state")[0], records=records(51, 52)))
    assert store.kept_log() == KeptLog(50, b"state", records(51, 52))
    assert store.kept_ends() == (50, 52)


@in_trio
async def test_rows_that_a_snapshot_has_taken_in_are_deleted_a_few_at_a_time(store: AnyStore) -> None:
    """So no transaction is long, and the copy does not grow for ever."""
    count = 3 * DROP_ROWS_MAX
    for position in range(count):
        await store.write(Batch(records=(record(position),)))
    before = len(list(store._tables.log.ascend(b"")))
    await store.write(Batch(snapshot=parts(count - 1, b"state")[0]))
    left = [len(list(store._tables.log.ascend(b"")))]
    for position in range(count, count + 3):
        await store.write(Batch(records=(record(position),)))
        left.append(len(list(store._tables.log.ascend(b""))))
    assert before - left[0] <= DROP_ROWS_MAX
    assert all(a - b <= DROP_ROWS_MAX for a, b in zip(left, left[1:], strict=False))
    assert left[-1] < 10
    assert store.kept_log() == KeptLog(count - 1, b"state", records(count, count + 2))


@in_trio
async def test_a_damaged_copy_is_not_read(tmp_path: Path) -> None:
    """A replica must not be built from it."""
    world = World("memory", tmp_path)
    async with world.store() as store:
        await store.write(Batch(records=records(0, 3)))
        await store.write(Batch(records=records(4, 5)))
        key = b"R" + (0).to_bytes(8, "big")
        value = bytearray(store._tables.log.get(key))
        value[9] ^= 1
    world.disk.tables.log.put(key, bytes(value))
    async with world.store() as store:
        with pytest.raises(Corrupt):
            store.kept_log()
    value[9] ^= 1
    world.disk.tables.log.put(key, bytes(value))
    world.disk.tables.log.delete(b"R" + (4).to_bytes(8, "big"))
    async with world.store() as store:
        with pytest.raises(Corrupt):
            store.kept_log()


@in_trio
async def test_a_copy_whose_ends_are_damaged_begins_again(tmp_path: Path) -> None:
    """Otherwise nothing could be written any more. Nothing of the old copy is left in the new one."""
    world = World("memory", tmp_path)
    (snapshot,) = parts(3, b"state")
    async with world.store() as store:
        await store.write(Batch(snapshot=snapshot, records=records(4, 9)))
        await store.write(Batch(records=records(10, 12)))
    assert world.disk.rot(b"E", name="log")
    async with world.store() as store:
        assert store.kept_ends() == (-1, -1)
        with pytest.raises(Corrupt):
            store.kept_log()
        await store.write(Batch(snapshot=snapshot, records=records(4, 6)))
        assert store.kept_log() == KeptLog(3, b"state", records(4, 6))
        await store.write(Batch(records=records(7, 7)))
        assert store.kept_log() == KeptLog(3, b"state", records(4, 7))


@in_trio
async def test_a_copy_that_begins_again_cannot_be_read_before_a_snapshot_of_what_it_lacks(tmp_path: Path) -> None:
    """It would otherwise seem to begin with the first record of the log."""
    world = World("memory", tmp_path)
    async with world.store() as store:
        await store.write(Batch(records=records(0, 3)))
        assert world.disk.rot(b"E", name="log")
        await store.write(Batch(records=records(4, 5)))
        assert store.kept_ends() == (-1, 5)
        for unusable in (None, parts(2, b"older")[0], parts(5, b"lost", b"last piece")[1]):
            await store.write(Batch(snapshot=unusable))
            with pytest.raises(Corrupt):
                store.kept_log()
        await store.write(Batch(snapshot=parts(6, b"state")[0], records=records(6, 7)))
        assert store.kept_log() == KeptLog(6, b"state", records(7, 7))


@in_trio
async def test_records_out_of_order_are_refused(store: AnyStore) -> None:
    """No record of the batch is stored."""
    for bad in ((record(3), record(2)), (record(-1),), (record(2), record(2))):
        with pytest.raises(BadRequest):
            await store.write(Batch(records=bad))
    assert store.kept_ends() == (-1, -1)


class Rider:
    """Adds batches to transactions, and records their outcomes."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = list(batches)
        self.outcomes: list[Written | OnyxqError] = []

    def take(self) -> Batch | None:
        """The next batch."""
        return self.batches.pop(0) if self.batches else None

    def heard(self, outcome: Written | OnyxqError) -> None:
        """Record the outcome."""
        self.outcomes.append(outcome)


@in_trio
async def test_a_rider_is_in_the_same_transaction_as_whatever_is_written(store: AnyStore) -> None:
    """When a write returns, everything that the rider knew at its start is durable too."""
    rider = Rider(Batch(records=records(0, 1), log_position=1), Batch(records=records(2, 2), log_position=2))
    store.accompany(rider)
    await store.write(Batch(rows=[tasks(first_id(), 1)]))
    assert store.log_position() == 1 and store.kept_log().records == records(0, 1)
    await store.write(Batch())
    assert store.log_position() == 2
    assert [type(outcome) for outcome in rider.outcomes] == [Written, Written]


@in_trio
async def test_a_rider_hears_that_its_transaction_failed(tmp_path: Path) -> None:
    """It then adds the same batch again."""
    world = World("memory", tmp_path)
    rider = Rider(Batch(records=records(0, 1)))
    async with world.store() as store:
        store.accompany(rider)
        world.disk.failing = True
        with pytest.raises(StoreFailed):
            await store.write(Batch())
        world.disk.failing = False
        await trio.lowlevel.checkpoint()
        assert isinstance(rider.outcomes[0], StoreFailed)
        assert store.kept_ends() == (-1, -1)
