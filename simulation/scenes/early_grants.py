"""Scenes about grants that come early: a waiting claimer is granted a task whose row is still being stored.

The row comes late, or never, and the leader or the log is lost in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio
from attrs import evolve

from onyxq.client.claims import Claim
from onyxq.core.errors import OnyxqError
from onyxq.core.facts import pack_task
from onyxq.core.ids import TaskId, id_at, mask_of, stretch_of
from simulation.checkers import Broken
from simulation.scenes.base import ONE, Scene, back, by_name, cut_off, leader_of, soon, take_the_rest
from simulation.world.clients import RecordingClient, tried
from simulation.world.workload import always
from simulation.world.world import SimulatedNode, World

ROUNDS = 3
SLOW_MS = 400
"""How long the disks and the messages between nodes take while a row is stored."""
LEASE_MS = 2_000
LONG_LEASE_MS = 60_000
SOON_S = 5.0
"""Time within which claims of refused rows are given back, and lapsed ones are ended."""

Fault: TypeAlias = Callable[[World, SimulatedNode], Awaitable[None]]


def is_stored(world: World, task_id: bytes) -> bool:
    """Return whether a node that runs can read the task's row."""
    bit = mask_of(TaskId(task_id), 1)
    stores = [node.inner.store for node in world.nodes if node.inner is not None]
    return any(store.known_bits(stretch_of(TaskId(task_id))) & bit for store in stores)


def claimed_ids(world: World) -> list[TaskId]:
    """Return the claimed tasks of partition 0, as the log has them."""
    world.audit.catch_up()
    claims = world.audit.replica.claims.get(0)
    return [
        id_at(TaskId(stretch), place)
        for stretch, pieces in (claims.items() if claims is not None else ())
        for offset, count, *_ in pieces
        for place in range(offset, offset + count)
    ]


async def _take(world: World, client: RecordingClient, queue: str, lease_ms: int) -> None:
    """Wait for a task, check that its row is stored, and complete it."""
    claims = await tried(client.claim(queue, lease_ms=lease_ms, wait_ms=30_000, timeout_ms=35_000))
    for claim in claims or ():
        _check_stored(world, claim)
        await tried(client.complete(claim, b"done", timeout_ms=3_000))


def _check_stored(world: World, claim: Claim) -> None:
    if not is_stored(world, claim.id):
        raise Broken(f"stored first: a worker got task {claim.id.hex()}, which is in no store")


async def _granted_early(
    world: World, fault: Fault, data: bytes, *, queue: str = "q", lease_ms: int = LEASE_MS, far_ms: int = 1
) -> TaskId:
    """Enqueue a task while a claimer waits; run ``fault`` once its grant is in the log and its row in no store."""
    leader, usual = leader_of(world), {node.name: node.disk.delay_ms for node in world.nodes}
    async with (
        world.client(nodes=[leader]) as waiting,
        world.client(nodes=[leader]) as producer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_take, world, waiting, queue, lease_ms)
        await trio.sleep(1.0)
        for node in world.nodes:
            node.disk.delay_ms = lambda: SLOW_MS
            if node is not leader:
                world.network.delay(leader.name, node.name, delay_ms=far_ms)
        nursery.start_soon(_enqueue, producer, queue, data)
        await soon(lambda: bool(claimed_ids(world)), every_s=0.0005)
        found = claimed_ids(world)
        if not found or is_stored(world, found[0]):
            raise Broken("early grants: the grant of a new task waited for its row")
        await fault(world, leader)
        for node in world.nodes:
            node.disk.delay_ms = usual[node.name]
            if node is not leader:
                world.network.delay(leader.name, node.name, delay_ms=1)
        if not leader.peer_id:
            nursery.cancel_scope.cancel()
    return found[0]


async def _enqueue(client: RecordingClient, queue: str, data: bytes) -> None:
    await tried(client.enqueue(queue, [data], timeout_ms=20_000))


async def _again(client: RecordingClient, task_id: TaskId, queue: str, data: bytes) -> None:
    """Repeat the enqueue of a task."""
    body = pack_task({"queue": queue, "retries": 25, "backoff_ms": 0}, [data])
    for _ in range(10):
        try:
            (ack,) = (await client.client.call("enqueue", {"runs": [[task_id, body]], "w": None}))["acks"]
        except OnyxqError:
            ack = None
        if isinstance(ack, int):
            return
        await trio.sleep(0.5)
    raise Broken(f"early grants: the repeated enqueue of {task_id.hex()} was not acknowledged")


async def _ended(world: World, task_id: TaskId, *, within_s: float) -> None:
    await soon(lambda: task_id not in claimed_ids(world), within_s=within_s, every_s=0.05)
    if task_id in claimed_ids(world):
        raise Broken(f"phantom claims end: the claim on {task_id.hex()} stays")


async def _completed(client: RecordingClient, task_id: TaskId) -> None:
    await take_the_rest(client, wait_ms=3_000)
    found = await client.client.get(task_id)
    if found.state != "completed":
        raise Broken(f"granted again: task {task_id.hex()} is {found.state}")


async def leader_dies(world: World) -> None:
    """The leader dies after the grant; the enqueue is repeated before or after the lease of the claim is over."""
    for number in range(ROUNDS):
        data = b"task %d" % number
        task_id = await _granted_early(world, _crash, data, far_ms=SLOW_MS)
        lapsed_first = number % 2 == 0
        if is_stored(world, task_id):
            raise Broken("early grants: the row outlived its leader")
        async with world.client() as client:
            if lapsed_first:
                await world.settle()
                await _ended(world, task_id, within_s=LEASE_MS / 1000 + SOON_S)
            await _again(client, task_id, "q", data)
            await _ended(world, task_id, within_s=LEASE_MS / 1000 + SOON_S + 20)
            await _completed(client, task_id)
        for node in world.nodes:
            if node.running is None:
                await world.bring_back(node)


async def _crash(world: World, leader: SimulatedNode) -> None:
    """Kill the leader; its messages to the others are lost with it."""
    for node in world.nodes:
        if node is not leader:
            world.network.part([leader.name], [node.name])
    await world.crash_node(leader)
    world.network.heal()


async def store_refuses(world: World) -> None:
    """The leader's disk refuses the row, and may have it nevertheless; the others may have it too."""
    for number in range(ROUNDS):
        data, lands = b"task %d" % number, world.random.random() < 0.5

        async def refuse(world: World, leader: SimulatedNode, lands: bool = lands) -> None:
            leader.disk.refuse(times=1, lands=lands)
            await trio.sleep(2 * SLOW_MS / 1000)

        task_id = await _granted_early(world, refuse, data, lease_ms=LONG_LEASE_MS)
        await _ended(world, task_id, within_s=SOON_S)
        async with world.client() as client:
            await _again(client, task_id, "q", data)
            await _completed(client, task_id)


async def log_lost(world: World) -> None:
    """The leader loses the log after the grant, for a moment or for good, while its row is stored or refused."""
    for number in range(ROUNDS):
        data = b"task %d" % number
        refused, deposed = world.random.random() < 0.5, number % 2 == 0

        async def lose(world: World, leader: SimulatedNode, refused: bool = refused, deposed: bool = deposed) -> None:
            cut_off(world, isolated=deposed)
            if refused:
                leader.disk.refuse(times=1, lands=False)
            await trio.sleep(12 if deposed else 1)
            await back(world, leader)

        task_id = await _granted_early(world, lose, data)
        await _ended(world, task_id, within_s=LEASE_MS / 1000 + SOON_S + 20)
        async with world.client() as client:
            await _again(client, task_id, "q", data)
            await _completed(client, task_id)


async def limits_free(world: World) -> None:
    """The leader of a queue with a limit dies while a row is stored: no claim on a missing task uses up the limit."""
    async with world.client() as client:
        await client.client.set_queue("one", concurrency=1)
        leader, usual = leader_of(world), {node.name: node.disk.delay_ms for node in world.nodes}
        async with world.client(nodes=[leader]) as waiting, trio.open_nursery() as nursery:
            nursery.start_soon(_take, world, waiting, "one", LONG_LEASE_MS)
            await trio.sleep(1.0)
            for node in world.nodes:
                node.disk.delay_ms = lambda: SLOW_MS
            nursery.start_soon(_enqueue, waiting, "one", b"first")
            await trio.sleep(SLOW_MS / 1000 / 2)
            await _crash(world, leader)
            nursery.cancel_scope.cancel()
        for node in world.nodes:
            node.disk.delay_ms = usual[node.name]
        await world.bring_back(leader)
        await client.enqueue("one", [b"second"])
        claims = await client.claim("one", lease_ms=LONG_LEASE_MS, wait_ms=10_000)
        if not claims:
            raise Broken("limits free: a claim on a task that was never stored uses up the limit")
        while claims:
            for claim in claims:
                await client.complete(claim)
            claims = await client.claim("one", lease_ms=LONG_LEASE_MS, wait_ms=1_000)


_THREE = always(evolve(ONE, absent_after_ms=600_000))

EARLY_SCENES = by_name(
    Scene("early_death", "the leader dies between an early grant and the row", leader_dies, _THREE),
    Scene("early_refusal", "a store refuses the row of an early grant", store_refuses, _THREE),
    Scene("early_log_lost", "the log is lost between an early grant and the row", log_lost, _THREE),
    Scene("early_limits", "a leader dies while it stores a task of a limited queue", limits_free, _THREE),
)
