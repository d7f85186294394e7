"""A log that is lost for good, under load and in the middle of things, and the cluster that is recovered."""

from __future__ import annotations

import random

import trio

from simulation.scenes.base import Scene, by_name
from simulation.world.load import Load, Mix
from simulation.world.moves import Moves, MovesMix
from simulation.world.recovered import knowledge, recover
from simulation.world.restored import use
from simulation.world.world import Options, World

USED_S = (2.0, 12.0)
APART_S = 4.0
"""Longest time from the loss of the log to the end of a node."""


async def log_recovered(world: World) -> None:
    """The log is lost, all processes end at once or one after the other, and the cluster is recovered."""
    draw = world.random
    load = Load(world, Mix(workers=2, pause_s=1.0, fail=0.15, update=0.2))
    moves = Moves(world, MovesMix(pause_s=1.0))
    async with trio.open_nursery() as nursery:
        load.start(nursery)
        if draw.random() < 0.7:
            moves.start(nursery)
        await trio.sleep(draw.uniform(*USED_S))
        if draw.random() < 0.3:  # a machine that has not read the last part of the log
            await world.crash_node(world.nodes[-1])
            await trio.sleep(draw.uniform(0, 8))
        world.episodes.append((trio.current_time(), "the log is lost"))
        if draw.random() < 0.5:
            world.log_down()
            await trio.sleep(draw.uniform(0, APART_S))
        for node in draw.sample(world.nodes, len(world.nodes)):
            if node.running is not None:
                await world.crash_node(node)
        nursery.cancel_scope.cancel()
    world.audit.catch_up()
    await recover(world, late=_late(world))
    await use(world)


def _late(world: World) -> list[str]:
    """A node is unreachable when the cluster is recovered, if the others know as much of the log."""
    known = {node.name: knowledge(node) for node in world.nodes}
    if len(known) != world.options.replicas or world.random.random() < 0.6:
        return []
    ends = sorted((found.end, name) for name, found in known.items())
    return [world.random.choice([name for _, name in ends[:-1]])]


def _options(draw: random.Random) -> Options:
    return Options(
        nodes=draw.choice((3, 3, 4)),
        partitions=draw.choice((2, 4)),
        gc_records=draw.choice((60, 200, 20_000)),
        absent_after_ms=draw.choice((8_000, 600_000)),
        append_delay_ms=draw.choice(((1, 4), (5, 80))),
        read_delay_ms=draw.choice(((0, 3), (5, 200))),
        disk_delay_ms=draw.choice(((0, 2), (5, 60))),
    )


RECOVERY_SCENES = by_name(
    Scene(
        "recovery",
        "the log is lost while the cluster is used, and the cluster is recovered from its nodes' disks",
        log_recovered,
        _options,
    ),
)
