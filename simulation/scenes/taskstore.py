"""The task store while peers die and the log is collected: every answer is the model's (design: simulation)."""

from __future__ import annotations

import random
from typing import Any

import trio

from onyxq.client.taskstore import AsyncTaskStore
from onyxq.core.errors import OnyxqError, StoreRefused
from onyxq.core.extensions import state_of
from onyxq.core.replica import EMPTY
from onyxq.system.extensions import SHIPPED, with_extensions
from simulation.checkers import Broken
from simulation.scenes.base import Scene, by_name
from simulation.world.faults import collection
from simulation.world.stored import Requests, Truth, as_answered
from simulation.world.world import Options, World

CLIENTS = 4
REQUESTS = 60
"""Of each client."""
GROUPS = ("map", "reduce/1")
AWAY_S = 8.0
"""Longest time for which a killed peer stays away."""


async def one_request(store: AsyncTaskStore, requests: Requests, told: dict[int, list[Any]]) -> None:
    """Send an update or a claim, and note its answer, if there is one."""
    mark, kind, args = requests.next()
    try:
        if kind == "update":
            found = await store.update(**args)
        else:
            claimed = await store.claim(**args)
            found = [claimed] if claimed is not None else []
    except StoreRefused as refused:
        told[mark] = [None, refused.changes, refused.deletes, refused.depends, refused.owned]
    except OnyxqError:
        pass  # it may have been carried out, or not
    else:
        told[mark] = [[task.id, task.group, task.at_ms, task.owner, task.data] for task in found]
        requests.seen += [task.id for task in found]


async def use_the_store(world: World, requests: Requests, told: dict[int, list[Any]], number: int) -> None:
    """One client, some of whose requests come together with those of others."""
    async with world.client() as client:
        store = client.client.task_store(number)
        for _ in range(REQUESTS):
            await one_request(store, requests, told)
            if world.random.random() < 0.3:
                await trio.sleep(world.random.uniform(0, 1))


async def break_things(world: World) -> None:
    """Peers are killed and come back, sessions end, the log goes away and is collected."""
    while True:
        await trio.sleep(world.random.uniform(0, 2))
        node = world.random.choice(world.nodes)
        fault = world.random.randrange(4)
        if fault == 0 and node.running is not None:
            await world.restart_node(node, after_s=world.random.uniform(0, AWAY_S))
        elif fault == 1:
            world.expire_session(node)
        elif fault == 2:
            world.log_down()
            await trio.sleep(world.random.uniform(0, 2))
            world.log_up()
        elif fault == 3:
            await collection(world)


async def store_under_faults(world: World) -> None:
    """Clients use the task store; then the log is gone through with the model."""
    requests, told = Requests(world.random, GROUPS), dict[int, list[Any]]()
    await world.settle()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(break_things, world)
        async with trio.open_nursery() as users:
            for number in range(1, CLIENTS + 1):
                users.start_soon(use_the_store, world, requests, told, number)
        nursery.cancel_scope.cancel()
    world.log_up()
    for node in world.nodes:
        if node.running is None:
            world.start_node(node)
    await world.settle()
    judge(world, told)


def judge(world: World, answers: dict[int, list[Any]]) -> None:
    """Raise `Broken` unless every answer is what the model gives at a place where the request stands."""
    truth = Truth()
    try:
        replica = truth.follow(EMPTY, world.audit.records, world.options.entries)
    except AssertionError as error:
        raise Broken(f"stored tasks: {error}") from error
    for mark, told in answers.items():
        found = [as_answered(answer) for answer in truth.answers.get(mark, ())]
        if told not in found:
            raise Broken(f"stored tasks: request {mark} was answered {told}, the log says {found}")
    if state_of(replica, "taskstore") != state_of(world.audit.replica, "taskstore"):
        raise Broken("stored tasks: the peers' replica is another than the log makes")


def _shipped(draw: random.Random) -> Options:
    return Options(
        nodes=draw.choice((1, 3)), partitions=2, clock_offset_ms=0, absent_after_ms=600_000,
        entries=with_extensions(SHIPPED),
    )  # fmt: skip


TASKSTORE_SCENES = by_name(
    Scene(
        "stored_tasks", "the task store is used while peers die and the log is collected", store_under_faults, _shipped
    ),
)
