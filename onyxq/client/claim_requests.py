"""Requests for claims: concurrent calls with the same options share one (design: claims).

Calls of one turn of the event loop share a request for as many tasks as they want together, and get the tasks in the
order in which they called. A call that gets none shares the next request while its wait lasts. Tasks for callers that
are gone are given back. Calls of named workers are not shared, because each worker has claims of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel

from onyxq.client.claims import ClaimBatch, ClaimedRun
from onyxq.client.held_claims import items_of
from onyxq.client.pool import RETRYABLE, Pool
from onyxq.core.errors import OnyxqError, Unavailable
from onyxq.operations.table.claim import CLAIM_TASKS_MAX
from onyxq.wire.waits import Wait

POLL_MS_MIN = 250
POLLS_PER_LEASE = 4
"""Number of parts of a lease; one request for claims waits for one part at most.

A lease counts from when the request was sent: a claim granted at the end of a long wait would be worthless.
"""
LEASES_KNOWN_MAX = 1_000
UNKNOWN_LEASE_MS = 4_000
"""Assumed lease of queues that were never claimed from, if the caller names none, in milliseconds."""


class Options(NamedTuple):
    """Options of a call; calls that share a request have the same."""

    queues: tuple[str, ...]
    lease_ms: int | None
    wait_ms: int
    worker: str
    ahead_ms: int
    timeout_s: float


class _Call(Wait):
    """One call that shares requests, until it has an outcome; it has none if the client was closed."""

    __slots__ = ("batch", "error", "group", "maximum", "options", "wait_until")

    def __init__(self, options: Options, maximum: int, wait_until: float) -> None:
        super().__init__(math.inf)  # Each request that it is part of has a deadline.
        self.options = options
        self.maximum = maximum
        self.wait_until = wait_until
        self.batch: ClaimBatch | None = None
        self.error: OnyxqError | None = None
        self.group: _Group | None = None
        """The calls of its present request; None before that."""


class _Group(NamedTuple):
    """The calls of one request that still wait for its answer, and the scope that ends the request."""

    calls: list[_Call]
    scope: anyio.CancelScope


class _Request:
    """One request for claims, which may take several attempts."""

    def __init__(
        self, options: Options, maximum: int, wait_until: float, poll_ms: int, *, clock: Callable[[], float]
    ) -> None:
        self.sent_at = 0.0
        """Monotonic second at which the last attempt began."""
        self._options = options
        self._maximum = maximum
        self._wait_until = wait_until
        self._poll_ms = poll_ms
        self._clock = clock

    def args(self) -> dict[str, Any]:
        """Return the arguments of the next attempt, which starts now."""
        self.sent_at = self._clock()
        left_ms = int((self._wait_until - self.sent_at) * 1000)
        return {
            "queues": self._options.queues,
            "max": self._maximum,
            "lease_ms": self._options.lease_ms,
            "wait_ms": max(0, min(left_ms, self._poll_ms)),
            "worker": self._options.worker,
            "ahead_ms": self._options.ahead_ms,
        }


class ClaimRequests:
    """Sender of one client's claims."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: dict[Options, list[_Call]] = {}
        """Calls that share the next request, which is sent in the event loop's next turn."""
        self._leases: dict[frozenset[str], int] = {}
        """Shortest lease last granted by each set of queues that was claimed from without a given lease."""

    async def claim(self, options: Options, maximum: int, *, shares: bool) -> ClaimBatch:
        """Claim up to ``maximum`` tasks; return an empty batch if there are none in time.

        ``shares``: the call may share requests with others that have the same options.
        """
        wait_until = self._pool.clock() + options.wait_ms / 1000
        if not shares:
            return await self._alone(options, maximum, wait_until)
        call = _Call(options, maximum, wait_until)
        waiting = self._waiting.setdefault(options, [])
        waiting.append(call)
        try:
            if len(waiting) == 1 and await self._stays_alone(call):
                return await self._alone(options, maximum, wait_until)
            await self._pool.waits.wait(call)
        except BaseException:
            self._leave(call)
            raise
        if call.batch is None:
            raise call.error or Unavailable("the client was closed")
        return call.batch

    async def _alone(self, options: Options, maximum: int, wait_until: float) -> ClaimBatch:
        while True:
            batch = await self._ask(options, maximum, wait_until)
            if batch or self._pool.clock() >= wait_until:
                return batch

    async def _stays_alone(self, call: _Call) -> bool:
        """Let calls of the same turn join the first one. If none does, the call costs no task of its own."""
        alone = False
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            waiting = self._waiting.get(call.options, [])
            if waiting == [call]:
                alone = True
                del self._waiting[call.options]
            elif call in waiting:
                self._pool.spawner.start_soon(self._send, call.options)
        return alone

    def _enlist(self, call: _Call) -> None:
        """Let a call take part in the next request."""
        call.group = None
        waiting = self._waiting.setdefault(call.options, [])
        waiting.append(call)
        if len(waiting) == 1:
            self._pool.spawner.start_soon(self._send, call.options)

    def _leave(self, call: _Call) -> None:
        """Withdraw a call whose caller is gone."""
        if call.batch is not None:
            self.give_back(call.batch)
        elif call.group is not None and not call.over:
            call.group.calls.remove(call)
            if not call.group.calls:
                call.group.scope.cancel()
        elif call in self._waiting.get(call.options, ()):
            self._waiting[call.options].remove(call)

    async def _send(self, options: Options) -> None:
        """Make one request for the calls that wait; those without an outcome take part in the next one."""
        waiting = self._waiting.pop(options, [])
        calls = waiting[: _fitting(waiting)]
        for call in waiting[len(calls) :]:
            self._enlist(call)
        if not calls:
            return
        with anyio.CancelScope() as scope:
            group = _Group(calls, scope)
            for call in calls:
                call.group = group
            wait_until = min(call.wait_until for call in calls)
            try:
                batch = await self._ask(options, sum(call.maximum for call in calls), wait_until)
            except OnyxqError as error:
                _fail(calls, wait_until, error)
            else:
                self._deal(calls, batch)
        for call in calls:
            if not call.over:
                self._enlist(call)

    async def _ask(self, options: Options, maximum: int, wait_until: float) -> ClaimBatch:
        """Return the answer to one request; raise its error."""
        expected_ms = options.lease_ms or self._leases.get(frozenset(options.queues), UNKNOWN_LEASE_MS)
        poll_ms = max(POLL_MS_MIN, expected_ms // POLLS_PER_LEASE)
        request = _Request(options, maximum, wait_until, poll_ms, clock=self._pool.clock)
        answer = await self._pool.call(
            "claim",
            request.args,
            until=wait_until + options.timeout_s,
            wait_ms=poll_ms,
            retry_until=wait_until,
            late=self._answer_late,
        )
        now, lease_ms = self._pool.clock(), options.lease_ms
        batch = ClaimBatch.of(answer, sent_at=request.sent_at, lease_ms=lease_ms, now=now)
        if lease_ms is None and batch:
            self._learn_lease(options.queues, batch)
        return batch

    def _deal(self, calls: list[_Call], batch: ClaimBatch) -> None:
        """Give claims to the callers, in the order in which they called."""
        now = self._pool.clock()
        *shares, rest = dealt(batch.runs, [call.maximum for call in calls])
        for call, share in zip(calls, shares, strict=True):
            if share or now >= call.wait_until:
                call.batch = ClaimBatch(share)
                call.end()
        self.give_back(ClaimBatch(rest))

    def _answer_late(self, answer: dict[str, Any]) -> None:
        self.give_back(ClaimBatch.of(answer, sent_at=0.0))

    def give_back(self, claims: ClaimBatch) -> None:
        """Release claims without a caller: no worker would run the tasks."""
        if claims:
            self._pool.notify("release", {"items": items_of(claims)})

    def _learn_lease(self, queues: Sequence[str], batch: ClaimBatch) -> None:
        if len(self._leases) >= LEASES_KNOWN_MAX:
            self._leases.clear()
        self._leases[frozenset(queues)] = min(run.lease_ms for run in batch.runs)


def _fitting(calls: Sequence[_Call]) -> int:
    """Return how many of the calls fit in one request."""
    total = 0
    for number, call in enumerate(calls):
        total += call.maximum
        if total > CLAIM_TASKS_MAX:
            return number
    return len(calls)


def _fail(calls: list[_Call], wait_until: float, error: OnyxqError) -> None:
    """Let calls fail with their request's error, except those that may wait longer than it could (``wait_until``)."""
    now = anyio.current_time()
    for call in calls:
        if not isinstance(error, RETRYABLE) or call.wait_until <= max(now, wait_until):
            call.error = error
            call.end()


def dealt(runs: Sequence[ClaimedRun], maxima: Sequence[int]) -> list[list[ClaimedRun]]:
    """Return the runs of each caller, in order and up to its maximum of tasks, and then those that are left."""
    shares: list[list[ClaimedRun]] = []
    number = start = 0
    for maximum in maxima:
        share: list[ClaimedRun] = []
        while maximum and number < len(runs):
            run = runs[number]
            count = min(maximum, run.count - start)
            share.append(run if count == run.count else run.part(start, count))
            maximum, start = maximum - count, start + count
            if start == run.count:
                number, start = number + 1, 0
        shares.append(share)
    rest = list(runs[number:])
    if start:
        rest[0] = rest[0].part(start, rest[0].count - start)
    return [*shares, rest]
