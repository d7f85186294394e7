"""Finding the job that killed a shared Spark host.

Nothing outside the host shows which job it was. So the death of a host counts as a failure

* of the only job there, or of the one on *trial*;
* of all its jobs, if none of them was on trial and it is not the first death of a series.

After any death all jobs of the host are suspects. They start one after the other. One is on trial until it has
run for the trial time (at first `TRIAL_S`), or has ended on its own, or is not ready within `BEGUN_S`. Then it is
cleared, and the next one starts. The trial time doubles with each death of a series. So a job that kills late is
found too, before it is cleared and the next one is blamed. Jobs that were not at the host are not delayed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

TRIAL_S, TRIAL_S_MAX = 10.0, 160.0
"""Trial time after the first death of a series, in seconds, and its maximum.

It doubles with each further death.
"""
BEGUN_S = 60.0
"""A job on trial that is not ready after this time is cleared, in seconds."""
STEADY_S = 60.0
"""Seconds without a further death after which a series ends."""
CLEARING = ("completed", "failed", "stopped")
"""Events that clear the job on trial."""


class Suspects:
    """The suspects of one host; times are seconds of one clock."""

    def __init__(self) -> None:
        self.tried: str | None = None
        """The job on trial."""
        self._left: list[str] = []
        self._until = math.inf
        """When the trial ends, unless an event changes that."""
        self._trial_s = TRIAL_S
        self._row_at: float | None = None
        """When a shared host last died, or a suspect was cleared after that."""

    def may_begin(self, job: str, now: float) -> bool:
        """Return whether a job may start now.

        A suspect that may start is on trial from now on.
        """
        if job not in self._left or self.tried == job:
            return True
        if self.tried is not None:
            return False
        self.tried, self._until = job, now + BEGUN_S
        return True

    def heard(self, job: str, event: str, now: float) -> None:
        """Note an event of a job at the host."""
        if job != self.tried:
            return
        if event in CLEARING:
            self.clear(job, now)
        elif event == "ready":
            self._until = now + self._trial_s

    def look(self, now: float) -> None:
        """End the trial if its time is over."""
        if self.tried is not None and now >= self._until:
            self.clear(self.tried, now)

    def clear(self, job: str, now: float) -> None:
        """Clear a job: it is not a suspect any more, or will not start."""
        if job in self._left:
            self._left.remove(job)
            self._row_at = now
        if self.tried == job:
            self.tried = None

    def died(self, jobs: Sequence[str], now: float) -> frozenset[str]:
        """Note the death of a host with these jobs, and return the jobs for which it counts as a failure."""
        tried, self.tried = self.tried, None
        if len(jobs) <= 1:
            return frozenset(jobs)
        again = self._row_at is not None and now - self._row_at < STEADY_S
        self._trial_s = min(2 * self._trial_s, TRIAL_S_MAX) if again else TRIAL_S
        self._left, self._row_at = sorted({*self._left, *jobs}), now
        if tried in jobs:
            return frozenset(job for job in jobs if job == tried)
        return frozenset(jobs) if again else frozenset()
