"""What happened to tasks at one node in each of the last minutes, in bounded memory, and the sum over nodes.

A point has the counts of one minute of the wall clock, so the points of several nodes can be added. Points are lost
when a node restarts.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from onyxq.system.metrics import TASK_EVENTS, Metrics

MINUTE_MS = 60_000
POINTS_MAX = 24 * 60
"""Number of minutes that a node keeps: 250 KB."""
COUNT_MAX = (1 << 32) - 1
"""Largest count of a point; a greater one is shown as this."""
SHARE = 0.95
"""Share of the tasks whose time is at most the quantile."""

Counts: TypeAlias = Sequence[int]
"""Tasks by event, then by time that they waited, then by time that they ran."""


class RateHistory:
    """The last minutes of one node."""

    def __init__(self, metrics: Metrics, now_ms: int) -> None:
        self._metrics = metrics
        self._points: deque[tuple[int, array[int]]] = deque(maxlen=POINTS_MAX)
        self._minute = now_ms // MINUTE_MS
        self._sums = self._now()

    def _now(self) -> list[int]:
        metrics = self._metrics
        events = metrics.tasks.sums(1)
        counts = [int(events.get(event, 0)) for event in TASK_EVENTS]
        return [*counts, *metrics.task_wait_seconds.counts, *metrics.task_run_seconds.counts]

    def _grown(self) -> list[int]:
        return [min(COUNT_MAX, max(0, now - before)) for now, before in zip(self._now(), self._sums, strict=True)]

    def record(self, now_ms: int) -> None:
        """End the present minute if it is over. A clock that is set back adds to the present minute."""
        minute = now_ms // MINUTE_MS
        if minute > self._minute:
            self._points.append((self._minute, array("I", self._grown())))
            self._minute, self._sums = minute, self._now()

    def points(self) -> list[tuple[int, list[int]]]:
        """Return each minute, as a number since the epoch, with its counts; the present one last."""
        return [*((minute, counts.tolist()) for minute, counts in self._points), (self._minute, self._grown())]


def added(histories: Iterable[Iterable[tuple[int, Counts]]]) -> list[tuple[int, Counts]]:
    """Return the sums of the points of several nodes, oldest first."""
    out: dict[int, Counts] = {}
    for points in histories:
        for minute, counts in points:
            known = out.get(minute)
            out[minute] = counts if known is None else [a + b for a, b in zip(known, counts, strict=True)]
    return sorted(out.items())[-POINTS_MAX:]


def shown(minute: int, counts: Counts, bounds: Sequence[float]) -> Mapping[str, Any]:
    """Return a point as answers have it: counts by event, and times in seconds."""
    buckets = len(bounds) + 1
    events, times = counts[: -2 * buckets], counts[-2 * buckets :]
    return {
        "at_ms": minute * MINUTE_MS,
        "events": dict(zip(TASK_EVENTS, events, strict=True)),
        "wait_p95_s": quantile(times[:buckets], bounds),
        "run_p95_s": quantile(times[buckets:], bounds),
    }


def quantile(counts: Counts, bounds: Sequence[float]) -> float | None:
    """Return the time within which 95 % of the tasks were; None without tasks.

    Times within a bucket are assumed to be spread evenly.
    """
    left = SHARE * sum(counts)
    if not left:
        return None
    low = 0.0
    for count, bound in zip(counts, bounds, strict=False):
        if left <= count:
            return low + (bound - low) * left / count
        left -= count
        low = bound
    return low
