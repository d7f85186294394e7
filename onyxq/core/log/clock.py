"""The measure of log time by a peer's own monotonic clock (design: the log).

Pure.  Every record states what its writer has read, and what log time is by the writer's monotonic clock.
A peer reads a record after it was appended, and a new record is appended after it was made.
So at least the measured time has passed in the log between the two.  No clocks of two machines
are compared, and no wall clock is used.

The proof. Let L(n) be log time after record n, and ``true(n)`` when n was appended.  For all
records g < n, L(n) - L(g) <= true(n) - true(g) + `LOG_TIME_SLACK_MS`.  Let T be the log time that the writer of n
measured, p the last record that it had read, and e(g) the time since it read a record g, so e(g) <= true(n) - true(g).
`LogClock` keeps T such that T <= L(a) + e(a) for some record a that was read, and T <= L(g) + e(g) + slack for all
records g that were read after a.

* The writer had read every record before n that counted.  Then L(n) <= T.  For g > a the bound is the second
  property of T.  For g <= a it follows from the first, as L(a) - L(g) is bounded.
* It had not.  Then L(n) is L(n - 1), or at most T and at most L(p) + slack.  For g <= p the bound holds as before;
  for g > p, L(n) - L(g) <= L(p) + slack - L(g) <= slack.

A peer that continues from a snapshot has not read the records before it. It forgets T (`LogClock.begin`), so that a is
the last record in the snapshot.
"""

from __future__ import annotations

from typing import NamedTuple

NS = 1_000_000
"""Nanoseconds in a millisecond."""

LOG_TIME_STEP_MAX_MS = 5_000
"""Longest pause between records that adds to log time; longer ones are outages or idle times."""
LOG_TIME_SLACK_MS = 100
"""Most by which log time between two records may exceed true time.

Expiry waits for as long after a deadline.  Log time is slower than true time where peers read records later than this.
"""


class Measured(NamedTuple):
    """A writer's knowledge of log time when it made a record."""

    position: int = -1
    """The last record that the writer had read."""
    waited_ms: int = 0
    """Rise of log time since that record, except for the slack, if there is no later record."""
    reached_ms: int = 0
    """Log time that is certainly reached, except for the slack, even if others wrote records since."""


class LogClock:
    """One peer's measure of log time; see the module's first paragraph.

    It measures from the reading that gives the latest log time, so the time for appending and reading a record is
    lost once, and not for each record.
    """

    def __init__(self) -> None:
        self._position = -1
        self._log_time_ms = 0
        self._read_ns = 0
        self._ahead_ns: int | None = None
        """Measured log time minus the monotonic clock."""

    def begin(self, position: int, log_time_ms: int, now_ns: int) -> None:
        """Note that the log is read from a snapshot of ``position``; ``now_ns`` is the monotonic clock after that."""
        self._ahead_ns = None
        self.read(position, log_time_ms, now_ns)

    def read(self, position: int, log_time_ms: int, now_ns: int) -> None:
        """Note that the log was read to ``position``; ``now_ns`` is the monotonic clock after reading."""
        ahead_ns = log_time_ms * NS - now_ns
        if self._ahead_ns is not None and not self._is_outage(now_ns):
            ahead_ns = max(ahead_ns, min(self._ahead_ns, ahead_ns + LOG_TIME_SLACK_MS * NS))
        self._position, self._log_time_ms, self._read_ns, self._ahead_ns = position, log_time_ms, now_ns, ahead_ns

    def _is_outage(self, now_ns: int) -> bool:
        return now_ns - self._read_ns > LOG_TIME_STEP_MAX_MS * NS

    def quiet_ms(self, now_ns: int) -> int:
        """Return the time since a record was read."""
        return (now_ns - self._read_ns) // NS

    def now_ms(self, now_ns: int) -> int:
        """Return the log time that a record made now states; that of the last record if an outage may have begun."""
        if self._ahead_ns is None or self._is_outage(now_ns):
            return self._log_time_ms
        return min((self._ahead_ns + now_ns) // NS, self._log_time_ms + LOG_TIME_STEP_MAX_MS)

    def lags(self) -> bool:
        """Return whether records move log time less than this clock: their writers read them late."""
        return self._ahead_ns is not None and self._ahead_ns + self._read_ns >= self._slack_ms() * NS

    def measured(self, now_ns: int) -> Measured:
        """Return the measure for a record that is made now."""
        if self._is_outage(now_ns):
            return Measured(self._position, self.quiet_ms(now_ns), 0)
        now_ms = self.now_ms(now_ns)
        return Measured(self._position, now_ms - self._log_time_ms, min(now_ms, self._slack_ms()))

    def _slack_ms(self) -> int:
        """Return the latest log time that records which were not read yet permit."""
        return self._log_time_ms + LOG_TIME_SLACK_MS


def passed_ms(log_time_ms: int, counted_position: int, measured: Measured) -> int:
    """Return the milliseconds that certainly passed, except for the slack, between two records that count.

    ``log_time_ms`` and ``counted_position`` belong to the first record, ``measured`` to the second.
    """
    waited_ms = measured.waited_ms if measured.position >= counted_position else 0
    return max(waited_ms, min(measured.reached_ms - log_time_ms, LOG_TIME_SLACK_MS))
