"""A leader that does not know it was deposed can acknowledge nothing that its successor lacks."""

from __future__ import annotations

import pytest
import trio

from log_entries import grant_claims, yield_partition
from onyxq.client.claims import Claim
from onyxq.errors import OnyxqError
from onyxq.ids import Run
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


async def scene(world: World, *, isolated: bool) -> None:
    """Claims of before lapse; the deposed leader is asked to complete them while its successor grants them."""
    async with world.client() as client:
        await client.enqueue("q", [b"%d" % number for number in range(12)])
        claims = list(await client.claim("q", maximum=12, lease_ms=2_000))
        assert len(claims) == 12
        old, new = await deposed(world, isolated=isolated)
        # Old leader and follower are two of three: a majority without the successor.
        world.network.part([old.name], [new.name])
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


@pytest.mark.parametrize("seed", range(3))
def test_cut_off_from_the_log_while_a_follower_restarts(seed: int) -> None:
    """A promise of an epoch outlives the process that gave it: the old leader finds no majority with it."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"%d" % number for number in range(6)], backoff_ms=0)
            claims = list(await client.claim("q", maximum=6, lease_ms=2_000))
            # It must not be asked for the promise itself.
            old, new = await deposed(world, isolated=True)
            (follower,) = [node for node in world.nodes if node not in (old, new)]
            async with world.client(nodes=[old]) as misled, world.client(nodes=[new]) as served:
                newer: list[Claim] = []
                while len(newer) < 6:
                    newer += await served.claim("q", maximum=6, wait_ms=10_000, lease_ms=120_000)
                # Nobody but the old leader reaches the follower when that is back.
                await world.crash_node(follower)
                world.network.heal()
                world.network.part([old.name, follower.name], [new.name])
                world.start_node(follower)
                await world.until(lambda: bool(follower.node_id), "the follower runs")
                for _ in range(10):
                    await finish_everything(misled, claims, done := [])
                    assert not done
                    await trio.sleep(0.5)
                world.network.heal()
                world.reconnect_log(old)
                await world.settle()
                for claim in newer:
                    await served.complete(claim, b"newer")

    simulate(workload, seed=seed, options=OPTIONS)


def test_what_it_granted_before_it_was_deposed_holds_nothing_when_it_leads_again() -> None:
    """A grant is void under any epoch but the one it was made in, also where its writer leads once more."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            (task,) = await client.enqueue("q", [b"x"])
            node = leader_of(world)
            stale = grant_claims.Grant("w", 60_000, (Run(task, 1),))
            epoch = first_epoch = world.audit.replica.partitions[0].epoch
            while epoch == first_epoch or leader_of(world) is not node:
                await give_way(world)
                epoch = world.audit.replica.partitions[0].epoch
            assert node.running is not None and node.running.node is not None
            _, verdicts = await node.running.node.verdicts([grant_claims.Args(0, first_epoch, (stale,))])
            assert verdicts == ["stale epoch"]
            (claim,) = await client.claim("q", wait_ms=5_000)
            await client.complete(claim)

    simulate(workload, seed=1, options=OPTIONS)


async def give_way(world: World) -> None:
    """Have the leader yield; returns once the next one serves."""
    placed = world.audit.replica.partitions[0]
    node = leader_of(world)
    assert node.running is not None and node.running.node is not None
    await node.running.node.verdicts([yield_partition.Args(0, placed.epoch)])
    await world.until(
        lambda: (part := world.audit.replica.partitions[0]).ready and part.epoch > placed.epoch, "another leader"
    )
