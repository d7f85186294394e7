"""Simulated time: one clock for waits and for what machines take for wall-clock time.

Waits run on trio's `MockClock`, which jumps as soon as every task waits, so hours pass in
milliseconds and a run never depends on the machine's speed.  Wall clocks derive from it:
each may be off by an offset of its own, run fast or slow, and jump.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import trio
from trio.testing import MockClock

EPOCH_MS = 1_700_000_000_000
"""Wall-clock time at the start of a simulation."""


def mock_clock() -> MockClock:
    """A clock for ``trio.run(..., clock=...)`` that jumps over every wait.

    Time stands still but for its jumps, so the last jump tells what time it is: trio asks
    several times per step of every task, and the general answer costs a tenth of a run.
    """
    clock = MockClock(autojump_threshold=0)
    private: Any = clock
    private.current_time = partial(getattr, clock, "_virtual_base")
    return clock


class SimulatedClock:
    """A machine's clocks, as `onyxq.system.clock.Clock`; read them inside the simulation only.

    ``drift_ppm``: how much the wall clock is too fast. ``monotonic_ppm``: the same of the monotonic clock.
    """

    def __init__(self, *, offset_ms: int = 0, drift_ppm: int = 0, monotonic_ppm: int = 0) -> None:
        self._offset_ms = offset_ms
        self._drift_ppm = drift_ppm
        self._monotonic_ppm = monotonic_ppm
        self._start_ns = offset_ms * 1_000_000 + (1 << 62)

    def wall_ms(self) -> int:
        """Now, as this machine sees it."""
        passed = round(trio.current_time() * 1000)
        return EPOCH_MS + self._offset_ms + passed + passed * self._drift_ppm // 1_000_000

    def monotonic_ns(self) -> int:
        """Time since a moment of its own, as this machine measures it."""
        passed = round(trio.current_time() * 1_000_000_000)
        return self._start_ns + passed + passed * self._monotonic_ppm // 1_000_000

    def jump(self, by_ms: int) -> None:
        """Set the clock forward (or back)."""
        self._offset_ms += by_ms
