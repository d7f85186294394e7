"""asyncio in simulated time: handlers and tests written for asyncio, run by the cluster's own loop.

Workers run asyncio by default, so handlers may use features that only asyncio has. `AsyncioHost` is an asyncio event
loop inside the trio run of a cluster under test. Its clock is the run's: instead of a wait for the next timer,
simulated time jumps there. Functions that asyncio sends to threads take turns with the run, as in
`onyxq.testing.loop`. Waits for real sockets are not supported: time jumps past them.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, TypeVarTuple

import outcome
import sniffio
import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LAST_WORDS_S = 60.0
"""Simulated seconds that a cancelled handler may take to end."""


class AsyncioHost:
    """An asyncio event loop in the time of the trio run that executes `run`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._wanted = trio.Event()
        self._loop = _SimulatedEventLoop(self)

    async def run(self) -> None:
        """Run everything that is due, until cancelled."""
        try:
            with _threads_of_anyio(self):
                while True:
                    self._wanted = trio.Event()
                    self._step()
                    with trio.move_on_at(self._loop.next_timer()):
                        await self._wanted.wait()
        finally:
            self._end()

    def _end(self) -> None:
        """Cancel all tasks; a task that survives three attempts is abandoned."""
        self._loop.set_exception_handler(lambda *_: None)
        for _ in range(3):
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._step()
        self._loop.close()

    def wake(self) -> None:
        """Run what is due now."""
        self._wanted.set()

    def next_timer(self) -> float:
        """Return when a timer of the user's asyncio code is due next; infinite if there is none."""
        return self._loop.next_timer()

    def _step(self) -> None:
        while self._loop.due():
            library, sniffio.thread_local.name = sniffio.thread_local.name, "asyncio"
            try:
                self._loop.stop()  # one pass
                self._loop.run_forever()
            finally:
                sniffio.thread_local.name = library

    async def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the loop with the caller's context and return its result; called from trio."""
        done = trio.Event()
        task = self._loop.create_task(make(), context=contextvars.copy_context())
        task.add_done_callback(lambda _: done.set())
        self.wake()
        try:
            await done.wait()
        except trio.Cancelled:
            task.cancel()
            self.wake()
            with trio.move_on_after(LAST_WORDS_S, shield=True):
                await done.wait()
            if task.done() and not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not report it
            raise
        if task.cancelled():
            raise RuntimeError("the coroutine cancelled itself")
        return task.result()

    async def elsewhere(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a function in trio; cancelling this call cancels it. Called from a coroutine in the loop."""
        future: asyncio.Future[T] = self._loop.create_future()
        scope = trio.CancelScope()
        future.add_done_callback(lambda found: scope.cancel() if found.cancelled() else None)
        self._nursery.start_soon(self._carry, function, future, scope)
        return await future

    async def _carry(
        self, function: Callable[[], Awaitable[T]], future: asyncio.Future[T], scope: trio.CancelScope
    ) -> None:
        with scope:
            found = await outcome.acapture(function)
            if isinstance(found, outcome.Error) and isinstance(found.error, trio.Cancelled):
                raise found.error
            if not future.done():
                if isinstance(found, outcome.Error):
                    future.set_exception(found.error)
                else:
                    future.set_result(found.unwrap())
        self.wake()


class _SimulatedEventLoop(asyncio.SelectorEventLoop):
    def __init__(self, host: AsyncioHost) -> None:
        super().__init__()
        self._host = host

    def time(self) -> float:
        return trio.current_time()

    def due(self) -> bool:
        """Return whether anything can run now."""
        private: Any = self
        return bool(private._ready) or self.next_timer() <= trio.current_time()

    def next_timer(self) -> float:
        """Return when the next timer is due; infinite if there is none."""
        private: Any = self
        return min((timer.when() for timer in private._scheduled if not timer.cancelled()), default=float("inf"))

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        self._host.wake()
        return handle

    def run_in_executor(  # type: ignore[override]  # a task is the future that the base class promises
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        bound = functools.partial(func, *args)
        call = functools.partial(trio.to_thread.run_sync, bound, abandon_on_cancel=True)
        return self.create_task(self._host.elsewhere(call))


@contextmanager
def _threads_of_anyio(host: AsyncioHost) -> Iterator[None]:
    """Make threads that anyio starts for asyncio take turns with the run as well."""
    from anyio._backends import _asyncio

    backend: Any = _asyncio.AsyncIOBackend
    original = backend.run_sync_in_worker_thread

    async def run(
        _: type, func: Callable[..., T], args: tuple[Any, ...], abandon_on_cancel: bool = False, limiter: object = None
    ) -> T:
        if asyncio.get_running_loop() is not host._loop:
            found: T = await original(func, args, abandon_on_cancel, limiter)
            return found
        bound = functools.partial(contextvars.copy_context().run, func, *args)
        return await host.elsewhere(functools.partial(trio.to_thread.run_sync, bound, abandon_on_cancel=True))

    backend.run_sync_in_worker_thread = classmethod(run)
    try:
        yield
    finally:
        backend.run_sync_in_worker_thread = original
