"""Crash points: a process dies some milliseconds into a transaction, a few more each time.

The world's checkers verify that every transaction in the log is complete, others have no effect,
and clients got no other answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio

from onyxq.client.claims import Claim
from onyxq.core.ids import partition_of
from onyxq.errors import OnyxqError
from simulation.scenes.transactions import TRANSACTION_SCENES
from simulation.workloads import WORKLOADS
from simulation.world.clients import RecordingClient
from simulation.world.moves import CLEAN_S
from simulation.world.world import Options, SimulatedNode, World, simulate

SLOW = Options(
    nodes=4,
    partitions=6,
    clock_offset_ms=0,
    absent_after_ms=600_000,
    append_delay_ms=(6, 8),
    disk_delay_ms=(3, 5),
    network_delay_ms=2,
)
"""Each step takes a few milliseconds: a transaction takes about 50."""
POINTS_MS = range(0, 66, 5)

Choose = Callable[[World, Sequence[Claim], SimulatedNode], list[SimulatedNode]]


def leader(world: World, partition: int) -> SimulatedNode:
    """Return the node that leads a partition."""
    peer = world.audit.replica.partitions[partition].leader
    return next(node for node in world.nodes if node.peer_id == peer)


def coordinator(world: World, claims: Sequence[Claim], node: SimulatedNode) -> list[SimulatedNode]:
    """Return the asked node."""
    return [node]


def first_leader(world: World, claims: Sequence[Claim], node: SimulatedNode) -> list[SimulatedNode]:
    """Return the leader of a part."""
    return [leader(world, partition_of(claims[0].id))]


def all_leaders(world: World, claims: Sequence[Claim], node: SimulatedNode) -> list[SimulatedNode]:
    """Return all leaders of parts."""
    return list({found.name: found for claim in claims for found in [leader(world, partition_of(claim.id))]}.values())


def everybody(world: World, claims: Sequence[Claim], node: SimulatedNode) -> list[SimulatedNode]:
    """Return all nodes, as in a power cut."""
    return list(world.nodes)


async def claimed(client: RecordingClient, count: int) -> list[Claim]:
    """Return claims that outlast the test, of all partitions in turn."""
    for number in range(count):
        await client.enqueue("in", [b"input %d" % number], retries=None, backoff_ms=0)
    claims: list[Claim] = []
    while len(claims) < count:
        claims += await client.claim("in", maximum=count, lease_ms=3_600_000, wait_ms=5_000)
    return sorted(claims, key=lambda claim: claim.data)


async def try_to_move(client: RecordingClient, claims: Sequence[Claim], said: bytes) -> None:
    """Run one transaction over two inputs and three outputs."""
    try:
        await client.transact(
            complete=[(claim, said) for claim in claims],
            enqueue=[("out", said + b" %d" % number) for number in range(3)],
            timeout_ms=9_000,
        )
    except OnyxqError:
        pass  # it may have happened or not: the checkers know


@pytest.mark.long
@pytest.mark.parametrize("choose", [coordinator, first_leader, all_leaders, everybody])
def test_a_crash_at_any_point_leaves_all_or_nothing(choose: Choose) -> None:
    """This holds for any node and time; afterwards no pending rows are left."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            claims = await claimed(client, 2 * len(POINTS_MS))
            for number, point_ms in enumerate(POINTS_MS):
                mine = claims[2 * number : 2 * number + 2]
                asked = world.nodes[number % len(world.nodes)]
                async with world.client(nodes=[asked]) as mover, trio.open_nursery() as nursery:
                    await mover.client.cluster()
                    nursery.start_soon(try_to_move, mover, mine, b"moved at %d" % point_ms)
                    await trio.sleep(point_ms / 1000)
                    victims = choose(world, mine, asked)
                    for node in victims:
                        await world.crash_node(node)
                    await trio.sleep(0.0 if number % 2 else 7.5)
                    for node in victims:
                        world.start_node(node)
                await world.settle()
            await world.until(lambda: not _pending(world), "nothing pending is left", within_s=CLEAN_S)

    world = simulate(workload, seed=11, options=SLOW)
    happened = len(world.audit.all_or_nothing.committed)
    assert happened >= 3, "no point was behind the commit"
    assert len(world.history.transactions) == len(POINTS_MS)


def _pending(world: World) -> bool:
    nodes = [node.running.node for node in world.nodes if node.running is not None and node.running.node is not None]
    return any(node.store.pending_transactions(number) for node in nodes for number in range(world.options.partitions))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(TRANSACTION_SCENES))
def test_scenes_break_nothing(name: str) -> None:
    """Two seeds of each are played; ``onyxq simulate --workload`` plays more."""
    for seed in (1, 2):
        WORKLOADS[name].play(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", (3, 5, 9))
def test_what_came_back_beside_a_transaction_is_had_again(seed: int) -> None:
    """Seed 33043 of the standard workload also had a claim that expired and a task that was not granted again."""
    WORKLOADS["given_back_meanwhile"].play(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_moves_count_once_whatever_happens(seed: int) -> None:
    """There are many faults during maps and reduces by transactions."""
    WORKLOADS["transactions"].play(seed)
