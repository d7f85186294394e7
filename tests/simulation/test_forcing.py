"""Partitions that lost the majority of their nodes continue only if an operator forces them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from log_entries import replace_node
from onyxq.core.ids import partition_of
from onyxq.errors import Conflict, NotFound, OnyxqError
from simulation.world.clients import RecordingClient
from simulation.world.world import Options, SimulatedNode, World, simulate

THREE = Options(nodes=3, partitions=4, clock_offset_ms=0, absent_after_ms=600_000)
PAIRS = Options(nodes=4, partitions=1, replicas=2, clock_offset_ms=0, absent_after_ms=600_000)


async def force(node: SimulatedNode, partition: int) -> dict[str, Any]:
    """Force a partition at a node, as an operator does."""
    assert node.running is not None and node.running.service is not None
    return dict(await node.running.service.call("partition.force", {"partition": partition, "by": "test"}))


async def everywhere(client: RecordingClient, count: int = 40) -> None:
    """Enqueue tasks in every partition."""
    for number in range(count):
        await client.enqueue("q", [b"%d" % number])


async def alone(world: World) -> SimulatedNode:
    """Kill all nodes except one; return it once the ring shows that."""
    left, *others = world.nodes
    for other in others:
        await world.crash_node(other)
    await world.until(lambda: list(world.audit.replica.ring.members) == [left.peer_id], "a ring of one")
    return left


def test_a_forced_partition_serves_what_the_node_left_has() -> None:
    """All nodes except one die, and each partition is forced; nothing is lost, because all rows had arrived."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await everywhere(client)
            await trio.sleep(2)
            left = await alone(world)
            with pytest.raises(OnyxqError):
                await client.enqueue("q", [b"refused"], timeout_ms=2_000)
            for number in range(4):
                answer = await force(left, number)
                assert answer["members"] == [left.node_id] and len(answer["given_up"]) == 2
            await client.enqueue("q", [b"taken"])
            got = 0
            while got < 41:
                for claim in await client.claim("q", maximum=50, wait_ms=10_000):
                    await client.complete(claim)
                    got += 1
            for node in world.nodes[1:]:
                world.start_node(node)
            await world.settle()

    simulate(workload, seed=1, options=THREE)


def test_what_comes_back_with_the_given_up_nodes_is_taken_in() -> None:
    """Tasks that the remaining node never had are sent by the others when they return with their disks."""

    async def workload(world: World) -> None:
        left = world.nodes[0]
        async with world.client() as client:
            await world.crash_node(left)
            await world.until(lambda: left.node_id == "" and len(world.audit.replica.ring.members) == 2, "two left")
            # They are on the two others only. Checkers do not know them, because forcing gives up acknowledged
            # tasks.
            ids = [await client.client.enqueue("q", b"%d" % number) for number in range(20)]
            assert {partition_of(task_id) for task_id in ids} == {0, 1, 2, 3}
            for node in world.nodes[1:]:
                await world.crash_node(node)
            world.start_node(left)
            await world.until(
                lambda: bool(left.peer_id) and list(world.audit.replica.ring.members) == [left.peer_id], "a ring of one"
            )
            for number in range(4):
                await force(left, number)
            await world.until(
                lambda: all(p.ready for p in world.audit.replica.partitions.values()), "ready", within_s=20
            )
            assert (await client.client.count("q"))["q"]["total"] == 0
            for node in world.nodes[1:]:
                world.start_node(node)
            await world.settle()
            with trio.fail_after(60):
                while (await client.client.count("q"))["q"]["total"] < 20:
                    await trio.sleep(0.5)

    simulate(workload, seed=2, options=THREE)


def test_a_node_without_data_does_not_serve_while_the_last_complete_copy_is_away() -> None:
    """Of two copies an operator gives up one. The other stops before it is copied; when it returns, it has all."""

    async def workload(world: World) -> None:
        members = world.audit.replica.partitions[0].members
        complete, lost = [node for node in world.nodes if node.node_id in members]
        other = next(node for node in world.nodes if node not in (complete, lost))

        def in_ring(count: int) -> bool:
            return len(world.audit.replica.ring.members) == count

        async with world.client() as client:
            await everywhere(client, 20)
            for node in (complete, lost):
                await world.crash_node(node)
            await world.until(lambda: in_ring(2), "two left")
            assert other.inner is not None
            await other.inner.verdicts([replace_node.Args(node) for node in members])
            world.start_node(complete)
            world.isolate(complete)  # nodes without data get none
            await world.until(lambda: in_ring(3) and bool(complete.peer_id), "it is back")
            assert (await force(complete, 0))["members"] == [complete.node_id]
            await world.crash_node(complete)
            await world.until(lambda: in_ring(2), "it is away again")
            for _ in range(40):
                assert not world.audit.replica.partitions[0].ready
                await trio.sleep(0.5)
            world.network.heal()
            for node in (complete, lost):
                world.start_node(node)
            await world.settle()
            got = 0
            while got < 20:
                for claim in await client.claim("q", maximum=20, wait_ms=10_000):
                    await client.complete(claim)
                    got += 1

    simulate(workload, seed=4, options=PAIRS)


def test_while_a_majority_lives_nothing_is_forced() -> None:
    """The answer is a conflict that says why; a partition that does not exist is not found."""

    async def workload(world: World) -> None:
        with pytest.raises(Conflict, match="a majority lives"):
            await force(world.nodes[0], 1)
        with pytest.raises(NotFound, match="no partition 9"):
            await force(world.nodes[0], 9)

    simulate(workload, seed=3, options=THREE)
