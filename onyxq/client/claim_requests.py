"""Requests for claims: concurrent calls with the same options share one (design: claims).

Calls of one turn of the event loop share a request for as many tasks as they want together, and get the tasks in the
order in which they called. A call that gets none shares the next request while its wait lasts. Tasks for callers that
are gone are given back. Calls of named workers are not shared, because each worker has claims of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """One call, until it has an outcome; it has none if the client was closed."""

    __slots__ = ("batch", "error", "maximum", "options", "request", "wait_until")

    def __init__(self, options: Options, maximum: int) -> None:
        super().__init__(math.inf)  # Each request that it is part of has a deadline.
        self.wait_until = anyio.current_time() + options.wait_ms / 1000
        self.options = options
        self.maximum = maximum
        self.batch: ClaimBatch | None = None
        self.error: OnyxqError | None = None
        self.request: _Request | None = None
        """The shared request that it is part of; None before."""


class _Request:
    """One request, with the calls that still wait for its answer."""

    def __init__(self, calls: list[_Call], poll_ms: int) -> None:
        self.calls = calls
        self.options = calls[0].options
        self.wait_until = min(call.wait_until for call in calls)
        self.poll_ms = poll_ms
        self.sent_at = 0.0
        """Monotonic second at which the last attempt began."""
        self.scope: anyio.CancelScope | None = None
        """Scope of a shared request. It is cancelled when all callers are gone."""
        self._maximum = sum(call.maximum for call in calls)

    def args(self) -> dict[str, Any]:
        """Return the arguments of the next attempt, which starts now."""
        self.sent_at = anyio.current_time()
        left_ms = int((self.wait_until - self.sent_at) * 1000)
        return {
            "queues": self.options.queues,
            "max": self._maximum,
            "lease_ms": self.options.lease_ms,
            "wait_ms": max(0, min(left_ms, self.poll_ms)),
            "worker": self.options.worker,
            "ahead_ms": self.options.ahead_ms,
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
        call = _Call(options, maximum)
        if shares:
            await self._share(call)
        else:
            await self._insist(call)
        if call.batch is None:
            raise call.error or Unavailable("the client was closed")
        return call.batch

    async def _insist(self, call: _Call) -> None:
        while not call.over:
            await self._ask([call])

    async def _share(self, call: _Call) -> None:
        """Wait for the outcome of a call that shares requests."""
        waiting = self._waiting.setdefault(call.options, [])
        waiting.append(call)
        try:
            if len(waiting) == 1:
                await self._call_first(call)
            await self._pool.waits.wait(call)
        except BaseException:
            self._leave(call)
            raise

    async def _call_first(self, call: _Call) -> None:
        """Let calls of the same turn join the first one; a lone one is sent by its own task."""
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            waiting = self._waiting.get(call.options, [])
            lone = waiting == [call]
            if lone:
                del self._waiting[call.options]
            elif call in waiting:
                self._pool.spawner.start_soon(self._send, call.options)
        if lone:
            await self._insist(call)

    def _enlist(self, call: _Call) -> None:
        """Let a call take part in the next request."""
        call.request = None
        waiting = self._waiting.setdefault(call.options, [])
        waiting.append(call)
        if len(waiting) == 1:
            self._pool.spawner.start_soon(self._send, call.options)

    def _leave(self, call: _Call) -> None:
        """Withdraw a call whose caller is gone."""
        if call.batch is not None:
            self._give_back(call.batch)
        elif call.request is not None and not call.over:
            call.request.calls.remove(call)
            if not call.request.calls and call.request.scope is not None:
                call.request.scope.cancel()
        elif call in self._waiting.get(call.options, ()):
            self._waiting[call.options].remove(call)

    async def _send(self, options: Options) -> None:
        """Make one request for the calls that wait."""
        waiting = self._waiting.pop(options, [])
        calls = waiting[: _fitting(waiting)]
        for call in waiting[len(calls) :]:
            self._enlist(call)
        if calls:
            with anyio.CancelScope() as scope:
                await self._ask(calls, scope)
            for call in calls:
                if not call.over:
                    self._enlist(call)

    async def _ask(self, calls: list[_Call], scope: anyio.CancelScope | None = None) -> None:
        """Make one request; give an outcome to the calls that have tasks, failed or waited long enough."""
        options = calls[0].options
        expected_ms = options.lease_ms or self._leases.get(frozenset(options.queues), UNKNOWN_LEASE_MS)
        request = _Request(calls, max(POLL_MS_MIN, expected_ms // POLLS_PER_LEASE))
        request.scope = scope
        for call in calls:
            call.request = request
        try:
            answer = await self._pool.call(
                "claim",
                request.args,
                until=request.wait_until + options.timeout_s,
                wait_ms=request.poll_ms,
                retry_until=request.wait_until,
                late=self._answer_late,
            )
        except OnyxqError as error:
            _fail(request, error)
        else:
            self._deal(request, answer)

    def _deal(self, request: _Request, answer: dict[str, Any]) -> None:
        """Give the claims of an answer to the callers."""
        now, options = anyio.current_time(), request.options
        batch = ClaimBatch.of(answer, sent_at=request.sent_at, lease_ms=options.lease_ms, now=now)
        if options.lease_ms is None and batch:
            self._learn_lease(options.queues, batch)
        *shares, rest = dealt(batch.runs, [call.maximum for call in request.calls])
        for call, share in zip(request.calls, shares, strict=True):
            if share or now >= call.wait_until:
                call.batch = ClaimBatch(share)
                call.end()
        if rest:
            self._give_back(ClaimBatch(rest))

    def _answer_late(self, answer: dict[str, Any]) -> None:
        self._give_back(ClaimBatch.of(answer, sent_at=0.0))

    def _give_back(self, claims: ClaimBatch) -> None:
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


def _fail(request: _Request, error: OnyxqError) -> None:
    """Let calls fail with the error of their request, except those that may wait longer than it could."""
    now = anyio.current_time()
    for call in request.calls:
        if not isinstance(error, RETRYABLE) or call.wait_until <= max(now, request.wait_until):
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
