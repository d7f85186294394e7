"""Load for simulated clusters: producers, and workers who do all that workers do.

Workers complete, fail, release, renew, update, take too long, and forget their claims,
as the seed says.  With rules in the mix tasks have keys, dependencies and deadlines, some
queues have limits, and an operator is about.  When the faults are over `Load.drain` has
workers work off everything that was enqueued; no progress for a while is a failure.  It ends
when nothing is left once producers and the operator were answered: a requeue under way is in no
count, and would open a task after the last one.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

import trio
from attrs import frozen

from onyxq.client.claims import Claim
from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId
from simulation.world.clients import RecordingClient, tried
from simulation.world.load_rules import LIMITED, STOPS, TICKS, RulesMix
from simulation.world.load_rules import draw as draw_rules
from simulation.world.operators import Operator
from simulation.world.world import World

STUCK_S = 45.0
"""Simulated seconds without any progress after which a cluster without faults counts as stuck."""
WARM_UP_S = 2.0
"""Time before the first fault, in simulated seconds."""
CALL_TIMEOUT_MS = 15_000
AHEAD_MS = 500
"""How long before they are due every second worker claims tasks."""
REPEATED = 0.5
"""How often a unique key is sent once more."""
ALL_QUEUES = 0.15
"""How often workers ask for tasks of every queue rather than of one."""
CALM_LEASE_MS = 20_000
"""Lease of claims while everything is completed: waiting claims are repeated in each quarter of it."""
RECENT = 10
"""Tasks on which a new one may depend: few, so that some of them are not done yet."""


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
    """How often a claim is renewed or completed within a second of its end, or just after it."""
    idle_s: float = 0.05
    """Longest pause of a worker that was given nothing."""
    retries: tuple[int, int] | None = None
    """Bounds of the retries that tasks are given; None: no limit."""
    rules: RulesMix | None = None
    """None: all tasks are plain."""


class Load:
    """Producers and workers on one queue; see the module's first paragraph."""

    def __init__(self, world: World, mix: Mix | None = None, *, first: int = 0) -> None:
        """``first``: where the numbers begin by which payloads and results differ."""
        self.world = world
        self.mix = mix or Mix()
        self.finished = 0
        self._draining = False
        self._winding_up = True
        self._stopped = False
        self._makers = 0
        """Producers and operators that are not done."""
        self._random = random.Random(world.random.getrandbits(64))
        self._enqueued = self._moves = first
        self._recent: list[TaskId] = []
        rules = self.mix.rules
        self._queues = [self.mix.queue, STOPS, LIMITED, TICKS] if rules is not None else [self.mix.queue]
        self._operator = Operator(world, rules, self.mix.queue, self._random) if rules is not None else None
        self._ready = trio.Event()

    def start(self, nursery: trio.Nursery) -> None:
        """Begin; the nursery ends them."""
        makers = [self._operate, *[self._produce] * self.mix.producers]
        self._makers = len(makers)
        for make in makers:
            nursery.start_soon(self._make, make)
        for number in range(self.mix.workers):
            nursery.start_soon(self._work, AHEAD_MS if number % 2 else 0)

    async def _make(self, make: Callable[[], Awaitable[None]]) -> None:
        await make()
        self._makers -= 1

    async def _operate(self) -> None:
        if self._operator is not None:
            await self._operator.set_up()
            self._ready.set()
            await self._operator.run(lambda: self._draining)
            await self._operator.wind_up(lambda: not self._winding_up)
        self._ready.set()

    async def _produce(self) -> None:
        await self._ready.wait()
        async with self.world.client() as client:
            while not self._draining:
                if len(self.world.history.enqueued) - len(self.world.history.completed) > self.mix.backlog_max:
                    await trio.sleep(0.5)
                    continue
                try:
                    await self._enqueue(client)
                except OnyxqError:
                    continue  # noted by the client; these may exist or not
                await trio.sleep(self._random.uniform(0, self.mix.pause_s))

    async def _enqueue(self, client: RecordingClient) -> None:
        mix, generator = self.mix, self._random
        queue, count = mix.queue, generator.randint(1, mix.batch_max)
        retries = generator.randint(*mix.retries) if mix.retries is not None else None
        said: dict[str, Any] = {"delay_ms": generator.choice((0, 0, 0, 0, 1_500)), "retries": retries}
        if mix.rules is not None:
            now_ms = self.world.audit.true_ms()
            queue, most, more = draw_rules(mix.rules, generator, queue, now_ms=now_ms, recent=self._recent)
            count, said = min(count, most), said | more
        said |= {"priority": generator.randint(-1, 1), "backoff_ms": 100, "timeout_ms": CALL_TIMEOUT_MS}
        ids = await client.enqueue(queue, self._payloads(count), **said)
        self._recent = [*self._recent, *ids][-RECENT:]
        while said.get("unique_key") and generator.random() < REPEATED:
            await trio.sleep(generator.uniform(0, 0.5))
            await client.enqueue(queue, self._payloads(1), **said)

    def _payloads(self, count: int) -> list[bytes]:
        self._enqueued += count
        return [b"task %d" % (self._enqueued - number) for number in range(count, 0, -1)]

    async def _work(self, ahead_ms: int) -> None:
        async with self.world.client() as client:
            while not self._stopped:
                lease_ms = CALM_LEASE_MS if self._draining else self._random.randint(*self.mix.lease_ms)
                maximum = self._random.randint(1, self.mix.claim_max)
                wait_ms = 3_000 if self._draining else self._random.choice((0, 500, 3_000))
                try:
                    claims = await client.claim(
                        self._wanted(),
                        maximum=maximum,
                        lease_ms=lease_ms,
                        wait_ms=wait_ms,
                        ahead_ms=ahead_ms,
                        timeout_ms=CALL_TIMEOUT_MS,
                    )
                except OnyxqError:
                    await trio.sleep(0.2)
                    continue
                for claim in claims:
                    await tried(self._handle(client, claim, lease_ms))
                if not claims:
                    await trio.sleep(0.05 if self._draining else self._random.uniform(0.05, self.mix.idle_s))

    def _wanted(self) -> list[str]:
        """Queues to claim from: now some, now all."""
        if self.mix.rules is None or self._draining or self._random.random() < ALL_QUEUES:
            return self._queues
        return [self._random.choice((self._queues[0], *self._queues))]

    async def _handle(self, client: RecordingClient, claim: Claim, lease_ms: int) -> None:
        mix, draw = self.mix, self._random.random
        calm = self._draining
        if claim.due and mix.release and claim.token % 4 == 0:
            await client.release(claim, timeout_ms=CALL_TIMEOUT_MS)
            return
        await trio.sleep(max(0.0, claim.due - trio.current_time()))
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
        fail = mix.rules.fail_stops if mix.rules is not None and claim.queue == STOPS else mix.fail
        if choice < mix.forget:
            return
        if choice < (edge := mix.forget + mix.late):
            await trio.sleep(lease_ms / 1000 + self._random.uniform(0, 6))
        elif choice < (edge := edge + fail):
            await client.fail(claim, "did not work", timeout_ms=CALL_TIMEOUT_MS)
            return
        elif choice < edge + mix.release:
            await client.release(claim, timeout_ms=CALL_TIMEOUT_MS)
            return
        if mix.rules is not None and not calm and draw() < mix.rules.transact:
            await self._move(client, claim)
        else:
            await client.complete(claim, b"result of " + claim.data, timeout_ms=CALL_TIMEOUT_MS)
        self.finished += 1

    async def _move(self, client: RecordingClient, claim: Claim) -> None:
        """Complete a task and enqueue another one, both or neither."""
        self._moves += 1
        said = b"by move %d" % self._moves
        more: dict[str, Any] = {"ordering_key": "moved"} if self._random.random() < 0.3 else {}
        await client.transact(
            complete=[(claim, said)],
            enqueue=[(self.mix.queue, b"%s of %s" % (said, claim.data))],
            insist=self._random.random() < 0.5,
            timeout_ms=CALL_TIMEOUT_MS,
            retries=None,
            backoff_ms=100,
            **more,
        )

    async def drain(self) -> None:
        """Stop enqueuing and have everything worked off; `AssertionError` if there is no progress for too long."""
        self._draining = True
        await self._drained()
        self._winding_up = False
        await self.world.until(lambda: not self._makers, "producers and the operator are answered")
        await self._drained()
        self._stopped = True

    async def _drained(self) -> None:
        async def left(client: RecordingClient) -> int:
            replica = self.world.audit.replica
            return await open_tasks(client, self._queues) + len(replica.periodic) + len(replica.transactions)

        await worked_off(self.world, left)


async def open_tasks(client: RecordingClient, queues: Collection[str]) -> int:
    """Return the number of unfinished tasks in some queues; raises `OnyxqError`."""
    counts = await client.client.count()
    return sum(
        one["total"] - one["completed"] - one["failed"] - one["cancelled"]
        for queue, one in counts.items()
        if queue in queues
    )


async def worked_off(world: World, left: Callable[[RecordingClient], Awaitable[int]]) -> None:
    """Return when ``left(client)`` is 0; `AssertionError` if it stays the same for `STUCK_S` seconds."""
    number: int | OnyxqError = -1
    seen, seen_s = -1, trio.current_time()
    async with world.client() as client:
        while number != 0:
            await trio.sleep(0.5)
            try:
                number = await left(client)
            except OnyxqError as error:
                number = error
            else:
                if number != seen:
                    seen, seen_s = number, trio.current_time()
            if trio.current_time() - seen_s > STUCK_S:
                raise AssertionError(f"nothing is worked off for {STUCK_S} s: {number}; {world.describe()}")


class Drained(Protocol):
    """Clients that start in a nursery, and in the end complete everything."""

    def start(self, nursery: trio.Nursery) -> None:
        """Start the clients; the nursery ends them."""
        ...

    async def drain(self) -> None:
        """Stop enqueuing and complete everything; `AssertionError` if that makes no progress."""
        ...


async def under_faults(world: World, load: Drained, faults: Callable[[World], Awaitable[object]]) -> None:
    """Cause faults while clients work; then the cluster must recover and complete everything."""
    async with trio.open_nursery() as nursery:
        load.start(nursery)
        await trio.sleep(WARM_UP_S)
        await faults(world)
        await world.settle()
        await load.drain()
        nursery.cancel_scope.cancel()


async def under_load(world: World, faults: Callable[[World], Awaitable[object]], mix: Mix | None = None) -> Load:
    """Cause faults while a load works; then the cluster must recover and complete everything."""
    load = Load(world, mix)
    await under_faults(world, load, faults)
    return load
