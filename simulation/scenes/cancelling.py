"""A scene about cancelling tasks that workers hold: each call of a holder meets a cancel (design: simulation)."""

from __future__ import annotations

import random
from collections.abc import Mapping

import trio

from onyxq.client.claims import Claim
from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId
from simulation.scenes.base import Scene
from simulation.scenes.rules import lead_elsewhere, work
from simulation.world.clients import RecordingClient
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
        await _work_off(client)


async def _hold(world: World, client: RecordingClient, claim: Claim, number: int) -> None:
    draw = world.random
    await trio.sleep(draw.uniform(0, APART_S))
    try:
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
    except OnyxqError:
        pass  # noted by the client


async def _cancel(world: World, client: RecordingClient, task_id: TaskId) -> None:
    draw = world.random
    if draw.random() < 0.7:
        await trio.sleep(draw.uniform(0, APART_S))
        try:
            await client.cancel(task_id, claimed=draw.random() < 0.9)
        except OnyxqError:
            pass  # noted by the client


async def _work_off(client: RecordingClient) -> None:
    """Complete what is left, once its leases have run out."""
    over = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: work(client, lambda: over))
        with trio.fail_after(DRAIN_S):
            while await _left(client):
                await trio.sleep(1)
        over = True


async def _left(client: RecordingClient) -> int:
    try:
        counts = (await client.client.count()).get("q", {"total": 1})
    except OnyxqError:
        return 1
    return counts["total"] - sum(counts.get(state, 0) for state in ("completed", "failed", "cancelled"))


def _few(draw: random.Random) -> Options:
    """One or two partitions; nodes read the log more or less late."""
    late_ms = draw.choice(((1, 5), (5, 150)))
    return Options(partitions=draw.choice((1, 2)), clock_offset_ms=0, absent_after_ms=600_000, read_delay_ms=late_ms)


CANCELLING_SCENES: Mapping[str, Scene] = {
    "told_to_stop": Scene("told_to_stop", "claimed tasks are cancelled whatever their holders do", told_to_stop, _few)
}
"""By name."""
