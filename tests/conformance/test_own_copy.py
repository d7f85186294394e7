"""A leader's writes to its own store ride in the store's transactions, and each is heard once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import trio
import trio.testing

from onyxq.core.errors import BadRequest, OnyxqError, StaleEpoch, StoreDamaged, StoreFailed, Unavailable
from onyxq.core.facts import Row
from onyxq.leader.cohort import pending_facts, replication
from onyxq.leader.cohort.member import Cohort
from onyxq.leader.cohort.replication import OwnCopy, Vote
from onyxq.leader.cohort.unflushed_writes import UnflushedWrites
from onyxq.store.interface import Batch, PendingRow, Piece
from onyxq.store.lmdb_store import LmdbStore
from onyxq.store.store import Store
from tests.conformance.store_world import AnyStore, World, first_id, in_trio, tasks

PARTITION, EPOCH = 3, 5
PART = pending_facts.Part(10**15, bytes(16), "a")


class Votes(Vote):
    """A vote that counts how often it hears."""

    def __init__(self) -> None:
        self.heard: list[OnyxqError | None] = []
        super().__init__(leader="own", members=["own"], target=["own"], failed=lambda *_: None)

    def hear(self, node: str, error: OnyxqError | None) -> None:
        """Count, and take it."""
        self.heard.append(error)
        super().hear(node, error)


class Host:
    """The node of an own copy; its epoch can be raised."""

    node_id = "own"

    def __init__(self, store: AnyStore, nursery: trio.Nursery) -> None:
        self.store: Store = store
        self.epoch = EPOCH
        self.cohort = cast(Cohort, self)
        self.pieces: list[Piece] = []
        self.unflushed_writes = UnflushedWrites(
            store, stored=lambda written: self.pieces_added(written.pieces), start_soon=nursery.start_soon
        )

    def check(self, partition: int, epoch: int) -> None:
        """Raise as a cohort does."""
        if epoch < self.epoch:
            raise StaleEpoch(f"partition {partition} has reached another epoch")

    def pieces_added(self, pieces: Any) -> None:
        """Note them."""
        self.pieces += pieces

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Never called."""
        raise AssertionError("the own store needs no message")


class Scene:
    """An own copy, and what the tests do with it."""

    def __init__(self, world: World, store: AnyStore, nursery: trio.Nursery) -> None:
        self.world = world
        self.store = store
        self.host = Host(store, nursery)
        self.copy = OwnCopy(self.host, "own")
        self.made = 0

    def submit(self, *rows: Row, early: bool = False, count: int = 1) -> Votes:
        """Submit a new task row, or these rows."""
        self.made += 1
        vote = Votes()
        self.copy.submit(PARTITION, EPOCH, rows or [self.row(self.made, count)], vote, early=early)
        return vote

    def row(self, number: int, count: int = 1) -> Row:
        """A task row."""
        return tasks(first_id(number * 1_024), count)

    def stored(self, number: int) -> bool:
        """Whether the row of the submission with this number is in the store."""
        return self.store.task_row(first_id(number * 1_024)) is not None

    def refuse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the disk refuse the next transaction."""
        store = self.store
        if self.world.kind == "memory":
            self.world.disk.refuse(times=1, lands=False)
            return
        assert isinstance(store, LmdbStore)
        apply = store._apply

        def refused() -> None:
            monkeypatch.setattr(store, "_apply", apply)
            store._fail(StoreFailed("refused"))

        monkeypatch.setattr(store, "_apply", refused)

    async def heard(self, *votes: Votes) -> list[OnyxqError | None]:
        """Wait until all votes have heard; return what, each once. Nothing waits for the disk after that."""
        with trio.fail_after(5):
            while not all(vote.heard for vote in votes):
                await trio.lowlevel.checkpoint()
        assert all(len(vote.heard) == 1 for vote in votes)
        assert self.store.condition._waiting == 0
        return [vote.heard[0] for vote in votes]


@asynccontextmanager
async def scene(world: World) -> AsyncIterator[Scene]:
    """A running store and an own copy for one block."""
    async with world.store() as store, trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        await trio.testing.wait_all_tasks_blocked()
        yield Scene(world, store, nursery)
        nursery.cancel_scope.cancel()


@in_trio
async def test_what_is_submitted_together_is_stored_together(world: World) -> None:
    """All of it can be read when it is heard of, and its pieces are known."""
    async with scene(world) as own:
        votes = [own.submit() for _ in range(3)]
        assert own.store.condition._waiting == 1
        assert await own.heard(*votes) == [None, None, None]
        assert all(vote.won for vote in votes) and all(own.stored(number) for number in (1, 2, 3))
        assert len(own.host.pieces) == 3


@in_trio
async def test_a_refused_transaction_fails_what_waits_and_nothing_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is submitted afterwards is stored."""
    async with scene(world) as own:
        own.refuse(monkeypatch)
        first = own.submit()
        assert [type(error) for error in await own.heard(first)] == [StoreFailed]
        assert await own.heard(own.submit()) == [None]
        assert own.stored(2) and not own.stored(1)


@pytest.mark.parametrize("others", [0, 1])
@in_trio
async def test_a_newer_epoch_refuses_what_waits(world: World, others: int) -> None:
    """What another leader's promise overtakes is not stored, and does not wait for the disk any more."""
    async with scene(world) as own:
        old = own.submit()
        votes = [Votes() for _ in range(others)]
        for vote in votes:
            own.copy.submit(PARTITION, EPOCH + 1, [own.row(9)], vote)
        own.host.epoch += 1
        error, *rest = await own.heard(old, *votes)
        assert isinstance(error, StaleEpoch) and rest == [None] * others
        assert not own.stored(1) and own.stored(9) == bool(others)
        assert isinstance(own.submit().heard[0], StaleEpoch)


def damaged(row: Row) -> Row:
    """A row that does not match its checksum."""
    return Row(row.key, row.value[:-1] + bytes([row.value[-1] ^ 1]))


def pending(size: int = 1) -> Row:
    """A pending row in the form in which it is written."""
    return pending_facts.as_row(PendingRow(pending_facts.part_key(PART), PART.deadline_ms, PARTITION, 0, bytes(size)))


@pytest.mark.parametrize("row", [damaged(tasks(first_id(), 1)), damaged(pending()), pending(17 * 1024 * 1024 + 1)])
@in_trio
async def test_malformed_rows_are_refused_alone(world: World, row: Row) -> None:
    """They are refused at once, and what is submitted with them is stored."""
    async with scene(world) as own:
        good = own.submit()
        (error,) = own.submit(row).heard
        assert isinstance(error, BadRequest)
        assert await own.heard(good) == [None]


@in_trio
async def test_pending_rows_and_facts_are_stored_together(world: World) -> None:
    """Pending rows are kept apart from facts."""
    async with scene(world) as own:
        assert await own.heard(own.submit(own.row(1), pending())) == [None]
        assert own.stored(1)
        assert [row.number for row in own.store.pending(PARTITION, pending_facts.part_key(PART))] == [0]


@in_trio
async def test_rows_that_may_be_answered_from_memory_are(world: World) -> None:
    """They are stored soon after; pending rows never are."""
    async with scene(world) as own:
        assert own.submit(early=True).heard == [None]
        late = own.submit(pending(), early=True)
        assert not late.heard
        await own.host.unflushed_writes.flushed()
        assert own.stored(1) and await own.heard(late) == [None]


@in_trio
async def test_many_bytes_are_stored_in_several_transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction is much larger than a message."""
    monkeypatch.setattr(replication, "SENDER_BYTES_MAX", 1_000)
    async with scene(world) as own:
        groups: list[int] = []
        own.store.follow(lambda rows: groups.append(len(rows)))
        votes = [own.submit(count=10) for _ in range(50)]
        assert await own.heard(*votes) == [None] * 50
        assert sum(groups) == 50 and max(groups) < 10


@in_trio
async def test_too_many_waiting_bytes_fail_what_waits_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk does not keep up; the store is still written to."""
    monkeypatch.setattr(replication, "WAITING_BYTES_MAX", 100)
    async with scene(world) as own:
        votes = [own.submit(count=5) for _ in range(3)]
        *failed, last = await own.heard(*votes)
        assert [type(error) for error in failed] == [Unavailable, Unavailable] and last is None


@in_trio
async def test_a_suspicion_fails_what_waits_and_leaves_nothing_to_count(world: World) -> None:
    """A disk for which nothing waits is in no trouble."""
    async with scene(world) as own:
        vote = own.submit()
        own.copy.suspect(Unavailable("silent"))
        assert [type(error) for error in await own.heard(vote)] == [Unavailable]
        await trio.testing.wait_all_tasks_blocked()
        assert own.store.condition.trouble_s() == 0.0
        assert await own.heard(own.submit()) == [None]


@in_trio
async def test_a_store_that_closes_finishes_what_was_submitted(world: World) -> None:
    """What is submitted later fails at once."""
    async with scene(world) as own:
        before = own.submit()
        await own.store.aclose()
        assert await own.heard(before) == [None]
        after = own.submit()
        assert isinstance(after.heard[0], StoreFailed)
        await trio.testing.wait_all_tasks_blocked()
        assert len(await own.heard(after)) == 1
    async with world.store() as store:
        assert store.task_row(first_id(1_024)) is not None


@pytest.mark.parametrize("when", ["before", "after"])
@in_trio
async def test_a_damaged_store_fails_every_write(world: World, when: str) -> None:
    """Whether it is damaged before or after the write is submitted."""
    async with scene(world) as own:
        damage = partial(own.store.condition.end, StoreDamaged("a page is wrong"))
        if when == "before":
            damage()
        vote = own.submit()
        if when == "after":
            damage()
        await trio.testing.wait_all_tasks_blocked()
        (error,) = await own.heard(vote)
        assert (error is None) if (world.kind, when) == ("memory", "after") else isinstance(error, StoreDamaged)


@in_trio
async def test_a_writer_outlives_the_run_of_a_store_in_memory(tmp_path: Path) -> None:
    """A store that is not run any more is written to by its writers."""
    world = World("memory", tmp_path)
    world.disk.delay_ms = lambda: 10
    async with world.store() as store, trio.open_nursery() as writers:
        async with trio.open_nursery() as runners:
            runners.start_soon(store.run)
            await trio.testing.wait_all_tasks_blocked()
            writers.start_soon(store.write, Batch(rows=[tasks(first_id(), 1)]))
            await trio.testing.wait_all_tasks_blocked()
            runners.cancel_scope.cancel()
        writers.cancel_scope.deadline = trio.current_time() + 5
    assert store.task_row(first_id()) is not None and not writers.cancel_scope.cancelled_caught


@pytest.mark.parametrize("seed", range(4))
@in_trio
async def test_each_write_is_heard_once_and_won_if_it_is_stored(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is submitted, refused, overtaken and suspected."""
    random = Random(seed)
    monkeypatch.setattr(replication, "SENDER_BYTES_MAX", 200)
    async with scene(world) as own:
        votes: list[Votes] = []
        for _ in range(150):
            chance = random.random()
            if chance < 0.7:
                votes.append(own.submit(count=random.randint(1, 20)))
            elif chance < 0.75:
                own.refuse(monkeypatch)
            elif chance < 0.8:
                own.copy.suspect(Unavailable("silent"))
            elif chance < 0.82:
                own.host.epoch += 1
            elif chance < 0.84:
                own.host.epoch = EPOCH
            else:
                await trio.lowlevel.checkpoint()
        outcomes = await own.heard(*votes)
        assert [own.stored(number) for number in range(1, own.made + 1)] == [error is None for error in outcomes]
