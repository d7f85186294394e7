"""Load for simulated clusters: producers, and workers who do all that workers do.

Workers complete, fail, release, renew, update, take too long, and forget their claims,
as the seed says.  When the faults are over `Load.drain` has them work off everything
that was enqueued; no progress for a while is a failure.
"""

from __future__ import annotations

import random

import trio
from attrs import frozen

from onyxq.client.claims import Claim
from onyxq.errors import OnyxqError
from simulation.clients import RecordingClient
from simulation.world import World

STUCK_S = 45.0
"""Simulated seconds without any progress after which a cluster without faults counts as stuck."""
CALL_TIMEOUT_MS = 15_000


@frozen
class Mix:
    """How a load behaves."""

    producers: int = 1
    workers: int = 3
    queue: str = "q"
    batch_max: int = 8
    pause_s: float = 1.0
    """Longest pause of a producer."""
    backlog_max: int = 150
    """Unfinished tasks from which on producers pause."""
    claim_max: int = 8
    lease_ms: tuple[int, int] = (2_000, 8_000)
    work_s: float = 0.2
    """Longest time spent on a claim in earnest."""
    fail: float = 0.08
    release: float = 0.05
    forget: float = 0.04
    late: float = 0.04
    update: float = 0.15
    renew: float = 0.1
    near: float = 0.0
    """How often a claim is renewed or completed within a second of its end, or just behind it."""
    idle_s: float = 0.05
    """Longest pause of a worker that was given nothing."""
    retries: tuple[int, int] | None = None
    """Bounds of the retries that tasks are given; None: no limit."""


class Load:
    """Producers and workers on one queue; see the module's first paragraph."""

    def __init__(self, world: World, mix: Mix | None = None) -> None:
        self.world = world
        self.mix = mix or Mix()
        self.finished = 0
        self._draining = False
        self._stopped = False
        self._random = random.Random(world.random.getrandbits(64))
        self._enqueued = 0

    def start(self, nursery: trio.Nursery) -> None:
        """Begin; the nursery ends them."""
        for _ in range(self.mix.producers):
            nursery.start_soon(self._produce)
        for _ in range(self.mix.workers):
            nursery.start_soon(self._work)

    async def _produce(self) -> None:
        async with self.world.client() as client:
            while not self._draining:
                if len(self.world.history.enqueued) - len(self.world.history.completed) > self.mix.backlog_max:
                    await trio.sleep(0.5)
                    continue
                count = self._random.randint(1, self.mix.batch_max)
                payloads = [b"task %d" % (self._enqueued + number) for number in range(count)]
                self._enqueued += count
                delay_ms = self._random.choice((0, 0, 0, 0, 1_500))
                try:
                    await client.enqueue(
                        self.mix.queue,
                        payloads,
                        delay_ms=delay_ms,
                        priority=self._random.randint(-1, 1),
                        retries=self._random.randint(*self.mix.retries) if self.mix.retries is not None else None,
                        backoff_ms=100,
                        timeout_ms=CALL_TIMEOUT_MS,
                    )
                except OnyxqError:
                    continue  # noted by the client; these may exist or not
                await trio.sleep(self._random.uniform(0, self.mix.pause_s))

    async def _work(self) -> None:
        async with self.world.client() as client:
            while not self._stopped:
                lease_ms = self._random.randint(*self.mix.lease_ms)
                maximum = self._random.randint(1, self.mix.claim_max)
                wait_ms = self._random.choice((0, 500, 3_000))
                try:
                    claims = await client.claim(
                        self.mix.queue,
                        maximum=maximum,
                        lease_ms=lease_ms,
                        wait_ms=wait_ms,
                        timeout_ms=CALL_TIMEOUT_MS,
                    )
                except OnyxqError:
                    await trio.sleep(0.2)
                    continue
                for claim in claims:
                    try:
                        await self._handle(client, claim, lease_ms)
                    except OnyxqError:
                        pass  # noted by the client
                if not claims:
                    await trio.sleep(0.05 if self._draining else self._random.uniform(0.05, self.mix.idle_s))

    async def _handle(self, client: RecordingClient, claim: Claim, lease_ms: int) -> None:
        mix, draw = self.mix, self._random.random
        calm = self._draining
        if not calm and draw() < mix.near:
            await trio.sleep(max(0.0, claim.expires - trio.current_time() + self._random.uniform(-0.3, 1.5)))
            if draw() < 0.5:
                await client.renew(claim, lease_ms, timeout_ms=CALL_TIMEOUT_MS)
        if draw() < mix.update:
            for number in range(self._random.randint(1, 3)):
                await client.update(claim, b"update %d" % number, timeout_ms=CALL_TIMEOUT_MS)
        if draw() < mix.renew:
            await client.renew(claim, lease_ms, timeout_ms=CALL_TIMEOUT_MS)
        await trio.sleep(self._random.uniform(0, mix.work_s) * (0.05 if calm else 1.0))
        choice = 1.0 if calm else draw()
        if choice < mix.forget:
            return
        if choice < (edge := mix.forget + mix.late):
            await trio.sleep(lease_ms / 1000 + self._random.uniform(0, 6))
        elif choice < (edge := edge + mix.fail):
            await client.fail(claim, "did not work", timeout_ms=CALL_TIMEOUT_MS)
            return
        elif choice < edge + mix.release:
            await client.release(claim, timeout_ms=CALL_TIMEOUT_MS)
            return
        await client.complete(claim, b"result of " + claim.data, timeout_ms=CALL_TIMEOUT_MS)
        self.finished += 1

    async def drain(self) -> None:
        """Stop enqueuing and have everything worked off; `AssertionError` if there is no progress for too long."""
        self._draining = True
        left: int | OnyxqError = -1
        seen, seen_s = -1, trio.current_time()
        async with self.world.client() as client:
            while left != 0:
                await trio.sleep(0.5)
                try:
                    counts = (await client.client.count(self.mix.queue))[self.mix.queue]
                except OnyxqError as error:
                    left = error
                else:
                    left = counts["total"] - counts["completed"] - counts["failed"] - counts["cancelled"]
                    if left != seen:
                        seen, seen_s = left, trio.current_time()
                if trio.current_time() - seen_s > STUCK_S:
                    raise AssertionError(f"nothing is worked off for {STUCK_S} s: {left}; {self.world.describe()}")
        self._stopped = True
