"""A scene about cancelling tasks that workers hold: each call of a holder meets a cancel (design: simulation)."""

from __future__ import annotations

import random
from contextlib import suppress

import trio
from attrs import evolve

from onyxq.client.claims import Claim
from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId
from simulation.scenes.base import ONE, Scene, by_name
from simulation.scenes.rules import finished, lead_elsewhere, working
from simulation.world.clients import RecordingClient, tried
from simulation.world.world import Options, World

TASKS = 16
LEASE_MS = 8_000
APART_S = 0.15
"""Longest time between what a holder does and the cancel of its task."""
DRAIN_S = 240.0


async def told_to_stop(world: World) -> None:
    """Holders complete, fail, renew, note and commit while their tasks are cancelled and leaders change."""
    async with world.client() as client, world.client() as other:
        for number in range(4):
            await client.enqueue("q", [b"task %d of %d" % (place, number) for place in range(TASKS)], retries=None)
            claims = await client.claim("q", maximum=TASKS, lease_ms=LEASE_MS, wait_ms=5_000)
            async with trio.open_nursery() as nursery:
                for claim in claims:
                    nursery.start_soon(_hold, world, client, claim, number)
                    nursery.start_soon(_cancel, world, other, claim.id)
                if number % 2:
                    await trio.sleep(world.random.uniform(0, APART_S))
                    await lead_elsewhere(world)
            await world.settle()
        async with working(client):  # completes what is left after its leases have expired
            await finished(client, DRAIN_S)


async def _hold(world: World, client: RecordingClient, claim: Claim, number: int) -> None:
    draw = world.random
    await trio.sleep(draw.uniform(0, APART_S))
    with suppress(OnyxqError):  # noted by the client
        what = draw.choice(("complete", "complete", "commit", "commit", "fail", "release", "keep"))
        if what == "keep":
            await client.update(claim, b"half way")
            await client.renew(claim, LEASE_MS)
        elif what == "complete":
            await client.complete(claim, b"done", timeout_ms=12_000)
        elif what == "fail":
            await client.fail(claim, "did not work", retry_in_ms=0, timeout_ms=12_000)
        elif what == "release":
            await client.release(claim, timeout_ms=12_000)
        else:
            said = b"round %d, %s" % (number, claim.id.hex().encode())
            await client.transact(complete=[(claim, said)], enqueue=[("q", said)], retries=None, timeout_ms=12_000)


async def _cancel(world: World, client: RecordingClient, task_id: TaskId) -> None:
    draw = world.random
    if draw.random() < 0.7:
        await trio.sleep(draw.uniform(0, APART_S))
        await tried(client.cancel(task_id, claimed=draw.random() < 0.9))


def _few(draw: random.Random) -> Options:
    """One or two partitions; nodes read the log more or less late."""
    late_ms = draw.choice(((1, 5), (5, 150)))
    return evolve(ONE, partitions=draw.choice((1, 2)), read_delay_ms=late_ms)


CANCELLING_SCENES = by_name(
    Scene("told_to_stop", "claimed tasks are cancelled whatever their holders do", told_to_stop, _few),
)
