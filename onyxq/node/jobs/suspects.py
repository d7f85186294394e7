"""Whose fault it was that a Spark host died which several jobs shared.

Nobody can tell from outside.  So the death counts as a failure of a job only

* if that was the only one at the host, or the one that was *tried*;
* of all of them, if it is not the first in a row that nobody can be blamed for.

After any death those that shared the host are suspects.  They begin one after the other: one is tried
until it has run for `TRIAL_S`, or ended by itself (or not got so far within `BEGUN_S`); then it is none any
more, and the next one begins.  Trials become longer from death to death, so that one who kills late is found
too, and not another blamed that was tried by then.  Jobs that were not there are not held up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

TRIAL_S, TRIAL_S_MAX = 10.0, 160.0
"""How long a job is tried after the first death of a row; twice as long after each further one."""
BEGUN_S = 60.0
"""One that does not come to run by then is not waited for."""
STEADY_S = 60.0
"""A host that nobody killed for so long after the last death ends a row of them."""
CLEARING = ("completed", "failed", "stopped")
"""Events of a job that was tried, after which it is a suspect no more."""


class Suspects:
    """See the module's first paragraph; times are seconds of one clock."""

    def __init__(self) -> None:
        self.tried: str | None = None
        """The job that is begun alone now."""
        self._left: list[str] = []
        self._until = math.inf
        """When its trial ends if nothing is heard of it."""
        self._trial_s = TRIAL_S
        self._row_at: float | None = None
        """When a shared host last died, or a suspect was cleared after that."""

    def may_begin(self, job: str, now: float) -> bool:
        """Whether a job may begin now; a suspect that may is the one that is tried from here on."""
        if job not in self._left or self.tried == job:
            return True
        if self.tried is not None:
            return False
        self.tried, self._until = job, now + BEGUN_S
        return True

    def heard(self, job: str, event: str, now: float) -> None:
        """A job at the host said something."""
        if job != self.tried:
            return
        if event in CLEARING:
            self.clear(job, now)
        elif event == "ready":
            self._until = now + self._trial_s

    def look(self, now: float) -> None:
        """Time has passed."""
        if self.tried is not None and now >= self._until:
            self.clear(self.tried, now)

    def clear(self, job: str, now: float) -> None:
        """A job is no suspect any more, or does not want to begin."""
        if job in self._left:
            self._left.remove(job)
            self._row_at = now
        if self.tried == job:
            self.tried = None

    def died(self, jobs: Sequence[str], now: float) -> frozenset[str]:
        """The host has died with these jobs at it: of which of them it counts as a failure."""
        tried, self.tried = self.tried, None
        if len(jobs) <= 1:
            return frozenset(jobs)
        again = self._row_at is not None and now - self._row_at < STEADY_S
        self._trial_s = min(2 * self._trial_s, TRIAL_S_MAX) if again else TRIAL_S
        self._left, self._row_at = sorted({*self._left, *jobs}), now
        if tried in jobs:
            return frozenset(job for job in jobs if job == tried)
        return frozenset(jobs) if again else frozenset()
