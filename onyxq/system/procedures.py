"""Procedures: coroutines that wait without a task of the event loop (design: procedures).

Everything that a procedure waits for is a `Wait`, or is made of waits: a `Signal`, `pause`, `gather`, the decision of a
write, the verdict of the log. So a procedure does no I/O, and its runner chooses the clock and the order: a node
runs it in the turn of the event loop in which its request arrived, and a search needs no event loop at all. A task of
trio may await the same coroutines. Whatever of trio would wait in a procedure, or enter a cancel scope there, fails.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar, cast

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT

from onyxq.wire.waits import Parked, Waiting

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Done: TypeAlias = Callable[[Any, BaseException | None], None]
"""Takes what a procedure returned, or the exception that ended it."""

TURN_STEPS_MAX = 1_000
"""Steps in one turn of the event loop. Then its other tasks have their turn."""


class _Thread(threading.local):
    """What happens in one thread. A process may have several event loops, each in a thread of its own."""

    running: Procedures | None = None
    """The runner whose procedure makes a step now."""


_thread = _Thread()


class Withdrawn(BaseException):
    """Raised in a procedure that is cancelled, where it waits."""


ENDED = 1 << 30
"""Number of `shielded` contexts that the end of `Procedures.run` passes through: more than there are."""

LIMITS_SPARE = 1_000
"""Number of times of waits that are over above which they are looked for and dropped."""

CANCELLED = (trio.Cancelled, Withdrawn)
"""What a cancelled task, or a cancelled procedure, gets where it waits."""


class Wait:
    """A wait of one procedure or task until `end`, which may be called before."""

    __slots__ = ("over", "resume")

    def __init__(self) -> None:
        self.over = False
        """Whether `end` was called."""
        self.resume: Callable[[], object] | None = None
        """Continues what waits; None if nothing does."""

    def end(self) -> None:
        """End the wait."""
        self.over = True
        resume, self.resume = self.resume, None
        if resume is not None:
            resume()

    async def wait(self, timeout_s: float = math.inf) -> bool:
        """Wait for the end, up to ``timeout_s``; return whether it came."""
        if self.over:
            return True
        assert self.resume is None, "something else waits for the same"
        if _thread.running is not None:
            return await Parked(self, timeout_s)
        if timeout_s == math.inf:
            await self._park_task()
        else:
            with trio.move_on_after(max(0.0, timeout_s)):
                await self._park_task()
        return self.over

    async def _park_task(self) -> None:
        def abort(_: Any) -> trio.lowlevel.Abort:
            self.resume = None
            return trio.lowlevel.Abort.SUCCEEDED

        self.resume = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())
        await trio.lowlevel.wait_task_rescheduled(abort)


def procedure(function: F) -> F:
    """Mark a function that returns a procedure: nothing in it needs a task of trio."""
    function.is_procedure = True  # type: ignore[attr-defined]
    return function


def is_procedure(function: Callable[..., Any]) -> bool:
    """Return whether a function is marked by `procedure`."""
    return getattr(function, "is_procedure", False)


def now() -> float:
    """Return the time in seconds of the clock by which procedures, or tasks, wait."""
    return _thread.running.clock() if _thread.running is not None else trio.current_time()


@contextmanager
def shielded() -> Iterator[None]:
    """Let nothing in the context be cancelled; the caller is cancelled after it."""
    if _thread.running is None:
        with trio.CancelScope(shield=True):
            yield
        return
    one = _thread.running.making_step
    assert one is not None
    one.shields += 1
    try:
        yield
    finally:
        one.shields -= 1


async def pause(seconds: float) -> None:
    """Wait for some time. With 0.0 or less, only let others have their turn."""
    if _thread.running is not None:
        await Parked(Wait(), seconds)
    else:
        await trio.sleep(max(0.0, seconds))


async def stop_if_cancelled() -> None:
    """Raise here what a cancelled procedure, or task, gets where it waits."""
    if _thread.running is None:
        await trio.lowlevel.checkpoint_if_cancelled()
    elif _thread.running.making_step is not None and _thread.running.making_step.is_stopped:
        await Parked(Wait())


class beside:
    # A class: event loops finish async generators by tasks of their own.
    """Run procedures beside the caller: those that the function that it gives has started by the end of the context.

    The context ends when all of them are over. If one fails, or the caller does, the others are cancelled. The
    context raises the caller's exception, or else the first one.
    """

    async def __aenter__(self) -> Callable[[Coroutine[Any, Any, None]], object]:
        self._group = _Group(_thread.running) if _thread.running is not None else None
        if self._group is not None:
            return self._group.start
        self._tasks = trio.open_nursery()
        nursery = await self._tasks.__aenter__()
        return lambda steps: nursery.start_soon(_awaited, steps)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._group is not None:
            if not isinstance(error, GeneratorExit):  # the procedure is not run any more
                await self._group.close(error)
            return
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            if not isinstance(error, Exception):
                raise _first(group) from None


async def _awaited(steps: Coroutine[Any, Any, None]) -> None:
    await steps


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception in a group; `trio.Cancelled` if it has no other."""
    found: BaseException = group.split(trio.Cancelled)[1] or group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


class Ended(Exception):
    """Raised by `Question.answer` after `Question.end`."""


class Question(Generic[T]):
    """A procedure beside the caller that others may end."""

    def __init__(self, owner: Procedures, steps: Coroutine[Any, Any, T]) -> None:
        self._over = Wait()
        self._found: tuple[Any, BaseException | None] = None, None
        self._asked = owner.start(steps, self._take)

    def _take(self, result: Any, error: BaseException | None) -> None:
        self._found = result, error
        self._over.end()

    def end(self) -> None:
        """Cancel it."""
        self._asked.withdraw()

    async def answer(self) -> T:
        """Return its result; raises its error, or `Ended`."""
        try:
            await self._over.wait()
        except CANCELLED:
            self._asked.withdraw()
            raise
        result, error = self._found
        if isinstance(error, Withdrawn):
            raise Ended
        if error is not None:
            raise error
        return cast("T", result)


class _Group:
    """Procedures that another one has started and waits for."""

    def __init__(self, owner: Procedures) -> None:
        parent = owner.making_step
        assert parent is not None
        self._owner = owner
        self._parent = parent
        self._shields = parent.shields
        self._left: dict[Procedure, None] = {}
        self._over = Wait()
        self._error: Exception | None = None
        self._closing = False
        """Whether all of them are withdrawn."""
        self._stopped = False
        """Whether the parent is stopped because one failed."""

    def start(self, steps: Coroutine[Any, Any, None]) -> None:
        one = Procedure(self._owner, steps, lambda _, error: self._take(one, error))
        self._left[one] = None
        if self._closing:
            one.withdraw()
        self._owner.begin(one)

    def _take(self, one: Procedure, error: BaseException | None) -> None:
        del self._left[one]
        if isinstance(error, Exception) and self._error is None:
            self._error = error
            if not self._closing:
                self._stopped = True
                self._parent.stop(self._shields)
        if not self._left:
            self._over.end()

    async def close(self, error: BaseException | None) -> None:
        """Wait for the procedures, which are withdrawn after ``error``, the parent's, or one of theirs."""
        if error is None:
            try:
                await self._until_over()
            except Withdrawn as withdrawn:
                error = withdrawn
        if self._left:
            self._closing = True
            for one in self._left:
                one.withdraw()
            shields, self._parent.shields = self._parent.shields, math.inf
            try:
                await self._until_over()
            finally:
                self._parent.shields = shields
        if self._stopped:
            self._parent.resume(self._shields)
        if self._error is not None and not isinstance(error, Exception):
            raise self._error
        if error is not None:
            raise error

    async def _until_over(self) -> None:
        while self._left:
            self._over = Wait()
            await self._over.wait()


async def gather(steps: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run procedures beside each other and return their results in order.

    If some raise an `Exception`, the first of these in order is raised after all are over.
    """
    if len(steps) == 1:
        return [await steps[0]]
    found: list[tuple[Any, Exception | None]] = [(None, None)] * len(steps)
    async with beside() as start:
        for place, one in enumerate(steps):
            start(_hear(one, found, place))
    for _, error in found:
        if error is not None:
            raise error
    return [result for result, _ in found]


async def _hear(one: Coroutine[Any, Any, T], found: list[tuple[Any, Exception | None]], place: int) -> None:
    try:
        found[place] = await one, None
    except Exception as error:
        found[place] = None, error


class Procedure:
    """A procedure that was made; `Procedures.begin` lets it begin."""

    __slots__ = ("_context", "_done", "_owner", "_steps", "_stops", "over", "shields", "waits_for", "withdrawn")

    def __init__(self, owner: Procedures, steps: Coroutine[Any, Any, Any], done: Done) -> None:
        self.over = False
        """Whether it returned or failed."""
        self.withdrawn = False
        self.shields: float = 0
        """Number of `shielded` contexts in which it is."""
        self.waits_for: Waiting | None = None
        self._stops: tuple[float, ...] = ()
        """For each reason to stop: through how many of the `shielded` contexts it passes."""
        self._owner = owner
        self._steps = steps
        self._done = done
        self._context = copy_context()

    def withdraw(self) -> None:
        """Raise `Withdrawn` where it waits, and each time that it waits after that."""
        if not (self.over or self.withdrawn):
            self.withdrawn = True
            self.stop(0)

    def stop(self, shields: float) -> None:
        """Do as `withdraw` does, although it is in ``shields`` of the `shielded` contexts, until `resume`."""
        self._stops = (*self._stops, shields)
        wait = self.waits_for
        if wait is not None and wait.resume is not None and self.is_stopped:
            wait.resume = None
            self._owner.continue_soon(self, wait)

    def resume(self, shields: float) -> None:
        """Take back one `stop`."""
        left = list(self._stops)
        left.remove(shields)
        self._stops = tuple(left)

    @property
    def is_stopped(self) -> bool:
        """Whether it gets `Withdrawn` where it waits next."""
        return bool(self._stops) and max(self._stops) >= self.shields

    def step(self) -> None:
        """Run until it waits or is over. Even if it is withdrawn, it begins."""
        wait, self.waits_for = self.waits_for, None
        ended = wait.over if wait is not None else None
        raised: BaseException | None = Withdrawn() if ended is False and self.is_stopped else None
        while True:
            try:
                if raised is not None:
                    parked = self._context.run(self._steps.throw, raised)
                else:
                    parked = self._context.run(self._steps.send, ended)
            except StopIteration as returned:
                self._end(returned.value, None)
                return
            except (Exception, Withdrawn) as error:
                self._end(None, error)
                return
            if not isinstance(parked, Parked):
                raised = TypeError(f"a procedure awaits {parked!r}, which only a task can")
            elif parked.wait.over:
                ended, raised = True, None
            elif self.is_stopped:
                raised = Withdrawn()
            else:
                self.waits_for = parked.wait
                parked.wait.resume = partial(self._owner.continue_soon, self, parked.wait)
                self._owner.limit(self, parked.wait, parked.timeout_s)
                return

    def _end(self, result: Any, error: BaseException | None) -> None:
        self.over = True
        self._owner.forget(self)
        self._done(result, error)


class Procedures:
    """Runs procedures. A node runs `run`; a search that has another clock calls `turn`."""

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self.clock = clock
        self._ready: deque[Procedure] = deque()
        self._later: list[Procedure] = []
        """Procedures that continue in the next turn."""
        self._limits: list[tuple[float, int, Procedure, Waiting]] = []
        """Heap of the times until which procedures wait at most."""
        self._numbers = count()
        self._alive: dict[Procedure, None] = {}
        self._turn_due: Wait | None = None
        """Ended when a procedure can continue; None while `run` does not wait for that."""
        self._sooner: trio.CancelScope | None = None
        self._failed: list[BaseException] = []
        self._ended = False
        self.making_step: Procedure | None = None
        """The procedure that makes a step now."""

    def start(self, steps: Coroutine[Any, Any, Any], done: Done | None = None) -> Procedure:
        """Run a procedure: until it waits first, now, but soon if the caller is a procedure itself.

        Without ``done``, an exception of the procedure ends `run`. After the end of `run`, procedures are withdrawn
        where they wait first.
        """
        one = Procedure(self, steps, done or self._unheard)
        self.begin(one)
        return one

    def begin(self, one: Procedure) -> None:
        """Let a procedure begin as `start` does."""
        self._alive[one] = None
        if self._ended:
            one.stop(ENDED)
        if _thread.running is not None:
            self._ready.append(one)
            self._ask_turn()
            return
        self._step(one)
        if self._ended:
            self._use_up_turns()

    def _unheard(self, _: Any, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            self._failed.append(error)
            self._ask_turn()

    def _step(self, one: Procedure) -> None:
        assert _thread.running is None
        # What needs a task fails at once, rather than take the one that happens to run for that of the procedure.
        trio_context = GLOBAL_RUN_CONTEXT.__dict__
        task = trio_context.pop("task", None)
        _thread.running, self.making_step = self, one
        try:
            one.step()
        finally:
            _thread.running = self.making_step = None
            if task is not None:
                trio_context["task"] = task

    def continue_soon(self, one: Procedure, wait: Waiting) -> None:
        """Let a procedure make its next step if it still waits for ``wait``; called once for each wait."""
        if one.waits_for is wait:
            self._ready.append(one)
            self._ask_turn()

    def limit(self, one: Procedure, wait: Waiting, timeout_s: float) -> None:
        """Let a procedure wait for ``timeout_s`` at most."""
        if timeout_s <= 0:
            wait.resume = None
            self._later.append(one)
            self._ask_turn()
        elif timeout_s < math.inf:
            at = self.clock() + timeout_s
            if len(self._limits) > 2 * len(self._alive) + LIMITS_SPARE:
                self._limits = [limit for limit in self._limits if _is_parked(*limit[2:])]
                heapq.heapify(self._limits)
            heapq.heappush(self._limits, (at, next(self._numbers), one, wait))
            if self._sooner is not None and at < self._sooner.deadline:
                self._sooner.deadline = at

    def forget(self, one: Procedure) -> None:
        """Forget a procedure that is over."""
        del self._alive[one]

    def _ask_turn(self) -> None:
        if self._turn_due is not None:
            turn, self._turn_due = self._turn_due, None
            turn.end()

    def turn(self, steps_max: int = TURN_STEPS_MAX) -> bool:
        """Let the procedures that can continue make their steps; return whether some can continue after that."""
        later, self._later = self._later, []
        self._ready += later
        for _ in range(steps_max):
            if not self._ready:
                break
            self._step(self._ready.popleft())
        return bool(self._ready or self._later)

    def lapse(self) -> float:
        """Let procedures continue whose wait has timed out; return when the next wait times out, or infinity.

        Most waits end before their time limit. Such limits are dropped here, so that no wake-up is spent on them.
        """
        now = self.clock()
        while self._limits:
            at, _, one, wait = self._limits[0]
            waits = _is_parked(one, wait)
            if waits and at > now:
                return at
            heapq.heappop(self._limits)
            if waits:
                wait.resume = None
                self.continue_soon(one, wait)
        return math.inf

    async def run(self) -> None:
        """Run procedures until cancelled, and withdraw those that are left then, shielded or not."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_limits)
                while not self._failed:
                    if self.turn():
                        await trio.lowlevel.checkpoint()
                    elif not self._failed:
                        self._turn_due = Wait()
                        await self._turn_due.wait()
                raise self._failed[0]
        finally:
            self.end()

    def end(self) -> None:
        """Withdraw all procedures, and those that start later where they wait first; raises the error of the first."""
        self._ended = True
        known = len(self._failed)
        for one in self._alive:
            one.stop(ENDED)
        self._use_up_turns()
        if len(self._failed) > known:
            raise self._failed[known]

    def _use_up_turns(self) -> None:
        while self.turn():
            pass

    async def _watch_limits(self) -> None:
        while True:
            with trio.CancelScope(deadline=self.lapse()) as self._sooner:
                await trio.sleep_forever()


def _is_parked(one: Procedure, wait: Waiting) -> bool:
    """Return whether a procedure waits, and nothing has ended the wait."""
    return one.waits_for is wait and wait.resume is not None
