"""Scenes about leases that run out in a cluster without faults: a claimer that waits gets the task at once."""

from __future__ import annotations

import random
from collections.abc import Sequence

import trio

from onyxq.core.claims import GRACE_MS
from simulation.checkers import Broken
from simulation.scenes.base import Scene, by_name
from simulation.world.clients import RecordingClient, tried
from simulation.world.world import Options, World

MACHINE_S = 0.05
"""Most that the simulated machines add: two records of the log, four messages, and a clock that runs 0.05 % slow."""
GRANTED_S = GRACE_MS / 1000 + MACHINE_S
"""A waiting claimer has the task within this time of the end of the lease."""
IDLE_LEASES_MS = (1_000, 1_500, 1_700, 2_000, 2_000, 4_300, 11_000, 30_000)
BUSY_LEASES_MS = (1_000, 2_000, 4_000)
BUSY_PAUSE_S = 0.2


async def idle_leases(world: World) -> None:
    """Workers take tasks and are not heard of again. Nothing else happens in the cluster."""
    await _lapse(world, IDLE_LEASES_MS, rests_s=(0.0, 0.4, 7.0))


async def busy_leases(world: World) -> None:
    """The same, while tasks of another queue are enqueued, claimed and completed without a pause."""
    async with trio.open_nursery() as nursery:
        for node in world.nodes:
            nursery.start_soon(_keep_busy, world, node.name)
        await _lapse(world, BUSY_LEASES_MS, rests_s=(0.0,))
        nursery.cancel_scope.cancel()


async def _lapse(world: World, leases_ms: Sequence[int], *, rests_s: Sequence[float]) -> None:
    draw = world.random
    late_s: list[float] = []
    for number, lease_ms in enumerate(draw.sample(leases_ms, len(leases_ms))):
        lost_at, waits_at = draw.choice(world.nodes), draw.choice(world.nodes)
        async with world.client(nodes=[lost_at]) as lost, world.client(nodes=[waits_at]) as waiting:
            queue = f"q{number}"
            await lost.enqueue(queue, [b"task %d" % number])
            (claim,) = await lost.claim(queue, lease_ms=lease_ms, wait_ms=5_000)
            claims = await waiting.claim(queue, lease_ms=60_000, wait_ms=60_000)
            # The lease began with the record of the grant. The task may have waited for that, until it was due by the
            # clock of its leader.
            late_s.append(trio.current_time() - world.backend.landed_s[claim.token] - lease_ms / 1000)
            await waiting.complete(claims[0] if claims else claim)
        await trio.sleep(draw.choice(rests_s))
    if max(late_s) > GRANTED_S:
        shown = ", ".join(f"{late:.3f}" for late in late_s)
        raise Broken(f"punctual leases: claimers got the tasks of lapsed claims late, in seconds: {shown}")


async def _keep_busy(world: World, name: str) -> None:
    """Pass tasks through a queue, one after the other."""
    async with world.client() as client:
        while True:
            await tried(_pass_one(client, name))
            await trio.sleep(world.random.uniform(0, BUSY_PAUSE_S))


async def _pass_one(client: RecordingClient, queue: str) -> None:
    await client.enqueue(queue, [b"busy"])
    for claim in await client.claim(queue, lease_ms=30_000, wait_ms=1_000):
        await client.complete(claim)


def _three(draw: random.Random) -> Options:
    """Three nodes that lead partitions, with clocks that run at different rates."""
    return Options(nodes=3, partitions=draw.choice((1, 4)), absent_after_ms=600_000)


LEASE_SCENES = by_name(
    Scene("idle_leases", "leases run out while nothing else happens; claimers wait for the tasks", idle_leases, _three),
    Scene("busy_leases", "leases run out under load; claimers wait for the tasks", busy_leases, _three),
)
