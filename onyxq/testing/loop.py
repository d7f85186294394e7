"""Simulated time driven from plain code, in one thread at a time (design: simulation).

A cluster under test is a trio run on a clock that jumps. The run is a *guest*: it only moves while the test's thread
waits in `Loop.call`. Between two lines of a test nothing happens and no time passes.

Handlers that are not async run in threads, but never at the same time as the run: a thread and the run pass each
other a baton, and the one without it waits. A blocking handler may therefore use `Loop.call` as well; it waits until
its call is answered in simulated time. The same seed gives the same order of events.
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
from simulation.world.scheduling import Spinning, StartThread, seeded_scheduling, state_of_run, threads_started_by

T = TypeVar("T")

BLOCKED_S_MAX = 30.0
"""Longest real time for which a blocking handler may keep everything waiting, in seconds."""


class Ended(BaseException):
    """End of a blocking handler, raised in it when its worker is killed or its test is over."""


class HandlerBlocked(AssertionError):
    """A blocking handler waits for something that cannot happen while it waits."""


class BlockingThread:
    """A thread of a blocking function: it has the baton, or it waits in a call."""

    def __init__(self) -> None:
        self.yielded = threading.Semaphore(0)
        self.resumed = threading.Semaphore(0)
        self.ident = 0
        self.finished = False
        self.request: Callable[[], Awaitable[Any]] | None = None
        self.answer: outcome.Outcome[Any] = outcome.Value(None)
        self.scope = trio.CancelScope()
        """Scope of the call in which the thread waits."""
        self.ending = False

    def call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Run a function in the simulation and wait for it; called in the thread."""
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
        self._ended = False
        self._error: BaseException | None = None
        """What ended the run, if that was an error."""
        self._threads: dict[BlockingThread, None] = {}
        self._failure: AssertionError | None = None
        self._nursery: trio.Nursery
        self._state: dict[str, Any] = {}
        self.clock = mock_clock()
        self.starting: Callable[[BlockingThread], None] = lambda _: None
        """Called with every thread when it starts, in the task that waits for it."""
        self._scheduling = seeded_scheduling(seed)

    # --- the run

    def open(self, main: Callable[[trio.Nursery], Awaitable[None]]) -> None:
        """Start the run and return once ``main(nursery)`` has returned; raise its error. The nursery stays open."""
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
        trio.lowlevel.add_instrument(Spinning(self._spins))
        async with trio.open_nursery() as self._nursery:
            await main(self._nursery)
            started.append(None)
            await trio.sleep_forever()

    def _done(self, found: outcome.Outcome[None]) -> None:
        self._ended = True
        self._error = found.error if isinstance(found, outcome.Error) else None

    def close(self) -> None:
        """End the run and every blocking handler; raise the error that broke the run, if any."""
        __tracebackhide__ = True
        try:
            if not self._ended and hasattr(self, "_nursery"):
                with self._in_context():
                    self.end_threads(list(self._threads))
                    self._nursery.cancel_scope.cancel()
                until_s = time.monotonic() + BLOCKED_S_MAX
                self._pump(lambda: time.monotonic() > until_s)
        finally:
            self._patched.__exit__(None, None, None)
            self._scheduling.__exit__(None, None, None)
        self._raise_error()

    def _raise_error(self) -> None:
        """Raise the error that broke the run, if any; each time, so that no other error hides it."""
        __tracebackhide__ = True
        if self._error is not None:
            raise self._error

    @contextmanager
    def _in_context(self) -> Iterator[None]:
        """Install the run's trio state while it moves: between moves the test may use trio itself."""
        with state_of_run(self._state):
            self._running = True
            try:
                yield
            finally:
                self._running = False

    def _pump(self, until: Callable[[], bool]) -> None:
        """Let the run move until the condition is true or the run has ended."""
        __tracebackhide__ = True
        with self._in_context():
            while not until():
                if self._ended:
                    break
                self._due.popleft()()
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure

    def _spins(self) -> None:
        self._failure = AssertionError(
            "the simulated clock stands still although the run does not: something, perhaps a handler, "
            "waits in a loop without sleeping"
        )

    # --- calls

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a function in the simulation and wait for it; return its result or raise its error.

        Call it from the test's thread or from a blocking handler; it raises `RuntimeError` elsewhere.
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
        if self._ended:
            self._raise_error()
            raise RuntimeError("the simulated cluster has ended")
        found: list[outcome.Outcome[T]] = []
        with self._in_context():
            self._nursery.start_soon(self._run_call, function, found)
        self._pump(lambda: bool(found))
        if not found:
            self._raise_error()
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
        """Start a blocking function and wait until it ends or waits in a call; called in the run."""
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
        """End blocking functions at their current or next call."""
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
    """Make `trio.to_thread` and its users start threads that share a baton with the run."""

    def make(original: StartThread) -> StartThread:
        def start(function: Callable[[], Any], deliver: Callable[[outcome.Outcome[Any]], object], *name: Any) -> None:
            if loop._running:
                loop.start_thread(function, deliver)
            else:
                original(function, deliver, *name)

        return start

    with threads_started_by(make):
        yield
