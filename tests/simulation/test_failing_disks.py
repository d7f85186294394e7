"""Disks that fail in single writes, single pages, or altogether; see `simulation.world.failing_disks`."""

from __future__ import annotations

import pytest
import trio

from simulation.scenes.base import ONE, leader_of
from simulation.workloads import WORKLOADS
from simulation.world.world import World, simulate


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_nothing_acknowledged_is_lost_on_failing_disks(seed: int) -> None:
    """Every peer recovers, or ends with an error for its operator, and always starts again."""
    WORKLOADS["failing_disk"].play(seed)


@pytest.mark.parametrize("lands", [True, False])
def test_a_task_whose_write_was_refused_at_first_is_handed_out(*, lands: bool) -> None:
    """This holds even if it was on the leader's disk, so that the repeated write changes nothing."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            leader_of(world).disk.refuse(times=1, lands=lands)
            (task_id,) = await client.enqueue("q", [b"x"])
            (claim,) = await client.claim("q", maximum=1, lease_ms=5_000, wait_ms=10_000)
            assert claim.id == task_id
            await client.complete(claim, b"done")

    simulate(workload, seed=3, options=ONE)


def test_a_leader_that_missed_a_write_still_counts_itself() -> None:
    """It has everything acknowledged; without it nothing would settle in a small cluster."""

    async def workload(world: World) -> None:
        leader = leader_of(world)
        async with world.client() as client:
            leader.disk.refuse(times=1, lands=False)
            await client.enqueue("q", [b"x"])
            await trio.sleep(5)
            assert leader.running is not None and leader.running.node is not None
            assert leader.node_id in leader.running.node.leaders[0].current

    simulate(workload, seed=3, options=ONE)
