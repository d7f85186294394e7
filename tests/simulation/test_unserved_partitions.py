"""What a claimer hears while some partitions have no leader that serves (design: claims, faults)."""

from __future__ import annotations

import pytest
import trio

from onyxq.errors import Unavailable
from simulation.world import Options, World, simulate


def test_an_empty_answer_is_not_given_while_partitions_have_no_leader() -> None:
    """With two of three nodes gone tasks may lie where nobody leads: claims say so, and find them later."""

    async def workload(world: World) -> None:
        async with world.client(nodes=world.nodes[2:]) as client:
            await client.enqueue("q", [b"x"])
            dead = world.nodes[:2]
            for node in dead:
                await world.crash_node(node)
            await trio.sleep(10)
            with pytest.raises(Unavailable, match="no leader|no majority"):
                await client.claim("q", timeout_ms=5_000)
            with pytest.raises(Unavailable, match="no leader|no majority"):
                await client.claim("other", wait_ms=500, timeout_ms=5_000)
            for node in dead:
                await world.bring_back(node)
            assert len(await client.claim("q", wait_ms=20_000)) == 1
            assert not await client.claim("other")

    simulate(workload, seed=1, options=Options(nodes=3, absent_after_ms=600_000))
