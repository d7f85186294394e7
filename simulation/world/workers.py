"""Workers of a simulated cluster: the loop that runs in production, around code that is watched (design: simulation).

A worker is a process on a machine of its own: it can be stopped, killed, and cut off.
Its code logs checkpoints, takes its time, sometimes several leases, and sometimes fails.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

import trio
from attrs import define, field

from onyxq.client import AsyncClient
from onyxq.client.claims import Claim, ClaimBatch
from onyxq.worker import Worker, context
from simulation.checkers import Broken
from simulation.checkers.nothing_hoarded import NothingHoarded
from simulation.world.clients import RecordingClient
from simulation.world.history import KILLED, RAISED, RETURNED, STOPPED, Worked
from simulation.world.world import World

LOOK_S = 0.25


class CodeFailed(Exception):
    """What a task's code raises."""


@define
class Habits:
    """What the code of tasks does."""

    short_s: float = 0.1
    long_s: float = 6.0
    long: float = 0.2
    """How often a task takes long."""
    fail: float = 0.1
    log: float = 0.4
    """How often it logs checkpoints."""


class _Noted:
    """A worker's client whose calls go into the history."""

    def __init__(self, recording: RecordingClient) -> None:
        self._recording = recording
        self.complete, self.fail, self.update = recording.complete, recording.fail, recording.update
        self.renew, self.release = recording.renew, recording.release

    async def claim(
        self, queues: Sequence[str], *, max: int, lease_ms: int, wait_ms: int, worker: str | None, ahead_ms: int
    ) -> ClaimBatch:
        """See `AsyncClient.claim`."""
        return await self._recording.claim(queues, maximum=max, lease_ms=lease_ms, wait_ms=wait_ms, ahead_ms=ahead_ms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recording.client, name)


@define(eq=False)
class SimulatedWorker:
    """One worker; `run` is its process."""

    world: World
    habits: Habits
    lease_ms: int
    concurrency: int
    name: str = ""
    killed: bool = False
    stopping: bool = False
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    ended: trio.Event = field(factory=trio.Event)
    worker: Worker = field(init=False)
    draw: random.Random = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.draw = random.Random(self.world.random.getrandbits(64))
        self.worker = Worker(
            self._body,
            queues=["q"],
            concurrency=self.concurrency,
            lease_ms=self.lease_ms,
            wait_ms=2_000,
            drain_ms=self.draw.choice((200, 3_000)),
        )

    async def run(self) -> None:
        """Work until stopped or killed."""
        try:
            with self.scope:
                async with self.world.client() as recording:
                    self.name = recording.name
                    await self.worker.serve(cast(AsyncClient, _Noted(recording)))
        finally:
            self.ended.set()

    async def stop(self, twice: bool = False) -> None:
        """As on SIGTERM, or on two of them."""
        self.stopping = True
        self.worker.stop()
        if twice:
            await trio.sleep(self.draw.uniform(0, 0.3))
            self.worker.stop()
        await self.ended.wait()

    async def kill(self) -> None:
        """The process ends now; nothing of what it had to say leaves it."""
        self.killed = True
        self.world.history.troubled.add(self.name)
        self.world.network.part([self.name], [node.name for node in self.world.nodes])
        self.scope.cancel()
        await self.ended.wait()

    async def cut_off(self, seconds: float) -> None:
        """Nothing gets through to its machine for so long."""
        self.world.history.troubled.add(self.name)
        self.world.network.part([self.name], [node.name for node in self.world.nodes])
        await trio.sleep(seconds)
        self.world.network.heal()

    # --- the code of tasks

    async def _body(self, claim: Claim) -> bytes:
        mine = Worked(self.name, claim.token, trio.current_time())
        self.world.history.worked.setdefault(claim.id, []).append(mine)
        try:
            self.world.audit.code_runs_alone.begun(claim.id, mine)
            result = await self._work(claim)
            mine.outcome = RETURNED
            return result
        except Broken as error:
            # To the worker it would be an attempt that failed.
            self.world.nursery.start_soon(_raise, error)
            raise
        except Exception:
            mine.outcome = RAISED
            raise
        finally:
            if mine.outcome not in (RETURNED, RAISED):
                mine.outcome = KILLED if self.killed else STOPPED

    async def _work(self, claim: Claim) -> bytes:
        habits, draw, ctx = self.habits, self.draw, context()
        checker = self.world.audit.checkpoints_found
        if draw.random() < habits.log:
            known = checker.logged(claim.id, claim.token)
            checker.found(claim.id, known, await ctx.earlier())
            for page in range(draw.randint(1, 3)):
                await ctx.log({"page": page, "attempt": ctx.attempt})
        await trio.sleep(draw.uniform(0, habits.long_s if draw.random() < habits.long else habits.short_s))
        if draw.random() < habits.fail:
            raise CodeFailed("did not work")
        return b"result of " + claim.data


async def _raise(error: Broken) -> None:
    raise error


async def watch(checker: NothingHoarded, workers: Sequence[SimulatedWorker]) -> None:
    """Look at what workers hold until cancelled."""
    while True:
        running = frozenset(one.name for one in workers if not one.killed and not one.ended.is_set())
        checker.look(running - checker.history.troubled, trio.current_time())
        await trio.sleep(LOOK_S)
