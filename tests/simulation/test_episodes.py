"""Every kind of fault alone, under load: nothing is lost and the cluster recovers on its own."""

from __future__ import annotations

import pytest

from simulation.world.faults import EPISODES
from simulation.world.load import under_load
from simulation.world.world import World, simulate

pytestmark = pytest.mark.long


SEEDS = (1, 2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", sorted(EPISODES))
def test_a_working_cluster_gets_over(name: str, seed: int) -> None:
    """There are two episodes of one kind; then everything is served and completed in time, and every checker passes."""

    async def workload(world: World) -> None:
        async def faults(world: World) -> None:
            for _ in range(2):
                await EPISODES[name](world)

        await under_load(world, faults)

    world = simulate(workload, seed=seed)
    assert world.history.completed, "the load did nothing"
