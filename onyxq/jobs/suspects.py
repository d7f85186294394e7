"""Whose fault it was that a Spark host died which several jobs shared.

Nobody can tell from outside.  So the death counts as a failure of a job only

* if that was the only one at the host, or the one that was *tried*;
* of all of them, if it is not the first in a row that nobody can be blamed for.

After such a death the jobs that were at the host are suspects.  They begin one after the other: one is
tried until it has finished a batch, ended by itself, or run for `TRIAL_S`; then it is none any more, and
the next one begins.  Jobs that were not there are not held up.
"""

from __future__ import annotations

from collections.abc import Sequence

TRIAL_S = 10.0
"""A job that has run for so long beside the others has not killed the host by beginning."""
STEADY_S = 60.0
"""A host that nobody killed for so long after the last death ends a row of them."""
CLEARING = ("progress", "completed", "failed", "stopped")
"""Events of a job that was tried, after which it is a suspect no more."""


class Suspects:
    """See the module's first paragraph; times are seconds of one clock."""

    def __init__(self) -> None:
        self.tried: str | None = None
        """The job that is begun alone now."""
        self._left: list[str] = []
        self._ready_at: float | None = None
        self._row_at: float | None = None
        """When the host last died by nobody's known fault, or a suspect was cleared after that."""

    def may_begin(self, job: str) -> bool:
        """Whether a job may begin now; a suspect that may is the one that is tried from here on."""
        if job not in self._left or self.tried == job:
            return True
        if self.tried is not None:
            return False
        self.tried, self._ready_at = job, None
        return True

    def heard(self, job: str, event: str, now: float) -> None:
        """A job at the host said something."""
        if job != self.tried:
            return
        if event in CLEARING:
            self.clear(job, now)
        elif event == "ready":
            self._ready_at = now

    def look(self, now: float) -> None:
        """Time has passed."""
        if self.tried is not None and self._ready_at is not None and now - self._ready_at >= TRIAL_S:
            self.clear(self.tried, now)

    def clear(self, job: str, now: float) -> None:
        """A job is no suspect any more, or does not want to begin."""
        if job in self._left:
            self._left.remove(job)
            self._row_at = now
        if self.tried == job:
            self.tried, self._ready_at = None, None

    def died(self, jobs: Sequence[str], now: float) -> frozenset[str]:
        """The host has died with these jobs at it: of which of them it counts as a failure."""
        if len(jobs) == 1 or self.tried in jobs:
            blamed = frozenset(jobs if self.tried is None else (self.tried,))
            self.tried, self._ready_at = None, None
            return blamed
        again = self._row_at is not None and now - self._row_at < STEADY_S
        if jobs:
            self._left, self._row_at = sorted({*self._left, *jobs}), now
        return frozenset(jobs) if again else frozenset()
