"""Scenes about copies: made late, given up early, missing where something depends on them (design: simulation)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import trio
from attrs import evolve

from onyxq.core.errors import NotFound
from onyxq.core.facts import pack_task
from onyxq.core.ids import TaskId, make_id, mask_of, stretch_of
from onyxq.core.replica import claim_of
from onyxq.leader.cohort.unflushed_writes import WINDOW_S
from onyxq.node.moved_copies import LOOK_EVERY_S
from simulation.checkers import Broken
from simulation.checkers.enough_copies import DiskReads
from simulation.scenes.base import (
    ONE,
    Scene,
    back,
    by_name,
    cut_off,
    leader_of,
    payloads,
    soon,
    successor,
    take_the_rest,
    try_to_complete,
)
from simulation.world.clients import RecordingClient, tried
from simulation.world.workload import always
from simulation.world.world import SimulatedNode, World

COPIED_S = 1.0
"""An acknowledged task is on a majority; so long after it every live holder has it."""
CAUGHT_UP_S = 1.5
"""From when a node can be reached again until it has what it missed."""
NOTICED_S = 30.0
"""Time within which a leader without contact yields, and another one takes over."""
ON_ITS_WAY_S = 0.07
"""From a node's answer to the client's hearing of it; and the nodes' windows do not begin together."""
LANES = 24
STRICT_LANE_EVERY = 6
"""One of this many lanes writes to the strict queue: the others keep messages under way that are answered early."""
STRICT_TASKS = 20
"""Tasks of the strict queue that are acknowledged before the disks stand still."""
PAUSE_S = 0.004
"""Longest pause of a lane between two tasks, in seconds."""


def holds(node: SimulatedNode, task_id: TaskId) -> bool:
    """Whether a task is on a node's disk."""
    return bool(DiskReads(node.disk.tables).known_bits(stretch_of(task_id)) & mask_of(task_id, 1))


# --- a completion that only one node has ----------------------------------------------------------


async def half_written(world: World) -> None:
    """A leader alone has a completion, and leads again after the claim ended.

    The next task of the key must wait until others have the completion too.
    """
    draw, old = world.random, leader_of(world)
    first, second = [node for node in world.nodes if node is not old]
    async with world.client(nodes=[old]) as client, world.client() as others:
        (task_id,) = await client.enqueue("q", [b"1"], ordering_key="k", retries=None, backoff_ms=0)
        (behind,) = await client.enqueue("q", [b"2"], ordering_key="k", retries=None, backoff_ms=0)
        (claim,) = await client.claim("q", maximum=1, lease_ms=2_500, wait_ms=5_000)
        assert claim.id == task_id
        world.isolate(old)
        await tried(client.complete(claim, b"done", timeout_ms=1_500))
        await world.crash_node(old)
        world.network.heal()
        await world.until(lambda: claim_of(world.audit.replica, task_id) is None, "its claim expires")
        for node in (first, second):
            await world.crash_node(node)
        world.start_node(old)
        await world.until(lambda: bool(old.peer_id) and _leader(world) == old.peer_id, "it leads again")
        first.disk.delay_ms = lambda: draw.randint(300, 1_200)
        world.start_node(first)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_take_one, client)
            await soon(lambda: behind in world.audit.ledger.grants, within_s=20, every_s=0.005)
            before = _leader(world)
            for node in (old, first):
                await world.crash_node(node)
            first.disk.delay_ms = lambda: 1
            world.start_node(first)
            world.start_node(second)
            await world.until(lambda: _leader(world) not in ("", before), "one of the others leads", within_s=60)
            await take_the_rest(others, wait_ms=20_000)
            nursery.cancel_scope.cancel()
        await world.bring_back(old)
        await world.settle()


def _leader(world: World) -> str:
    return world.audit.replica.partitions[0].leader


async def _take_one(client: RecordingClient) -> None:
    while True:
        if await tried(client.claim("q", maximum=1, lease_ms=3_000, wait_ms=5_000, timeout_ms=6_000)) is None:
            await trio.sleep(0.1)


async def crossed(world: World) -> None:
    """A leader that is cut off completes a task, and so does its successor: each has a row that the other lacks."""
    async with world.client() as client:
        await client.enqueue("q", payloads(4), backoff_ms=0)
        claims = list(await client.claim("q", maximum=4, lease_ms=2_000, wait_ms=5_000))
        old = cut_off(world)
        async with world.client(nodes=[old]) as misled, trio.open_nursery() as nursery:
            nursery.start_soon(try_to_complete, misled, claims)
            await successor(world, old)
        async with world.client(nodes=[node for node in world.nodes if node is not old]) as served:
            await take_the_rest(served)
        world.reconnect_log(old)
        await trio.sleep(5)  # it has all that the log says when it is compared with others
        world.network.heal()
        await world.settle()


async def turned_up(world: World) -> None:
    """Completions that only an unreachable leader has are refused by its successor, which grants the tasks again.

    The new claims end without a completion. When the old copy is found, its completions do not count, and
    dependents of the tasks still wait.
    """
    draw = world.random
    async with world.client() as client:
        tasks = await client.enqueue("q", payloads(4), retries=None, backoff_ms=0)
        for task_id in tasks:
            await client.enqueue("q", [b"behind it"], depends=[task_id])
        early = list(await client.claim("q", maximum=4, lease_ms=2_000, wait_ms=5_000))
        old = cut_off(world)
        async with world.client(nodes=[old]) as misled:
            await try_to_complete(misled, early)
        await successor(world, old)
        async with world.client(nodes=[node for node in world.nodes if node is not old]) as served:
            late = list(await served.claim("q", maximum=4, lease_ms=draw.randint(3_000, 8_000), wait_ms=20_000))
            for claim in draw.sample(late, len(late) // 2):
                await draw.choice((served.release, partial(served.fail, error="did not work")))(claim)
            refused = {one.id for one in early} - set(await try_to_complete(served, early))
        await back(world, old)
        await world.until(lambda: not world.audit.replica.claims.get(0), "the later claims are over")
        for task_id in sorted(refused & {claim.id for claim in late}):
            if (await client.client.get(task_id)).state == "completed":
                raise Broken(f"refused for good: {task_id.hex()} is completed by what was refused")
        await take_the_rest(client)


# --- copies that are given up ---------------------------------------------------------------------


async def retire(world: World, node: SimulatedNode) -> dict[str, Any]:
    """Ask for a node's peer to leave for good; the answer."""
    assert node.running is not None and node.running.service is not None
    answer = await node.running.service.call("leave", {"peer": node.peer_id, "permanent": True})
    return dict(answer)


def thin(world: World, copies: int) -> Iterator[str]:
    """Tasks acknowledged a while ago that fewer disks hold."""
    disks = [DiskReads(node.disk.tables) for node in world.nodes]
    before_s = trio.current_time() - COPIED_S
    for task_id, told in world.history.enqueued.items():
        if told.at_s < before_s:
            held = sum(bool(disk.known_bits(stretch_of(task_id)) & mask_of(task_id, 1)) for disk in disks)
            if held < copies:
                yield f"{task_id.hex()} is on {held} disks"


async def full_until_it_ended(world: World, node: SimulatedNode, *, copies: int) -> None:
    """Return when the node has ended; raise `Broken` if a task is on fewer disks before that."""
    with trio.fail_after(120):
        while True:
            ended = node.ended.is_set()
            if few := list(thin(world, copies)):
                raise Broken(f"full copies: {few[0]}, not {copies}, while {node.name} leaves")
            if ended:
                return
            await trio.sleep(0.1)


async def retired(world: World) -> None:
    """A node leaves for good; who is to take its copies has a slow disk."""
    draw = world.random
    gone, slow = draw.sample(world.nodes, 2)
    async with world.client() as client:
        for number in range(60):
            await client.enqueue("q", [b"%d, %d" % (number, place) for place in range(3)])
        await trio.sleep(COPIED_S)
        slow.disk.delay_ms = lambda: draw.randint(500, 1_500)
        await retire(world, gone)
        await full_until_it_ended(world, gone, copies=3)
        slow.disk.delay_ms = lambda: 1
        world.nodes.remove(gone)
        await world.settle()
        await take_the_rest(client, wait_ms=0)


async def unread(world: World) -> None:
    """A node is given a copy by records that it has not read yet: what it has read says that it needs none."""
    placed = world.audit.replica.partitions[0]
    leads = leader_of(world)
    gone, behind = world.random.sample([n for n in world.nodes if n is not leads and n.node_id in placed.target], 2)
    (unaware,) = [node for node in world.nodes if node.node_id not in placed.target]
    async with world.client(nodes=[leads]) as client:
        world.isolate(behind)  # the new copy is one of the two that make a majority
        ids = await client.enqueue("q", payloads(20))
        world.disconnect_log(unaware)
        await retire(world, gone)
        await world.until(lambda: unaware.node_id in world.audit.replica.partitions[0].members, "it is a member")
        with trio.move_on_after(LOOK_EVERY_S + 3.0):
            while True:
                world.audit.enough_copies.acknowledged(world.audit.replica, ids)
                await trio.sleep(0.05)
        world.network.heal()
        world.reconnect_log(unaware)
        await gone.ended.wait()
        world.nodes.remove(gone)
        await world.settle()
        await take_the_rest(client, wait_ms=0)


async def under_way(world: World) -> None:
    """A copy moves while writes of its leader, whose disk is slow, are under way: the new member gets them."""
    leads = leader_of(world)
    placed = world.audit.replica.partitions[0]
    gone, away = world.random.sample([n for n in world.nodes if n is not leads and n.node_id in placed.target], 2)
    async with world.client(nodes=[leads]) as client, trio.open_nursery() as nursery:
        world.isolate(away)  # the leader and who goes are the majority
        leads.disk.delay_ms = lambda: world.random.randint(300, 900)
        for lane in range(8):
            nursery.start_soon(_enqueue_in_turn, client, lane)
        await trio.sleep(world.random.uniform(0.5, 1.5))
        await retire(world, gone)
        world.network.heal()
        world.isolate(gone)  # the takeover reads the other member, which lacks these writes
        await world.until(lambda: gone.node_id not in world.audit.replica.partitions[0].members, "its copy has moved")
        await trio.sleep(0.5)
        nursery.cancel_scope.cancel()
    leads.disk.delay_ms = lambda: 1
    world.network.heal()
    await gone.ended.wait()
    world.nodes.remove(gone)
    await world.settle()
    async with world.client() as client:
        await take_the_rest(client, wait_ms=0)


async def _enqueue_in_turn(client: RecordingClient, lane: int) -> None:
    for number in range(10_000):
        await client.enqueue("q", [b"%d, %d" % (lane, number)])


# --- silence ----------------------------------------------------------------------------------------


async def missed(world: World) -> None:
    """A node in the ring is unreachable for long; when it is back it gets the missed rows at once."""
    away = world.random.choice(world.nodes)
    async with world.client(nodes=[node for node in world.nodes if node is not away]) as client:
        await client.enqueue("q", [b"before"])
        world.isolate(away, clients=True)
        await trio.sleep(world.random.uniform(8, 12))  # what it led is led by others
        ids = [(await client.enqueue("q", [b"%d" % number]))[0] for number in range(40)]
        await trio.sleep(world.random.uniform(2, 30))
        world.network.heal()
        began_s = trio.current_time()
        await world.until(lambda: all(holds(away, one) for one in ids), "it has what it missed")
        if (took_s := trio.current_time() - began_s) > CAUGHT_UP_S:
            raise Broken(f"prompt copies: a node that is heard again had what it missed after {took_s:.1f} s")
        await take_the_rest(client, wait_ms=0)


async def unanswered(world: World) -> None:
    """A leader with nothing to write is cut off from all other nodes, but not from the log: it must find out."""
    async with world.client() as client:
        await client.enqueue("q", [b"before"])
        await trio.sleep(world.random.uniform(0, 5))
        old = leader_of(world)
        world.isolate(old)
        await world.until(lambda: leader_of(world) is not old, "another leads", within_s=NOTICED_S)
        world.network.heal()
        await world.settle()
        await take_the_rest(client, wait_ms=0)


# --- answers before the disk ------------------------------------------------------------------------


async def stopped_at_once(world: World) -> None:
    """Disks stand still, then all machines stop: of a queue that answers early, what the window held is lost at most.

    The checkers are not told of what is enqueued: some of it is to be lost.
    """
    at_s = await lost_at_once(world, durability="opportunistic")
    if at_s and max(at_s) - min(at_s) > WINDOW_S + ON_ITS_WAY_S:
        raise Broken(f"loss window: what was lost was acknowledged within {max(at_s) - min(at_s):.3f} s")


async def lost_at_once(world: World, *, durability: str) -> list[float]:
    """Enqueue from several lanes, stop all machines at once: when each that is lost was acknowledged."""
    acknowledged: dict[TaskId, float] = {}
    async with world.client() as client:
        await client.client.set_queue("q", durability=durability)
        await stop_all(world, partial(_enqueue_all_the_time, world, client, acknowledged))
        there = {task.id for task in await world._all_tasks(client.client)}
        await take_the_rest(client, wait_ms=0)
    if len(acknowledged) < 50:
        raise Broken(f"loss window: only {len(acknowledged)} tasks were acknowledged in 2 s")
    return [when for task_id, when in acknowledged.items() if task_id not in there]


async def stop_all(world: World, lane: Callable[[int], Awaitable[None]]) -> None:
    """Have six lanes write to slow disks, stop all machines at once, and start them again."""
    for node in world.nodes:
        node.disk.delay_ms = lambda: world.random.randint(20, 60)
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(lane, number)
        await trio.sleep(1.5)
        for node in world.nodes:
            node.disk.delay_ms = lambda: 5_000  # they stand still before the machines stop
        await trio.sleep(0.5)
        nursery.cancel_scope.cancel()
    await crash_all(world)
    await start_all(world)


async def crash_all(world: World) -> None:
    """Stop all machines at once."""
    async with trio.open_nursery() as nursery:
        for node in world.nodes:
            nursery.start_soon(world.crash_node, node)


async def start_all(world: World) -> None:
    """Start all machines, whose disks are fast again; return when everything is served."""
    for node in world.nodes:
        node.disk.delay_ms = lambda: 1
        world.start_node(node)
    await world.settle()


async def _enqueue_all_the_time(
    world: World, client: RecordingClient, acknowledged: dict[TaskId, float], lane: int
) -> None:
    for number in range(10_000):
        first = make_id(world.nodes[0].clock.wall_ms(), number % 4, 7, (lane * 10_000 + number) * 1024)
        run = [first, pack_task({"queue": "q"}, [b"%d, %d" % (lane, number)])]
        answer = await client.client.call("enqueue", {"runs": [run], "w": None})
        if answer["acks"][0] >= 2:
            acknowledged[first] = trio.current_time()
        await trio.sleep(0.02)


async def strict_beside_early(world: World) -> None:
    """All machines stop while the followers' disks stand still, and the leader's disk is lost.

    The early queue is acknowledged from the followers' memory until then. The strict queue must lose nothing.
    """
    draw, leads = world.random, leader_of(world)
    acknowledged: list[TaskId] = []

    async def enqueue(lane: int) -> None:
        queue = "early" if lane % STRICT_LANE_EVERY else "strict"
        async with world.client(nodes=[leads]) as client:  # a client of several lanes would send their tasks together
            for number in range(10_000):
                ids = await client.client.enqueue_many(queue, [b"%d, %d" % (lane, number)])
                acknowledged.extend(ids if queue == "strict" else ())
                await trio.sleep(draw.uniform(0, PAUSE_S))

    async with world.client() as client, trio.open_nursery() as nursery:
        await client.client.set_queue("early", durability="opportunistic")
        for lane in range(LANES):
            nursery.start_soon(enqueue, lane)
        await soon(lambda: len(acknowledged) >= STRICT_TASKS)
        for node in world.nodes:
            if node is not leads:
                node.disk.delay_ms = lambda: 5_000
        await trio.sleep(WINDOW_S)
        nursery.cancel_scope.cancel()
    if len(acknowledged) < STRICT_TASKS:
        raise Broken(f"durable first: only {len(acknowledged)} tasks of a strict queue were acknowledged")
    await crash_all(world)
    leads.disk.damaged = True
    await start_all(world)
    async with world.client() as client:
        there = {task.id for task in await world._all_tasks(client.client)}
        lost = [task_id for task_id in acknowledged if task_id not in there]
        if lost:
            raise Broken(f"durable first: {len(lost)} tasks of a strict queue were acknowledged and are lost")


async def early_and_deposed(world: World) -> None:
    """A follower has answered for rows that its disk did not take yet, when a new leader asks it for a promise.

    The new leader must find the rows: all that was acknowledged is there as soon as it serves.
    """
    old = leader_of(world)
    first, second = [node for node in world.nodes if node is not old]
    async with world.client(nodes=[old]) as client:
        await client.client.set_queue("q", durability="opportunistic")
        await client.client.enqueue_many("q", [b"before"])
        world.isolate(second)
        first.disk.failing = True
        ids = await client.client.enqueue_many("q", payloads(4))
        if holds(first, ids[0]):
            raise Broken("early answers: the follower's disk had the rows already")
    world.network.heal()
    first.disk.failing = False
    world.isolate(old)
    old.log.reachable = False
    world.expire_session(old)
    new = await successor(world, old)
    async with world.client(nodes=[new]) as served:
        missing = [task_id for task_id in ids if not await _is_there(served, task_id)]
        if missing:
            raise Broken(f"early answers: a new leader serves without {len(missing)} acknowledged tasks")
    await trio.sleep(CAUGHT_UP_S)
    if not all(holds(node, task_id) for node in (first, second) for task_id in ids):
        raise Broken(f"early answers: a follower lacks acknowledged tasks {CAUGHT_UP_S} s after a new leader serves")
    await back(world, old)
    async with world.client() as client:
        await take_the_rest(client, wait_ms=0)


async def _is_there(client: RecordingClient, task_id: TaskId) -> bool:
    try:
        await client.client.get(task_id)
    except NotFound:
        return False
    return True


# --- the table --------------------------------------------------------------------------------------


_FOUR = always(evolve(ONE, nodes=4, partitions=12))
_ONE_SPARE = always(evolve(ONE, nodes=4, session_timeout_ms=30_000))
_SPREAD = always(evolve(ONE, partitions=4))


COPY_SCENES = by_name(
    Scene("half_written", "a completion that only its leader has", half_written),
    Scene("crossed", "a leader and its successor both complete what they have", crossed),
    Scene("turned_up", "completions that were refused turn up on a disk", turned_up),
    Scene("retired", "a node leaves for good, and its copies go to a slow one", retired, _FOUR),
    Scene("unread", "a node is given a copy by records that it has not read", unread, _ONE_SPARE),
    Scene("under_way", "a copy moves while writes to a slow disk are under way", under_way, _ONE_SPARE),
    Scene("missed", "a node that could not be heard for long is back", missed, _SPREAD),
    Scene("unanswered", "a leader is cut off while it has nothing to write", unanswered),
    Scene(
        "strict_beside_early", "all machines stop, one disk is lost, one of two queues is strict", strict_beside_early
    ),
    Scene("early_and_deposed", "a new leader asks for rows that no disk has", early_and_deposed),
    Scene("stopped_at_once", "all machines stop while answers are given early", stopped_at_once, _SPREAD),
)
