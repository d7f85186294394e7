"""A node that loses its store returns under its own id: its copies count only once they are made again."""

from __future__ import annotations

from random import Random

import pytest
import trio

from onyxq.core.placement import LOST
from simulation.scenes.base import ONE
from simulation.scenes.lost_disks import LOST_DISK_SCENES, lose_disks
from simulation.world.world import World, simulate


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 3))
@pytest.mark.parametrize("name", LOST_DISK_SCENES)
def test_nothing_acknowledged_is_lost_with_a_disk(name: str, seed: int) -> None:
    """This holds for any requests to the emptied node, and for any other live nodes."""
    scene = LOST_DISK_SCENES[name]
    simulate(scene.script, seed=seed, options=scene.options(Random(seed)))


@pytest.mark.parametrize("seed", range(1, 3))
def test_two_emptied_nodes_of_three_are_no_majority(seed: int) -> None:
    """The third node waits too, because a task may have been on the two alone."""
    waited = []

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"x"])
        await lose_disks(world, *world.nodes[:2])
        for _ in range(60):
            found = world.audit.replica.partitions[0]
            assert sum(LOST in name for name in found.members) == 2 and not found.ready
            await trio.sleep(0.5)
        waited.append(True)

    with pytest.raises(BaseExceptionGroup):  # the world's own end waits in vain for the partition
        simulate(workload, seed=seed, options=ONE)
    assert waited
