"""Scenes about batches: drivers die, are replaced and do not know it, say things twice (design: simulation)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from log_entries import set_slots, submit_job
from onyxq.core.errors import OnyxqError
from onyxq.core.replica import Job
from simulation.scenes.base import Scene, by_name, slow_steps
from simulation.world.clients import RecordingClient, tried
from simulation.world.drivers import INPUT, JOB, Driver, image, row_payload
from simulation.world.world import SimulatedNode, World

ROWS = 30
SUBMISSION = submit_job.Args(JOB, b"body", bytes(16), "balanced", 0, 1, 1, (), (), "", (), (), False, 60_000)
DONE_S = 120.0
LEFT_S = 30.0
"""Time within which all pending rows of drivers that were never committed are deleted."""


class Drivers:
    """The drivers of a scene; only the last one is the driver of the job."""

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self.world = world
        self._nursery = nursery
        self._running: list[tuple[Driver, trio.CancelScope]] = []

    async def start(self, *, zombies: bool) -> None:
        """Start a driver of the job's present version; earlier drivers continue if they are ``zombies``."""
        if not zombies:
            self.stop()
        job = await running_job(self.world)
        driver, scope = Driver(self.world, job.version, ROWS), trio.CancelScope()
        self._running.append((driver, scope))

        async def run() -> None:
            with scope:
                await driver.run()

        self._nursery.start_soon(run)

    def stop(self) -> None:
        """All drivers die."""
        for _, scope in self._running:
            scope.cancel()


async def append(world: World, *entries: Any, nodes: Sequence[SimulatedNode] = ()) -> list[str]:
    """Append entries by way of some node, as often as it takes."""
    while entries:
        found = [node.inner for node in nodes or world.nodes if node.inner is not None]
        try:
            return list((await world.random.choice(found).verdicts(list(entries)))[1])
        except (OnyxqError, IndexError):
            await trio.sleep(0.5)
    return []


async def running_job(world: World, nodes: Sequence[SimulatedNode] = ()) -> Job:
    """The job, once some peer drives it; peers that have no slots are given some."""
    while True:
        replica = world.audit.replica
        job = replica.jobs.get(JOB)
        if job is not None and job.state == "running":
            return job
        peers = [peer for peer in sorted(replica.ring.members) if replica.peers[peer].slots == 0]
        await append(world, *(set_slots.Args(peer, 2) for peer in peers), nodes=nodes)
        if job is None:
            await append(world, SUBMISSION, nodes=nodes)
        await trio.sleep(0.2)


async def take_over(world: World, nodes: Sequence[SimulatedNode] = ()) -> None:
    """Let another peer drive the job without a message to the present driver."""
    job = await running_job(world, nodes)
    spare = [peer for peer in sorted(world.audit.replica.ring.members) if peer != job.driver]
    await append(world, *(set_slots.Args(peer, 2) for peer in spare), set_slots.Args(job.driver, 0), nodes=nodes)


async def inputs(world: World, client: RecordingClient, count: int) -> None:
    """Tasks for the job to read, and what is to become of them and of its rows."""
    images = world.audit.batches_once.images
    for number in range(count):
        payloads = [b"input %d, %d" % (number, place) for place in range(world.random.randint(1, 4))]
        for payload in payloads:
            images[payload] = image(payload)
        await client.enqueue(INPUT, payloads, retries=None, backoff_ms=0, timeout_ms=60_000)
        await trio.sleep(world.random.uniform(0, 0.4))


async def finished(world: World, client: RecordingClient) -> None:
    """Return once everything is read and has become something."""
    with trio.fail_after(DONE_S):
        while True:
            job = await running_job(world)
            counts = (await client.client.count(INPUT))[INPUT]
            if counts["completed"] == counts["total"] and f'"rows": {ROWS},'.encode() in job.offsets:
                return
            await trio.sleep(0.5)


async def nothing_left(world: World) -> None:
    """Wait until no node has pending rows that will never be committed."""
    with trio.fail_after(LEFT_S):
        while world.pending():
            await trio.sleep(0.5)


async def _driven(world: World, *, faults: int, nodes: bool) -> None:
    draw = world.random
    world.audit.batches_once.images.update({row_payload(row): image(row_payload(row)) for row in range(ROWS)})
    async with world.client() as client, trio.open_nursery() as nursery:
        drivers = Drivers(world, nursery)
        await drivers.start(zombies=False)
        nursery.start_soon(inputs, world, client, 30)
        for _ in range(faults):
            await trio.sleep(draw.uniform(0.2, 2.0))
            kind = draw.choice(("die", "take over", "take over", "node", "log") if nodes else ("die", "take over"))
            if kind == "take over":
                await take_over(world)
            elif kind == "node":
                await _node_dies(world)
            elif kind == "log":
                world.log_down()
                await trio.sleep(draw.uniform(0.2, 5.0))
                world.log_up()
            await drivers.start(zombies=kind != "die" and draw.random() < 0.7)
        await world.settle()
        await drivers.start(zombies=False)
        await finished(world, client)
        nursery.cancel_scope.cancel()
    await nothing_left(world)


async def _node_dies(world: World) -> None:
    node = world.random.choice([one for one in world.nodes if one.running is not None])
    await world.restart_node(node, after_s=world.random.choice((0.0, 0.5, 8.0)))
    await world.settle()


async def replaced_drivers(world: World) -> None:
    """Drivers die and are replaced, and earlier ones continue."""
    await _driven(world, faults=8, nodes=False)


async def batches_under_fire(world: World) -> None:
    """The same while nodes die and the log goes away."""
    await _driven(world, faults=6, nodes=True)


async def late_batches(world: World) -> None:
    """A driver's peer cannot write a commit until claims have run out, or another one drives the job."""
    draw = world.random
    world.audit.batches_once.images.update({row_payload(row): image(row_payload(row)) for row in range(ROWS)})
    async with world.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(inputs, world, client, 30)
        for _ in range(4):
            job, late = await running_job(world), draw.choice(world.nodes)
            driver = Driver(world, job.version, ROWS, nodes=[late])
            async with trio.open_nursery() as its:
                its.start_soon(driver.run)
                with trio.move_on_after(5):
                    await driver.committing.wait()
                await trio.sleep(draw.uniform(0, 0.04))
                world.disconnect_log(late)
                others = [node for node in world.nodes if node is not late]
                kind = draw.choice(("taken over", "another", "claims"))
                if kind == "taken over":
                    await take_over(world, others)
                    job = await running_job(world, others)
                if kind == "claims":
                    its.start_soon(_claim_inputs, world, others)
                else:
                    its.start_soon(Driver(world, job.version, ROWS, nodes=others).run)
                await trio.sleep(draw.uniform(2.5, 4.5))
                world.reconnect_log(late)
                await trio.sleep(draw.uniform(0, 3))
                its.cancel_scope.cancel()
            await world.settle()
        drivers = Drivers(world, nursery)
        await drivers.start(zombies=False)
        await finished(world, client)
        nursery.cancel_scope.cancel()
    await nothing_left(world)


async def _claim_inputs(world: World, nodes: Sequence[SimulatedNode]) -> None:
    """Another claimer takes inputs as they become free, and does not process them."""
    async with world.client(nodes=nodes) as client:
        while True:
            if await tried(client.claim(INPUT, maximum=20, lease_ms=1_500, wait_ms=1_500)) is None:
                await trio.sleep(0.2)


BATCH_SCENES = by_name(
    Scene("replaced_drivers", "drivers of a job die, and go on although replaced", replaced_drivers, slow_steps),
    Scene("batches_under_fire", "the same while nodes die and the log goes away", batches_under_fire, slow_steps),
    Scene("late_batches", "a batch's commit is written when its time is over", late_batches, slow_steps),
)
