"""Claims on completed tasks are released a little later, those of a partition together."""

from __future__ import annotations

import trio

from onyxq.core.log.record import decode_record
from simulation.world.world import SETTLE_S, Options, World, simulate

ONE = Options(partitions=1, clock_offset_ms=0)
TASKS = 30
SOON_S = 10.0
"""Several times what a release takes, and much less than a lease, in seconds."""


def releases(world: World) -> int:
    """Return how many entries of the log release claims."""
    found = [decode_record(record.data) for record in world.audit.records]
    return sum(raw.name == "release_claims" for content in found if content is not None for raw in content.entries)


async def freed(world: World, *, within_s: float = SETTLE_S) -> None:
    """Wait until no claim is in flight."""
    await world.until(
        lambda: all(not replica.claims for _, replica in world.replicas()), "all claims let go", within_s=within_s
    )


async def complete_one_by_one(world: World) -> None:
    """Claim tasks in one call, and complete each twice in calls of its own."""
    async with world.client() as client:
        await client.enqueue("q", [b"%d" % number for number in range(TASKS)])
        claims = await client.client.claim("q", max=TASKS, wait_ms=5_000)
        assert len(claims) == TASKS
        for claim in claims:
            await client.client.complete(claim)
            await client.client.complete(claim)
        await freed(world)


def test_what_is_completed_in_many_calls_is_let_go_in_few_entries() -> None:
    """This holds for any number of repeats."""
    world = simulate(complete_one_by_one, seed=1, options=ONE)
    assert 0 < releases(world) <= TASKS / 3


def test_every_claim_that_is_released_with_others_ends_long_before_its_lease() -> None:
    """One entry releases the claims of all tasks that have one token and one stretch."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"%d" % number for number in range(TASKS)])
            claims = await client.client.claim("q", max=TASKS, lease_ms=60_000, wait_ms=5_000)
            assert len(claims) == TASKS
            for claim in claims:
                await client.client.complete(claim)
            await freed(world, within_s=SOON_S)

    simulate(workload, seed=1, options=ONE)


def test_a_limited_queue_has_its_room_back_without_delay() -> None:
    """Releases of a limited queue are not delayed, because the next task waits for them."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.client.set_queue("q", concurrency=1)
            await client.enqueue("q", [b"%d" % number for number in range(TASKS)])
            begun_s = trio.current_time()
            for _ in range(TASKS):
                (claim,) = await client.claim("q", wait_ms=5_000)
                await client.complete(claim)
            took.append(trio.current_time() - begun_s)
            await freed(world)

    took: list[float] = []
    simulate(workload, seed=1, options=ONE)
    assert took[0] < 0.15 * TASKS
