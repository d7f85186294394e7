"""Parts of transactions that are kept for long are counted; those on their way are not."""

from __future__ import annotations

import trio

from onyxq.core.facts import pack_task
from onyxq.core.ids import make_id
from onyxq.leader.transaction_parts import SWEEP_EVERY_S, PartRequest
from simulation.scenes.base import ONE, leader_of
from simulation.world.clients import RecordingClient
from simulation.world.world import World
from tests.simulation.simulated import simulated

PAUSE_S = 0.5
SWEEPS = 3
SHORT_MS, LONG_MS = 1_500, 20_000
"""Time until a part that is never committed is given up, in ms of log time."""


async def prepare(world: World, name: str, ahead_ms: int) -> None:
    """Prepare a part of a transaction whose coordinator dies before the commit."""
    node = leader_of(world).inner
    assert node is not None
    item = ["T", make_id(node.wall_ms(), 0, 0xBEEF, 0), pack_task({"queue": "out"}, [name.encode()]), None]
    part = PartRequest(name, node.replica.log_time_ms + ahead_ms, 0, [item], [])
    (answer,) = await node.operations.transaction_parts.prepare([part])
    assert isinstance(answer, list), answer


def kept(world: World) -> float:
    """Return what the metric shows, over all peers."""
    nodes = [node.inner for node in world.nodes if node.inner is not None]
    return sum(node.metrics.prepared_transactions.value() or 0 for node in nodes)


def seen(world: World) -> bool:
    """Return whether a peer found a part at its last look."""
    return any(node.inner.operations.transaction_parts.wants_time for node in world.nodes if node.inner is not None)


@simulated(seed=1, options=ONE)
async def test_transactions_on_their_way_are_not_counted_and_one_that_stays_is(
    world: World, client: RecordingClient
) -> None:
    """Else the alert for parts that nothing settles would fire in a cluster that commits all the time."""
    await client.enqueue("q", [b"x"])
    (claim,) = await client.claim("q", lease_ms=600_000, wait_ms=10_000)  # so that log time moves
    found = False
    for number in range(int(SWEEPS * SWEEP_EVERY_S / PAUSE_S) + 1):
        await prepare(world, f"short {number}", SHORT_MS)
        await trio.sleep(PAUSE_S)
        found = found or seen(world)
        assert kept(world) == 0
    assert found, "no look at the parts found one"
    await prepare(world, "left behind", LONG_MS)
    await world.until(lambda: kept(world) > 0, "the part is counted", within_s=LONG_MS / 1_000)
    await world.until(lambda: kept(world) == 0, "the part is given up", within_s=5 * LONG_MS / 1_000)
    await client.complete(claim)
