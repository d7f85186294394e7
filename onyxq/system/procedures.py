"""Procedures: coroutines that wait without a task of the event loop (design: leaders).

Everything that a procedure waits for is a `Wait`, or is made of waits: a `Signal`, `pause`, `gather`, the decision of a
write, the verdict of the log. So a procedure does no I/O, and whoever runs it chooses the clock and the order: a node
runs it in the turn of the event loop in which its request arrived, and a search needs no event loop at all. A task of
trio may await the same coroutines.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Protocol, TypeAlias, TypeVar

import trio

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Done: TypeAlias = Callable[[Any, BaseException | None], None]
"""Takes what a procedure returned, or the exception that ended it."""

_now_running: Procedures | None = None
"""The procedures of which one makes a step now."""


class Withdrawn(BaseException):
    """Raised in a procedure that is cancelled, where it waits."""


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
        if _now_running is not None:
            return await Parked(self, timeout_s)
        with trio.move_on_after(max(0.0, timeout_s)):
            await self._park_task()
        return self.over

    async def _park_task(self) -> None:
        def abort(_: Any) -> trio.lowlevel.Abort:
            self.resume = None
            return trio.lowlevel.Abort.SUCCEEDED

        self.resume = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())
        await trio.lowlevel.wait_task_rescheduled(abort)


class Waiting(Protocol):
    """What a procedure can wait for."""

    over: bool
    resume: Callable[[], object] | None


class Parked:
    """What a procedure yields while it waits; awaiting it returns whether the wait is over."""

    __slots__ = ("timeout_s", "wait")

    def __init__(self, wait: Waiting, timeout_s: float = math.inf) -> None:
        self.wait = wait
        self.timeout_s = timeout_s

    def __await__(self) -> Generator[Parked, bool, bool]:
        return (yield self)


def is_running() -> bool:
    """Return whether the caller is a procedure (or was called by one)."""
    return _now_running is not None


def procedure(function: F) -> F:
    """Mark a function that returns a procedure: nothing in it needs a task of trio."""
    function.is_procedure = True  # type: ignore[attr-defined]
    return function


def is_procedure(function: Callable[..., Any]) -> bool:
    """Return whether a function is marked by `procedure`."""
    return getattr(function, "is_procedure", False)


def now() -> float:
    """Return the time in seconds of the clock by which procedures, or tasks, wait."""
    return _now_running.clock() if _now_running is not None else trio.current_time()


@contextmanager
def shielded() -> Iterator[None]:
    """Let nothing in the context be cancelled; the caller is cancelled after it."""
    if _now_running is None:
        with trio.CancelScope(shield=True):
            yield
        return
    one = _now_running.making_step
    assert one is not None
    one.shields += 1
    try:
        yield
    finally:
        one.shields -= 1


async def pause(seconds: float) -> None:
    """Wait for some time. With 0.0, only let others have their turn."""
    if _now_running is not None:
        await Parked(Wait(), seconds)
    else:
        await trio.sleep(seconds)


class beside:
    # A class: event loops finish async generators by tasks of their own.
    """Run procedures beside the caller: those that the function that it gives has started by the end of the context.

    The context ends when all of them are over. If one fails, or the caller does, the others are cancelled.
    """

    async def __aenter__(self) -> Callable[[Coroutine[Any, Any, None]], object]:
        self._group = _Group(_now_running) if _now_running is not None else None
        if self._group is not None:
            return self._group.start
        self._tasks = trio.open_nursery()
        nursery = await self._tasks.__aenter__()
        return lambda steps: nursery.start_soon(_awaited, steps)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._group is None:
            return bool(await self._tasks.__aexit__(kind, error, trace))
        try:
            if error is None:
                await self._group.over()
        except BaseException:
            self._group.withdraw()
            raise
        if error is not None:
            self._group.withdraw()
        return False


async def _awaited(steps: Coroutine[Any, Any, None]) -> None:
    await steps


class _Group:
    """Procedures that another one has started and waits for."""

    def __init__(self, owner: Procedures) -> None:
        self._owner = owner
        self._begun: list[Procedure] = []
        self._left = 0
        self._over = Wait()
        self._error: BaseException | None = None

    def start(self, steps: Coroutine[Any, Any, None]) -> None:
        self._left += 1
        self._begun.append(self._owner.start(steps, self._take))

    def _take(self, _: Any, error: BaseException | None) -> None:
        self._left -= 1
        self._error = self._error or error
        if error is not None or not self._left:
            self._over.end()

    async def over(self) -> None:
        if self._left:
            self._over.over = False
            await self._over.wait()
        if self._error is not None:
            raise self._error

    def withdraw(self) -> None:
        for one in self._begun:
            one.withdraw()


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
    """A procedure that was started."""

    __slots__ = ("_begun", "_context", "_done", "_owner", "_steps", "over", "shields", "waits_for", "withdrawn")

    def __init__(self, owner: Procedures, steps: Coroutine[Any, Any, Any], done: Done) -> None:
        self.over = False
        """Whether it returned or failed."""
        self.withdrawn = False
        self.shields = 0
        """Number of `shielded` contexts in which it is."""
        self.waits_for: Waiting | None = None
        self._owner = owner
        self._steps = steps
        self._done = done
        self._context = copy_context()
        self._begun = False

    def withdraw(self) -> None:
        """Raise `Withdrawn` where it waits, and each time that it waits after that."""
        if self.over or self.withdrawn:
            return
        self.withdrawn = True
        if self.waits_for is not None and not self.shields:
            self.waits_for.resume = None
            self._owner.continue_soon(self, self.waits_for)

    def step(self) -> None:
        """Run until it waits or is over."""
        wait, self.waits_for = self.waits_for, None
        ended = wait is not None and wait.over
        while True:
            try:
                if self.withdrawn and not ended and not self.shields:
                    parked = self._context.run(self._steps.throw, Withdrawn())
                elif self._begun:
                    parked = self._context.run(self._steps.send, ended)
                else:
                    self._begun = True
                    parked = self._context.run(self._steps.send, None)
            except StopIteration as returned:
                self._end(returned.value, None)
                return
            except (Exception, Withdrawn) as error:
                self._end(None, error)
                return
            if not isinstance(parked, Parked):
                self._steps.close()
                self._end(None, TypeError(f"a procedure awaits {parked!r}, which only a task can"))
                return
            ended = parked.wait.over
            if not ended and (not self.withdrawn or self.shields):
                self.waits_for = parked.wait
                parked.wait.resume = partial(self._owner.continue_soon, self, parked.wait)
                self._owner.limit(self, parked.wait, parked.timeout_s)
                return

    def _end(self, result: Any, error: BaseException | None) -> None:
        self.over = True
        self._owner.forget(self)
        self._done(result, error)


class Procedures:
    """Runs procedures. A node runs `run`; whoever has another clock calls `turn`."""

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self.clock = clock
        self._ready: deque[Procedure] = deque()
        self._limits: list[tuple[float, int, Procedure, Waiting]] = []
        """Heap of the times until which procedures wait at most."""
        self._numbers = count()
        self._alive: dict[Procedure, None] = {}
        self._turn_due: Wait | None = None
        """Ended when a procedure can continue; None while nobody waits for that."""
        self._sooner: trio.CancelScope | None = None
        self._failed: list[BaseException] = []
        self.making_step: Procedure | None = None
        """The procedure that makes a step now."""

    def start(self, steps: Coroutine[Any, Any, Any], done: Done | None = None) -> Procedure:
        """Run a procedure: until it waits first, now, but soon if the caller is a procedure itself.

        Without ``done``, an exception of the procedure ends `run`.
        """
        one = Procedure(self, steps, done or self._unheard)
        self._alive[one] = None
        if _now_running is None:
            self._step(one)
        else:
            self._ready.append(one)
            self._ask_turn()
        return one

    def _unheard(self, _: Any, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            self._failed.append(error)
            self._ask_turn()

    def _step(self, one: Procedure) -> None:
        global _now_running
        assert _now_running is None
        _now_running, self.making_step = self, one
        try:
            one.step()
        finally:
            _now_running = self.making_step = None

    def continue_soon(self, one: Procedure, wait: Waiting) -> None:
        """Let a procedure make its next step if it still waits for ``wait``."""
        if one.waits_for is wait:
            self._ready.append(one)
            self._ask_turn()

    def limit(self, one: Procedure, wait: Waiting, timeout_s: float) -> None:
        """Let a procedure wait for ``timeout_s`` at most."""
        if timeout_s <= 0:
            wait.resume = None
            self.continue_soon(one, wait)
        elif timeout_s < math.inf:
            at = self.clock() + timeout_s
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

    def turn(self) -> bool:
        """Let each procedure that can continue now make a step; return whether some can continue after that."""
        for _ in range(len(self._ready)):
            self._step(self._ready.popleft())
        return bool(self._ready)

    def lapse(self) -> float:
        """Let the procedures continue whose time is over; return when the next one's is."""
        now = self.clock()
        while self._limits and self._limits[0][0] <= now:
            _, _, one, wait = heapq.heappop(self._limits)
            if one.waits_for is wait and wait.resume is not None:
                wait.resume = None
                self.continue_soon(one, wait)
        return self._limits[0][0] if self._limits else math.inf

    async def run(self) -> None:
        """Run procedures until cancelled, and withdraw those that are left then."""
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
            for one in list(self._alive):
                one.withdraw()
            while self._ready:
                self.turn()

    async def _watch_limits(self) -> None:
        while True:
            with trio.CancelScope(deadline=self.lapse()) as self._sooner:
                await trio.sleep_forever()
