"""Every kind of fault, alone, under load: nothing is lost and the cluster recovers by itself."""

from __future__ import annotations

import pytest

from simulation.explorer import under_load
from simulation.faults import EPISODES, log_clock_jump
from simulation.load import Mix
from simulation.world import Options, World, simulate

SEEDS = (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", sorted(EPISODES))
def test_a_working_cluster_gets_over(name: str, seed: int) -> None:
    """Two episodes of one kind; then all is served and worked off in time, and every checker agrees."""

    async def workload(world: World) -> None:
        async def faults(world: World) -> None:
            for _ in range(2):
                await EPISODES[name](world)

        await under_load(world, faults)

    world = simulate(workload, seed=seed)
    assert world.history.completed, "the load did nothing"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_jumps_of_the_logs_clock_lapse_no_lease_by_more_than_five_seconds_each(seed: int) -> None:
    """ZooKeeper's clock jumps by an hour either way while tasks are worked on."""

    async def workload(world: World) -> None:
        async def faults(world: World) -> None:
            for _ in range(3):
                await log_clock_jump(world)

        await under_load(world, faults, Mix(lease_ms=(20_000, 25_000), forget=0, late=0))

    simulate(workload, seed=seed, options=Options(nodes=2))
