"""Storms of faults on clusters of all sizes, and the simulator itself."""

from __future__ import annotations

import pytest

from simulation.runs import play
from simulation.world.faults import crash
from simulation.world.load import under_load
from simulation.world.world import World, simulate


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_storm_breaks_no_property(seed: int) -> None:
    """A seed draws cluster, load and faults; ``onyxq simulate --workload exploration --seed N`` repeats one."""
    found = play("exploration", seed)
    assert not found.checker, found.what
    assert found.probes["a claim was renewed"], "the load did nothing"


@pytest.mark.long
def test_the_same_seed_gives_the_same_run() -> None:
    """Two runs write the same log, byte by byte."""

    async def workload(world: World) -> None:
        await under_load(world, crash)

    first, second = (simulate(workload, seed=5) for _ in range(2))
    assert [record.data for record in first.audit.records] == [record.data for record in second.audit.records]


def test_another_seed_gives_another_run() -> None:
    """Seeds differ in more than their number."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"one"])
            await client.claim("q")

    first, second = (simulate(workload, seed=seed) for seed in (1, 2))
    assert [record.data for record in first.audit.records] != [record.data for record in second.audit.records]
