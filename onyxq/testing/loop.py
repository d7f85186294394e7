"""Simulated time driven from plain code, in one thread at a time (design: simulation).

A cluster under test is a trio run on a clock that jumps.  The run is a *guest*: it only
moves while somebody waits in `Loop.call`, in the thread of the test, so between two lines
of a test nothing happens and no time passes.

Blocking functions that the run sends to threads (handlers that are not async) do run in
threads, but never beside the run: a thread and the run hand each other a baton, and
whoever does not have it stands still.  A blocking handler may therefore use `Loop.call` as
well: it stands still until its call has been answered in simulated time.  The same seed
gives the same order of everything.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import outcome
import trio

from simulation.world.clock import mock_clock
from simulation.world.scheduling import seeded_scheduling

T = TypeVar("T")

BLOCKED_S_MAX = 30.0
"""Seconds of real time that a blocking handler may keep everything waiting."""
STEPS_MAX = 200_000
"""Passes of the run at one instant after which it counts as spinning."""


class Ended(BaseException):
    """Raised in a blocking handler whose worker was killed, or whose test is over: it ends there."""


class HandlerBlocked(AssertionError):
    """A blocking handler waits for something that cannot happen while it waits."""


class BlockingThread:
    """A blocking function beside the run: either it has the baton, or it waits in a call."""

    def __init__(self) -> None:
        self.yielded = threading.Semaphore(0)
        self.resumed = threading.Semaphore(0)
        self.ident = 0
        self.finished = False
        self.request: Callable[[], Awaitable[Any]] | None = None
        self.answer: outcome.Outcome[Any] = outcome.Value(None)
        self.scope = trio.CancelScope()
        """Of the call in which it stands."""
        self.ending = False

    def call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """In the thread: have the run do this, stand still until it is done."""
        __tracebackhide__ = True
        if self.ending:
            raise Ended
        self.request = function
        self.yielded.release()
        self.resumed.acquire()
        return self.answer.unwrap()


class Loop:
    """A trio run on a jumping clock that moves only while `call` waits."""

    def __init__(self, *, seed: int) -> None:
        self._local = threading.local()
        self._owner = threading.get_ident()
        self._due: deque[Callable[[], object]] = deque()
        self._running = False
        self._outcome: outcome.Outcome[None] | None = None
        self._threads: dict[BlockingThread, None] = {}
        self._failure: HandlerBlocked | None = None
        self._nursery: trio.Nursery
        self._context: dict[str, Any] = {}
        self._now = 0.0
        self._steps = 0
        self.clock = mock_clock()
        self.starting: Callable[[BlockingThread], None] = lambda _: None
        """Told of every thread when it starts, in the task that waits for it."""
        self._scheduling = seeded_scheduling(seed)

    # --- the run

    def open(self, main: Callable[[trio.Nursery], Awaitable[None]]) -> None:
        """Start the run and return once ``main(nursery)`` has; its nursery goes on. Raises what it raises."""
        __tracebackhide__ = True
        self._scheduling.__enter__()
        self._patched = _patch_threads(self)
        self._patched.__enter__()
        started: list[None] = []
        with self._in_context():
            trio.lowlevel.start_guest_run(
                self._main,
                main,
                started,
                run_sync_soon_threadsafe=self._due.append,
                done_callback=self._done,
                clock=self.clock,
                host_uses_signal_set_wakeup_fd=True,
            )
        try:
            self._pump(lambda: bool(started))
        except BaseException:
            self.close()
            raise

    async def _main(self, main: Callable[[trio.Nursery], Awaitable[None]], started: list[None]) -> None:
        async with trio.open_nursery() as self._nursery:
            await main(self._nursery)
            started.append(None)
            await trio.sleep_forever()

    def _done(self, found: outcome.Outcome[None]) -> None:
        self._outcome = found

    def close(self) -> None:
        """End the run and every blocking handler; raises what broke inside it."""
        __tracebackhide__ = True
        try:
            if self._outcome is None and hasattr(self, "_nursery"):
                with self._in_context():
                    self.end_threads(list(self._threads))
                    self._nursery.cancel_scope.cancel()
                until_s = time.monotonic() + BLOCKED_S_MAX
                self._pump(lambda: time.monotonic() > until_s)
        finally:
            self._patched.__exit__(None, None, None)
            self._scheduling.__exit__(None, None, None)
        if self._outcome is not None:
            self._outcome.unwrap()

    @contextmanager
    def _in_context(self) -> Iterator[None]:
        """The run is the thread's own only while it moves: a test may use trio for itself in between."""
        context: Any = trio._core._run.GLOBAL_RUN_CONTEXT
        outside = dict(context.__dict__)
        context.__dict__.clear()
        context.__dict__.update(self._context)
        hooks = sys.get_asyncgen_hooks()
        self._running = True
        try:
            yield
        finally:
            self._running = False
            self._context = dict(context.__dict__)
            context.__dict__.clear()
            context.__dict__.update(outside)
            sys.set_asyncgen_hooks(*hooks)

    def _pump(self, until: Callable[[], bool]) -> None:
        """Let the run move until the condition holds, or it ended."""
        __tracebackhide__ = True
        with self._in_context():
            while not until():
                if self._outcome is not None:
                    break
                self._due.popleft()()
                self._watch()
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure

    def _watch(self) -> None:
        now = self.clock.current_time()
        self._steps = self._steps + 1 if now == self._now else 0
        self._now = now
        if self._steps > STEPS_MAX:
            self._steps = 0
            raise AssertionError(
                "the simulated clock stands still although the run does not: something, perhaps a handler, "
                "waits in a loop without sleeping"
            )

    # --- calls

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Do something in the run and wait for it; raises what it raises.

        From the test's thread or from a blocking handler; `RuntimeError` from anywhere else.
        """
        __tracebackhide__ = True
        thread: BlockingThread | None = getattr(self._local, "thread", None)
        if thread is not None:
            answer: T = thread.call(function)
            return answer
        if threading.get_ident() != self._owner:
            raise RuntimeError("a simulated cluster is used from the thread of its test, and from its handlers only")
        if self._running:
            raise RuntimeError(
                "a blocking call from async code, where it would stop everything else: use the call that is awaited "
                "(`await function.enqueue_async(...)`, `AsyncClient`)"
            )
        if self._outcome is not None:
            self._outcome.unwrap()
            raise RuntimeError("the simulated cluster has ended")
        found: list[outcome.Outcome[T]] = []
        with self._in_context():
            self._nursery.start_soon(self._run_call, function, found)
        self._pump(lambda: bool(found))
        if not found:
            assert self._outcome is not None
            self._outcome.unwrap()
        return found[0].unwrap()

    async def _run_call(self, function: Callable[[], Awaitable[T]], found: list[outcome.Outcome[T]]) -> None:
        try:
            found.append(outcome.Value(await function()))
        except trio.Cancelled:
            raise
        except BaseException as error:
            found.append(outcome.Error(error))

    # --- threads

    def start_thread(self, function: Callable[[], Any], deliver: Callable[[outcome.Outcome[Any]], object]) -> None:
        """In the run: start a blocking function and stand still until it ends or waits in a call."""
        thread = BlockingThread()
        self._threads[thread] = None
        self.starting(thread)

        def run() -> None:
            thread.ident = threading.get_ident()
            self._local.thread = thread
            try:
                deliver(outcome.capture(function))
            finally:
                self._local.thread = None
                thread.finished = True
                thread.yielded.release()

        threading.Thread(target=run, name="onyxq handler", daemon=True).start()
        self._stand_still(thread)

    def end_threads(self, threads: list[BlockingThread]) -> None:
        """End blocking functions where they stand."""
        for thread in threads:
            if thread in self._threads:
                thread.ending = True
                thread.scope.cancel()

    def _stand_still(self, thread: BlockingThread) -> None:
        if not thread.yielded.acquire(timeout=BLOCKED_S_MAX):
            frame = sys._current_frames().get(thread.ident)
            where = "".join(traceback.format_stack(frame)) if frame is not None else "(unknown)"
            self._failure = HandlerBlocked(
                f"a blocking handler has kept the test waiting for {BLOCKED_S_MAX:g} s of real time. Simulated time "
                f"stands still while it works: to sleep in it use cluster.sleep(). It is here:\n{where}"
            )
            return
        if thread.finished:
            del self._threads[thread]
            return
        assert thread.request is not None
        self._nursery.start_soon(self._answer, thread, thread.request)

    async def _answer(self, thread: BlockingThread, function: Callable[[], Awaitable[Any]]) -> None:
        thread.scope = trio.CancelScope()
        answer: outcome.Outcome[Any] = outcome.Error(Ended())
        try:
            with thread.scope:
                if thread.ending:
                    thread.scope.cancel()
                answer = await outcome.acapture(function)
        finally:
            if thread.ending or _cancelled(answer):
                thread.ending, answer = True, outcome.Error(Ended())
            thread.answer = answer
            thread.resumed.release()
            self._stand_still(thread)


def _cancelled(answer: outcome.Outcome[Any]) -> bool:
    return isinstance(answer, outcome.Error) and isinstance(answer.error, trio.Cancelled)


@contextmanager
def _patch_threads(loop: Loop) -> Iterator[None]:
    """`trio.to_thread` (and what is built on it) starts threads that share a baton with the run."""
    module: Any = trio._threads
    original = module.start_thread_soon

    def start(function: Callable[[], Any], deliver: Callable[[outcome.Outcome[Any]], object], *name: Any) -> None:
        if loop._running:
            loop.start_thread(function, deliver)
        else:
            original(function, deliver, *name)

    module.start_thread_soon = start
    try:
        yield
    finally:
        module.start_thread_soon = original
