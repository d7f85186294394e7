"""A read is never older than what its reader has already seen."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from onyxq.core.ids import partition_of
from onyxq.errors import OnyxqError, Unavailable
from simulation.world.clients import RecordingClient
from simulation.world.world import Options, SimulatedNode, World
from tests.simulation.simulated import simulated

ONE = Options(partitions=1, clock_offset_ms=0, absent_after_ms=600_000)


def leader(world: World) -> SimulatedNode:
    """Return the node that leads the only partition, by the log."""
    peer = world.audit.replica.partitions[0].leader
    return next(node for node in world.nodes if node.peer_id == peer)


async def get(node: SimulatedNode, **args: Any) -> dict[str, Any]:
    """Read at one node."""
    assert node.running is not None and node.running.service is not None
    return dict(await node.running.service.call("get", args))


async def work(client: RecordingClient, updates: int) -> tuple[bytes, int]:
    """Enqueue and claim a task, and send some updates; return its id and token."""
    await client.enqueue("q", [b"x"])
    (claim,) = await client.claim("q", maximum=1, lease_ms=60_000, wait_ms=20_000)
    for number in range(updates):
        await client.update(claim, b"%d" % number)
    assert partition_of(claim.id) == 0
    return claim.id, claim.token


@simulated(seed=1, options=ONE)
async def test_a_deposed_leader_does_not_answer_with_less_than_was_seen(world: World, client: RecordingClient) -> None:
    """It has no contact and takes itself for the leader: it reports that it cannot answer."""
    await client.enqueue("q", [b"x"])
    old = leader(world)
    peer = old.peer_id
    world.isolate(old)
    world.disconnect_log(old)
    await world.until(
        lambda: (p := world.audit.replica.partitions[0]).ready and p.leader not in ("", peer), "a successor"
    )
    async with world.client(nodes=[node for node in world.nodes if node is not old]) as served:
        (claim,) = await served.claim("q", maximum=1, lease_ms=60_000, wait_ms=20_000)
        await served.update(claim, b"0")
        assert (await get(leader(world), id=claim.id, seen_token=claim.token, seen_seq=0))["updates"] == 1
    assert (await get(old, id=claim.id))["claims"] == []  # its own state
    with pytest.raises(Unavailable):
        await get(old, id=claim.id, seen_token=claim.token)
    world.network.heal()
    world.reconnect_log(old)
    await world.settle()
    found = await get(old, id=claim.id, seen_token=claim.token, seen_seq=0)
    assert found["updates"] == 1


@simulated(seed=2, options=ONE)
async def test_a_node_behind_in_the_log_asks_the_others(world: World, client: RecordingClient) -> None:
    """Any node returns what the reader saw elsewhere."""
    task_id, token = await work(client, 3)
    for node in world.nodes:
        found = await get(node, id=task_id, seen_token=token, seen_seq=2)
        assert [claim["token"] for claim in found["claims"]] == [token] and found["updates"] == 3


@simulated(seed=3, options=ONE)
async def test_what_nobody_has_is_waited_for_and_then_refused(world: World, client: RecordingClient) -> None:
    """These are a token from the future and an update that was never sent."""
    task_id, token = await work(client, 1)
    for seen in ({"seen_token": token + 1_000}, {"seen_token": token, "seen_seq": 1}, {"seen_seq": 1}):
        began = trio.current_time()
        with pytest.raises(OnyxqError, match=f"older than {sorted(seen)[0] if len(seen) == 2 else next(iter(seen))}"):
            await get(world.nodes[0], id=task_id, **seen)
        assert trio.current_time() - began >= 2.0


@simulated(seed=4, options=ONE)
async def test_updates_seen_under_an_earlier_claim_are_counted_for_that_claim(
    world: World, client: RecordingClient
) -> None:
    """A later claim without updates does not count as an older state."""
    await client.enqueue("q", [b"x"], backoff_ms=0)
    (first,) = await client.claim("q", maximum=1, lease_ms=60_000, wait_ms=20_000)
    await client.update(first, b"0")
    await client.update(first, b"1")
    await client.fail(first, "again")
    (second,) = await client.claim("q", maximum=1, lease_ms=60_000, wait_ms=20_000)
    assert second.id == first.id
    await get(world.nodes[1], id=first.id, seen_token=first.token, seen_seq=1)
    await get(world.nodes[1], id=first.id, seen_token=second.token)
    with pytest.raises(Unavailable):
        await get(world.nodes[1], id=first.id, seen_token=second.token, seen_seq=0)
