"""How far ahead a worker claims (design: claims).

A task that a worker holds and does not run is one that nobody else can run.  So it claims
ahead only what its slots will begin soon, judged by how long tasks have taken, and nothing
while that is not known.  What it holds unbegun for longer it gives back.
"""

from __future__ import annotations

SOON_S = 0.5
"""What is claimed ahead should be begun within this."""
PATIENCE_S = 2 * SOON_S
"""After this a claim that was not begun is given back."""
WEIGHT = 0.2
"""Of the latest task in the mean."""
AHEAD_PER_SLOT = 10
AHEAD_MAX = 1_000


class Pace:
    """Says how many tasks to hold beyond those that run; at most ``limit`` (default: ten per slot)."""

    def __init__(self, slots: int, *, limit: int | None = None) -> None:
        self.slots = slots
        self._limit = limit
        self._mean_s: float | None = None
        self._stalled = False

    @property
    def limit(self) -> int:
        """The most to hold beyond those that run."""
        return min(AHEAD_PER_SLOT * self.slots if self._limit is None else self._limit, AHEAD_MAX)

    def took(self, seconds: float) -> None:
        """A task ran for so long."""
        self._stalled = False
        self._mean_s = seconds if self._mean_s is None else (1 - WEIGHT) * self._mean_s + WEIGHT * seconds

    def stalled(self) -> None:
        """Claims were held in vain: nothing more is claimed ahead until a task ends."""
        self._stalled = True

    def ahead(self, age_s: float) -> int:
        """Tasks to hold beyond those that run; ``age_s``: for how long these have run in the mean."""
        if self._mean_s is None or self._stalled:
            return 0
        # Tasks that run for longer than usual say more about the next free slot than the past does.
        expected_s = max(self._mean_s, age_s)
        if expected_s * self.limit <= SOON_S * self.slots:
            return self.limit
        return int(self.slots * SOON_S / expected_s)
