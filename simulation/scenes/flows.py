"""A scene about flows: they are made, worked on, waited for and cancelled while leaders change (design: simulation)."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial
from typing import Any

import trio
from attrs import evolve

from onyxq.client.flow_calls import AsyncFlowHandle
from onyxq.client.flows import Flow, Step, chained, grouped
from onyxq.core.errors import AlreadyFinished, OnyxqError
from onyxq.core.ids import TaskId
from onyxq.core.limits import Fate
from simulation.checkers.flows_end import MadeFlow
from simulation.scenes.base import ONE, Scene, by_name
from simulation.scenes.rules import hired, lead_elsewhere
from simulation.world.clients import RecordingClient
from simulation.world.history import STOP, Enqueued, Operation, Said, Sent
from simulation.world.world import Options, World

FLOWS = 8
DRAIN_S = 240.0
"""Time in which a flow ends after the faults, in simulated seconds."""
REPEAT_S = 0.3
APART_S = 6.0
"""Longest time until the next flow is made, or a flow is cancelled, in seconds."""


async def flows_as_a_whole(world: World) -> None:
    """Flows with failing steps and last tasks are made and worked on; some are cancelled while leaders change."""
    over = trio.Event()
    async with world.client() as client, trio.open_nursery() as workers:
        for _ in range(2):
            workers.start_soon(partial(hired, world, over, fail=0.25, pause_s=0.2))
        async with trio.open_nursery() as others:
            for number in range(FLOWS):
                others.start_soon(_play, world, client, number)
            for _ in range(2):
                await trio.sleep(world.random.uniform(0.5, APART_S))
                await lead_elsewhere(world)
        over.set()


async def _play(world: World, client: RecordingClient, number: int) -> None:
    draw = world.random
    await trio.sleep(draw.uniform(0, APART_S))
    flow, last = _drawn(draw, number)
    steps = [one.step for one in flow.plan.steps]
    said = {step.payload: Said(on_dependency_failed=step.policy(()).on_dependency_failed) for step in steps}
    if last is not None:
        said[last.payload] = Said(on_dependency_failed="run")
    for data, one in said.items():
        world.history.payloads[data] = 1
        world.history.sent[data] = Sent("q", one, trio.current_time())
    handle = await _made(client, flow, last)
    ids = dict(zip((step.payload for step in steps), handle.ids, strict=True))
    found = await _insisted(client, handle)
    last_id = found["on_done"]
    if last is not None:
        ids[last.payload] = TaskId(last_id)
    for data, task_id in ids.items():
        world.history.enqueued[task_id] = Enqueued("q", data, trio.current_time(), said[data])
    known = world.audit.flows_end.flows[handle.id] = MadeFlow(handle.ids, last_id)
    if draw.random() < 0.4:
        await trio.sleep(draw.uniform(0, APART_S / 2))
        await _cancel(world, client, handle, known)
    with trio.fail_after(DRAIN_S):
        while (found := await _insisted(client, handle))["state"] not in ("completed", "failed", "cancelled"):
            await trio.sleep(REPEAT_S)
    known.told = found["state"]


def _drawn(draw: random.Random, number: int) -> tuple[Flow[None], Step | None]:
    """Return a flow of groups in a row, and its last step if it has one."""

    def step(place: int) -> Step:
        fate: Fate = draw.choice(("fail", "fail", "cancel", "run"))
        data, retries = b"flow %d step %d" % (number, place), draw.choice((0, 3))
        return Step("q", data, on_dependency_failed=fate, retries=retries, backoff_ms=100)

    places = iter(range(100))
    groups = [Flow[None](_unsent, grouped([step(next(places)) for _ in range(draw.randint(1, 4))])) for _ in range(3)]
    last = Step("q", b"flow %d last" % number, retries=25, backoff_ms=100) if draw.random() < 0.7 else None
    return Flow(_unsent, chained(groups)), last


def _unsent(flow: Flow[None]) -> None:
    raise AssertionError("the scene makes flows with make_flow")


async def _made(client: RecordingClient, flow: Flow[None], last: Step | None) -> AsyncFlowHandle:
    """Make a flow, and repeat that until it is answered."""
    while True:
        with suppress(OnyxqError):
            return await client.client.make_flow(flow, on_done=last, timeout_ms=5_000)
        await trio.sleep(REPEAT_S)


async def _insisted(client: RecordingClient, handle: AsyncFlowHandle) -> dict[str, Any]:
    while True:
        with suppress(OnyxqError):
            return await client.client.flow(handle.id, limit=0)
        await trio.sleep(REPEAT_S)


async def _cancel(world: World, client: RecordingClient, handle: AsyncFlowHandle, known: MadeFlow) -> None:
    """Cancel a flow, and repeat that until it is answered, or the flow has ended before."""
    for task_id in (*known.ids, *([known.last] if known.last else [])):
        world.history.begin(Operation(STOP, client.name, -1, trio.current_time()), task_id)
    while True:
        try:
            found = await client.client.cancel_flow(handle.id)
        except AlreadyFinished:
            return
        except OnyxqError:
            await trio.sleep(REPEAT_S)
            continue
        if found["state"] == "cancelled":
            world.audit.catch_up()
            known.cancelled = world.audit.replica.position + 1
            world.audit.probes.reached("a flow was cancelled")
        return


def _some(draw: random.Random) -> Options:
    return evolve(ONE, partitions=draw.choice((1, 3)))


FLOW_SCENES = by_name(
    Scene("flows_as_a_whole", "flows end, or are cancelled, whatever leaders do", flows_as_a_whole, _some),
)
