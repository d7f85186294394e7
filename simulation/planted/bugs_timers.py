"""Planted bugs about callbacks of timers."""

from __future__ import annotations

from simulation.planted.planted import Planted

TIMER_BUGS: tuple[Planted, ...] = (
    Planted(
        "a timer that was replaced while it waited is delivered",
        "onyxq/interfaces/callbacks/delivery.py",
        "if not self._stands(attempt):",
        "if False:",
        "a callback comes with data that was replaced, or of a timer that was cancelled",
        "timers_changed",
        quick=1,
    ),
    Planted(
        "a callback begins though its lease may end meanwhile",
        "onyxq/interfaces/callbacks/delivery.py",
        "if partition_of(attempt.task) not in self._node.leaders or began + self._timeout_s > attempt.until:",
        "if partition_of(attempt.task) not in self._node.leaders:",
        "two callbacks of one timer are under way together",
        "timers_late",
        quick=1,
    ),
)
"""Bugs that scenes about timers must find."""
