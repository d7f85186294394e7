"""Deterministic scheduling: a seed decides which of several ready tasks runs first.

The only module that uses private attributes of trio; `tests/tidy/test_private_names.py` names the versions that
have them.

trio has a private switch for this, made for hypothesis. With it, a seeded generator and a clock that jumps, two runs
take the same steps, provided that no code follows the order of a set or a persistent map of text.
"""

from __future__ import annotations

import heapq
import math
import random
import sys
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeAlias

import trio
from attrs import has
from trio._core._run import GLOBAL_RUN_CONTEXT, Deadlines

StartThread: TypeAlias = Callable[..., None]
"""A function that starts a thread: it takes the work, the function that delivers its outcome, and maybe a name."""
ROUNDS_MAX = 200_000
"""Rounds of the scheduler at one instant after which a run counts as spinning."""
LOOK_ROUNDS = 1_024
"""Rounds between two checks of the clock."""
POLL_ROUNDS = 64
"""Rounds between two looks at what comes from outside, such as signals, unless the run waits for that alone."""


@contextmanager
def seeded_scheduling(seed: int) -> Iterator[None]:
    """Schedule the trio runs that begin inside by the seed; a context manager."""
    private: Any = trio._core._run
    before = private._ALLOW_DETERMINISTIC_SCHEDULING, private._r
    private._ALLOW_DETERMINISTIC_SCHEDULING, private._r = True, _Order(seed)
    try:
        yield
    finally:
        private._ALLOW_DETERMINISTIC_SCHEDULING, private._r = before


class _Order(random.Random):
    """The order of the tasks of each round; mostly there is one task."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        if len(x) > 1:
            super().shuffle(x)


@contextmanager
def state_of_run(kept: dict[str, Any]) -> Iterator[None]:
    """Install a run's state in this thread while the run moves, and keep it in ``kept`` afterwards.

    A guest run leaves its state in the thread, where no other run could then start.
    """
    state = GLOBAL_RUN_CONTEXT.__dict__
    outside, hooks = dict(state), sys.get_asyncgen_hooks()
    state.clear()
    state.update(kept)
    try:
        yield
    finally:
        kept.clear()
        kept.update(state)
        state.clear()
        state.update(outside)
        sys.set_asyncgen_hooks(*hooks)


@contextmanager
def threads_started_by(make: Callable[[StartThread], StartThread]) -> Iterator[None]:
    """Make trio start its threads with ``make(function)`` instead of its own function."""
    module: Any = trio._threads
    original = module.start_thread_soon
    module.start_thread_soon = make(original)
    try:
        yield
    finally:
        module.start_thread_soon = original


class Spinning(trio.abc.Instrument):
    """Instrument that stops a run in which tasks wake each other for ever at one instant."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._rounds = 0
        self._still = 0
        self._at = -1.0
        self.found = False

    def before_io_wait(self, timeout: float) -> None:
        """Count the rounds of the scheduler."""
        self._rounds += 1
        if self._rounds % LOOK_ROUNDS:
            return
        now = trio.current_time()
        self._still = self._still + LOOK_ROUNDS if now == self._at else 0
        self._at = now
        if self._still > ROUNDS_MAX and not self.found:
            self.found = True
            self._stop()


class Nap:
    """A wait of one task for `end`, or until a time that may change while it waits.

    It is a cancel scope around `trio.sleep_forever`, without the scope, which takes longer than the rest of a step.
    """

    __slots__ = ("task", "until")

    def __init__(self, until: float = math.inf) -> None:
        self.until = until
        self.task: trio.lowlevel.Task | None = None
        """What waits; None if nothing does."""

    async def wait(self) -> None:
        """Wait in the task that calls it."""
        self.task = trio.lowlevel.current_task()
        self.end_at(self.until)
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        private: Any = trio.lowlevel.current_task()
        if private._cancel_status.effectively_cancelled:  # After the nap ended, but before this step: as from a scope.
            raise _cancelled()

    def end_at(self, until: float) -> None:
        """Let the wait end at a time of the run's clock, instead of the one before."""
        self.until = until
        if self.task is not None and until < math.inf:
            _naps().end_later(self)

    def end(self) -> None:
        """End the wait."""
        task, self.task = self.task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _abort(self, _: Any) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


def _cancelled() -> trio.Cancelled:
    create: Any = trio.Cancelled._create
    reason = {"source": "unknown"} if has(trio.Cancelled) else {}  # trio before 0.31 gives none
    cancelled: trio.Cancelled = create(**reason)
    return cancelled


class _Naps(Deadlines):
    """The deadlines of a run: those of its cancel scopes, and of its naps."""

    def __init__(self, scopes: Deadlines) -> None:
        super().__init__(scopes._heap, scopes._active)
        self._ends: list[tuple[float, int, Nap]] = []
        """Heap of the times at which naps end; of a nap that was changed or ended, also of earlier ones."""
        self._numbers = count()
        self.next = math.inf
        """What `next_deadline` found last."""

    def end_later(self, nap: Nap) -> None:
        heapq.heappush(self._ends, (nap.until, next(self._numbers), nap))

    def next_deadline(self) -> float:
        """Return the earliest of all."""
        while self._ends and (self._ends[0][2].task is None or self._ends[0][2].until != self._ends[0][0]):
            heapq.heappop(self._ends)
        self.next = super().next_deadline()
        if self._ends and self._ends[0][0] < self.next:
            self.next = self._ends[0][0]
        return self.next

    def expire(self, now: float) -> bool:
        """Cancel the scopes and end the naps whose time has come, and say whether there were any."""
        found = super().expire(now)
        while self._ends and self._ends[0][0] <= now:
            until, _, nap = heapq.heappop(self._ends)
            if nap.task is not None and nap.until == until:
                found = True
                nap.end()
        return found


def _naps() -> _Naps:
    runner = GLOBAL_RUN_CONTEXT.runner
    if not isinstance(runner.deadlines, _Naps):
        runner.deadlines = _Naps(runner.deadlines)
    return runner.deadlines


@contextmanager
def sleeping_by_naps() -> Iterator[None]:
    """Let `trio.sleep` wait in naps."""
    module: Any = trio._timeouts
    original = module.sleep_until
    module.sleep_until = _sleep_until
    try:
        yield
    finally:
        module.sleep_until = original


async def _sleep_until(deadline: float) -> None:
    await Nap(deadline).wait()


class Rounds:
    """The input and output of a run on a clock that jumps, in place of trio's own: mostly there is none.

    It asks the system only now and then, and jumps over a wait within a round. trio would ask in every round, make
    a round more for each jump, and call an instrument to count them.
    """

    def __init__(self, spinning: Spinning) -> None:
        runner = GLOBAL_RUN_CONTEXT.runner
        assert isinstance(runner.clock, trio.testing.MockClock)
        runner.clock.autojump_threshold = math.inf
        self._clock, self._system = runner.clock, runner.io_manager
        self.process_events = self._system.process_events
        self._spinning = spinning
        self._deadlines = _naps()
        self._rounds = 0
        private: Any = runner
        private.io_manager = self
        if not private.instruments:
            private.instruments = {}  # A plain one: trio looks five times in each round of one task.

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def get_events(self, timeout: float) -> Any:
        """Return what came from outside; if no task can run (``timeout`` is above 0), jump to the next deadline."""
        self._spinning.before_io_wait(timeout)
        self._rounds += 1
        deadline = self._deadlines.next if timeout > 0 else -math.inf
        events: Any = ()
        if deadline == math.inf:
            events = self._system.get_events(timeout)
        elif self._rounds % POLL_ROUNDS == 0:
            events = self._system.get_events(0)
        if not events and timeout > 0 and deadline < math.inf:
            self._clock.jump(deadline - self._clock.current_time())
        return events
