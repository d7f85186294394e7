"""Limits on a client's large writes while peers are overloaded."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from onyxq.core.errors import OnyxqError, Overloaded

SMALL_BYTES = 64 * 1024
"""Largest write that is sent although others were refused, in bytes. Peers keep room for small writes."""
ANSWER_S = 1.5
"""Time that an overloaded peer needs to answer, in seconds. With less time left, a write is not sent again."""
WINDOW_MAX = 64
"""Number of large writes in progress from which the limit is lifted."""


class Crowding:
    """A limit on the large writes of one client.

    After a refusal it sends one write, once the pause that the peer asked for is over. Each success doubles the number
    of writes allowed at the same time; another refusal starts again with one.
    """

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self._refusal: Overloaded | None = None
        """The last refusal; None if nothing is held back."""
        self._not_before = 0.0
        self._window = 1
        self._sent = 0
        """Large writes in progress."""
        self._freed = anyio.Event()
        self._next = anyio.Lock()

    def refused(self, error: OnyxqError) -> None:
        """Record how a write failed."""
        if isinstance(error, Overloaded):
            pause_s = error.retry_after_ms / 1000 * (1 + self._generator.random())
            self._not_before = max(self._not_before, anyio.current_time() + pause_s)
            self._refusal, self._window = error, 1

    @asynccontextmanager
    async def turn(self, size: int, until: float) -> AsyncIterator[None]:
        """Wait until a write of ``size`` bytes may be sent; raise the last refusal if that is after ``until``."""
        if size <= SMALL_BYTES:
            yield
            return
        if self._refusal is not None:
            await self._wait(self._refusal, until)
        self._sent += 1
        before = self._refusal
        try:
            yield
            if before is self._refusal:
                self._served()
        finally:
            self._sent -= 1
            self._freed.set()

    def _served(self) -> None:
        self._window *= 2
        if self._window > WINDOW_MAX:
            self._refusal = None

    async def _wait(self, refusal: Overloaded, until: float) -> None:
        now, until = anyio.current_time(), until - ANSWER_S
        if self._not_before < until:
            with anyio.move_on_after(until - now):
                async with self._next:
                    while self._refusal is not None and not self._may_send():
                        self._freed = anyio.Event()
                        with anyio.move_on_after(max(0.0, self._not_before - anyio.current_time()) or until - now):
                            await self._freed.wait()
                return
        left_ms = int((self._not_before - anyio.current_time()) * 1000)
        raise Overloaded(refusal.message, retry_after_ms=max(left_ms, 1))

    def _may_send(self) -> bool:
        return anyio.current_time() >= self._not_before and self._sent < self._window
