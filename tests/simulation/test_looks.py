"""Counts and lists ask the leaders of all partitions: each partition is in the answer once, or there is no answer."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import trio

from log_entries import yield_partition
from onyxq.errors import Unavailable
from onyxq.node.all_leaders import AllLeaders
from onyxq.node.node import Node
from onyxq.operations import task_lists
from onyxq.store.store import Store
from simulation.scenes.base import leader_of
from simulation.scenes.looks import LOOK_SCENES
from simulation.world.world import Options, SimulatedNode, World, simulate

EIGHT = Options(partitions=8, clock_offset_ms=0, absent_after_ms=600_000)
TASKS = 40


def inner(node: SimulatedNode) -> Node:
    """Return the node on a machine."""
    assert node.running is not None and node.running.node is not None
    return node.running.node


def epochs(world: World, numbers: Sequence[int]) -> dict[int, int]:
    """Return the epochs of some partitions in the log."""
    return {number: world.audit.replica.partitions[number].epoch for number in numbers}


async def leading(world: World) -> tuple[SimulatedNode, AllLeaders]:
    """Return the leader of partition 0, once it has read about all partitions that it leads."""
    node = leader_of(world)
    leaders = AllLeaders(inner(node))
    places = sorted(world.audit.replica.partitions.items())
    led = [number for number, placed in places if placed.leader == node.peer_id]
    await world.until(lambda: leaders.led() == led, "it has read so")
    return node, leaders


async def fill(world: World) -> None:
    """Enqueue to all partitions."""
    async with world.client() as client:
        for number in range(TASKS):
            await client.enqueue("q", [b"%d" % number])


async def total(node: SimulatedNode) -> int:
    """Return a node's count; raises `Unavailable`."""
    assert node.running is not None and node.running.service is not None
    return int((await node.running.service.call("count", {"queue": "q"}))["counts"]["q"]["total"])


async def give_up(world: World, node: SimulatedNode, number: int) -> None:
    """Let a leader give a partition up; return when another one serves it."""
    before = world.audit.replica.partitions[number]
    inner(node).outbox_now().submit([yield_partition.Args(number, before.epoch)])
    await world.until(
        lambda: (now := world.audit.replica.partitions[number]).ready and now.epoch > before.epoch, "it is given up"
    )


def test_whoever_has_not_read_of_a_move_says_that_it_cannot_tell() -> None:
    """It does not answer with its old partitions, nor is it believed; nodes that have read the move count all."""

    async def workload(world: World) -> None:
        await fill(world)
        late = leader_of(world)
        session = late.log.session_now
        assert session is not None
        session.paused = True
        await give_up(world, late, 0)
        with pytest.raises(Unavailable, match=r"partitions \[0\b"):
            await total(late)
        assert [await total(node) for node in world.nodes if node is not late] == [TASKS, TASKS]
        session.paused = False
        world.backend.notify()
        await world.settle()
        assert await total(late) == TASKS

    simulate(workload, seed=1, options=EIGHT)


def test_what_is_lost_during_a_look_is_left_out_of_it() -> None:
    """The request is repeated for the other partitions, and the answer names its partitions."""

    async def workload(world: World) -> None:
        node, leaders = await leading(world)
        led, looks = leaders.led(), list[list[int]]()
        assert 0 in led and len(led) > 1

        async def look(args: dict[str, Any], partitions: Sequence[int]) -> int:
            looks.append(list(partitions))
            if len(looks) == 1:
                await give_up(world, node, 0)
                await world.until(lambda: 0 not in leaders.led(), "the node has read of it")
            return sum(partitions)

        answer = await leaders.serve({"partitions": epochs(world, led)}, look)
        assert looks == [led, led[1:]]
        assert (answer["answer"], answer["partitions"]) == (sum(led[1:]), led[1:])

    simulate(workload, seed=2, options=EIGHT)


def test_a_node_answers_only_for_what_it_leads_under_the_epoch_that_is_named() -> None:
    """It also names the partitions for which it promised a later epoch."""

    async def workload(world: World) -> None:
        _, leaders = await leading(world)

        async def look(args: dict[str, Any], partitions: Sequence[int]) -> list[int]:
            return list(partitions)

        asked = leaders.question("looked", look).serve
        everything = epochs(world, range(8))
        led = leaders.led()
        assert await asked({"partitions": everything}) == {"answer": led, "partitions": led, "past": []}
        later = {number: epoch + 1 for number, epoch in everything.items()}
        assert await asked({"partitions": later}) == {"answer": None, "partitions": [], "past": []}
        earlier = {number: epoch - 1 for number, epoch in everything.items()}
        assert await asked({"partitions": earlier}) == {"answer": None, "partitions": [], "past": list(range(8))}

    simulate(workload, seed=3, options=EIGHT)


def test_without_a_majority_of_a_partition_s_nodes_nobody_can_tell() -> None:
    """A successor may have more tasks by now. The unreachable node names the partitions."""

    async def workload(world: World) -> None:
        await fill(world)
        alone = world.nodes[0]
        world.isolate(alone)
        with pytest.raises(Unavailable, match=r"partitions \[0, 1, 2, 3, 4\] \(8 in all\)"):
            await total(alone)
        world.network.heal()
        await world.settle()
        assert await total(alone) == TASKS

    simulate(workload, seed=4, options=EIGHT)


def test_what_was_answered_before_disks_had_it_is_not_left_out() -> None:
    """While disks accept nothing, the answer is an error."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.client.set_queue("q", durability="opportunistic")
            await world.until(
                lambda: all("q" in replica.queues for _, replica in world.replicas()), "all nodes have read of it"
            )
            await fill(world)
            for node in world.nodes:
                node.disk.failing = True
            for number in range(5):
                await client.client.enqueue("q", b"more %d" % number)
            with pytest.raises(Unavailable, match="disk"):
                await total(world.nodes[0])
            for node in world.nodes:
                node.disk.failing = False
            await world.settle()
            assert [await total(node) for node in world.nodes] == [TASKS + 5] * 3

    simulate(workload, seed=7, options=EIGHT)


def test_a_node_that_does_not_know_the_cluster_yet_counts_nothing() -> None:
    """No answer is different from zero."""

    async def workload(world: World) -> None:
        await fill(world)
        node = world.add_node()
        node.log.reachable = False
        world.start_node(node)
        await world.until(lambda: node.running is not None and node.running.service is not None, "it serves")
        with pytest.raises(Unavailable, match="not known here yet"):
            await total(node)
        node.log.reachable = True
        await world.settle()
        assert await total(node) == TASKS

    simulate(workload, seed=5, options=EIGHT)


@pytest.mark.long
@pytest.mark.parametrize(("name", "seed"), [("looked_at", 2), ("behind_the_times", 1), ("behind_the_times", 2)])
def test_the_scenes_break_nothing(name: str, seed: int) -> None:
    """They found partitions that moved and were missing or counted twice."""
    scene = LOOK_SCENES[name]
    world = simulate(scene.script, seed=seed, options=scene.options(Random(f"{name} {seed}")))
    assert world.history.enqueued


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_search_for_a_text_reads_no_more_bytes_at_a_time_than_it_may(newest_first: bool) -> None:
    """A page may have found nothing yet; the next ones find the task, however much lies before it."""
    size, reads, read = 100_000, list[int](), 0
    look, may_say = task_lists.look, Store.may_say

    async def measured(*args: Any, **more: Any) -> Any:
        before = read
        found = await look(*args, **more)
        reads.append(read - before)
        return found

    def counted(store: Store, stretch: bytes, texts: Sequence[bytes]) -> tuple[bool, int]:
        nonlocal read
        found = may_say(store, stretch, texts)
        read += found[1]
        return found

    async def workload(world: World) -> None:
        async with world.client() as client:
            sought = 0 if newest_first else TASKS - 1
            for number in range(TASKS):
                await client.enqueue("q", [b"sought" if number == sought else bytes(size)])
                await trio.sleep(0.01)
            after, found = None, list[bytes]()
            while True:
                page = await client.client.list("q", where="sought", newest_first=newest_first, after=after)
                found += [one.data for one in page.tasks]
                after = page.after
                if after is None:
                    break
            assert found == [b"sought"]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(task_lists, "LOOKS_MAX", 500)
        patched.setattr(task_lists, "BYTES_PER_LOOK", 1_000)
        patched.setattr(task_lists, "look", measured)
        patched.setattr(Store, "may_say", counted)
        simulate(workload, seed=6, options=Options(nodes=1, partitions=2))
    assert read >= (TASKS - 1) * size
    assert max(reads) <= 8 * size
