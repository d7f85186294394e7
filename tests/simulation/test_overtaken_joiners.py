"""Joiners that are removed before they read of themselves, and whose records are trimmed."""

from __future__ import annotations

import random

import pytest
import trio

from onyxq.core.snapshot import unpack
from simulation.scenes.base import SCENES, overtake_a_joiner
from simulation.world.world import World, simulate


@pytest.mark.parametrize("forgotten", [False, True], ids=["its number is known", "its number is forgotten"])
def test_a_joiner_put_out_behind_a_trim_ends_and_its_node_joins_anew(forgotten: bool) -> None:
    """Its request is before the snapshot, in whose ring it is not: it does not keep waiting."""
    ended: list[str] = []

    async def workload(world: World) -> None:
        ended.append(await overtake_a_joiner(world, forgotten=forgotten))
        assert world.nodes[-1].peer_id in world.audit.replica.ring.members

    world = simulate(workload, seed=1, options=SCENES["overtaken"].options(random.Random(1)))
    origin = world.backend.stored
    assert origin is not None
    assert (ended[0] in unpack(origin.data).outbox) is not forgotten
    assert world.probes.counts["a trim under a reader"] > 0
    assert world.nodes[-1].peer_id != ended[0]


def test_a_node_whose_joins_were_cut_short_is_not_taken_for_a_copy() -> None:
    """Once the log forgets the peers that never joined, the node's last member is its latest peer again."""

    async def workload(world: World) -> None:
        node = world.nodes[0]
        await world.crash_node(node)
        for _ in range(3):
            listed = node.disk.tables.meta.get(b"peers")
            world.start_node(node)
            while node.disk.tables.meta.get(b"peers") == listed:
                await trio.sleep(0.001)
            await world.crash_node(node)
        await trio.sleep(3 * world.options.session_timeout_ms / 1000)
        await world.bring_back(node)
        assert node.peer_id in world.audit.replica.ring.members

    simulate(workload, seed=1)
