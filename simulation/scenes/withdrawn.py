"""A scene about impatience: clients that wait no longer, or lose their connections, and ask again (design: simulation).

What they asked for is on its way to slow disks meanwhile.  What they hear in the end must be so.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio
from attrs import evolve

from onyxq.client.claims import Claim
from onyxq.core.errors import Conflict, OnyxqError
from onyxq.core.ids import TaskId
from simulation.checkers import Broken
from simulation.scenes.base import ONE, Scene, by_name
from simulation.scenes.rules import finished, working
from simulation.world.clients import RecordingClient, tried
from simulation.world.world import Options, World

ROUNDS = 6
TASKS = 4
"""Of each kind in a round."""
LEASE_MS = 20_000
PATIENCE_S = 0.2
"""Longest time for which an answer is waited for at first."""
CUT_EVERY_S = 0.2
"""Longest time between two breaks of all connections of a node."""
CUT_S = 1.5
"""How long they break in a round."""


async def impatient(world: World) -> None:
    """Cancel, complete, note and enqueue under keys, each again if it was not answered soon."""
    async with world.client() as client, world.client() as other:
        for number in range(ROUNDS):
            await client.enqueue("q", [b"task %d of %d" % (place, number) for place in range(TASKS)])
            for place in range(TASKS):
                await client.enqueue("q", [b"%d of key %d" % (place, number)], ordering_key=f"k{number}")
            claims = await client.claim("q", maximum=TASKS + 1, lease_ms=LEASE_MS, wait_ms=5_000)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cut, world)
                for claim in claims:
                    nursery.start_soon(_end, world, client, other, claim)
                nursery.start_soon(_enqueue, world, client, other, f"u{number}")
        async with working(other):
            await finished(client)


async def _end(world: World, client: RecordingClient, other: RecordingClient, claim: Claim) -> None:
    draw = world.random
    if draw.random() < 0.3:
        await _insist(world, lambda: client.update(claim, b"half way"))
    if draw.random() < 0.5:
        await _insist(world, lambda: other.cancel(claim.id, claimed=True))
    else:
        await _insist(world, lambda: client.complete(claim, b"done"))


async def _enqueue(world: World, client: RecordingClient, other: RecordingClient, key: str) -> None:
    """One task, by two who do not know of each other."""
    await _insist(world, lambda: client.enqueue("u", [b"one under %s" % key.encode()], unique_key=key))
    await _insist(world, lambda: other.enqueue("u", [b"other under %s" % key.encode()], unique_key=key))


async def _insist(world: World, ask: Callable[[], Awaitable[object]]) -> None:
    """Make a request with a short timeout, and repeat it until there is an answer."""
    with trio.move_on_after(world.random.uniform(0, PATIENCE_S)):
        await tried(ask())
        return
    await tried(ask())


async def requeued_twice(world: World) -> None:
    """Requeue dead letters, each again if it was not answered soon; tasks may be worked on in between."""
    async with world.client() as client, world.client() as other:
        for number in range(ROUNDS):
            await client.enqueue("q", [b"task %d of %d" % (place, number) for place in range(TASKS)], retries=0)
            claims = await client.claim("q", maximum=TASKS, lease_ms=LEASE_MS, wait_ms=5_000)
            for claim in claims:
                await tried(client.fail(claim, "did not work"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cut, world)
                for claim in claims:
                    nursery.start_soon(_requeue, world, client, claim.id)
                if world.random.random() < 0.5:
                    nursery.start_soon(_work_off, other, client)
        await _work_off(other, client)


async def _work_off(worker: RecordingClient, client: RecordingClient) -> None:
    async with working(worker):
        await finished(client)


async def _requeue(world: World, client: RecordingClient, task_id: TaskId) -> None:
    """Make a request with a short timeout, and repeat it: it was a dead letter, and no other client asked."""
    with trio.move_on_after(world.random.uniform(0, PATIENCE_S)):
        await tried(client.requeue(task_id))
    try:
        await client.requeue(task_id)
    except Conflict as error:
        if task_id in world.audit.ledger.reopened and "requeued" not in error.message:
            raise Broken(f"asked again: {error.message}, though it was requeued") from None
    except OnyxqError:
        pass  # noted by the client


async def _cut(world: World) -> None:
    with trio.move_on_after(CUT_S):
        while True:
            await trio.sleep(world.random.uniform(0, CUT_EVERY_S))
            world.network.cut(world.random.choice(world.nodes).name)


def _slow_disks(draw: random.Random) -> Options:
    return evolve(ONE, partitions=draw.choice((1, 3)), disk_delay_ms=(0, 150))


WITHDRAWN_SCENES = by_name(
    Scene("impatient", "what nobody waits for any more is asked for again", impatient, _slow_disks),
    Scene("requeued_twice", "dead letters are requeued again by who was not answered", requeued_twice, _slow_disks),
)
