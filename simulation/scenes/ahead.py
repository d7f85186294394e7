"""A scene about claims ahead: tasks that are with workers before they are due (design: simulation)."""

from __future__ import annotations

import random

import trio

from onyxq.client.claims import Claim
from onyxq.core.ids import ms_of
from onyxq.core.replica import claim_of
from simulation.checkers import Broken
from simulation.scenes.base import Scene, by_name
from simulation.scenes.rules import finished
from simulation.world.clients import RecordingClient
from simulation.world.world import Options, World

TASKS = 40
WORKERS = 3
AHEAD_MS = 500
LEASE_MS = 1_000
ON_THE_WAY_MS = 150
"""How long a grant may take from the log to its worker."""
LIMITED = "limited"
QUEUES = ("q", LIMITED)


async def ahead_of_time(world: World) -> None:
    """Tasks fall due, some in a moment; who claims ahead begins none too early, holds it as long as was agreed, and
    gets nothing ahead that another task may overtake or that is counted."""
    draw = world.random
    async with world.client() as client:
        await client.client.set_queue(LIMITED, concurrency=5)
        over = trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(WORKERS):
                nursery.start_soon(_worker, world, number, over)
            for number in range(TASKS):
                await client.enqueue(
                    draw.choice(QUEUES),
                    [b"task %d" % number],
                    ordering_key=draw.choice((None, None, "k")),
                    delay_ms=draw.choice((0, 300, 700, 1_000, 1_500)),
                    priority=draw.choice((0, 0, 5)),
                )
                await trio.sleep(draw.uniform(0, 0.1))
            for queue in QUEUES:
                await finished(client, queue=queue)
            over.set()


async def _worker(world: World, number: int, over: trio.Event) -> None:
    async with world.client() as client, trio.open_nursery() as nursery:
        while not over.is_set():
            claims = await client.claim(
                QUEUES, maximum=4, lease_ms=LEASE_MS, wait_ms=500, ahead_ms=AHEAD_MS if number else 0
            )
            for claim in claims:
                nursery.start_soon(_begin, world, client, claim)


async def _begin(world: World, client: RecordingClient, claim: Claim) -> None:
    if claim.due and (claim.queue == LIMITED or "ordering_key" in claim.run.header):
        raise Broken(f"task {claim.id.hex()} was claimed ahead, though it is counted or another one may overtake it")
    if claim.due:
        _check_lease(world, claim)
    if claim.due and world.random.random() < 0.2:
        await trio.sleep(world.random.uniform(0, max(0.0, claim.due - trio.current_time())))
        await client.release(claim)
        return
    await trio.sleep(max(0.0, claim.due - trio.current_time()))
    _check_in_time(world, claim)
    # Up to the end of what it was told of its lease.
    await trio.sleep(max(0.0, (claim.expires - trio.current_time()) * world.random.choice((0.0, 0.5, 0.98))))
    await client.complete(claim, b"done")


def _check_lease(world: World, claim: Claim) -> None:
    """Its lease runs from when it is due."""
    replica = world.audit.replica
    held = claim_of(replica, claim.id)
    wanted_ms = LEASE_MS + (claim.due - trio.current_time()) * 1000 - ON_THE_WAY_MS
    if held is not None and held[2] == claim.token and held[4] - replica.log_time_ms < wanted_ms:
        raise Broken(f"the lease of task {claim.id.hex()} ends in {held[4] - replica.log_time_ms} ms, before its time")


def _check_in_time(world: World, claim: Claim) -> None:
    late_ms = world.audit.true_ms() - ms_of(claim.id)
    if late_ms < 0:
        raise Broken(f"task {claim.id.hex()} was begun {-late_ms} ms before it was due")


def _calm(draw: random.Random) -> Options:
    return Options(partitions=draw.choice((2, 4)), clock_offset_ms=0)


AHEAD_SCENES = by_name(Scene("ahead_of_time", "tasks are claimed a moment before they are due", ahead_of_time, _calm))
