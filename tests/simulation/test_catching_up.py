"""A node that is behind with the log says so, and leads nothing before it has caught up."""

from __future__ import annotations

import trio

from onyxq.node.log_check import LOOK_EVERY_S
from onyxq.node.membership import CAUGHT_UP_S
from simulation.world.clients import tried
from simulation.world.world import Options, World, simulate

RECORDS_PER_S = 25
READ_PACE_S = 0.03
"""A little faster than others write."""
AWAY_S = 6.0


async def _write(world: World) -> None:
    async with world.client(nodes=world.nodes[:2]) as client, trio.open_nursery() as nursery:
        while True:
            nursery.start_soon(tried, client.claim("empty", lease_ms=30_000))
            for node in world.nodes[:2]:
                outbox = node.inner.outbox if node.inner is not None else None
                if outbox is not None:
                    outbox.submit_empty()
            await trio.sleep(2 / RECORDS_PER_S)


def test_a_node_that_reads_slowly_joins_once_it_has_caught_up() -> None:
    """The log grows while it reads what it missed, and while it reads what came meanwhile."""
    behind_s: list[float] = []

    async def workload(world: World) -> None:
        node = world.nodes[2]
        await world.crash_node(node)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write, world)
            await trio.sleep(AWAY_S)
            node.log.read_pace_s = READ_PACE_S
            world.start_node(node)
            ring = world.audit.replica.ring
            while not node.peer_id or node.peer_id not in ring.members:
                await world.backend.wait_grown()
                world.audit.catch_up()
                ring = world.audit.replica.ring
            replica = node.replica
            assert replica is not None
            unread = [at_s for position, at_s in world.backend.landed_s.items() if position > replica.position]
            behind_s.append(trio.current_time() - min(unread))
            nursery.cancel_scope.cancel()

    simulate(workload, seed=1, options=Options(partitions=4))
    assert behind_s[0] < CAUGHT_UP_S


def test_a_node_that_reads_slowly_says_how_far_it_is_behind() -> None:
    """Operators watch this number; it is 0 again once the node keeps up."""
    lags: list[int] = []

    async def workload(world: World) -> None:
        session = world.nodes[2].log.session_now
        assert session is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write, world)
            session.read_pace_s = 4 * READ_PACE_S
            await trio.sleep(AWAY_S)
            lags.append(await _lag_of(world))
            session.read_pace_s = 0.0
            await trio.sleep(2 * LOOK_EVERY_S)
            lags.append(await _lag_of(world))
            nursery.cancel_scope.cancel()

    simulate(workload, seed=1, options=Options(partitions=4))
    assert lags[0] > RECORDS_PER_S and lags[1] <= 1


async def _lag_of(world: World) -> int:
    async with world.client(nodes=world.nodes[2:]) as client:
        health = await client.client.call("health", {})
    lag: int = health["log_lag"]
    return lag
