"""Tasks of one queue come in order of priority, then age, from whichever partitions hold them."""

from __future__ import annotations

import pytest

from simulation.world.world import Options, World, simulate

pytestmark = pytest.mark.long

TASKS = 80
QUIET = Options(nodes=3, partitions=8, clock_offset_ms=0)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_task_of_all_partitions_comes_first(seed: int) -> None:
    """Tasks are claimed one by one while nothing else happens."""

    async def workload(world: World) -> None:
        async with world.client(nodes=world.nodes[:1]) as client:
            priorities: dict[bytes, int] = {}
            for number in range(TASKS):
                priority = world.random.randint(-3, 3)
                (task_id,) = await client.enqueue("q", [b"%d" % number], priority=priority)
                priorities[task_id] = priority
            taken: list[int] = []
            while len(taken) < TASKS:
                (claim,) = await client.claim("q", lease_ms=600_000, wait_ms=5_000)
                taken.append(priorities[claim.id])
                await client.complete(claim)
            assert taken == sorted(taken, reverse=True)

    simulate(workload, seed=seed, options=QUIET)
