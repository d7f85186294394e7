"""Delayed tasks: offered at their time, for any number of them, and whenever they were written."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio
from trio.testing import MockClock

from onyxq.core.ids import make_id
from onyxq.leader.grants.due_queue import LOOK_PIECES_MAX, PROMOTE_EVERY_MS, ROUND_MS, SOON_MS, TOGETHER_MS, DueQueue
from onyxq.store.index.applier import PROMOTE_PIECES_MAX
from onyxq.store.interface import Batch, Piece
from onyxq.store.memory import MemoryStore
from tests.conformance.store_world import done, tasks

START_MS = 1_700_000_000_000
PARTITION = 3
FAR_MS = 60_000


class Offered:
    """A store on simulated time with delayed tasks, and a record of its offers."""

    def __init__(self, **options: Any) -> None:
        self.store = MemoryStore(now_ms=self.wall_ms)
        self.due_queue = DueQueue(
            self.store, wall_ms=self.wall_ms, offer=self.offer, offer_soon=self.offer_soon, **options
        )
        self.soon_ms: dict[bytes, int] = {}
        self.at_ms: dict[bytes, int] = {}
        self.again = 0
        self._made = 0

    def wall_ms(self) -> int:
        """The simulated wall clock."""
        return START_MS + int(trio.current_time() * 1000)

    def offer(self, pieces: Sequence[Piece]) -> None:
        """Take pieces as the granter does."""
        for piece in pieces:
            self.again += piece.first in self.at_ms
            self.at_ms.setdefault(piece.first, self.wall_ms())

    def offer_soon(self, pieces: Sequence[Piece]) -> None:
        """Take pieces that may be claimed ahead."""
        for piece in pieces:
            self.soon_ms.setdefault(piece.first, self.wall_ms())

    def id_due(self, in_ms: int) -> bytes:
        """Return a new id that is due that long after the start."""
        self._made += 1
        return make_id(START_MS + in_ms, PARTITION, self._made, 0)

    async def put(self, *ids: bytes) -> None:
        """Store tasks under these ids, and notify the leader."""
        written = await self.store.write(Batch(rows=tuple(tasks(one, 1) for one in ids)))
        self.due_queue.add([piece for piece in written.pieces if piece.due_ms > self.wall_ms()])

    def late_ms(self, ids: Sequence[bytes]) -> list[int]:
        """Return how late each was offered."""
        return [self.at_ms[one] - int.from_bytes(one[:6], "big") for one in ids]


def on_simulated_time(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run an async test where waiting takes no time."""

    def run() -> None:
        trio.run(test, clock=MockClock(autojump_threshold=0))

    run.__doc__ = test.__doc__
    return run


async def seen_to(world: Offered, until_ms: int) -> None:
    """Let time pass while the loop runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.due_queue.run)
        await trio.sleep(until_ms / 1000 - trio.current_time())
        nursery.cancel_scope.cancel()


@on_simulated_time
async def test_each_is_offered_at_its_time() -> None:
    """This holds for tasks from before the leader began and for later ones, near and far."""
    world, rng = Offered(), random.Random(1)
    before = [world.id_due(rng.randrange(1, FAR_MS)) for _ in range(300)]
    await world.put(*before)
    world.due_queue.lead(PARTITION)
    after: list[bytes] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.due_queue.run)
        for at_ms in range(0, FAR_MS, 500):
            await trio.sleep(at_ms / 1000 - trio.current_time())
            # A millisecond ahead, within what was read already, and beyond that.
            ids = [world.id_due(at_ms + in_ms) for in_ms in (1, rng.randrange(2, 1_500), rng.randrange(1_500, 9_000))]
            await world.put(*ids)
            after += ids
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert world.at_ms.keys() == {*before, *after}
    late = world.late_ms([*before, *after])
    assert 0 == min(late) <= max(late) <= TOGETHER_MS


@on_simulated_time
async def test_what_comes_alone_is_offered_right_when_it_is_due() -> None:
    """Nothing else was offered shortly before."""
    world = Offered()
    ids = [world.id_due(1_000 + (2 * TOGETHER_MS + 1) * place) for place in range(50)]
    await world.put(*ids)
    world.due_queue.lead(PARTITION)
    await seen_to(world, 6_000)
    assert max(world.late_ms(ids)) <= 1  # the clock's milliseconds are rounded


@on_simulated_time
async def test_what_falls_due_thick_and_fast_is_offered_together() -> None:
    """They are offered at moments that nodes share, for any due times."""
    worlds = [Offered(), Offered()]
    ids = [[world.id_due(1_000 + 5 * node + place) for place in range(1_000)] for node, world in enumerate(worlds)]
    async with trio.open_nursery() as nursery:
        for node, world in enumerate(worlds):
            await world.put(*ids[node])
            world.due_queue.lead(PARTITION)
            nursery.start_soon(seen_to, world, 3_000)
    for node, world in enumerate(worlds):
        late = world.late_ms(ids[node])
        assert 0 <= min(late) <= max(late) <= TOGETHER_MS
    # Except the first one, which came alone.
    first, second = (set(sorted(world.at_ms.values())[1:]) for world in worlds)
    assert len(first) <= 1_000 // TOGETHER_MS + 2
    assert len(first & second) >= 0.9 * len(first)  # the clock's milliseconds are rounded


@on_simulated_time
async def test_each_is_offered_ahead_long_enough_before_it_is_due() -> None:
    """Those of a round are offered together, later ones at once, and those already due not at all."""
    world, rng = Offered(), random.Random(2)
    ids = [world.id_due(rng.randrange(2_000, 9_000)) for _ in range(200)]
    await world.put(*ids)
    world.due_queue.lead(PARTITION)
    sudden = [world.id_due(5_000 + in_ms) for in_ms in (1, SOON_MS // 2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(seen_to, world, 10_000)
        await trio.sleep(5)
        await world.put(*sudden)
    assert world.soon_ms.keys() == world.at_ms.keys() == {*ids, *sudden}
    ahead = [world.at_ms[one] - world.soon_ms[one] for one in ids]
    assert SOON_MS <= min(ahead) <= max(ahead) <= SOON_MS + ROUND_MS + TOGETHER_MS
    assert len({world.soon_ms[one] for one in ids}) <= 7_000 // ROUND_MS + 2
    assert all(world.soon_ms[one] - START_MS in (5_000, 5_001) for one in sudden)
    assert min(world.late_ms([*ids, *sudden])) >= 0


@on_simulated_time
async def test_a_crowd_is_offered_in_time() -> None:
    """There are more than one read returns, many of them in the same millisecond."""
    world = Offered()
    ids = [world.id_due(5_000 + place // 50) for place in range(10 * LOOK_PIECES_MAX)]
    await world.put(*ids)
    world.due_queue.lead(PARTITION)
    await seen_to(world, 6_000)
    assert world.at_ms.keys() == set(ids)
    late = sorted(world.late_ms(ids))
    assert late[len(late) // 2] <= TOGETHER_MS
    assert 0 <= late[0] <= late[-1] <= PROMOTE_EVERY_MS


@on_simulated_time
async def test_none_of_those_due_in_one_millisecond_is_late_where_reading_ends_between_them() -> None:
    """A read ends in the middle of a millisecond: its other tasks are read next."""
    world = Offered()
    ids = [world.id_due(5_000 + place // 3) for place in range(3 * LOOK_PIECES_MAX)]
    await world.put(*ids)
    world.due_queue.lead(PARTITION)
    await seen_to(world, 6_000)
    assert world.at_ms.keys() == set(ids)
    assert 0 <= min(world.late_ms(ids)) <= max(world.late_ms(ids)) <= TOGETHER_MS


@on_simulated_time
async def test_memory_is_bounded() -> None:
    """With room for a few only, all are offered, at the latest when they are promoted."""
    world = Offered(pieces_max=10)
    world.due_queue.lead(PARTITION)
    ids = [world.id_due(100 + 7 * place) for place in range(500)]
    await world.put(*ids[::2])
    await world.put(*ids[1::2])
    await seen_to(world, 6_000)
    assert world.at_ms.keys() == set(ids)
    assert min(world.late_ms(ids)) == 0
    assert max(world.late_ms(ids)) <= PROMOTE_EVERY_MS


@on_simulated_time
async def test_what_is_overdue_is_promoted_at_once() -> None:
    """After a long stop all of it goes to the ready index without delay, for any number of tasks."""
    world = Offered()
    ids = [world.id_due(1 + place % 100) for place in range(PROMOTE_PIECES_MAX + 5)]
    await world.put(*ids)
    await trio.sleep(3_600)
    world.due_queue.lead(PARTITION)
    await seen_to(world, 3_600_050)
    assert world.at_ms.keys() == set(ids)
    assert world.store.next_due_ms(PARTITION) is None


@on_simulated_time
async def test_what_is_left_is_promoted() -> None:
    """Completed tasks need no promotion; the others are ready in the store soon after their time."""
    world = Offered()
    world.due_queue.lead(PARTITION)
    ids = [world.id_due(1_000), world.id_due(1_001)]
    await world.put(*ids)
    await seen_to(world, 1_100)
    await world.store.write(Batch(rows=(done(ids[0], 1),)))
    await seen_to(world, 1_000 + 2 * PROMOTE_EVERY_MS)
    assert [piece.first for piece in world.store.ready(PARTITION, "mail")] == [ids[1]]
    assert world.store.next_due_ms(PARTITION) is None


@on_simulated_time
async def test_a_deposed_leader_reads_nothing() -> None:
    """It reads nothing until it leads again."""
    world = Offered()
    ids = [world.id_due(1_000), world.id_due(6_000)]
    await world.put(*ids)
    world.due_queue.lead(PARTITION)
    world.due_queue.drop(PARTITION)
    await world.put(world.id_due(1_500))
    await seen_to(world, 4_000)
    assert world.at_ms == {}
    world.due_queue.lead(PARTITION)
    await seen_to(world, 7_000)
    assert world.late_ms(ids[1:]) == [0]
    assert len(world.at_ms) == 3
