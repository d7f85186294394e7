"""A leader that does not know it was deposed can acknowledge nothing that its successor lacks."""

from __future__ import annotations

import trio

from onyxq.client.claims import Claim
from onyxq.errors import OnyxqError
from simulation.clients import RecordingClient
from simulation.world import Options, SimulatedNode, World, simulate

OPTIONS = Options(partitions=1, clock_offset_ms=0, absent_after_ms=600_000)


def leader_of(world: World) -> SimulatedNode:
    """The node that leads the only partition, as the log says."""
    leader = world.audit.replica.partitions[0].leader
    return next(node for node in world.nodes if node.peer_id == leader)


async def deposed(world: World, *, isolated: bool) -> tuple[SimulatedNode, SimulatedNode]:
    """Cut the leader off the log (and the others); it and its successor, once that one serves."""
    old = leader_of(world)
    if isolated:
        world.isolate(old)
    world.disconnect_log(old)
    peer = old.peer_id
    part = world.audit.replica.partitions[0]
    await world.until(
        lambda: (part := world.audit.replica.partitions[0]).ready and part.leader not in ("", peer),
        f"a successor of {part.leader}",
        within_s=20,
    )
    return old, leader_of(world)


async def finish_everything(client: RecordingClient, claims: list[Claim], done: list[bytes]) -> None:
    """Try to complete every claim at the nodes that the client knows; whatever is acknowledged counts."""
    for claim in claims:
        try:
            await client.complete(claim, b"done", timeout_ms=1_500)
        except OnyxqError:
            continue
        done.append(claim.id)


async def take_the_rest(client: RecordingClient, count: int) -> None:
    """Claim what can be had, as long as there is something."""
    while claims := await client.claim("q", maximum=count, wait_ms=10_000, lease_ms=60_000):
        for claim in claims:
            await client.complete(claim, b"again")


async def scene(world: World, *, isolated: bool, restarted_follower: bool = False) -> None:
    """Claims of before lapse; the deposed leader is asked to complete them while its successor grants them."""
    async with world.client() as client:
        await client.enqueue("q", [b"%d" % number for number in range(12)])
        claims = list(await client.claim("q", maximum=12, lease_ms=2_000))
        assert len(claims) == 12
        old, new = await deposed(world, isolated=isolated)
        # Old leader and follower are two of three: a majority without the successor.
        world.network.part([old.name], [new.name])
        if restarted_follower:
            (follower,) = [node for node in world.nodes if node not in (old, new)]
            await world.restart_node(follower)
            await trio.sleep(0.2)
        done: list[bytes] = []
        async with world.client(nodes=[old]) as misled, world.client(nodes=[new]) as served:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(finish_everything, misled, claims, done)
                await take_the_rest(served, 12)
        world.network.heal()
        world.reconnect_log(old)
        await world.settle()


def test_cut_off_from_everything_but_clients() -> None:
    """It has no majority, so nothing it says yes to is lost."""

    async def workload(world: World) -> None:
        await scene(world, isolated=True)

    for seed in range(3):
        simulate(workload, seed=seed, options=OPTIONS)


def test_cut_off_from_the_log_only() -> None:
    """Its cohort has promised another epoch and refuses its writes."""

    async def workload(world: World) -> None:
        await scene(world, isolated=False)

    for seed in range(3):
        simulate(workload, seed=seed, options=OPTIONS)


def test_cut_off_from_the_log_while_a_follower_restarts() -> None:
    """A promise of an epoch outlives the process that gave it."""

    async def workload(world: World) -> None:
        await scene(world, isolated=False, restarted_follower=True)

    for seed in range(3):
        simulate(workload, seed=seed, options=OPTIONS)
