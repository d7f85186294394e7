"""Scenes about retention: old tasks are purged while nodes are away, die, rot and take turns (design: simulation)."""

from __future__ import annotations

import random
from functools import partial

import trio

from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId
from onyxq.core.limits import Fate
from simulation.scenes.base import Scene, by_name
from simulation.scenes.rules import finished, hired, lead_elsewhere
from simulation.world.clients import RecordingClient, tried
from simulation.world.faults import bit_rot, collection
from simulation.world.world import Options, World

MARGIN_MS, BUCKET_MS = 12_000, 2_000
PASSED_S = 45.0
"""In which whatever may be purged is, once nothing is broken any more."""
KEYS = ("a", "b", "c")


async def purged_under_fire(world: World) -> None:
    """Tasks come, end and are purged after seconds while nodes are away with old rows, die in the midst of deleting
    and lead in turns; what was sent long ago is sent again."""
    draw, over, sent = world.random, trio.Event(), dict[bytes, TaskId]()
    async with world.client() as client, trio.open_nursery() as nursery:
        await client.client.set_queue("q", retention_ms=draw.choice((0, 3_000, 15_000)), backoff_ms=0)
        await client.client.set_queue("later", retention_ms=0, backoff_ms=0)
        nursery.start_soon(partial(hired, world, over, fail=0.15))
        nursery.start_soon(_watch, world, over)
        nursery.start_soon(_send_again, world, sent, over)
        async with trio.open_nursery() as others:
            others.start_soon(_enqueue_some, world, client, sent)
            for _ in range(3):
                await draw.choice((_away, _die, _rot, lead_elsewhere))(world)
        await world.settle()
        nursery.start_soon(partial(hired, world, over, fail=0.15, queue="later"))
        await finished(client)
        await trio.sleep(PASSED_S)
        over.set()


async def failed_and_waited_for(world: World) -> None:
    """Tasks depend on others that fail and are soon purged; their own leader is deaf or gone for a while."""
    draw, over = world.random, trio.Event()
    async with world.client() as client, trio.open_nursery() as nursery:
        await client.client.set_queue("q", retention_ms=0, backoff_ms=0)
        failing = [one for n in range(6) for one in await client.enqueue("q", [b"first %d" % n], retries=0)]
        for number, one in enumerate(failing):
            for at in range(2):
                policy: Fate = draw.choice(("fail", "cancel"))
                await client.enqueue("q", [b"after %d %d" % (number, at)], depends=[one], on_dependency_failed=policy)
        deaf = draw.choice(world.nodes)
        assert deaf.inner is not None
        deaf.inner.operations.dependencies._resolve = _nothing  # type: ignore
        nursery.start_soon(partial(hired, world, over, fail=1.0, pause_s=0.5))
        await trio.sleep(PASSED_S)
        await world.restart_node(deaf, after_s=draw.uniform(0, 8))
        await world.settle()
        await finished(client)
        await trio.sleep(PASSED_S)
        over.set()


async def _watch(world: World, over: trio.Event) -> None:
    while not over.is_set():
        for node in world.nodes:
            if node.replica is not None:
                world.audit.purged.watch(node.name, node.replica, node.disk.tables)
        await trio.sleep(0.25)


async def back_behind_a_trim(world: World) -> None:
    """A node was away while tasks were purged and the log was trimmed; when it is back nothing more is purged."""
    async with world.client() as client:
        await client.client.set_queue("q", retention_ms=0)
        await client.enqueue("q", [b"task %d" % number for number in range(8)])
        away = world.random.choice(world.nodes)
        await trio.sleep(1)
        await world.crash_node(away)
        over = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(hired, world, over, fail=0.15))
            await finished(client)
            over.set()
        await trio.sleep(PASSED_S)
        await collection(world)
        await world.bring_back(away)


async def _nothing(*_: object) -> None:
    """In place of what is not to happen."""


async def _enqueue_some(world: World, client: RecordingClient, sent: dict[bytes, TaskId]) -> None:
    draw, recent = world.random, list[TaskId]()
    for number in range(30):
        data = b"task %d" % number
        said: dict[str, object] = {"retries": draw.choice((0, 2))}
        kind = draw.random()
        if kind < 0.2:
            said |= {"unique_key": draw.choice(KEYS), "unique_until": "purged"}
        elif kind < 0.4 and recent:
            said["depends"] = draw.sample(recent, 1)
        elif kind < 0.5:
            said["delay_ms"] = 4_000
        queue = "later" if kind > 0.8 else "q"
        ids = await tried(client.enqueue(queue, [data], timeout_ms=10_000, **said))  # type: ignore[arg-type]
        if ids is None or queue == "later":
            continue  # tasks of "later" are completed at the end
        recent = [*recent[-8:], *ids]
        if not said.keys() & {"unique_key", "depends", "delay_ms"}:
            sent[data] = ids[0]
        await trio.sleep(draw.uniform(0, 2))


async def _send_again(world: World, sent: dict[bytes, TaskId], over: trio.Event) -> None:
    """Send tasks again under their ids, however old, like a client that did not get the answers."""
    async with world.client() as client:
        while not over.is_set():
            await trio.sleep(world.random.uniform(0.5, 3))
            if not sent:
                continue
            data = world.random.choice(sorted(sent))
            try:
                await client.client.enqueue("q", data, id=sent[data], timeout_ms=3_000)
                world.probes.reached("a task was sent again")
            except OnyxqError as error:
                if error.code == "purged":
                    world.probes.reached("a purged task was sent again")


async def _away(world: World) -> None:
    """A node is gone for longer than tasks are kept."""
    node = world.random.choice(world.nodes)
    await world.crash_node(node)
    await trio.sleep(world.random.uniform(20, 50))
    await world.bring_back(node)


async def _die(world: World) -> None:
    """Processes end again and again, some while they delete."""
    for _ in range(4):
        await trio.sleep(world.random.uniform(0, 6))
        node = world.random.choice(world.nodes)
        if node.running is not None:
            await world.restart_node(node, after_s=world.random.choice((0.0, 0.5)))
    await world.settle()


async def _rot(world: World) -> None:
    for _ in range(3):
        await trio.sleep(world.random.uniform(0, 8))
        await bit_rot(world)


def _short(draw: random.Random) -> Options:
    return Options(
        partitions=draw.choice((1, 2)),
        clock_offset_ms=draw.choice((0, 500)),
        absent_after_ms=draw.choice((20_000, 600_000)),
        read_delay_ms=draw.choice(((0, 3), (0, 3), (5, 300))),
        disk_delay_ms=draw.choice(((0, 2), (5, 60))),
        gc_records=draw.choice((100, 20_000)),
        purge_bucket_ms=BUCKET_MS,
        purge_margin_ms=MARGIN_MS,
    )


RETENTION_SCENES = by_name(
    Scene("purged_under_fire", "tasks are purged while nodes are away, die and rot", purged_under_fire, _short),
    Scene("back_behind_a_trim", "a node misses a purge and the log of it", back_behind_a_trim, _short),
    Scene("failed_and_waited_for", "failed tasks are purged that others wait for", failed_and_waited_for, _short),
)
