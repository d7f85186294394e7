"""Scenes about looks at everything: counts, lists and dead letters while partitions move (design: simulation)."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId
from simulation.checkers import Broken
from simulation.scenes.base import Scene, by_name, cut_off, successor
from simulation.scenes.copies import retire
from simulation.world.clients import RecordingClient, tried
from simulation.world.faults import storm
from simulation.world.world import Options, SimulatedNode, World

QUEUE, FAILED = "q", "failed"
MOVES = ("giving_up", "giving_up", "crash", "restart", "clients_only", "log_unreachable", "slow_network")
PAGE_TASKS = 20

Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Calls a method by name; raises `OnyxqError`."""


def at(node: SimulatedNode) -> Ask:
    """Return what asks one node, which continues to run, also if the others take it for dead."""
    assert node.running is not None and node.running.service is not None
    return node.running.service.call


def anywhere(world: World) -> Ask:
    """Ask another node each time, as clients do."""

    async def ask(method: str, args: dict[str, Any]) -> Any:
        async with world.client(nodes=[world.random.choice(world.nodes)]) as client:
            return await client.client.call(method, args)

    return ask


async def count(world: World, ask: Ask) -> None:
    """Count all tasks."""
    began_s = trio.current_time()
    found = await ask("count", {"queue": QUEUE})
    world.audit.looks_whole.counted(QUEUE, found["counts"][QUEUE]["total"], began_s=began_s)


async def pages(world: World, ask: Ask, method: str, queue: str) -> None:
    """List all tasks, page by page."""
    began_s, found, after = trio.current_time(), list[TaskId](), None
    while True:
        page = await ask(method, {"queue": queue, "after": after, "limit": PAGE_TASKS})
        found += [TaskId(task["id"]) for task in page["tasks"]]
        if (after := page["after"]) is None:
            world.audit.looks_whole.listed(queue, found, began_s=began_s)
            return


async def look(world: World, ask: Ask) -> None:
    """Count and list everything; raises `OnyxqError`."""
    await count(world, ask)
    await pages(world, ask, "list", QUEUE)
    await pages(world, ask, "dead", FAILED)


async def look_again(world: World) -> None:
    """Look at everything until cancelled; errors are noted."""
    ask = anywhere(world)
    while True:
        await trio.sleep(world.random.uniform(0, 0.5))
        try:
            await look(world, ask)
        except OnyxqError as error:
            world.history.error(error.code)


async def enqueue_again(client: RecordingClient) -> None:
    """Enqueue until cancelled."""
    for number in range(100_000):
        if await tried(client.enqueue(QUEUE, [b"%d, %d" % (number, place) for place in range(3)])) is None:
            await trio.sleep(0.5)
        await trio.sleep(0.1)


async def bury(client: RecordingClient, tasks: int) -> None:
    """Make this number of tasks fail for good."""
    for number in range(tasks):
        await client.enqueue(FAILED, [b"to fail %d" % number], retries=0)
    left = tasks
    while left:
        for claim in await client.claim(FAILED, maximum=10, lease_ms=60_000, wait_ms=5_000):
            await client.fail(claim, "did not work")
            left -= 1


async def settled_looks(world: World) -> None:
    """Look at every node of a cluster without faults: each must know the answer."""
    await world.settle()
    for node in world.nodes:
        try:
            await look(world, at(node))
        except OnyxqError as error:
            raise Broken(f"looks are whole: {node.name} cannot tell though all is served: {error.message}") from error


async def looked_at(world: World) -> None:
    """Tasks come and are looked at while leaders give up, restart, die and are cut off, and a node leaves for good."""
    async with world.client() as client, trio.open_nursery() as nursery:
        await bury(client, 30)
        nursery.start_soon(enqueue_again, client)
        for _ in range(2):
            nursery.start_soon(look_again, world)
        await storm(world, names=MOVES, rounds=3, at_once=2, rest_s=2)
        await world.settle()
        gone = world.random.choice(world.nodes)
        await retire(world, gone)
        await gone.ended.wait()
        world.nodes.remove(gone)
        nursery.cancel_scope.cancel()
    await settled_looks(world)


async def behind_the_times(world: World) -> None:
    """A leader that was deposed and has not read of it is asked for what came since; it may reach the third node."""
    async with world.client() as client:
        await bury(client, 3)
        await client.enqueue(QUEUE, [b"before %d" % number for number in range(5)])
        isolated = world.random.random() < 0.5
        old = cut_off(world, isolated=isolated)
        new = await successor(world, old)
        if not isolated:
            world.network.part([old.name], [new.name])
        async with world.client(nodes=[new]) as served:
            for number in range(8):
                await served.enqueue(QUEUE, [b"since %d" % number])
                try:
                    await look(world, at(old))
                except OnyxqError as error:
                    world.history.error(error.code)
        world.network.heal()
        world.reconnect_log(old)
    await settled_looks(world)


def _moving(draw: random.Random) -> Options:
    return Options(
        nodes=4,
        partitions=draw.choice((8, 16)),
        clock_offset_ms=0,
        read_delay_ms=draw.choice(((0, 3), (5, 60))),
        network_delay_ms=draw.choice((1, 20)),
    )


LOOK_SCENES = by_name(
    Scene("looked_at", "counts and lists are asked for while partitions move", looked_at, _moving),
    Scene("behind_the_times", "a deposed leader is asked for counts and lists", behind_the_times),
)
