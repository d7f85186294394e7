"""An operator of a simulated cluster: sets queues up, pauses and limits them, sees to dead letters (simulation)."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId
from simulation.world.clients import REFUSALS, RecordingClient, tried
from simulation.world.load_rules import CONCURRENCY, LIMITED, RATES, STOPS, TICK_S, TICKS, RulesMix
from simulation.world.world import World

TICK = "tick"
PAUSED_S = 4.0
"""Longest time for which a queue is paused."""
DEAD_MAX = 4
"""Dead letters that are looked at together."""
DRAINING_S = 2.0
"""Between two looks at dead letters while everything is worked off."""
PATIENCE_S = 60.0


class Operator:
    """See the module's first paragraph; ``queue`` is the load's plain one."""

    def __init__(self, world: World, mix: RulesMix, queue: str, generator: random.Random) -> None:
        self._world = world
        self._mix = mix
        self._queue = queue
        self._random = generator
        self._paused: set[str] = set()

    async def set_up(self) -> None:
        """Have the queues be as their tasks need them."""
        async with self._world.client() as client:
            call = client.client
            await self._insist(lambda: call.set_queue(STOPS, on_dead="stops", backoff_ms=100))
            await self._insist(lambda: call.set_queue(LIMITED, concurrency=CONCURRENCY, backoff_ms=100))
            await self._insist(lambda: call.set_periodic(TICK, TICKS, f"every {TICK_S}s", b"tick", missed="all"))

    async def run(self, stopped: Callable[[], bool]) -> None:
        """Do something now and then until told to stop, or cancelled."""
        async with self._world.client() as client:
            while not stopped():
                await trio.sleep(self._random.uniform(0, self._mix.operate_s))
                await tried(
                    self._random.choice((self._pause, self._limit, self._bury, self._bury, self._cancel))(client)
                )

    async def wind_up(self, done: Callable[[], bool]) -> None:
        """Resume what is paused, end what is periodic; then see to dead letters until all is done, and it is known
        outcome of the ones that were seen last."""
        async with self._world.client() as client:
            for queue in (self._queue, LIMITED):
                await self._insist(lambda queue=queue: client.client.resume(queue))  # type: ignore[misc]
            await self._insist(lambda: client.client.set_queue(LIMITED, rate=None))
            await self._insist(lambda: self._remove(client))
            known = True
            while not (known and done()):
                try:
                    await self._bury(client, STOPS)
                    known = True
                except OnyxqError as error:  # noted by the client
                    known = isinstance(error, REFUSALS)
                await trio.sleep(DRAINING_S)

    async def _insist(self, call: Callable[[], Awaitable[object]]) -> None:
        """Repeat a call that may be repeated until it is answered."""
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    await call()
                    return
                except OnyxqError:
                    await trio.sleep(0.5)

    async def _remove(self, client: RecordingClient) -> None:
        if TICK in self._world.audit.replica.periodic:
            await client.client.remove_periodic(TICK)

    # --- what operators do

    async def _pause(self, client: RecordingClient) -> None:
        queue = self._random.choice((self._queue, LIMITED))
        await client.client.pause(queue, by="operator", why="simulation")
        await trio.sleep(self._random.uniform(0, PAUSED_S))
        await client.client.resume(queue)

    async def _limit(self, client: RecordingClient) -> None:
        rate, most = self._random.choice(RATES), self._random.choice((1, CONCURRENCY))
        await client.client.set_queue(LIMITED, rate=rate, concurrency=most)

    async def _bury(self, client: RecordingClient, queue: str | None = None) -> None:
        """Requeue some dead letters and give some up."""
        page = await client.client.dead(queue, limit=DEAD_MAX)
        for task in page.tasks:
            await self._random.choice((client.requeue, client.discard))(task.id)

    async def _cancel(self, client: RecordingClient) -> None:
        """Cancel one of the newest tasks; in half of the cases also if a worker has it."""
        recent: list[TaskId] = list(self._world.history.enqueued)[-20:]
        if recent:
            task_id = self._random.choice(recent)
            await client.cancel(task_id, claimed=bool(task_id[-1] & 1))
