"""The measure of log time by a peer's own monotonic clock (design: the log).

Pure.  Every record states what its writer has read, and how long ago by its monotonic clock.
A peer reads a record after it was appended, and a new record is appended after it was made.
So at least the measured time has passed in the log between the two.  No clocks of two machines
are compared, and no wall clock is used.

The proof. Let L(n) be log time after record n, and ``true(n)`` when n was appended.  For all
records g < n, L(n) - L(g) <= true(n) - true(g) + `LOG_TIME_SLACK_MS`:

* Case 1: the writer of n had read every record before n that counted.  Then `passed_ms` is the time it
  measured since it read the last of them.  The bound holds for that record, and so for all before.
* Case 2: it had not.  Then n states L(p) + min(what it measured since it read p, the slack) for some p.
  For g <= p the bound holds as in case 1; for g > p, L(n) - L(g) <= L(p) + slack - L(g) <= slack.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

NS = 1_000_000
"""Nanoseconds in a millisecond."""

LOG_TIME_STEP_MAX_MS = 5_000
"""Longest pause between records that adds to log time; longer ones are outages or idle times."""
LOG_TIME_SLACK_MS = 500
"""Most by which log time between two records may exceed true time."""


class Measured(NamedTuple):
    """A writer's knowledge of log time when it made a record."""

    position: int = -1
    """The last record that the writer had read."""
    waited_ms: int = 0
    """Time since it read that record, by its monotonic clock."""
    reached_ms: int = 0
    """Log time that is certainly reached, except for the slack, even if others wrote records since."""


class _Anchor(NamedTuple):
    """A log time that was read, and the monotonic time of the reading."""

    log_time_ms: int
    at_ns: int

    @property
    def ahead_ns(self) -> int:
        """A measure to order anchors of the same clock: the greatest gives the latest log time."""
        return self.log_time_ms * NS - self.at_ns

    def is_old(self, now_ns: int) -> bool:
        """Return whether nothing may be measured from it any more: it was read longer ago than the slack."""
        return now_ns - self.at_ns >= LOG_TIME_SLACK_MS * NS


class LogClock:
    """One peer's measure of log time; see the module's first paragraph.

    It measures from the best reading of the last `LOG_TIME_SLACK_MS`.  If it measured from its latest
    reading, a busy peer would measure nothing, because its latest reading is always recent.
    """

    def __init__(self) -> None:
        self._position = -1
        self._read_ns = 0
        self._anchors: deque[_Anchor] = deque()
        """In the order of reading; each is better than all after it."""
        self._reached_ms = 0
        """Log time reached according to anchors older than the slack."""

    def read(self, position: int, log_time_ms: int, now_ns: int) -> None:
        """Note that the log was read to ``position``; ``now_ns`` is the monotonic clock after reading."""
        if now_ns - self._read_ns > LOG_TIME_STEP_MAX_MS * NS:
            self._anchors.clear()
            self._reached_ms = 0
        self._position, self._read_ns = position, now_ns
        anchor = _Anchor(log_time_ms, now_ns)
        while self._anchors and self._anchors[-1].ahead_ns <= anchor.ahead_ns:
            self._anchors.pop()
        self._anchors.append(anchor)

    def measured(self, now_ns: int) -> Measured:
        """Return the measure for a record that is made now."""
        waited_ms = (now_ns - self._read_ns) // NS
        if waited_ms > LOG_TIME_STEP_MAX_MS:
            return Measured(self._position, waited_ms, 0)
        while self._anchors and self._anchors[0].is_old(now_ns):
            self._reached_ms = max(self._reached_ms, self._anchors.popleft().log_time_ms + LOG_TIME_SLACK_MS)
        if self._anchors:
            best = self._anchors[0]
            self._reached_ms = max(self._reached_ms, best.log_time_ms + (now_ns - best.at_ns) // NS)
        return Measured(self._position, waited_ms, self._reached_ms)


def passed_ms(log_time_ms: int, counted_position: int, measured: Measured) -> int:
    """Return the milliseconds that certainly passed, except for the slack, between two records that count.

    ``log_time_ms`` and ``counted_position`` belong to the first record, ``measured`` to the second.
    """
    waited_ms = measured.waited_ms if measured.position >= counted_position else 0
    return max(waited_ms, min(measured.reached_ms - log_time_ms, LOG_TIME_SLACK_MS))
