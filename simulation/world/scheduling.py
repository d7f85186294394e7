"""Deterministic scheduling: a seed decides which of several ready tasks runs first.

The only module that uses private attributes of trio; `tests/tidy/test_private_names.py` names the versions that
have them.

trio has a private switch for this, made for hypothesis. With it, a seeded generator and a clock that jumps, two runs
take the same steps, provided that no code follows the order of a set or a persistent map of text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import trio

StartThread: TypeAlias = Callable[..., None]
"""A function that starts a thread: it takes the work, the function that delivers its outcome, and maybe a name."""
ROUNDS_MAX = 200_000
"""Rounds of the scheduler at one instant after which a run counts as spinning."""
LOOK_ROUNDS = 1_024
"""Rounds between two checks of the clock."""


@contextmanager
def seeded_scheduling(seed: int) -> Iterator[None]:
    """Schedule the trio runs that begin inside by the seed; a context manager."""
    private: Any = trio._core._run
    before = private._ALLOW_DETERMINISTIC_SCHEDULING
    private._ALLOW_DETERMINISTIC_SCHEDULING = True
    private._r.seed(seed)
    try:
        yield
    finally:
        private._ALLOW_DETERMINISTIC_SCHEDULING = before


@contextmanager
def state_of_run(kept: dict[str, Any]) -> Iterator[None]:
    """Install a run's state in this thread while the run moves, and keep it in ``kept`` afterwards.

    A guest run leaves its state in the thread, where no other run could then start.
    """
    state = trio._core._run.GLOBAL_RUN_CONTEXT.__dict__
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
