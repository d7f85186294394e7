"""How far ahead a worker claims (design: claims).

A task held by one worker is unavailable to the others. So a worker claims ahead only tasks that its slots will
start soon, judged by how long tasks have taken; nothing while that is unknown. Tasks that it holds for longer
without a start it gives back.
"""

from __future__ import annotations

SOON_S = 0.5
"""Time within which tasks claimed ahead should start, in seconds."""
PATIENCE_S = 2 * SOON_S
"""Time after which a claim that has not started is given back, in seconds."""
WEIGHT = 0.2
"""Weight of the latest task in the mean duration."""
AHEAD_PER_SLOT = 10
AHEAD_MAX = 1_000


class Pace:
    """Number of tasks to hold beyond the running ones; at most ``limit`` (default: ten per slot)."""

    def __init__(self, slots: int, *, limit: int | None = None) -> None:
        self.slots = slots
        self._limit = limit
        self._mean_s: float | None = None
        self._stalled = False

    @property
    def limit(self) -> int:
        """Largest number of tasks to hold beyond the running ones."""
        return min(AHEAD_PER_SLOT * self.slots if self._limit is None else self._limit, AHEAD_MAX)

    def took(self, seconds: float) -> None:
        """Record that a task ran for this many seconds."""
        self._stalled = False
        self._mean_s = seconds if self._mean_s is None else (1 - WEIGHT) * self._mean_s + WEIGHT * seconds

    def stalled(self) -> None:
        """Claim nothing ahead until a task ends, because held tasks did not start in time."""
        self._stalled = True

    def ahead(self, age_s: float) -> int:
        """Return the number of tasks to hold beyond the running ones; ``age_s``: mean age of the running ones."""
        if self._mean_s is None or self._stalled:
            return 0
        # Tasks that run longer than usual predict the next free slot better than the past does.
        expected_s = max(self._mean_s, age_s)
        if expected_s * self.limit <= SOON_S * self.slots:
            return self.limit
        return int(self.slots * SOON_S / expected_s)
