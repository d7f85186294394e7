"""Reading all rows of a partition as of one moment, while more are written."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from onyxq.errors import Conflict, Corrupt
from onyxq.operations import partition_rows
from onyxq.operations.partition_rows import NAME_BYTES, Reading
from tests.conformance.store_world import NOW_MS, AnyStore, World, done, first_id, in_trio, put, tasks

PARTITION = 3
HOUR_MS = 3_600_000
NAME = b"a".ljust(NAME_BYTES)


@pytest.fixture(params=["memory", "lmdb"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Stores of each kind, and pages of a few rows."""
    monkeypatch.setattr(partition_rows, "PAGE_ROWS", 7)
    return World(request.param, tmp_path)


def everything(store: AnyStore) -> dict[bytes, bytes]:
    """Return what the store has of the partition now."""
    found: dict[bytes, bytes] = {}
    for hour in store.hours(PARTITION):
        for leaf in store.leaves(PARTITION, hour):
            for key, _ in store.keys(PARTITION, hour, leaf):
                value = store.get(key)
                assert value is not None
                found[key] = value
    return found


async def put_some(store: AnyStore, random: Random, made: list[bytes]) -> None:
    """Write a few tasks, of this partition and another, some of long ago, and completions of some."""
    for _ in range(random.randrange(6)):
        place = {"ms": NOW_MS - random.randrange(9) * HOUR_MS, "partition": random.choice((PARTITION, PARTITION + 1))}
        first = first_id(1024 * len(made), **place)
        await put(store, tasks(first, random.randint(1, 3)))
        if place["partition"] == PARTITION:
            made.append(first)
    if made and random.random() < 0.7:
        await put(store, done(random.choice(made), 1, token=random.randrange(1, 9)))


@pytest.mark.parametrize("seed", range(8))
@in_trio
async def test_the_last_page_completes_what_the_store_has_then(store: AnyStore, seed: int) -> None:
    """All rows of that moment are read and no later ones, even if pages are requested again after a lost answer."""
    random = Random(seed)
    made: list[bytes] = []
    for _ in range(random.randrange(1, 20)):
        await put_some(store, random, made)
    reading = Reading(store, PARTITION, name=NAME)
    given: dict[bytes, bytes] = {}
    after: bytes | None = b""
    while after is not None:
        if random.random() < 0.3:
            reading.page(after)
        rows, after = reading.page(after)
        assert len(rows) <= partition_rows.PAGE_ROWS
        given.update((key, value) for key, value in rows)
        if after is not None and random.random() < 0.8:
            await put_some(store, random, made)
    assert given == everything(store)
    reading.end()


@in_trio
async def test_a_reading_that_ended_notes_nothing_more(store: AnyStore) -> None:
    """It gets no more rows from the store."""
    reading = Reading(store, PARTITION, name=NAME)
    await put(store, tasks(first_id(), 1))
    reading.end()
    await put(store, tasks(first_id(1024), 1))
    _, after = reading.page(b"")
    assert after is None and len(everything(store)) == 2
    assert not reading.knows(b"b".ljust(64)) and reading.knows(b"")


@in_trio
async def test_rows_that_come_faster_than_they_are_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, so the reading has to start again."""
    monkeypatch.setattr(partition_rows, "NOTED_MAX", 20)
    async with world.store() as store:
        reading = Reading(store, PARTITION, name=NAME)
        await put(store, *(tasks(first_id(1024 * number), 1) for number in range(21)))
        with pytest.raises(Conflict, match="faster"):
            reading.page(b"")


@in_trio
async def test_a_damaged_row_is_not_passed_over(tmp_path: Path) -> None:
    """The reader gets an error and waits for the repair."""
    world = World("memory", tmp_path)
    async with world.store() as store:
        await put(store, tasks(first_id(), 1))
        (key,) = everything(store)
        world.disk.rot(key)
        with pytest.raises(Corrupt, match="until it is repaired"):
            Reading(store, PARTITION, name=NAME).page(b"")
        assert store.damaged == {key}
