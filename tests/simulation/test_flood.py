"""Clients that send far more than the disks accept: some are refused in time, and the others are served."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from onyxq.errors import OnyxqError
from onyxq.operations.admission import WAIT_S
from simulation.world.world import Options, World, simulate

OPTIONS = Options(partitions=4, clock_offset_ms=0, absent_after_ms=600_000)
WRITERS, SIZE = 200, 100_000
TIMEOUT_MS = 3_000
FLOOD_S = 20.0
SLOW_MS = 400


def slow(world: World, delay_ms: int) -> None:
    """Slow down every write to a disk."""
    for node in world.nodes:
        node.disk.delay_ms = lambda: delay_ms


async def flood(world: World, outcomes: Counter[str], *, timeout_ms: int) -> None:
    """Run writers of large tasks that retry at once after any answer."""
    until = trio.current_time() + FLOOD_S
    async with world.client() as recording, trio.open_nursery() as nursery:

        async def writer() -> None:
            while trio.current_time() < until:
                try:
                    await recording.client.enqueue_many("flood", [bytes(SIZE)], timeout_ms=timeout_ms)
                    outcomes["ok"] += 1
                except OnyxqError as error:
                    outcomes[error.code] += 1
                    await trio.sleep(0.05)

        for _ in range(WRITERS):
            nursery.start_soon(writer)


@pytest.mark.long
def test_a_flood_is_refused_in_time_and_others_are_served() -> None:
    """Of the accepted ones hardly one in twenty is late; another client's small task is hardly slower."""
    outcomes: Counter[str] = Counter()
    waits: list[float] = []

    async def workload(world: World) -> None:
        async with world.client() as bystander, trio.open_nursery() as nursery:
            await bystander.client.enqueue("quiet", b"x")
            slow(world, SLOW_MS)
            nursery.start_soon(lambda: flood(world, outcomes, timeout_ms=TIMEOUT_MS))
            for _ in range(10):
                await trio.sleep(1.0)
                began = trio.current_time()
                await bystander.client.enqueue("quiet", b"x")
                waits.append(trio.current_time() - began)
            await trio.sleep(FLOOD_S - 15.0)
            nursery.cancel_scope.cancel()
        slow(world, 1)

    simulate(workload, seed=1, options=OPTIONS)
    assert outcomes["overloaded"] > WRITERS and outcomes["ok"] > 20, outcomes
    late = outcomes.total() - outcomes["overloaded"] - outcomes["ok"]
    assert late <= outcomes["ok"] / 20, outcomes
    assert max(waits) < 4 * SLOW_MS / 1000 + WAIT_S, waits


def test_clients_that_wait_as_they_are_told_are_all_served() -> None:
    """Each task is stored once the flood is over, and none was abandoned."""
    stored: list[int] = []

    async def workload(world: World) -> None:
        async with world.client() as recording:
            slow(world, SLOW_MS)
            async with trio.open_nursery() as nursery:
                for _ in range(WRITERS):
                    nursery.start_soon(
                        lambda: recording.client.enqueue_many("flood", [bytes(SIZE)], timeout_ms=120_000)
                    )
            stored.append((await recording.client.count("flood"))["flood"]["total"])
            slow(world, 1)

    simulate(workload, seed=2, options=OPTIONS)
    assert stored == [WRITERS]
