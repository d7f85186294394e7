"""Admission of writes: a bounded queue that refuses what it cannot serve soon, and shares itself fairly. Pure.

Without it a node under a flood serves requests whose callers have given up, and nothing else.  `Admission` knows
the bytes of the writes in progress.  It measures how many bytes a second are finished, and how long a write takes
that waits for no other.  A write that would wait longer than `WAIT_S` besides is refused as `Overloaded` before it
has any effect.  The error says when to try again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from onyxq.core.errors import Overloaded
from onyxq.operations.table.everything import BY_NAME

WAIT_S = 0.5
"""Longest expected wait of an admitted write, in seconds: well below the least time that callers give."""
QUEUE_BYTES_MIN = 1024 * 1024
QUEUE_BYTES_MAX = 256 * 1024 * 1024
"""Bounds of the bytes of writes in progress, however slow or fast the node is."""
REQUEST_BYTES = 2 * 1024
"""Weight of each write in addition to its bytes."""
SMALL_BYTES = 64 * 1024
"""A caller with no more than this in progress may use the reserve, as large as the queue."""
RATE_FIRST = 16 * 1024 * 1024
RATE_MIN = 256 * 1024
"""Rate in bytes a second: the one assumed until the node was busy, and the least."""
WINDOW_S = 0.25
"""Time of uninterrupted load over which the rate is measured, in seconds."""
ALONE_S_MAX = 0.75
"""Upper bound of the measured time of a single write, in seconds: under lasting load no write runs alone."""
ALONE_WINDOW_S = 5.0
"""Time, in seconds, whose shortest write counts as one that did not wait for another."""
RETRY_MS_MIN, RETRY_MS_MAX = 250, 5_000
"""Bounds of the pause that a refusal asks for, in milliseconds."""
URGENT = frozenset("complete fail release renew cancel".split())
"""Writes that end or extend claims."""
PREPARE = "prepare"
"""Such a write of peers, besides those of the table of operations."""


def admitted(method: str) -> bool:
    """Return whether a method is refused while too many writes are in progress."""
    return BY_NAME[method].bounded if method in BY_NAME else method == PREPARE


class Admission:
    """Counts the writes in progress of one node; ``now`` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.bytes = 0
        """Weight of the writes in progress."""
        self.rate = float(RATE_FIRST)
        """Bytes that are finished a second."""
        self.refused = 0
        """Number of writes that were refused."""
        self._now = now
        self._held: dict[Hashable, int] = {}
        """Weight in progress by caller."""
        self._at = now()
        self._busy = False
        """Whether the queue was long until now."""
        self._busy_s = 0.0
        """Seconds of this window in which the queue was long, and the bytes that were finished in them."""
        self._finished = 0
        self._shortest = [0.0, ALONE_S_MAX]
        """Seconds of the shortest write in the last window and in this one."""
        self._window_since = now()
        self._turned_away = 0.0
        """Bytes refused lately: the demand that will come back."""
        self._turned_away_at = 0.0

    @property
    def bytes_max(self) -> int:
        """Weight of the writes that can be served within `WAIT_S` and the time of a write alone."""
        return int(min(max(self.rate * (WAIT_S + min(self._shortest)), QUEUE_BYTES_MIN), QUEUE_BYTES_MAX))

    @contextmanager
    def admitted(self, caller: Hashable, size: int, *, urgent: bool = False) -> Iterator[None]:
        """Count a write of ``size`` bytes while it is served; raises `Overloaded`.

        ``urgent``: it lets others proceed, like the end of a claim, and may use the reserve if it is small.
        """
        weight = size + REQUEST_BYTES
        if not self._has_room(caller, weight, urgent=urgent):
            raise self._refusal(weight)
        self._measure(0)
        self.bytes += weight
        self._held[caller] = self._held.get(caller, 0) + weight
        began = self._now()
        try:
            yield
        finally:
            self._measure(weight)
            self._note_time(self._now() - began)
            self.bytes -= weight
            self._held[caller] -= weight
            if not self.bytes:  # it was fast enough for all that was admitted: perhaps for more
                self.rate = max(self.rate, min(self.rate * 1.25, RATE_FIRST))
            if not self._held[caller]:
                del self._held[caller]

    def check(self, size: int) -> None:
        """Raise `Overloaded` for a write that no caller is admitted with now: its arguments need not be decoded."""
        weight, most = size + REQUEST_BYTES, self.bytes_max
        if self.bytes and self.bytes + weight > (2 * most if weight <= SMALL_BYTES else most):
            raise self._refusal(weight)

    def _has_room(self, caller: Hashable, weight: int, *, urgent: bool) -> bool:
        mine, after, most = self._held.get(caller, 0) + weight, self.bytes + weight, self.bytes_max
        if not self.bytes:
            return True  # however large: it waits for nothing
        if (weight if urgent else mine) <= SMALL_BYTES:
            return after <= 2 * most
        callers = len(self._held) + (caller not in self._held)
        return after <= most and (mine <= most // callers or after <= most // 2)

    def _refusal(self, weight: int) -> Overloaded:
        now = self._now()
        self._turned_away *= 0.5 ** (now - self._turned_away_at)
        self._turned_away += weight
        self._turned_away_at = now
        self.refused += 1
        # Those that were turned away lately come back too: all of them are to find room.
        wait_ms = int((self.bytes + self._turned_away) / self.rate * 1000)
        return Overloaded(
            "more writes are waiting than can be served in time; this one was refused before anything was stored",
            retry_after_ms=min(max(wait_ms, RETRY_MS_MIN), RETRY_MS_MAX),
        )

    def _note_time(self, seconds: float) -> None:
        now = self._now()
        if now - self._window_since >= ALONE_WINDOW_S:
            self._shortest = [self._shortest[1], ALONE_S_MAX]
            self._window_since = now
        self._shortest[1] = min(self._shortest[1], seconds)

    def _measure(self, finished: int) -> None:
        """Take the rate over time in which the queue was long: an idle node is not slow."""
        now = self._now()
        passed, self._at = now - self._at, now
        if passed > 0:
            if self._busy_s >= WINDOW_S:  # all that was finished when the window ended is counted by now
                self.rate = max((self.rate + self._finished / self._busy_s) / 2, RATE_MIN)
                self._busy_s, self._finished = 0.0, 0
            self._busy = self.bytes >= QUEUE_BYTES_MIN // 2
            self._busy_s += passed if self._busy else 0.0
        if self._busy:
            self._finished += finished
