"""Scenes about workers that are stopped, killed and cut off while they run code."""

from __future__ import annotations

import random
from contextlib import suppress

import trio
from attrs import evolve

from onyxq.core.errors import OnyxqError
from simulation.scenes.base import ONE, Scene, by_name
from simulation.scenes.rules import finished, lead_elsewhere
from simulation.world.clients import tried
from simulation.world.workers import Habits, SimulatedWorker, watch
from simulation.world.world import Options, World

LEASE_MS = 3_000


class _Staff:
    """Some workers; each is replaced when it ends."""

    def __init__(self, world: World, nursery: trio.Nursery, habits: Habits) -> None:
        self.world = world
        self.workers: list[SimulatedWorker] = []
        self._nursery = nursery
        self._habits = habits
        nursery.start_soon(watch, world.audit.nothing_hoarded, self.workers)

    def hire(self) -> None:
        """Start one more."""
        concurrency = self.world.random.choice((1, 2, 4))
        self.workers.append(SimulatedWorker(self.world, self._habits, LEASE_MS, concurrency))
        self._nursery.start_soon(self.workers[-1].run)

    @property
    def present(self) -> list[SimulatedWorker]:
        """Those that run and were not told to stop."""
        return [one for one in self.workers if one.name and not one.stopping and not one.killed]

    async def go_home(self) -> None:
        """All end as they should."""
        async with trio.open_nursery() as nursery:
            for worker in self.present:
                nursery.start_soon(worker.stop)


async def _enqueue(world: World, count: int) -> None:
    async with world.client() as client:
        for number in range(count):
            tasks = [b"task %d of %d" % (one, number) for one in range(world.random.randint(1, 8))]
            await tried(client.enqueue("q", tasks, retries=None, backoff_ms=0, timeout_ms=10_000))
            await trio.sleep(world.random.uniform(0, 0.5))


async def staff_changes(world: World) -> None:
    """Workers are stopped, once or twice, and killed, and replaced; nothing else goes wrong."""
    draw = world.random
    async with world.client() as client, trio.open_nursery() as nursery:
        staff = _Staff(world, nursery, Habits())
        for _ in range(3):
            staff.hire()
        nursery.start_soon(_enqueue, world, 25)
        for _ in range(8):
            await trio.sleep(draw.uniform(0.2, 2.5))
            worker = draw.choice(staff.present)
            if draw.random() < 0.3:
                await worker.kill()
            else:
                nursery.start_soon(worker.stop, draw.random() < 0.3)
                await trio.lowlevel.checkpoint()
            staff.hire()
        await finished(client)
        await staff.go_home()
        nursery.cancel_scope.cancel()


async def staff_cut_off(world: World) -> None:
    """Workers are cut off from the cluster for up to three leases, while leaders change."""
    draw = world.random
    async with world.client() as client, trio.open_nursery() as nursery:
        staff = _Staff(world, nursery, Habits(long=0.5, fail=0.0))
        for _ in range(3):
            staff.hire()
        world.history.troubled.update(f"c{number}" for number in range(100))
        nursery.start_soon(_enqueue, world, 20)
        for number in range(5):
            await trio.sleep(draw.uniform(0.2, 2))
            if number == 3 and draw.random() < 0.5:
                nursery.start_soon(lead_elsewhere, world)
            await draw.choice(staff.present).cut_off(draw.uniform(0.5, 3 * LEASE_MS / 1000))
        await world.settle()
        await finished(client)
        await staff.go_home()
        nursery.cancel_scope.cancel()


def _quick(draw: random.Random) -> Options:
    return evolve(ONE, partitions=draw.choice((1, 4)))


async def renewed_unheard(world: World) -> None:
    """Workers renew what has just lapsed, and do not wait for the answer, while their leader finds it lapsed."""
    async with world.client() as client:
        await client.enqueue("q", [b"task %d" % number for number in range(24)], retries=None, backoff_ms=0)
        until_s = trio.current_time() + 12
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(_renew_late, world, until_s)
            await finished(client)


async def _renew_late(world: World, until_s: float) -> None:
    """Claim and renew late until a time, then complete the tasks; a claim ends half a second after its lease."""
    draw = world.random
    async with world.client() as client:
        while claims := await client.claim("q", maximum=2, lease_ms=1_000, wait_ms=5_000):
            with suppress(OnyxqError):  # noted by the client
                while trio.current_time() < until_s:
                    late_s = claims[0].expires - trio.current_time() + draw.uniform(0.5, 1.5)
                    await trio.sleep(max(0.0, late_s))
                    await client.renew(claims, 1_000, timeout_ms=draw.choice((80, 150, 300)))
                for claim in claims:
                    await client.complete(claim)


def _slow_log(draw: random.Random) -> Options:
    """Records take so long that a deadline passes meanwhile."""
    return Options(partitions=1, clock_offset_ms=0, append_delay_ms=(100, draw.choice((300, 600))))


WORKER_SCENES = by_name(
    Scene("staff_changes", "workers stop, are killed, and are replaced", staff_changes, _quick),
    Scene("staff_cut_off", "workers lose the cluster for longer than their leases", staff_cut_off, _quick),
    Scene("renewed_unheard", "claims are renewed as they are found lapsed", renewed_unheard, _slow_log),
)
