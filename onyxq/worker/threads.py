"""Threads for functions that are not async (design: claims).

A thread cannot be stopped from outside. If its attempt is cancelled, the function can see it and gets a moment to
end. After that the thread is abandoned: its outcome is dropped, and its slot stays taken until it ends. Abandoned
threads do not keep the process from ending.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from onyxq.worker.attempts import TaskCancelled

T = TypeVar("T")

GRACE_S = 1.0
"""How long a cancelled function may take to end, in seconds."""

log = logging.getLogger(__name__)


class _Call(Generic[T]):
    """One call of a function in a thread."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.function = function
        self.context = contextvars.copy_context()
        self.done = anyio.Event()
        self.result: T | None = None
        self.error: BaseException | None = None
        self.left = False

    def run(self) -> None:
        """Run the function; called in the thread."""
        try:
            self.result = self.context.run(self.function)
        except BaseException as error:
            # Exceptions that would end a thread are outcomes of the call as well.
            self.error = error

    def outcome(self) -> T:
        """Return the result of the call, or raise its error."""
        if isinstance(self.error, TaskCancelled):
            raise RuntimeError("TaskCancelled was raised though nothing cancelled the attempt") from self.error
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # None is a T, too, if it was returned


class Threads:
    """Threads that run functions; used in ``async with``.

    ``freed`` is called when an abandoned thread ends. ``stopping``: whether the worker stops, so that slots do not
    matter any more.
    """

    def __init__(
        self, *, freed: Callable[[], None] = lambda: None, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self._freed, self._stopping = freed, stopping
        self._idle: list[queue.SimpleQueue[_Call[Any] | None]] = []
        self.left = 0
        """Number of abandoned threads that have not ended."""

    async def __aenter__(self) -> Threads:
        self._portal = BlockingPortal()
        await self._portal.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for inbox in self._idle:
            inbox.put(None)
        await self._portal.stop(cancel_remaining=True)
        await self._portal.__aexit__(kind, error, trace)

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a function in the event loop and wait for it; called in a thread."""
        found: T = self._portal.call(function)
        return found

    def soon(self, function: Callable[..., object], *args: Any) -> None:
        """Run a function in the event loop, unless the loop has ended; called in a thread."""
        try:
            self._portal.start_task_soon(function, *args)
        except RuntimeError:
            log.debug("the worker has ended before its thread")

    async def run(self, function: Callable[[], T], *, cancelled: threading.Event | None = None) -> T:
        """Call a function in a thread; return its result or raise its error.

        If this call is cancelled, ``cancelled`` is set. If the function then ends soon, its result is returned.
        """
        call = _Call(function)
        inbox = self._idle.pop() if self._idle else self._start()
        inbox.put(call)
        try:
            await call.done.wait()
        except anyio.get_cancelled_exc_class():
            if cancelled is not None:
                cancelled.set()
            with anyio.move_on_after(GRACE_S, shield=True):
                await call.done.wait()
            if not call.done.is_set():
                call.left = True
                self.left += 1
                if not self._stopping():
                    log.warning("a function still runs although its attempt is over; it keeps its slot until it ends")
            if not call.done.is_set() or isinstance(call.error, TaskCancelled):
                raise
        return call.outcome()

    def _start(self) -> queue.SimpleQueue[_Call[Any] | None]:
        inbox: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(inbox,), name="onyxq task", daemon=True).start()
        return inbox

    def _work(self, inbox: queue.SimpleQueue[_Call[Any] | None]) -> None:
        while (call := inbox.get()) is not None:
            call.run()
            self.soon(self._ended, call, inbox)

    def _ended(self, call: _Call[Any], inbox: queue.SimpleQueue[_Call[Any] | None]) -> None:
        self._idle.append(inbox)
        call.done.set()
        if call.left:
            self.left -= 1
            self._freed()
