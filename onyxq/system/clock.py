"""Clocks of a machine, as an interface that the simulator replaces.

The wall clock is for times that users mean, such as due times.  The monotonic clock is for
leases, which are counted in log time.  Waits use trio's clock.
"""

from __future__ import annotations

import time
from typing import Protocol

import trio

from onyxq.core.replica import CLOCK_SKEW_MAX_MS

_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class WallClock(Protocol):
    """A clock in milliseconds since the epoch."""

    def wall_ms(self) -> int:
        """Return the current time of this machine, in ms since the epoch."""


class Clock(WallClock, Protocol):
    """Both clocks of a machine."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds since some moment before this process started. This clock cannot be set."""


class SystemClock:
    """The machine's own clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        """Return nanoseconds since the machine started, including those in which it slept."""
        return time.clock_gettime_ns(_MONOTONIC)


class SteadyClock:
    """A clock that starts as the machine's and is not set while the process runs."""

    def __init__(self) -> None:
        self._start_ms = SystemClock().wall_ms() - time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Return the current time, in ms since the epoch, if the machine's clock was right at the start."""
        return self._start_ms + time.monotonic_ns() // 1_000_000


class RingClock:
    """A machine's clock as far as the ring believes it; for all times that are stored.

    A clock that jumps is not followed until the ring agrees with it, or until its peer has left
    because of it.  Time continues as before.  So a minute with a wrong clock delays no task by an hour.
    After a small step back, time stops until the clock has caught up.
    """

    def __init__(self, own: Clock) -> None:
        self.own = own
        """The machine's unmodified clock."""
        self._believed: tuple[int, float] | None = None
        """A time in ms that the ring agreed with, and the monotonic second at which it was."""
        self._last_ms = 0

    def judged(self, *, said_ms: int, off_ms: int, shared: bool) -> bool:
        """Judge this clock by a record of its peer. Returns whether time went back.

        When the record was made, this clock showed about ``said_ms``, ``off_ms`` ahead of the ring's
        median. ``shared``: most members' clocks show about the same. If they do not, for example
        if two members disagree, it is unknown which clock is right. The former belief then stays.
        """
        own_ms = self.own.wall_ms()
        if abs(off_ms) <= CLOCK_SKEW_MAX_MS:
            sure = shared or self._believed is None
            if sure and abs(own_ms - said_ms) <= CLOCK_SKEW_MAX_MS:  # otherwise it jumped since, or the record was late
                self._believed = (own_ms, trio.current_time())
        elif self._believed is None:
            self._believed = (own_ms - off_ms, trio.current_time())
        back = self._now_ms() < self._last_ms - CLOCK_SKEW_MAX_MS
        if back:
            self._last_ms = 0
        return back

    def wall_ms(self) -> int:
        self._last_ms = max(self._last_ms, self._now_ms())
        return self._last_ms

    def _now_ms(self) -> int:
        own_ms = self.own.wall_ms()
        if self._believed is None:
            return own_ms
        ms, at = self._believed
        believed_ms = ms + int((trio.current_time() - at) * 1000)
        return own_ms if abs(own_ms - believed_ms) <= CLOCK_SKEW_MAX_MS else believed_ms
