"""Grouping of calls that arrive at the same time (design: runs).

While a request of a kind is in progress, further calls of that kind wait and are sent together in the next one.
A lone call never waits; under load the cost is per group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

from onyxq.core.errors import BadRequest, OnyxqError, TimedOut
from onyxq.wire.background import Spawner

OVERLAP_AFTER_S = 0.1
"""Time after which a request in progress no longer holds back the next one, in seconds."""
OVERLAPS_MAX = 16

Entry = TypeVar("Entry")
Outcome = TypeVar("Outcome")


class _Waiter(Generic[Entry, Outcome]):
    __slots__ = ("done", "entry", "outcome", "until")

    def __init__(self, entry: Entry, until: float) -> None:
        self.entry = entry
        self.until = until
        self.done = anyio.Event()
        self.outcome: Outcome | OnyxqError | None = None


class Group(Generic[Entry, Outcome]):
    """Calls of one kind, sent in groups.

    ``send(entries, until)`` makes one request of at most ``size_max`` entries and returns an outcome or an error for
    each. An error that it raises is the outcome of all.
    """

    def __init__(
        self,
        spawner: Spawner,
        send: Callable[[list[Entry], float], Awaitable[list[Outcome | OnyxqError]]],
        *,
        size_max: int,
    ) -> None:
        self._spawner = spawner
        self._send = send
        self._size_max = size_max
        self._waiting: list[_Waiter[Entry, Outcome]] = []
        self._in_flight = 0
        self._started_at = 0.0

    @property
    def idle(self) -> bool:
        """Whether no call waits and no request is in progress."""
        return not self._waiting and not self._in_flight

    async def add(self, entry: Entry, *, until: float) -> Outcome:
        """Send an entry with others and return its outcome; raise its error, or `TimedOut` at ``until``."""
        waiter: _Waiter[Entry, Outcome] = _Waiter(entry, until)
        self._waiting.append(waiter)
        now = anyio.current_time()
        overdue = now - self._started_at > OVERLAP_AFTER_S and self._in_flight < OVERLAPS_MAX
        if self._in_flight == 0 or overdue:
            self._in_flight += 1
            self._started_at = now
            self._spawner.start_soon(self._pump)
        try:
            with anyio.move_on_after(max(0.0, until - now)):
                await waiter.done.wait()
        finally:
            if not waiter.done.is_set() and waiter in self._waiting:
                self._waiting.remove(waiter)
        if isinstance(waiter.outcome, OnyxqError):
            raise waiter.outcome
        if waiter.outcome is None:
            raise TimedOut("the request was not answered in time; it may have taken effect")
        return waiter.outcome

    async def _pump(self) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting[: self._size_max], self._waiting[self._size_max :]
                self._started_at = anyio.current_time()
                await self._send_one(taken)
        finally:
            self._in_flight -= 1

    async def _send_one(self, taken: list[_Waiter[Entry, Outcome]]) -> None:
        try:
            outcomes = await self._send([waiter.entry for waiter in taken], max(waiter.until for waiter in taken))
            for waiter, outcome in zip(taken, outcomes, strict=True):
                waiter.outcome = outcome
        except BadRequest as error:
            if len(taken) > 1:
                # Nothing was done; only the call at fault may get the error.
                for waiter in taken:
                    await self._send_one([waiter])
                return
            taken[0].outcome = error
        except OnyxqError as error:
            for waiter in taken:
                waiter.outcome = error
        for waiter in taken:
            waiter.done.set()
