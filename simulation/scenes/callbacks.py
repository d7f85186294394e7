"""A scene about callbacks of tasks, which end in every way while leaders change (design: simulation)."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

import trio
from attrs import evolve

from onyxq.client.policy import EnqueueOptions
from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId
from onyxq.core.limits import TIMERS_QUEUE
from onyxq.core.timer_model import Delivery
from simulation.scenes.base import ONE, Scene, by_name
from simulation.scenes.rules import finished, hired, lead_elsewhere
from simulation.world.clients import RecordingClient
from simulation.world.receiver import CALLBACK
from simulation.world.world import Options, World

TASKS = 36
LATER_MS = 86_400_000
OVER_S = 600.0
"""Longest time until the last callback is made, in seconds: their retries back off."""


async def ends_reported(world: World) -> None:
    """Tasks with callbacks complete, fail, expire, and are cancelled and requeued. Leaders and receivers fail."""
    draw, over = world.random, trio.Event()
    world.receiver.takes_s = partial(_answer, draw)
    async with world.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(partial(hired, world, over, fail=0.2))
        ids: list[TaskId] = []
        for number in range(TASKS):
            with suppress(OnyxqError):  # noted by the client
                ids += await _enqueue(world, client, b"task %d" % number)
                await _disturb(draw, client, ids)
            if number % 12 == 8:
                nursery.start_soon(lead_elsewhere, world)
            await trio.sleep(draw.uniform(0, 0.5))
        await world.settle()
        for task_id in ids:
            with suppress(OnyxqError):
                if (await client.client.get(task_id)).state == "scheduled":
                    await client.cancel(task_id)
        await finished(client)
        over.set()
        await finished(client, OVER_S, queue=TIMERS_QUEUE)


async def _enqueue(world: World, client: RecordingClient, data: bytes) -> list[TaskId]:
    """Store a task with a callback, or give one to a waiting task; often the request is repeated elsewhere."""
    draw, options = world.random, EnqueueOptions(callback=CALLBACK, retries=0)
    kind = draw.choice(("now", "now", "later", "expires", "given"))
    if kind == "given":
        key = f"key of {data.decode()}"
        waiting = await client.enqueue("q", [data + b" waits"], timeout_ms=10_000, unique_key=key, delay_ms=500)
        return waiting + await client.enqueue("q", [data], timeout_ms=10_000, unique_key=key, **options)
    if kind == "later":
        options["delay_ms"] = draw.choice((1_000, LATER_MS))
    elif kind == "expires":
        options["expires_ms"] = world.audit.true_ms() + draw.randint(100, 3_000)
    ids = await client.enqueue("q", [data], timeout_ms=10_000, **options)
    if draw.random() < 0.3:
        async with world.client() as other:
            options.pop("delay_ms", None)
            await other.client.enqueue("q", data, id=ids[0], timeout_ms=10_000, **options)
    return ids


async def _disturb(draw: random.Random, client: RecordingClient, ids: list[TaskId]) -> None:
    """Cancel a task, or decide about a dead letter."""
    if draw.random() < 0.15:
        await client.cancel(draw.choice(ids), claimed=draw.random() < 0.5)
    for task in (await client.client.dead("q")).tasks:
        if draw.random() < 0.2:
            await client.requeue(task.id)
        elif draw.random() < 0.2:
            await client.discard(task.id)


def _answer(draw: random.Random, delivery: Delivery) -> float:
    """Return how long the receiver takes; it refuses some callbacks."""
    if draw.random() < 0.2:
        raise OSError("the receiver is down")
    return draw.uniform(0.0, 2.0)


def _few(draw: random.Random) -> Options:
    """One to three partitions; nodes read the log more or less late."""
    late_ms = draw.choice(((1, 5), (5, 150)))
    return evolve(ONE, partitions=draw.choice((1, 3)), read_delay_ms=late_ms, callbacks=True)


CALLBACK_SCENES = by_name(
    Scene("ends_reported", "tasks with callbacks end in every way while leaders change", ends_reported, _few),
)
