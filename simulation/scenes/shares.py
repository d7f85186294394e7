"""A scene about claims of many over several nodes: the best tasks come first, and none is passed over for ever."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import trio

from onyxq.client.claims import Claim
from onyxq.core.ids import TaskId, ms_of
from simulation.checkers import Broken
from simulation.scenes.base import Scene, by_name
from simulation.world.clients import RecordingClient
from simulation.world.world import Options, World

QUEUE = "q"
TASKS = 12
ROUNDS = 12
RELEASERS = 3
PASSED_MAX = 3 * TASKS
"""How often worse tasks may be granted while a better one is ready, before it is granted itself."""
SETTLED_S = 1.5
"""After this time all nodes have told what they have."""

Rank = tuple[int, int]


async def shared_claims(world: World) -> None:
    """Tasks of several partitions are claimed, some at a time, and given back again and again."""
    async with world.client() as client:
        ranks = await _enqueued(world, client)
        await trio.sleep(SETTLED_S)
        for _ in range(ROUNDS):
            maximum = world.random.randint(1, TASKS + 2)
            claims = await client.claim(QUEUE, maximum=maximum, wait_ms=2_000)
            _judge_quiet(ranks, claims, maximum)
            await client.release(claims)
        passed = dict.fromkeys(ranks, 0)
        async with trio.open_nursery() as nursery:
            for _ in range(RELEASERS):
                nursery.start_soon(_release_again, world, ranks, passed)
        while claims := await client.claim(QUEUE, maximum=TASKS, wait_ms=2_000):
            for claim in claims:
                await client.complete(claim)


async def _enqueued(world: World, client: RecordingClient) -> dict[TaskId, Rank]:
    """Tasks, each of its own time, with the place in the order that each has."""
    ranks: dict[TaskId, Rank] = {}
    for number in range(TASKS):
        priority = world.random.choice((0, 0, 0, 1))
        (task_id,) = await client.enqueue(QUEUE, [b"task %d" % number], priority=priority)
        ranks[task_id] = (-priority, ms_of(task_id))
        await trio.sleep(0.01)
    return ranks


def _judge_quiet(ranks: Mapping[TaskId, Rank], claims: Sequence[Claim], maximum: int) -> None:
    """Without other claimers, the best tasks are granted, as many as there are."""
    best = sorted(ranks.values())[:maximum]
    found = sorted(ranks[claim.id] for claim in claims)
    if found != best:
        raise Broken(f"fairness: a claim of {maximum} was granted {found}, the best tasks are {best}")


async def _release_again(world: World, ranks: Mapping[TaskId, Rank], passed: dict[TaskId, int]) -> None:
    """Claim some tasks and give them back: all others that are better and ready were passed over."""
    async with world.client() as client:
        for _ in range(2 * ROUNDS):
            claims = await client.claim(QUEUE, maximum=world.random.randint(TASKS // 2, TASKS), wait_ms=2_000)
            granted = {claim.id for claim in claims}
            worst = max((ranks[task_id] for task_id in granted), default=(-9, 0))
            for task_id, rank in ranks.items():
                passed[task_id] = 0 if task_id in granted else passed[task_id] + (rank < worst)
                if passed[task_id] > PASSED_MAX:
                    raise Broken(f"fairness: {task_id.hex()} was passed over {passed[task_id]} times by worse tasks")
            await trio.sleep(world.random.uniform(0, 0.05))
            await client.release(claims)


def _several(draw: random.Random) -> Options:
    """Three nodes that lead partitions."""
    return Options(nodes=3, partitions=draw.choice((3, 6)), clock_offset_ms=0, absent_after_ms=600_000)


SHARE_SCENES = by_name(
    Scene("shared_claims", "claims of many over partitions of several nodes", shared_claims, _several)
)
