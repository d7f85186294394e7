"""Helpers of the tests of stores: stores of each kind, and rows for them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.testing

from onyxq.core.facts import (
    COMPLETED,
    REOPENED,
    UNMARKED,
    Completion,
    History,
    Mark,
    Resolution,
    Row,
    completion_row,
    first_of,
    history_row,
    pack_task,
    resolution_row,
    task_row,
    unpack_completion,
)
from onyxq.core.ids import TaskId, counter_of, ids_of, make_id, runs_of, stretch_of
from onyxq.store.index.records import unpack_mask
from onyxq.store.interface import Batch, Digest, QueueCounts, Rebuild, Written
from onyxq.store.lmdb_store import LmdbStore
from onyxq.store.memory import MemoryStore
from onyxq.store.tables import within
from simulation.world.disk import SimulatedDisk
from tests.own_arguments import AsyncTest, own_arguments, seen_by_pytest

NOW_MS = 1_700_000_000_000
AnyStore = LmdbStore | MemoryStore


def key_tasks(store: AnyStore, partition: int, digest: bytes) -> list[TaskId]:
    """The unfinished or stopped tasks of an ordering key, in the order of the index."""
    rows = within(store._tables.keyed, partition.to_bytes(2, "big") + digest)
    entries = sorted((bytes(key[19:]), unpack_mask(bytes(value))) for key, value in rows)
    runs = [run for key, bits in entries for run in runs_of(stretch_of(key[-20:]), bits)]
    return [task_id for run in runs for task_id in ids_of(*run)]


class World:
    """Opens stores of one kind whose clock the test sets."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self.disk = SimulatedDisk()
        self.now_ms = NOW_MS

    def open(self, **options: Any) -> AnyStore:
        """Open the store with its earlier contents."""
        if self.kind == "memory":
            return MemoryStore(self.disk, now_ms=lambda: self.now_ms)
        return LmdbStore.open(self.directory, now_ms=lambda: self.now_ms, **options)

    @asynccontextmanager
    async def store(self, **options: Any) -> Any:
        """Open the store for one block."""
        store = self.open(**options)
        try:
            yield store
        finally:
            await store.aclose()


async def rebuild(store: AnyStore) -> None:
    """Rebuild every index that is damaged or marked."""
    await store.write(Batch(mark=tuple(store.damaged_indexes)))
    store.damaged_indexes.clear()
    for partition in store.unindexed():
        while not (written := await store.write(Batch(rebuild=Rebuild(partition, rows_max=3)))).rebuilt:
            assert not written.damaged


def in_trio(test: AsyncTest) -> Callable[..., None]:
    """Run an async test; one that takes ``store`` gets a store of its ``world`` from the fixture."""
    own = own_arguments(test, ("store",))

    async def play(arguments: dict[str, Any]) -> None:
        if not own:
            await test(**arguments)
            return
        world = arguments["world"] if own_arguments(test, ("world",)) else arguments.pop("world")
        async with world.store() as store:
            await test(store=store, **arguments)

    def run(**arguments: Any) -> None:
        trio.run(play, arguments)

    return seen_by_pytest(test, own, run, needs=("world",) if own else ())


def first_id(counter: int = 0, *, partition: int = 3, ms: int = NOW_MS - 1000, maker: int = 7) -> TaskId:
    """Return an id whose tasks were due a second ago."""
    return make_id(ms, partition, maker, counter)


def tasks(first: bytes, count: int, **header: Any) -> Row:
    """Return a task row of the queue "mail"."""
    payloads = [b"payload %d" % i for i in range(count)]
    return task_row(first, pack_task({"queue": "mail", **header}, payloads))


def done(first: bytes, count: int, *, token: int = 10, outcome: int = COMPLETED, mark: Mark = UNMARKED) -> Row:
    """Return a completion row."""
    return completion_row(first, Completion(token, count, outcome, NOW_MS, [], mark))


def completion_of(row: Row, maker: int) -> Row:
    """Return the same completion for the tasks of another maker."""
    first = first_of(row.key)
    return completion_row(first_id(counter_of(first), maker=maker), unpack_completion(row.value[:-4]))


def event(first: bytes, count: int, kind: int, *, position: int, retry_ms: int = 0, attempts: int = 0) -> Row:
    """Return a history row."""
    return history_row(first, History(position, 0, count, kind, 5, NOW_MS, "w", retry_ms, attempts, ""))


def reopening(first: bytes, count: int, *, position: int, retry_ms: int = NOW_MS - 1, attempts: int = 1) -> Row:
    """Return a history row that reopens failed tasks."""
    return event(first, count, REOPENED, position=position, retry_ms=retry_ms, attempts=attempts)


def resolved(first: bytes, count: int = 1, *, mark: Mark = UNMARKED) -> Row:
    """Return a resolution row."""
    return resolution_row(first, Resolution(count, NOW_MS, mark))


async def put(store: AnyStore, *rows: Row) -> Written:
    """Write rows in one batch."""
    return await store.write(Batch(rows=rows))


def counts(**numbers: int) -> QueueCounts:
    """Return counts, zero for those not given."""
    return QueueCounts(**{name: numbers.get(name, 0) for name in QueueCounts._fields})


def digests(store: AnyStore) -> dict[tuple[int, int], tuple[Digest, dict[int, Digest]]]:
    """Return every digest of a store."""
    return {
        (partition, hour): (digest, store.leaves(partition, hour))
        for partition in store.partitions()
        for hour, digest in store.hours(partition).items()
    }
