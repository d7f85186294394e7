"""Writes whose client no longer waits: leaders decide them, and answer repeated requests about them.

A client's time is up, or its connection breaks, while its request is being written to the nodes'
disks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from attrs import evolve

from onyxq.core.ids import partition_of
from onyxq.errors import AlreadyFinished
from simulation.scenes.base import ONE, leader_of
from simulation.workloads import WORKLOADS
from simulation.world.clients import RecordingClient
from simulation.world.world import World
from tests.simulation.scheduled import Tasks
from tests.simulation.simulated import simulated


async def withdrawn(world: World, what: Callable[[], Awaitable[Any]]) -> None:
    """Wait for ``what`` less long than the leader's disk takes."""
    disk = leader_of(world).disk
    usual, disk.delay_ms = disk.delay_ms, lambda: 1_500
    with trio.move_on_after(0.5) as scope:
        await what()
    disk.delay_ms = usual
    assert scope.cancelled_caught


@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("later_s", [0, 10])
@simulated(seed=1, options=ONE)
async def test_a_cancel(world: World, claimed: bool, later_s: float) -> None:
    """A repeat succeeds once it is done; no worker can get the task."""
    async with world.client() as client, world.client() as other:
        (task_id,) = await client.enqueue("q", [b"x"])
        claims = await client.claim("q", wait_ms=20_000, lease_ms=60_000) if claimed else []
        await withdrawn(world, lambda: client.cancel(task_id, claimed=claimed))
        await trio.sleep(later_s)
        await other.cancel(task_id, claimed=claimed)
        assert (await client.client.get(task_id)).state == "cancelled"
        for claim in claims:
            with pytest.raises(AlreadyFinished):
                await client.complete(claim)
        assert len(await other.claim("q", wait_ms=500)) == 0


@simulated(seed=1, options=evolve(ONE, nodes=1, partitions=2))
async def test_completions_in_several_partitions(world: World) -> None:
    """The next request about one of these tasks is answered."""
    async with world.client() as client, world.client() as other:
        tasks = Tasks(world, client)
        ids = [await tasks.put(b"%d" % number) for number in range(2)]
        assert {partition_of(one) for one in ids} == {0, 1}
        claims = [await tasks.take() for _ in ids]
        items = [[claim.id, 1, claim.token, None, []] for claim in claims if claim is not None]
        await withdrawn(world, lambda: client.client.call("complete", {"items": items}))
        for task_id in ids:
            with pytest.raises(AlreadyFinished):
                await other.cancel(task_id, claimed=True)


@simulated(seed=1, options=ONE)
async def test_a_completion_that_no_majority_has_yet(world: World, client: RecordingClient, tasks: Tasks) -> None:
    """The next task of its key waits for a majority: another leader might run the first one again."""
    await tasks.put(b"first", ordering_key="k")
    await tasks.put(b"second", ordering_key="k")
    claim = await tasks.take()
    assert claim is not None and claim.data == b"first"
    leader = leader_of(world)
    others = [node.name for node in world.nodes if node is not leader]
    async with world.client(nodes=[leader]) as near:
        await near.client.count()
        world.network.part([leader.name], others)
        with trio.move_on_after(0.5) as scope:
            await near.complete(claim)
        assert scope.cancelled_caught
        assert len(await near.claim("q", wait_ms=2_000)) == 0
    world.network.heal()
    claim = await tasks.take()
    assert claim is not None and claim.data == b"second"


@simulated(seed=1, options=ONE)
async def test_an_enqueue_under_a_unique_key(world: World) -> None:
    """The next enqueue of the key finds it; there is one current task."""
    async with world.client() as client, world.client() as other:
        first = Tasks(world, client).run(b"x", unique_key="u")
        await withdrawn(world, lambda: Tasks(world, client).send([first]))
        stands = await Tasks(world, other).put(b"y", unique_key="u")
        assert stands == first[0]
        assert (await client.client.count("q"))["q"]["total"] == 1


@simulated(seed=1, options=ONE)
async def test_an_enqueue_under_a_unique_key_that_other_nodes_do_not_answer(world: World) -> None:
    """It has failed when the leader's own disk has answered too: until then it may seem absent."""
    async with world.client() as client, world.client() as other:
        stood: list[bytes] = []
        second, first = (
            Tasks(world, other).run(b"y", unique_key="u"),
            Tasks(world, client).run(b"x", unique_key="u"),
        )

        async def put(one: RecordingClient, run: list[Any]) -> None:
            ((_, task_id, _),) = await Tasks(world, one).send([run])
            stood.append(task_id)

        leader = leader_of(world)
        others = [node for node in world.nodes if node is not leader]
        for node in world.nodes:
            node.disk.delay_ms = lambda: 1_500
        async with trio.open_nursery() as nursery:
            nursery.start_soon(put, client, first)
            await trio.sleep(0.5)
            for node in others:
                world.network.cut(leader.name, node.name)
            nursery.start_soon(put, other, second)
            await trio.sleep(0.5)
            for node in world.nodes:
                node.disk.delay_ms = lambda: 0
        assert stood == [first[0]] * 2
        assert (await client.client.count("q"))["q"]["total"] == 1


@simulated(seed=1, options=ONE)
async def test_an_update(world: World, client: RecordingClient) -> None:
    """A repeat gets the answer that it is stored, not that another one comes next."""
    await client.enqueue("q", [b"x"])
    (claim,) = await client.claim("q", wait_ms=20_000, lease_ms=60_000)
    item = [claim.id, claim.token, 0, b"half way"]
    await withdrawn(world, lambda: client.client.call("update", {"items": [item]}))
    assert await client.client.call("update", {"items": [item]}) == {"results": [None]}
    assert len(await client.client.task_log(claim.id)) == 1


@simulated(seed=1, options=ONE)
async def test_an_enqueue_under_an_ordering_key(world: World, tasks: Tasks) -> None:
    """A repeat is the same task, with the same place in its key."""
    first = tasks.run(b"first", ordering_key="k")
    await withdrawn(world, lambda: tasks.send([first]))
    await tasks.put(b"second", ordering_key="k")
    await tasks.send([first])
    for data in (b"first", b"second"):
        claim = await tasks.take()
        assert claim is not None and claim.data == data
        await tasks.done(claim)


@pytest.mark.long
@pytest.mark.parametrize("seed", (1, 2))
def test_all_of_it_again_and_again(seed: int) -> None:
    """This is repeated while connections break and disks are slow."""
    WORKLOADS["impatient"].play(seed)
