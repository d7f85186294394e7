"""The loop of a worker: claim, work, complete (design: claims).

It claims in batches with a long poll, a little ahead of what runs; renews what it holds
every third of the lease; stops work whose claim no longer stands; and on the way out
finishes what it can and gives the rest back.  Works on trio and on asyncio.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar

import anyio
from anyio.abc import TaskGroup

from onyxq.client import AsyncClient, Claim, ClaimBatch
from onyxq.errors import BatchRefused, Conflict, LogUnavailable, OnyxqError, Overloaded, TimedOut, Unavailable
from onyxq.ids import TaskId, ids_of

RENEWALS_PER_LEASE = 3
RENEWAL_TIMEOUT_MIN_S = 0.1
ERROR_CHARACTERS_MAX = 4_000
PAUSE_FIRST_S, PAUSE_MAX_S = 0.1, 5.0
"""Pauses between claims that failed."""
RELEASE_TIMEOUT_MS = 5_000

log = logging.getLogger(__name__)

Body = Callable[[Claim], Awaitable[bytes | None]]

current_client: ContextVar[AsyncClient] = ContextVar("current_client")
"""Within a task: the worker's client."""
current_claim: ContextVar[Claim] = ContextVar("current_claim")
"""Within a task: its claim, for updates and as a fencing token."""


class _Job:
    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.scope = anyio.CancelScope()
        self.started = False
        self.stale = False

    def drop(self) -> None:
        """The claim no longer stands."""
        self.stale = True
        self.scope.cancel()


class Worker:
    """Runs ``body(claim)`` for tasks of some queues, ``concurrency`` at a time.

    What the body returns is the task's result; what it raises is the error of a failed
    attempt.  ``ahead``: claims held beyond those that run (default: as many).
    """

    def __init__(
        self,
        body: Body,
        *,
        queues: Sequence[str],
        concurrency: int = 10,
        ahead: int | None = None,
        lease_ms: int = 30_000,
        wait_ms: int = 10_000,
        drain_ms: int = 30_000,
        name: str | None = None,
    ) -> None:
        self._body = body
        self._queues = list(queues)
        self._concurrency = concurrency
        self._capacity = concurrency + (concurrency if ahead is None else ahead)
        self._lease_ms = lease_ms
        self._wait_ms = wait_ms
        self._drain_ms = drain_ms
        self._name = name
        self._jobs: dict[TaskId, _Job] = {}
        self._changed = anyio.Event()
        self._stopping = False
        self._claiming: anyio.CancelScope | None = None
        self.finished = 0
        """Tasks completed."""
        self.failed = 0
        """Attempts that failed."""

    @property
    def held(self) -> int:
        """Claims held now."""
        return len(self._jobs)

    def stop(self) -> None:
        """Claim no more; finish what runs, give back what does not. Again: give everything back now."""
        for job in self._jobs.values():
            if self._stopping or not job.started:
                job.scope.cancel()
        self._stopping = True
        if self._claiming is not None:
            self._claiming.cancel()

    async def serve(self, client: AsyncClient) -> None:
        """Work until `stop`; raises errors that no retry can mend (a bad queue name, no permission)."""
        running = anyio.Semaphore(self._concurrency)
        token = current_client.set(client)
        failure: OnyxqError | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._renew, client)
                try:
                    await self._claim(client, group, running)
                except OnyxqError as error:
                    failure = error
                if not self._stopping:
                    self.stop()
                await self._drain()
                group.cancel_scope.cancel()
        finally:
            current_client.reset(token)
        if failure is not None:
            raise failure

    async def _drain(self) -> None:
        with anyio.move_on_after(self._drain_ms / 1000):
            await self._below(1)
        for job in self._jobs.values():
            job.scope.cancel()
        await self._below(1)

    async def _claim(self, client: AsyncClient, group: TaskGroup, running: anyio.Semaphore) -> None:
        pause_s = PAUSE_FIRST_S
        # Asking for one free place at a time would cost a grant per task.
        least = max(1, self._capacity // 4)
        with anyio.CancelScope() as self._claiming:
            while not self._stopping:
                await self._below(self._capacity - least + 1)
                try:
                    batch = await self._ask(client)
                except (Unavailable, Overloaded, TimedOut) as error:
                    log.warning("claiming failed, trying again: %s", error.message)
                    await anyio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_MAX_S)
                    continue
                pause_s = PAUSE_FIRST_S
                for claim in batch:
                    job = self._jobs[claim.id] = _Job(claim)
                    if self._stopping:
                        job.scope.cancel()
                    group.start_soon(self._work, client, job, running)

    async def _ask(self, client: AsyncClient) -> ClaimBatch:
        free = min(self._capacity - len(self._jobs), 1000)
        return await client.claim(
            self._queues, max=free, lease_ms=self._lease_ms, wait_ms=self._wait_ms, worker=self._name
        )

    async def _below(self, limit: int) -> None:
        while len(self._jobs) >= limit:
            self._changed = anyio.Event()
            await self._changed.wait()

    async def _work(self, client: AsyncClient, job: _Job, running: anyio.Semaphore) -> None:
        current_claim.set(job.claim)
        result: bytes | None = None
        problem: str | None = None
        try:
            with job.scope:
                async with running:
                    job.started = True
                    try:
                        result = await self._body(job.claim)
                    except Exception as error:
                        # Whatever user code raises is the outcome of the attempt.
                        problem = describe(error)
            await self._report(client, job, result, problem)
        finally:
            del self._jobs[job.claim.id]
            self._changed.set()

    async def _report(self, client: AsyncClient, job: _Job, result: bytes | None, problem: str | None) -> None:
        claim = job.claim
        if job.stale:
            log.warning("the claim on task %s no longer stands; its work was stopped", claim.id.hex())
            return
        try:
            if job.scope.cancelled_caught:
                await client.release(claim, timeout_ms=RELEASE_TIMEOUT_MS)
            elif problem is None:
                await client.complete(claim, result)
                self.finished += 1
            else:
                await client.fail(claim, problem)
                self.failed += 1
        except OnyxqError as error:
            log.warning("the outcome of task %s was not taken: %s", claim.id.hex(), error.message)

    async def _renew(self, client: AsyncClient) -> None:
        pause_s = self._lease_ms / RENEWALS_PER_LEASE / 1000
        next_at = anyio.current_time() + pause_s
        while True:
            await anyio.sleep_until(next_at)
            next_at = anyio.current_time() + pause_s
            claims = [job.claim for job in self._jobs.values()]
            if not claims:
                continue
            # Work must not go on after its lease: an attempt ends with the first lease at the latest.
            left_s = min(claim.expires for claim in claims) - anyio.current_time()
            timeout_s = min(pause_s, max(left_s, RENEWAL_TIMEOUT_MIN_S))
            try:
                await client.renew(claims, self._lease_ms, timeout_ms=int(timeout_s * 1000))
            except BatchRefused as error:
                for part in error.refused:
                    for task_id in ids_of(part.first, part.count):
                        self._not_renewed(task_id, part.error)
            except OnyxqError as error:
                for claim in claims:
                    self._not_renewed(claim.id, error)

    def _not_renewed(self, task_id: TaskId, error: OnyxqError) -> None:
        job = self._jobs.get(task_id)
        if job is None:
            return
        # While the log cannot be reached its time stands still, and leases with it.
        lapsed = not isinstance(error, LogUnavailable) and anyio.current_time() >= job.claim.expires
        if isinstance(error, Conflict) or lapsed:
            job.drop()


def describe(error: BaseException) -> str:
    """The text stored for a failed attempt."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text[:ERROR_CHARACTERS_MAX]
