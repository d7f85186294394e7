"""Clocks: the wall clock that users mean by times, as an interface the simulator replaces.

Leases never look at it (they are counted in log time) and waits use trio's clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Milliseconds since the epoch."""

    def wall_ms(self) -> int:
        """Now, as this machine sees it."""
        ...


class SystemClock:
    """The machine's own clock."""

    def wall_ms(self) -> int:
        """Now, as this machine sees it."""
        return time.time_ns() // 1_000_000
