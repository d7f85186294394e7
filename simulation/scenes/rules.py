"""Scenes about keys, dependencies, limits, deadlines, dead letters: a takeover at the bad time (design: simulation)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio
from attrs import evolve

from onyxq.client.claims import Claim
from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId, partition_of
from onyxq.core.limits import Fate
from onyxq.core.periodic import task_id
from simulation.scenes.base import ONE, Scene, by_name, leader_of
from simulation.world.clients import RecordingClient, tried
from simulation.world.history import Said, Sent
from simulation.world.workload import always
from simulation.world.world import Options, SimulatedNode, World

PERIOD_S = 2
"""Length of the periods of unique keys, in seconds."""
SHORT_MS, LONG_MS = 1_500, 60_000
AWAY_S = 12.0
"""Longest time for which a killed leader stays away."""
BURY_S = 0.5
"""Longest time until a dead letter is seen to."""
PATIENCE_S = 30.0
"""Time in which a cluster without faults requeues dead letters, in simulated seconds."""


async def lead_elsewhere(world: World, *, kill: float = 0.5) -> None:
    """Partition 0's leader is killed, or drains, and comes back a while later."""
    node = leader_of(world)
    if world.random.random() < kill:
        await world.crash_node(node)
    else:
        await world.stop_node(node)
    await trio.sleep(world.random.uniform(0, AWAY_S))
    await world.bring_back(node)


async def lead_without_log(world: World) -> None:
    """Partition 0's leader loses the log, for a time that its session may survive."""
    node = leader_of(world)
    world.disconnect_log(node)
    await trio.sleep(world.random.uniform(0, AWAY_S))
    world.reconnect_log(node)


async def work(
    client: RecordingClient,
    over: trio.Event,
    *,
    queue: str = "q",
    fail: Callable[[Claim], bool] = lambda claim: False,
    pause_s: float = 0.05,
    lease_ms: int = LONG_MS,
) -> None:
    """Ask again and again, without waiting, and complete, or fail, what is given."""
    while not over.is_set():
        with suppress(OnyxqError):  # noted by the client
            for claim in await client.claim(queue, maximum=4, lease_ms=lease_ms, timeout_ms=2_000):
                if fail(claim):
                    await client.fail(claim, "did not work", retry_in_ms=0, timeout_ms=5_000)
                else:
                    await client.complete(claim, b"done", timeout_ms=5_000)
        await trio.sleep(pause_s)


async def finished(
    client: RecordingClient, within_s: float = 120.0, *, discard: bool = False, queue: str = "q"
) -> None:
    """Return once every task is finished; `TooSlowError` if that takes too long. ``discard``: have dead letters go."""
    with trio.fail_after(within_s):
        while True:
            with suppress(OnyxqError):
                for task in (await client.client.dead("q")).tasks if discard else ():
                    await client.discard(task.id)
                counts = (await client.client.count(queue)).get(queue)
                if counts is None or counts["total"] == counts["completed"] + counts["failed"] + counts["cancelled"]:
                    return
            await trio.sleep(0.5)


@asynccontextmanager
async def working(client: RecordingClient, *, queue: str = "q", pause_s: float = 0.05) -> AsyncIterator[None]:
    """Have a client complete tasks until the block ends."""
    over = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(work, client, over, queue=queue, pause_s=pause_s))
        yield
        over.set()


async def hired(
    world: World,
    over: trio.Event,
    *,
    fail: float = 0.0,
    queue: str = "q",
    pause_s: float = 0.3,
    lease_ms: int = LONG_MS,
) -> None:
    """Work with a client of its own; ``fail`` is the share of tasks that fail."""

    def fails(claim: Claim) -> bool:
        return fail >= 1 or (fail > 0 and world.random.random() < fail)

    async with world.client() as client:
        await work(client, over, queue=queue, fail=fails, pause_s=pause_s, lease_ms=lease_ms)


# --- keys -------------------------------------------------------------------------------------


async def keys_handed_over(world: World) -> None:
    """Tasks of two keys come in while leaders whose clocks differ take turns, some due later, some dying."""
    over, buried = trio.Event(), trio.Event()
    async with world.client() as client, trio.open_nursery() as nursery:
        await client.client.set_queue("q", on_dead=world.random.choice(("stops", "goes on")), backoff_ms=0)
        nursery.start_soon(partial(hired, world, over, fail=0.2, pause_s=0.2, lease_ms=SHORT_MS))
        async with trio.open_nursery() as others:
            others.start_soon(_bury_all, world, buried)
            others.start_soon(_enqueue_keyed, world, client)
            for _ in range(3):
                await trio.sleep(world.random.uniform(0.5, 4))
                await lead_elsewhere(world, kill=0.2)
            await finished(client)
            buried.set()
        await finished(client, discard=True)
        over.set()


async def _enqueue_keyed(world: World, client: RecordingClient) -> None:
    for number in range(40):
        delay_ms = world.random.choice((0, 0, 300, 1_500))
        await tried(
            client.enqueue(
                "q",
                [b"task %d" % number],
                ordering_key=world.random.choice("ab"),
                retries=world.random.choice((0, 1, 5)),
                backoff_ms=100,
                delay_ms=delay_ms,
                timeout_ms=10_000,
            )
        )
        await trio.sleep(world.random.uniform(0, 0.5))


async def overtaken_in_a_key(world: World) -> None:
    """Requeued dead letters come before the claimed task of their key, which fails too."""
    over, opened = trio.Event(), trio.Event()
    async with world.client() as client, trio.open_nursery() as nursery:
        await client.client.set_queue("q", on_dead="goes on", backoff_ms=0)
        for number in range(12):
            await client.enqueue("q", [b"task %d" % number], ordering_key="a", retries=number % 2 * 100, backoff_ms=100)
        nursery.start_soon(_slow_at_keys, world, over)
        async with trio.open_nursery() as others:
            others.start_soon(partial(_bury_all, world, opened, discard=False))
            await trio.sleep(world.random.uniform(1, 8))
            await lead_elsewhere(world)
            await finished(client)
            opened.set()
        await finished(client)
        over.set()


async def _slow_at_keys(world: World, over: trio.Event) -> None:
    """Take one at a time, for a while, and have half of them fail."""
    draw = world.random
    async with world.client() as client:
        while not over.is_set():
            with suppress(OnyxqError):  # noted by the client
                for claim in await client.claim("q", lease_ms=LONG_MS, wait_ms=200, timeout_ms=2_000):
                    await trio.sleep(draw.uniform(0, 0.6))
                    if draw.random() < 0.5:
                        await client.fail(claim, "did not work", retry_in_ms=0, timeout_ms=5_000)
                    else:
                        await client.complete(claim, b"done", timeout_ms=5_000)


async def _bury_all(world: World, over: trio.Event, *, discard: bool = True) -> None:
    async with world.client() as client:
        while not over.is_set():
            await trio.sleep(1.0)
            with suppress(OnyxqError):  # noted by the client
                for task in (await client.client.dead("q")).tasks:
                    act = world.random.choice((client.requeue, client.discard)) if discard else client.requeue
                    await act(task.id)


async def _enqueued_while_leaders_change(
    world: World, enqueue: Callable[[World, int], Awaitable[None]], *, changes: int
) -> None:
    """Run three of these clients, and workers until all tasks are finished; partitions get other leaders meanwhile."""
    over = trio.Event()
    async with world.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(hired, world, over)
        async with trio.open_nursery() as enqueuers:
            for name in range(3):
                enqueuers.start_soon(enqueue, world, name)
            for _ in range(changes):
                await trio.sleep(world.random.uniform(0.5, 3))
                await lead_elsewhere(world)
        await finished(client)
        over.set()


async def same_again(world: World) -> None:
    """Enqueues of a few unique keys are repeated by several clients while leaders change and workers take the tasks."""
    await _enqueued_while_leaders_change(world, _enqueue_unique, changes=2)


async def _enqueue_unique(world: World, name: int) -> None:
    async with world.client() as client:
        for number in range(24):
            await tried(
                client.enqueue(
                    "q",
                    [b"task %d of %d" % (number, name)],
                    unique_key=f"u{number // 4}",
                    unique_until=("purged", "finished", "started")[number // 4 % 3],
                    delay_ms=world.random.choice((0, 500)),
                    timeout_ms=10_000,
                )
            )
            await trio.sleep(world.random.uniform(0, 0.6))


async def said_again(world: World) -> None:
    """Enqueues that replace the data of tasks are repeated, before and after those run, while leaders change."""
    over = trio.Event()
    async with world.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(hired, world, over)
        async with trio.open_nursery() as enqueuers:
            for number in range(12):
                first = client.enqueue("q", [b"first %d" % number], unique_key=f"u{number}", delay_ms=1_000)
                if await tried(first) is not None:
                    enqueuers.start_soon(_say_again, world, f"u{number}", b"second %d" % number)
                if number == 6:
                    enqueuers.start_soon(lead_elsewhere, world)
                await trio.sleep(world.random.uniform(0, 1))
        await finished(client)
        over.set()


async def _say_again(world: World, key: str, data: bytes) -> None:
    world.history.payloads[data] = 1
    world.history.sent[data] = Sent("q", Said(unique_key=key), trio.current_time())
    async with world.client() as client:
        ids = await client.client.make_ids(1)
        for _ in range(5):
            with suppress(OnyxqError):  # repeated next time
                await client.client.enqueue_many("q", [data], unique_key=key, ids=ids, timeout_ms=5_000)
            await trio.sleep(world.random.uniform(0, 1.5))


async def once_per_period(world: World) -> None:
    """Enqueues of a few keys with a period are repeated in many periods, before and after their tasks end."""
    await _enqueued_while_leaders_change(world, _enqueue_in_periods, changes=3)


async def _enqueue_in_periods(world: World, name: int) -> None:
    async with world.client() as client:
        for number in range(36):
            await tried(
                client.enqueue(
                    "q",
                    [b"task %d of %d" % (number, name)],
                    unique_key=f"p{number % 3}",
                    unique_period=PERIOD_S,
                    on_conflict="refuse" if number % 3 else "keep",
                    delay_ms=world.random.choice((0, 0, 500, 3_000)),
                    timeout_ms=10_000,
                )
            )
            await trio.sleep(world.random.uniform(0, 0.4))


# --- deadlines and dependencies -----------------------------------------------------------------


async def due_at_a_takeover(world: World) -> None:
    """Tasks expire while their partition has no leader, or as it gets one; who asks all the time gets none of them."""
    over = trio.Event()
    async with world.client() as client, trio.open_nursery() as nursery:
        for number in range(30):
            expires_ms = world.audit.true_ms() + world.random.randint(1_000, 14_000)
            await client.enqueue("q", [b"task %d" % number], expires_ms=expires_ms, priority=number % 3)
        nursery.start_soon(_slow_worker, world, over)
        for _ in range(2):
            await lead_elsewhere(world)
        await finished(client)
        over.set()


async def _slow_worker(world: World, over: trio.Event) -> None:
    draw = world.random.random
    async with world.client() as client:
        while not over.is_set():
            with suppress(OnyxqError):  # noted by the client
                claims = await client.claim("q", maximum=1, lease_ms=SHORT_MS, timeout_ms=1_000)
                for claim in claims:
                    if draw() < 0.4:
                        await client.fail(claim, "did not work", retry_in_ms=2_000, timeout_ms=4_000)
                    elif draw() < 0.7:
                        await client.complete(claim, timeout_ms=4_000)
            await trio.sleep(0.1)


async def after_others(world: World) -> None:
    """Tasks form chains over all partitions, and some fail or are cancelled, while leaders change."""
    over = trio.Event()
    draw = world.random
    async with world.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(partial(hired, world, over, fail=0.15))
        ids: list[TaskId] = []
        for number in range(40):
            depends = sorted({draw.choice(ids) for _ in range(draw.randint(0, 3))}) if ids else []
            fate: Fate = draw.choice(("fail", "cancel", "run"))
            with suppress(OnyxqError):  # noted by the client
                ids += await client.enqueue(
                    "q",
                    [b"task %d" % number],
                    depends=depends,
                    on_dependency_failed=fate,
                    retries=0,
                    timeout_ms=10_000,
                )
                if draw.random() < 0.1:
                    await client.cancel(draw.choice(ids))
            if number % 15 == 10:
                nursery.start_soon(lead_elsewhere, world)
            await trio.sleep(draw.uniform(0, 0.6))
        await world.settle()
        await finished(client)
        over.set()


async def after_their_own(world: World) -> None:
    """Tasks of a few keys depend on others of their key, due earlier and later, while leaders' clocks differ."""
    over, draw = trio.Event(), world.random
    async with world.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(hired, world, over)
        ids: dict[str, list[TaskId]] = {"a": [], "b": []}
        for number in range(30):
            key = draw.choice("ab")
            with suppress(OnyxqError):  # noted by the client
                ids[key] += await client.enqueue(
                    "q",
                    [b"task %d" % number],
                    ordering_key=key,
                    depends=sorted(set(draw.sample(ids[key], min(len(ids[key]), draw.randint(0, 2))))),
                    delay_ms=draw.choice((0, 0, 500, 4_000)),
                    timeout_ms=10_000,
                )
            if number % 12 == 8:
                nursery.start_soon(lead_elsewhere, world)
            await trio.sleep(draw.uniform(0, 0.5))
        await world.settle()
        await finished(client)
        over.set()


# --- limits and pauses ----------------------------------------------------------------------------


async def limits_under_fire(world: World) -> None:
    """Many ask for tasks of a queue with limits in several partitions; some forget what they have, leaders change."""
    over = trio.Event()
    async with world.client() as client, trio.open_nursery() as nursery:
        await client.client.set_queue("q", concurrency=3, rate=world.random.choice((0, 5)))
        for number in range(60):
            await client.enqueue("q", [b"task %d" % number], retries=None, backoff_ms=0)
        for _ in range(5):
            nursery.start_soon(_forgetful_worker, world, over)
        for number in range(12):
            await trio.sleep(world.random.uniform(0.1, 1))
            await client.client.pause("q")
            await trio.sleep(world.random.uniform(0.1, 1))
            await client.client.resume("q")
            if number % 4 == 3 and world.random.random() < 0.5:
                await lead_elsewhere(world)
        await finished(client, within_s=240)
        over.set()


async def _forgetful_worker(world: World, over: trio.Event) -> None:
    draw = world.random.random
    async with world.client() as client:
        while not over.is_set():
            try:
                claims = await client.claim("q", maximum=2, lease_ms=SHORT_MS, wait_ms=500, timeout_ms=2_000)
                for claim in claims:
                    await trio.sleep(0.2 * draw())
                    if draw() < 0.9:
                        await client.complete(claim, timeout_ms=4_000)
            except OnyxqError:
                await trio.sleep(0.1)


# --- dead letters -----------------------------------------------------------------------------------


async def opened_again(world: World) -> None:
    """Dead letters are requeued, discarded and cancelled while their leader changes, or has no log; each keeps its
    word, and what could not be done can be asked for again."""
    draw = world.random
    async with world.client() as client:
        for number in range(16):
            await client.enqueue("q", [b"task %d" % number], retries=1, backoff_ms=0)
        for _ in range(3):
            await _fail_all(client)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_bury_some, world, client)
                await trio.sleep(draw.uniform(0, 0.1))
                await draw.choice((lead_elsewhere, lead_without_log))(world)
            await world.settle()
        async with working(client):
            await finished(client)
            await _open_some(world, client)
            await finished(client)


async def _fail_all(client: RecordingClient) -> None:
    """Fail every task until it is a dead letter."""
    for _ in range(4):
        for claim in await client.claim("q", maximum=20, lease_ms=LONG_MS, wait_ms=300):
            await tried(client.fail(claim, "did not work", timeout_ms=5_000))


async def _open_some(world: World, client: RecordingClient) -> None:
    """Requeue some dead letters, which nothing can be in the way of any more; the others are left as they died."""
    left = {task.id for task in (await client.client.dead("q")).tasks if world.random.random() < 0.5}
    with trio.fail_after(PATIENCE_S):
        while left:
            for task_id in sorted(left):
                await tried(client.requeue(task_id))
            await trio.sleep(0.5)
            left &= {task.id for task in (await client.client.dead("q")).tasks}


async def _bury_some(world: World, client: RecordingClient) -> None:
    async with trio.open_nursery() as nursery:
        for task in (await client.client.dead("q")).tasks:
            nursery.start_soon(_bury, world, client, task.id)


async def _bury(world: World, client: RecordingClient, task_id: TaskId) -> None:
    await trio.sleep(world.random.uniform(0, BURY_S))
    with suppress(OnyxqError):  # noted by the client
        await world.random.choice((client.requeue, client.requeue, client.discard))(task_id)
        if world.random.random() < 0.3:
            await client.cancel(task_id)


# --- periodic tasks -----------------------------------------------------------------------------------


async def ticking(world: World) -> None:
    """A periodic task continues if its leader, or any other node, dies, is deposed or cannot write when it is due."""
    async with world.client() as client:
        await client.client.set_periodic("tick", "q", "every 2s", b"tick", missed="all")
        for _ in range(4):
            await trio.sleep(world.random.uniform(0, 3))
            node = _of_tick(world) if world.random.random() < 0.5 else world.random.choice(world.nodes)
            how = world.random.choice(("crash", "crash", "session", "cut"))
            if how == "crash":
                await world.restart_node(node, after_s=world.random.uniform(0, AWAY_S))
            elif how == "session":
                world.expire_session(node)
            else:
                world.isolate(node)
                await trio.sleep(world.random.uniform(0.5, AWAY_S))
                world.network.heal()
            await world.settle()
        await client.client.remove_periodic("tick")
        async with working(client):
            await finished(client)


def _of_tick(world: World) -> SimulatedNode:
    """Return the leader of the partition of the periodic task's runs, which every firing needs."""
    first = task_id(world.audit.replica.periodic["tick"], 0, world.options.partitions)
    return leader_of(world, partition_of(first))


# --- the table ----------------------------------------------------------------------------------------


_APART = always(evolve(ONE, clock_offset_ms=2_000))
_LAGGING = always(evolve(ONE, partitions=4, read_delay_ms=(5, 200)))  # so nodes grant without knowledge of each other
_PATIENT = always(evolve(ONE, partitions=4, session_timeout_ms=20_000))


def _spread(draw: random.Random) -> Options:
    return evolve(ONE, partitions=draw.choice((2, 4)), append_delay_ms=(2, 30))


def _askew(draw: random.Random) -> Options:
    return evolve(_spread(draw), clock_offset_ms=2_000)


RULE_SCENES = by_name(
    Scene("keys_handed_over", "leaders whose clocks differ take turns with a key", keys_handed_over, _APART),
    Scene("overtaken_in_a_key", "dead letters come back before the claimed one of their key", overtaken_in_a_key),
    Scene("same_again", "unique keys are enqueued again and again", same_again, _spread),
    Scene("said_again", "enqueues that replaced data are repeated", said_again),
    Scene("once_per_period", "unique keys have one task per period, whatever the clocks say", once_per_period, _askew),
    Scene("due_at_a_takeover", "tasks expire while nobody leads", due_at_a_takeover),
    Scene("after_others", "dependencies finish while leaders change", after_others, _spread),
    Scene("after_their_own", "dependencies within a key, whatever is due when", after_their_own, _APART),
    Scene("limits_under_fire", "limits and pauses, forgotten claims, new leaders", limits_under_fire, _LAGGING),
    Scene("opened_again", "dead letters are requeued and discarded", opened_again),
    Scene("ticking", "a periodic task, and who fires it dies", ticking, _PATIENT),
)
