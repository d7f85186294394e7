"""Scenes about nodes that lose their stores and come back under their ids (design: simulation)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import trio
from attrs import evolve

from onyxq.core.errors import LogUnavailable
from simulation.checkers import Broken
from simulation.scenes.base import ONE, Cut, Scene, leader_of, misled_follower, payloads, take_the_rest
from simulation.world.clients import RecordingClient
from simulation.world.failing_disks import whole
from simulation.world.world import SimulatedNode, World

EMPTY_S = 20.0
"""How long an emptied node could take part in a takeover that must not succeed, in seconds."""


async def lose_disks(world: World, *nodes: SimulatedNode) -> None:
    """Kill the processes of nodes, and start others that find empty stores; return once these have joined."""
    for node in nodes:
        node.known_id = node.node_id or node.known_id
    had = {node.known_id: world.audit.replica.nodes[node.known_id].store for node in nodes}
    for node in nodes:
        await world.crash_node(node)
        node.disk.damaged = True
    for node in nodes:
        world.start_node(node)
    await world.until(
        lambda: all(world.audit.replica.nodes[node].store != store for node, store in had.items()),
        "the emptied nodes join",
    )


async def never_ready(world: World, epoch: int) -> None:
    """Raise `Broken` if the partition is served under a later epoch within `EMPTY_S`."""
    with trio.move_on_after(EMPTY_S):
        while True:
            placed = world.audit.replica.partitions[0]
            if placed.ready and placed.epoch > epoch:
                raise Broken("lost disks: a partition is served without its only whole copy")
            await trio.sleep(0.1)


async def disks_in_turn(world: World) -> None:
    """Each node loses its disk, one after the other, while tasks come; some lose it again during their refill."""
    async with world.client() as client:
        await client.enqueue("q", payloads(60))
        for node in world.random.sample(world.nodes, len(world.nodes)):
            for _ in range(world.random.choice((1, 1, 2))):
                await lose_disks(world, node)
                await client.enqueue("q", payloads(2))
            await whole(world)
        nodes = world.audit.replica.nodes
        if len(nodes) != len(world.nodes):
            raise Broken(f"lost disks: there are {len(nodes)} nodes")
        await take_the_rest(client, wait_ms=2_000)


async def _only_whole_copy_down(world: World) -> tuple[SimulatedNode, SimulatedNode, int]:
    """Kill the leader, after one of the others missed a task; return it, the other that has it, and the epoch."""
    old = leader_of(world)
    missed, emptied = world.random.sample([node for node in world.nodes if node is not old], 2)
    world.network.part([missed.name], [old.name, emptied.name])
    async with world.client(nodes=[old]) as client:
        await client.enqueue("q", payloads(3))
    await world.until(lambda: bool(emptied.disk.row_keys()), "the other has a copy")
    await world.crash_node(old)
    return old, emptied, world.audit.replica.partitions[0].epoch


async def emptied_and_missed(world: World) -> None:
    """A node that lost its store, and one that missed a task, are up: the partition waits for the third."""
    old, emptied, epoch = await _only_whole_copy_down(world)
    world.network.heal()
    await lose_disks(world, emptied)
    await never_ready(world, epoch)
    world.start_node(old)
    await whole(world)
    async with world.client() as client:
        await take_the_rest(client, wait_ms=2_000)


async def emptied_before_it_joins(world: World) -> None:
    """The same, but the takeover has begun, and the log is slow to take the emptied node in."""
    old, emptied, epoch = await _only_whole_copy_down(world)
    await world.crash_node(emptied)
    emptied.disk.damaged = True
    world.network.heal()
    await world.until(lambda: world.audit.replica.partitions[0].epoch > epoch, "the third node leads")
    world.start_node(emptied)
    await never_ready(world, epoch)
    world.start_node(old)
    await whole(world)
    async with world.client() as client:
        await _take_over_slow_log(client, 3)


async def _take_over_slow_log(client: RecordingClient, count: int) -> None:
    """Claim and complete this many tasks; claim again if a node has waited for the log for too long."""
    while count:
        with suppress(LogUnavailable):
            for claim in await client.claim("q", maximum=count, wait_ms=2_000, lease_ms=60_000):
                await client.complete(claim)
                count -= 1


async def promise_lost(world: World) -> None:
    """A follower that promised a new epoch loses its store, and then only hears the deposed leader."""

    async def restart(follower: SimulatedNode, cut: Cut) -> None:
        cut()
        await lose_disks(world, follower)

    await misled_follower(world, "lost disks", restart)


LOST_DISK_SCENES: Mapping[str, Scene] = {
    one.name: one
    for one in (
        Scene("disks_in_turn", "each node loses its disk while tasks come", disks_in_turn),
        Scene("emptied_and_missed", "an emptied node and one that missed a task are up", emptied_and_missed),
        Scene(
            "emptied_before_it_joins",
            "an emptied node that has not joined is asked",
            emptied_before_it_joins,
            lambda draw: evolve(ONE, append_delay_ms=(1_000, 2_000)),
        ),
        Scene("promise_lost", "a follower loses its promise with its disk", promise_lost),
    )
}
