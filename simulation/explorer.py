"""Exploring: a seed makes a cluster, a load and a storm of faults, and judges the run.

For `explore` every seed is another cluster size, another mix of work and other faults; the
workloads of `simulation.workloads` draw within narrower bounds.  A failing seed fails again.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from simulation.world.faults import storm
from simulation.world.load import Load, Mix
from simulation.world.world import Options, World, simulate

Faults = Callable[[World], Awaitable[None]]
WARM_UP_S = 2.0


async def under_load(world: World, faults: Faults, mix: Mix | None = None) -> Load:
    """Let ``faults`` happen to a cluster that works; then it must recover and work everything off."""
    load = Load(world, mix)
    async with trio.open_nursery() as nursery:
        load.start(nursery)
        await trio.sleep(WARM_UP_S)
        await faults(world)
        await world.settle()
        await load.drain()
        nursery.cancel_scope.cancel()
    return load


def options_of(seed: int) -> Options:
    """The cluster that a seed stands for."""
    draw = random.Random(f"options {seed}")
    nodes = draw.choice((1, 2, 3, 3, 3, 3, 5))
    return Options(
        nodes=nodes,
        partitions=draw.choice((1, 4, 8, 8, 16)),
        replicas=draw.choice((1, 2, 3, 3, 3)),
        absent_after_ms=draw.choice((8_000, 60_000)),
        append_delay_ms=draw.choice(((1, 4), (1, 4), (5, 80))),
        read_delay_ms=draw.choice(((0, 3), (0, 3), (5, 200))),
        disk_delay_ms=draw.choice(((0, 2), (0, 2), (5, 60))),
        network_delay_ms=draw.choice((1, 1, 1, 25)),
        clock_offset_ms=draw.choice((0, 200, 2_000)),
        client_clock_ms=draw.choice(((0,), (0,), (-4_000, 0, 4_000), (-600_000, 600_000))),
        zones=draw.choice((0, 0, 2, 3)),
    )


def mix_of(seed: int) -> Mix:
    """The load that a seed stands for."""
    draw = random.Random(f"mix {seed}")
    return Mix(
        producers=draw.choice((1, 1, 2)),
        workers=draw.choice((2, 3, 4)),
        batch_max=draw.choice((1, 8, 8, 40)),
        claim_max=draw.choice((1, 8, 8, 60)),
        pause_s=draw.choice((0.5, 1.0, 2.0)),
        forget=draw.choice((0.0, 0.04, 0.15)),
        late=draw.choice((0.0, 0.04, 0.15)),
        renew=draw.choice((0.1, 0.1, 0.5)),
    )


def explore(seed: int) -> World:
    """One run; raises what broke, with the seed in its notes."""

    async def workload(world: World) -> None:
        async def faults(world: World) -> None:
            await storm(world)

        await under_load(world, faults, mix_of(seed))

    return simulate(workload, seed=seed, options=options_of(seed))
