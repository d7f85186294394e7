"""Waits for one answer each, without a cancel scope or an event of their own (design: wire).

A caller parks its task until the answer wakes it. One task watches the deadlines of all waits.  Works on trio
and on asyncio, and on trio also for coroutines without a task, whose runner continues them (`onyxq.system.procedures`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Protocol

import anyio
import sniffio


class Wait:
    """One wait until `end`, or until a deadline (monotonic second)."""

    __slots__ = ("over", "resume", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.over = False
        """Whether `end` was called."""
        self.resume: Callable[[], object] | None = None
        """Wakes the task that waits; None if none does."""

    def end(self) -> None:
        """End the wait, or let a later one return at once."""
        self.over = True
        self.wake()

    def wake(self) -> None:
        """Wake the task that waits, if one does."""
        resume, self.resume = self.resume, None
        if resume is not None:
            resume()


class Waiting(Protocol):
    """What a coroutine without a task can wait for."""

    over: bool
    resume: Callable[[], object] | None


class Parked:
    """What a coroutine without a task yields while it waits; awaiting it returns whether the wait is over."""

    __slots__ = ("timeout_s", "wait")

    def __init__(self, wait: Waiting, timeout_s: float = math.inf) -> None:
        self.wait = wait
        self.timeout_s = timeout_s

    def __await__(self) -> Generator[Parked, bool, bool]:
        return (yield self)


class Waits:
    """The waits of one owner, which runs `watch`. Make it in the event loop in which it is used."""

    def __init__(self) -> None:
        self.clock: Callable[[], float]
        """The event loop's clock in seconds, as `anyio.current_time`, which first looks for the event loop."""
        if sniffio.current_async_library() == "trio":
            self._park, self.clock = _trio_park()
        else:
            self._park, self.clock = _asyncio_park, asyncio.get_running_loop().time
        self._waiting: dict[Wait, None] = {}
        self._next = math.inf
        """Time at which the deadlines are checked next: that of the earliest one, or before it."""
        self._pause: anyio.CancelScope | None = None
        self._ended = False

    async def wait(self, wait: Wait) -> bool:
        """Return whether the wait ended before its deadline, and before `watch` did."""
        if not wait.over and not self._ended:
            self._waiting[wait] = None
            if wait.until < self._next:
                self._next = wait.until
                if self._pause is not None:
                    self._pause.deadline = wait.until
            try:
                await self._park(wait)
            finally:
                del self._waiting[wait]
        return wait.over

    async def watch(self) -> None:
        """Wake each wait at its deadline; run until cancelled."""
        try:
            while True:
                with anyio.CancelScope(deadline=self._next) as self._pause:
                    await anyio.sleep_forever()
                now, self._next = self.clock(), math.inf
                for wait in self._waiting:
                    if wait.until <= now:
                        wait.wake()
                    else:
                        self._next = min(self._next, wait.until)
        finally:
            self._ended = True
            for wait in self._waiting:
                wait.wake()


async def _asyncio_park(wait: Wait) -> None:
    future = asyncio.get_running_loop().create_future()
    wait.resume = partial(_resolve, future)
    await future


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():  # It is done if the task was cancelled.
        future.set_result(None)


def _trio_park() -> tuple[Callable[[Wait], Awaitable[None]], Callable[[], float]]:
    """Return how a task, or a procedure, waits on trio, and the clock."""
    from trio import current_time, lowlevel  # Not loaded by clients on asyncio.

    async def park(wait: Wait) -> None:
        if not lowlevel.in_trio_task():
            await Parked(wait)
            return

        def abort(_: Any) -> lowlevel.Abort:
            wait.resume = None
            return lowlevel.Abort.SUCCEEDED

        wait.resume = partial(lowlevel.reschedule, lowlevel.current_task())
        await lowlevel.wait_task_rescheduled(abort)

    return park, current_time
