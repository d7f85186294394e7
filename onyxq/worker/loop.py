"""The loop of a worker: claim, run, complete (design: claims).

It claims in batches with a long poll, as many tasks as its slots will start soon. It also claims tasks shortly
before they are due. It renews all its claims together and stops work that lost its claim. When it stops, it
finishes the tasks it can and gives the others back. Works on trio and on asyncio.
"""

from __future__ import annotations

import contextvars
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Unpack, cast

import anyio
from anyio.abc import TaskGroup

from onyxq.client import OF_QUEUE, AsyncClient, Claim, ClaimBatch
from onyxq.client.options import known, takes
from onyxq.client.values import queue_names
from onyxq.core.errors import BadRequest, OnyxqError, Overloaded, TimedOut, TooLarge, Unavailable
from onyxq.core.task_headers import due_of
from onyxq.system.tracing import attempting
from onyxq.worker import console, retries
from onyxq.worker.attempts import (
    Attempt,
    TaskCancelled,
    current_attempt,
    current_claim,
    current_client,
    describe,
    ended_by_check,
    traceback_of,
)
from onyxq.worker.heartbeats import RENEWALS_PER_LEASE, Renewals
from onyxq.worker.options import WORKER_DEFAULTS, WorkerOptions, checked
from onyxq.worker.pace import PATIENCE_S, Pace
from onyxq.worker.slot_count import LOOK_EVERY_S, Scaling

GATHER_S = 0.02
"""How long a free slot waits for others, in seconds: to claim one task at a time would cost a grant each."""
PAUSE_FIRST_S, PAUSE_MAX_S = 0.1, 5.0
"""Shortest and longest pause after a failed claim, in seconds."""
RELEASE_TIMEOUT_MS = 5_000
REPORT_S = 15.0
"""Longest wait for outcomes to be stored once a stopping worker runs no function any more, in seconds.

It is longer than the session of a peer that died and the takeover after it: else functions that have run run again.
"""
HURRIED_S = 6.0
"""The same after a second `stop`, in seconds."""
CLAIM_TASKS_MAX = 1_000
AHEAD_MS = 500
"""Longest time by which a task is claimed before it is due, in milliseconds."""

log = logging.getLogger(__name__)

Body = Callable[[Claim], Awaitable[bytes | None]]


class _Job:
    def __init__(self, attempt: Attempt, now: float) -> None:
        self.attempt = attempt
        self.claim = attempt.claim
        self.scope = anyio.CancelScope()
        self.since = now
        """Monotonic second at which it was claimed, or at which it started once it runs."""
        self.took_s = 0.0
        """How long it ran, in seconds, once it has ended."""
        self.ended = False
        self.stale = False
        self.stopped = False
        """Whether its function ended itself because the attempt had to end."""
        self.result: bytes | None = None
        self.problem: BaseException | None = None

    def cancel(self) -> None:
        self.attempt.cancelled.set()
        self.scope.cancel()


@takes(WorkerOptions, WORKER_DEFAULTS)
class Worker:
    """A worker: runs ``body(claim)`` for tasks of some queues, up to ``concurrency`` at a time.

    The body returns the task's result; an exception that it raises is the error of a failed attempt.
    """

    def __init__(
        self, body: Body, *, queues: str | Sequence[str], concurrency: int = 10, **options: Unpack[WorkerOptions]
    ) -> None:
        said = checked(known(options, Worker, WORKER_DEFAULTS), concurrency)
        self._body = body
        self.queues = list(queue_names(queues))
        """The queues whose tasks it claims."""
        self._scaling = Scaling(concurrency, said["concurrency_max"] or concurrency)
        self._pace = Pace(concurrency, limit=said["ahead"])
        self._lease_ms = cast(int, said["lease_ms"])
        self._wait_ms = cast(int, said["wait_ms"])
        self._drain_ms = cast(int, said["drain_ms"])
        self.name = said["name"] or console.default_name()
        """The name that is shown with its claims."""
        self._jobs: dict[Claim, _Job] = {}
        """All claims held: waiting for a slot, running, or being reported."""
        self._waiting: deque[_Job] = deque()
        self._early: dict[Claim, _Job] = {}
        """Claims of tasks that are not due yet."""
        self._running: dict[Claim, _Job] = {}
        self._begun_at = 0.0
        """Sum of the monotonic seconds at which the running tasks started."""
        self._changed = anyio.Event()
        self._stopped = anyio.Event()
        self._hurried = False
        """Whether `stop` was called again."""
        self._claiming: anyio.CancelScope | None = None
        self._asking: anyio.CancelScope | None = None
        """Scope of the claim request in progress."""
        self._asks_timers = False
        """Whether that request may return tasks that are not due yet."""
        self._giving_back = False
        self._failure: OnyxqError | None = None
        self._context: contextvars.Context
        """The context in which each task begins."""
        self.cut_off = False
        """Whether it has been logged that no peer answers, so that calls that fail for that reason need no words."""
        self.set_up = False
        """Whether everything that its application needs is set up, such as periodic tasks."""
        self.finished = 0
        """Number of tasks completed."""
        self.failed = 0
        """Number of failed attempts."""

    @property
    def held(self) -> int:
        """Number of claims held now."""
        return len(self._jobs)

    @property
    def running(self) -> int:
        """Number of tasks running now."""
        return len(self._running)

    @property
    def drain_s(self) -> float:
        """How long running tasks may continue after `stop`, in seconds."""
        return self._drain_ms / 1000

    def under_way(self) -> list[tuple[str, float]]:
        """Return the name and the age in seconds of each running task, the oldest first."""
        now = anyio.current_time()
        return sorted(
            ((job.attempt.shown_as, now - job.since) for job in self._running.values()), key=lambda one: -one[1]
        )

    @property
    def reported(self) -> int:
        """Number of tasks that have ended, and whose outcomes are being stored now."""
        return sum(job.ended for job in self._jobs.values())

    def stop(self) -> None:
        """Stop claiming, finish running tasks and give back the others; called again, give everything back now."""
        if self._stopping:
            self._hurried = True
            self._cancel_all()
            self._wake()
        self._stopped.set()
        if self._claiming is not None:
            self._claiming.cancel()

    async def serve(self, client: AsyncClient) -> None:
        """Work until `stop`; raise errors that no retry can fix (a bad queue name, no permission)."""
        token = current_client.set(client)
        self._context = contextvars.copy_context()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(Renewals(self._standing, self._lost, lease_ms=self._lease_ms).run, client)
                group.start_soon(self._hand_back, client)
                group.start_soon(self._beside, client)
                group.start_soon(self._scale, client, group)
                await self._claim(client, group)
                await self._drain()
                group.cancel_scope.cancel()
        finally:
            current_client.reset(token)
        if self._failure is not None:
            raise self._failure

    async def _beside(self, client: AsyncClient) -> None:
        """Set up what the application needs, and keep it so, while the worker works."""
        self._is_set_up()

    def _is_set_up(self) -> None:
        self.set_up = True

    @property
    def _stopping(self) -> bool:
        return self._stopped.is_set()

    def _slots(self) -> int:
        """Return the number of tasks that may run at the same time."""
        return self._scaling.slots

    async def _scale(self, client: AsyncClient, group: TaskGroup) -> None:
        self._scaling.look(anyio.current_time())
        while self._scaling.least < self._scaling.most:
            await anyio.sleep(LOOK_EVERY_S)
            if self._scaling.look(anyio.current_time()):
                self._pace.slots = self._scaling.slots
                self._begin(client, group)
                self._wake()
                await self._resized()

    async def _resized(self) -> None:
        """Adapt to a changed number of slots."""

    def _give_up(self, error: OnyxqError) -> None:
        """Stop because of an error that no retry can fix, and raise it at the end."""
        self._failure = self._failure or error
        if not self._stopping:
            self.stop()

    # --- claiming

    async def _claim(self, client: AsyncClient, group: TaskGroup) -> None:
        pause_s = PAUSE_FIRST_S
        with anyio.CancelScope() as self._claiming:
            while not self._stopping:
                room = await self._room()
                try:
                    batch = await self._ask(client, room)
                except (Unavailable, Overloaded, TimedOut) as error:
                    level = logging.DEBUG if self.cut_off else logging.WARNING
                    log.log(level, "claiming failed, trying again: %s", error.message)
                    await anyio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_MAX_S)
                    continue
                except OnyxqError as error:
                    self._give_up(error)
                    return
                pause_s = PAUSE_FIRST_S
                if batch is not None:
                    self._take(client, group, batch)

    def _take(self, client: AsyncClient, group: TaskGroup, batch: ClaimBatch) -> None:
        now = anyio.current_time()
        for claim in batch:
            job = self._jobs[claim] = _Job(Attempt(claim, random_name=client.random_name), now)
            job.attempt.on_lost = self._lost
            if claim.due > now:
                self._early[claim] = job
            else:
                self._waiting.append(job)
        if any(claim.due for claim in batch):
            early = (self._early[claim] for claim in batch if claim in self._early)
            group.start_soon(self._await_due, client, group, sorted(early, key=lambda job: job.claim.due))
        self._begin(client, group)
        self._wake()

    async def _await_due(self, client: AsyncClient, group: TaskGroup, early: Sequence[_Job]) -> None:
        """Start tasks that were claimed ahead when they are due; when the worker stops, give all of them back."""
        for job in early:
            with anyio.move_on_at(job.claim.due):
                await self._stopped.wait()
            if self._early.pop(job.claim, None) is not None:
                job.since = anyio.current_time()
                self._waiting.append(job)
                self._begin(client, group)
                self._wake()
                if self._asking is not None and not self._asks_timers and self._takes_timers():
                    self._asking.cancel()  # and ask again, for tasks that fall due as well

    def _takes_timers(self) -> bool:
        """Return whether to claim tasks that are not due yet: slots must stay free for tasks that become ready."""
        return self._pace.limit > 0 and self._slots() > 1 and 2 * len(self._early) < self._slots()

    async def _ask(self, client: AsyncClient, room: int) -> ClaimBatch | None:
        """Claim tasks; return None if the request was cancelled and must be made again."""
        try:
            with anyio.CancelScope() as self._asking:
                self._asks_timers = self._takes_timers()
                return await client.claim(
                    self.queues,
                    max=room,
                    lease_ms=self._lease_ms,
                    wait_ms=self._wait_ms,
                    worker=self.name,
                    ahead_ms=AHEAD_MS if self._asks_timers else 0,
                )
        finally:
            self._asking = None
            self._wake()
        return None

    async def _room(self) -> int:
        """Wait for free slots and return how many tasks to ask for: soon if many are free, else after `GATHER_S`."""
        since = float("inf")
        while True:
            room, whole = self._free()
            if room <= 0 or self._giving_back:
                since = float("inf")
                await self._change()
                continue
            since = min(since, anyio.current_time())
            if 4 * room >= whole or anyio.current_time() >= since + GATHER_S:
                return room
            with anyio.move_on_at(since + GATHER_S):
                await self._change()

    def _free(self) -> tuple[int, int]:
        """Return how many tasks could be taken now, and how many if the worker held none."""
        running = len(self._running)
        ahead = self._pace.ahead(anyio.current_time() - self._begun_at / running if running else 0.0)
        whole = self._slots() + ahead
        room = whole - running - len(self._waiting) - len(self._early)
        # Bounded, because outcomes that cannot be reported must not pile up.
        held = 2 * self._scaling.slots + self._pace.limit - len(self._jobs)
        return min(room, held, CLAIM_TASKS_MAX), min(whole, CLAIM_TASKS_MAX)

    async def _change(self) -> None:
        await self._changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    # --- giving back

    @property
    def _patience_s(self) -> float:
        """Longest wait of a claimed task for a slot here, in seconds."""
        return min(PATIENCE_S, self._lease_ms / 4000)

    async def _hand_back(self, client: AsyncClient) -> None:
        """Give back tasks that do not start in time, so that other workers can run them; at the end, all of them."""
        patience_s = self._patience_s
        while True:
            while not self._waiting:
                await self._change()
            with anyio.move_on_at(self._waiting[0].since + patience_s):
                await self._stopped.wait()
            late = self._overdue(patience_s)
            if late:
                self._pace.stalled()
                # A claim request in progress could get the same tasks again.
                self._giving_back = True
                if self._asking is not None:
                    self._asking.cancel()
                while self._asking is not None:
                    await self._change()
                await self._release(client, late)
                self._giving_back = False
                self._wake()

    def _overdue(self, patience_s: float) -> list[Claim]:
        """Return claims to give back: if one has waited too long, also those that soon will have."""
        now, late = anyio.current_time(), []
        if self._stopping or (self._waiting and self._waiting[0].since + patience_s <= now):
            while self._waiting and (self._stopping or self._waiting[0].since + patience_s / 2 <= now):
                late.append(self._waiting.popleft().claim)
        return late

    async def _release(self, client: AsyncClient, claims: list[Claim]) -> None:
        try:
            await _give_back(client, claims)
        except OnyxqError as error:
            log.warning("%d claims could not be given back: %s", len(claims), error.message)
        finally:
            for claim in claims:
                del self._jobs[claim]
            self._wake()

    async def _drain(self) -> None:
        """Wait for running tasks and their outcomes; then stop what still runs, and wait for outcomes a little."""
        with anyio.move_on_after(self.drain_s) as limit:
            while self._jobs and not self._hurried:
                await self._change()
        if limit.cancelled_caught and self._running:
            waited, given_back = console.duration(self.drain_s), console.counted(len(self._running))
            log.warning("waited %s: giving back %s", waited, given_back)
        self._cancel_all()
        while self._running:
            await self._change()
        with anyio.move_on_after(REPORT_S):
            while self._jobs and not self._hurried:
                await self._change()
        with anyio.move_on_after(HURRIED_S if self._hurried else 0):
            while self._jobs:
                await self._change()
        if self._jobs:
            log.warning("the cluster does not answer: %s", console.left(len(self._jobs)))

    def _cancel_all(self) -> None:
        for job in list(self._running.values()):
            job.cancel()

    # --- working

    def _came_late(self, claim: Claim, now: float) -> bool:
        """Return whether the lease may end before it is renewed, because the answer to the request took long."""
        return claim.expires < now + self._lease_ms / 1000 / RENEWALS_PER_LEASE

    def _begin(self, client: AsyncClient, group: TaskGroup) -> None:
        now, late = anyio.current_time(), []
        while self._waiting and not self._stopping and len(self._running) < self._slots():
            job = self._waiting.popleft()
            if self._came_late(job.claim, now):
                late.append(job.claim)
                continue
            self._running[job.claim] = job
            job.since = now
            self._begun_at += now
            # Often the end of another task calls this. What that one set in its context must not reach this one.
            self._context.copy().run(self._start, client, group, job)
        self._scaling.runs(len(self._running), now)
        if late:
            group.start_soon(self._release, client, late)

    def _start(self, client: AsyncClient, group: TaskGroup, job: _Job) -> None:
        group.start_soon(self._work, client, group, job)

    async def _work(self, client: AsyncClient, group: TaskGroup, job: _Job) -> None:
        current_claim.set(job.claim)
        current_attempt.set(job.attempt)
        try:
            try:
                with job.scope:
                    await self._run(job)
            finally:
                job.took_s, job.ended = anyio.current_time() - job.since, True
                self._pace.took(job.took_s)
                del self._running[job.claim]
                self._begun_at = self._begun_at - job.since if self._running else 0.0
                self._begin(client, group)
                self._wake()
            await self._report(client, job)
        finally:
            del self._jobs[job.claim]
            self._wake()

    async def _run(self, job: _Job) -> None:
        # Anything that user code raises is the outcome of the attempt.
        try:
            with attempting(
                job.claim.trace,
                queue=job.claim.queue,
                task_id=job.claim.id,
                token=job.claim.token,
                attempt=job.claim.attempts + 1,
            ):
                job.result = await self._body(job.claim)
        except (Exception, SystemExit) as error:
            job.problem = error
        except (TaskCancelled, BaseExceptionGroup) as error:
            # An async function asked its context before its event loop cancelled it.
            if not ended_by_check(error):
                raise
            job.stopped = job.attempt.cancelled.is_set()
            job.problem = error
        except anyio.get_cancelled_exc_class() as error:
            if anyio.current_effective_deadline() == float("-inf"):
                raise
            # The body waited for something that was cancelled; the body itself was not.
            job.problem = error

    async def _report(self, client: AsyncClient, job: _Job) -> None:
        claim, name, problem = job.claim, job.attempt.shown_as, job.problem
        if job.attempt.ended:
            self.finished += 1
            if problem is None:
                console.ended(name, "completed", job.took_s)
            else:
                log.warning("completed by a transaction; what followed failed", exc_info=problem)
            return
        if job.stale:
            log.warning("the claim on task %s is not valid any more; %s was stopped", claim.id.hex(), name)
            return
        try:
            if job.scope.cancelled_caught or job.stopped:
                await _give_back(client, claim)
                console.ended(name, "given back", job.took_s)
            elif problem is None:
                await self._complete(client, job)
            else:
                await self._fail(client, job, problem)
        except OnyxqError as error:
            log.warning("the outcome of task %s was not taken: %s", claim.id.hex(), error.message)

    async def _complete(self, client: AsyncClient, job: _Job) -> None:
        try:
            await client.complete(job.claim, job.result)
        except BadRequest as error:
            problem, hint = error.message, error.advice
            if isinstance(error, TooLarge):
                problem = f"{len(job.result or b''):,} bytes are too many"
                hint = "Store it elsewhere, and return where it is."
            await self._fail(client, job, retries.ResultRefused(job.attempt.shown_as, problem, hint))
            return
        self.finished += 1
        console.ended(job.attempt.shown_as, "completed", job.took_s)

    async def _fail(self, client: AsyncClient, job: _Job, problem: BaseException) -> None:
        claim, attempt = job.claim, job.attempt
        retry, age_ms = claim.attempts + 1, 0
        if attempt.retrying.retry_for_s is not None:
            age_ms = await client.now_ms() - due_of(claim.run.header, claim.id)
        ending = attempt.retrying.ending(problem, retry, age_ms / 1000)
        if not ending.counted and ending.pause_ms is not None:
            reason = describe(problem)
            await client.postpone(claim, ending.pause_ms, reason)
            pause = console.duration(ending.pause_ms / 1000)
            if isinstance(problem, retries.UnknownTask):
                outcome, after = "given back", f"due again in {pause}: {reason}"
            else:
                outcome, after = "snoozed", f"given back for {pause}: {reason}"
            console.ended(attempt.shown_as, outcome, job.took_s, after, level=ending.level)
            return
        if ending.final:
            await client.give_up(claim, describe(problem), traceback=traceback_of(problem))
            after = f"given up: {ending.reason}" if ending.reason else "given up"
        else:
            await client.fail(claim, describe(problem), ending.pause_ms, traceback=traceback_of(problem))
            after = (await self._policy(client, claim)).next_attempt(retry, ending.pause_ms)
        self.failed += 1
        if isinstance(problem, (retries.Retry, retries.GiveUp)) and problem.__cause__ is None:
            # The function chose this, so where it did is of no interest.
            console.ended(
                attempt.shown_as, "failed", job.took_s, f"{after}: {describe(problem)}", level=logging.WARNING
            )
        else:
            console.ended(attempt.shown_as, "failed", job.took_s, after, problem)

    async def _policy(self, client: AsyncClient, claim: Claim) -> console.Policy:
        """Return how a task is retried, as far as it is known here."""
        header = claim.run.header
        return console.Policy(header.get("retries", OF_QUEUE), header.get("backoff_ms"))

    # --- renewing

    def _standing(self) -> list[Claim]:
        return [job.claim for job in self._jobs.values() if not job.stale]

    def _lost(self, claim: Claim) -> None:
        """Drop a claim that is no longer valid, and stop its task."""
        job = self._jobs.get(claim)
        if job is None or job.attempt.committing or job.attempt.ended:
            return
        if job in self._waiting or claim in self._early:
            if self._early.pop(claim, None) is None:
                self._waiting.remove(job)
            del self._jobs[claim]
            self._wake()
            return
        job.stale = True
        job.cancel()


async def _give_back(client: AsyncClient, claims: Claim | list[Claim]) -> None:
    """Return claimed tasks to their queues; it costs them no attempt."""
    await client.release(claims, timeout_ms=RELEASE_TIMEOUT_MS)
