"""Backups of simulated clusters: rows of a partition, and restored clusters, through all faults."""

from __future__ import annotations

from typing import Any

import pytest

from onyxq.errors import NotLeader
from simulation.workloads import WORKLOADS
from simulation.world.world import Options, SimulatedNode, World, simulate

ONE = Options(partitions=1, clock_offset_ms=0, absent_after_ms=600_000)


def leader(world: World) -> SimulatedNode:
    """Return the node that leads the only partition, by the log."""
    peer = world.audit.replica.partitions[0].leader
    return next(node for node in world.nodes if node.peer_id == peer)


async def rows(node: SimulatedNode) -> tuple[set[bytes], int]:
    """Return the first ids of all rows that one node sends, and the position that it names for them."""
    assert node.running is not None and node.running.service is not None
    found: set[bytes] = set()
    after: bytes | None = b""
    position = -1
    while after is not None:
        asked: dict[str, Any] = {"partition": 0, "position": 0, "after": after}
        page = await node.running.service.call("backup.rows", asked)
        found |= {key[3:23] for key, _ in page["rows"]}
        after, position = page["after"], page["position"]
    return found, position


def test_a_leader_that_does_not_know_yet_that_it_was_deposed_gives_nothing() -> None:
    """It has rows of its successor under a position that it has not read."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            (first,) = await client.enqueue("q", [b"x"])
            old = leader(world)
            assert first in (await rows(old))[0]
            peer = old.peer_id
            world.disconnect_log(old)
            await world.until(
                lambda: (p := world.audit.replica.partitions[0]).ready and p.leader not in ("", peer), "a successor"
            )
            async with world.client(nodes=[node for node in world.nodes if node is not old]) as served:
                (claim,) = await served.claim("q", maximum=1, lease_ms=60_000, wait_ms=20_000)
                await served.update(claim, b"0")
                given, position = await rows(leader(world))
                assert first in given and position >= claim.token
            assert old.running is not None and old.running.node is not None
            epochs = old.running.node.epochs
            epoch = world.audit.replica.partitions[0].epoch
            await world.until(lambda: epochs.get(0) == epoch, "the successor writes to the old leader")
            assert old.running.node.replica.position < claim.token
            with pytest.raises(NotLeader):
                await rows(old)
            world.reconnect_log(old)
            await world.settle()
            assert (await rows(old))[1] >= claim.token

    simulate(workload, seed=1, options=ONE)


@pytest.mark.long
@pytest.mark.parametrize("seed", [7, 12])
def test_what_is_restored_has_all_that_stood(seed: int) -> None:
    """This holds for any faults during backups; a failed backup leaves nothing."""
    assert WORKLOADS["backups"].play(seed).applied > 30
