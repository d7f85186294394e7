"""Copies are in as many zones as possible, so a lost zone costs nothing."""

from __future__ import annotations

import pytest
import trio

from simulation.world.faults import crash
from simulation.world.load import under_load
from simulation.world.world import Options, World, simulate

OPTIONS = Options(nodes=6, zones=3, partitions=12, absent_after_ms=8_000)


def doubled(world: World) -> dict[int, list[str]]:
    """Return zones of the partitions with two copies in one zone."""
    replica = world.audit.replica
    zones = {number: [replica.nodes[node].zone for node in part.members] for number, part in replica.partitions.items()}
    return {number: found for number, found in sorted(zones.items()) if len(set(found)) < 3}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_every_partition_has_copies_in_three_zones(seed: int) -> None:
    """This holds from the start, and again after nodes were killed, replaced and returned."""

    async def workload(world: World) -> None:
        assert not doubled(world)
        await under_load(world, crash)
        assert not doubled(world)

    simulate(workload, seed=seed, options=OPTIONS)


def test_a_lost_zone_costs_nothing() -> None:
    """All its nodes die: earlier tasks are claimed and completed, new ones are accepted."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"%d" % number for number in range(200)])
            dead = [node for node in world.nodes if node.config.zone == "z1"]
            assert len(dead) == 2
            for node in dead:
                await world.crash_node(node)
            with trio.fail_after(60):
                await client.enqueue("q", [b"new"])
                got = 0
                while got < 201:
                    for claim in await client.claim("q", maximum=50, wait_ms=10_000):
                        await client.complete(claim)
                        got += 1
            for node in dead:
                world.start_node(node)
            await world.settle()

    simulate(workload, seed=1, options=OPTIONS)
