"""The minutes that a node keeps: counts by minute, in bounded memory, added over nodes."""

from __future__ import annotations

import pytest

from onyxq.system.metrics import Metrics
from onyxq.system.rate_history import MINUTE_MS, POINTS_MAX, RateHistory, added, quantile, shown


def counted(history: RateHistory, metrics: Metrics) -> list[tuple[int, int, float | None]]:
    """Return the minute, the enqueued tasks and the p95 of waits of each point."""
    bounds = metrics.task_wait_seconds.bounds
    found = [(minute, shown(minute, counts, bounds)) for minute, counts in history.points()]
    return [(minute, point["events"]["enqueued"], point["wait_p95_s"]) for minute, point in found]


def test_each_minute_has_its_own_counts() -> None:
    """What happened before the first minute is not in it; a clock that goes back adds to the present minute."""
    metrics = Metrics(version="test")
    metrics.tasks.add("a", "enqueued", n=7)
    history = RateHistory(metrics, 10 * MINUTE_MS + 5)
    metrics.tasks.add("a", "enqueued", n=2)
    metrics.tasks.add("b", "enqueued", n=1)
    history.record(10 * MINUTE_MS + 59_999)
    assert counted(history, metrics) == [(10, 3, None)]
    history.record(12 * MINUTE_MS)
    metrics.tasks.add("b", "enqueued", n=4)
    history.record(11 * MINUTE_MS)
    assert [point[:2] for point in counted(history, metrics)] == [(10, 3), (12, 4)]


def test_a_day_is_kept() -> None:
    """An older minute makes room for a new one."""
    metrics = Metrics(version="test")
    history = RateHistory(metrics, 0)
    for minute in range(POINTS_MAX + 10):
        history.record(minute * MINUTE_MS)
    points = history.points()
    assert len(points) == POINTS_MAX + 1 and points[-1][0] == POINTS_MAX + 9 and points[0][0] == 9


def test_points_of_nodes_are_added() -> None:
    """Minutes that only one node has are kept."""
    assert added([[(1, [1, 2]), (2, [3, 4])], [(2, [10, 10]), (3, [5, 5])]]) == [
        (1, [1, 2]),
        (2, [13, 14]),
        (3, [5, 5]),
    ]


@pytest.mark.parametrize(
    ("counts", "seconds"),
    [([0, 0, 0], None), ([100, 0, 0], 0.95), ([90, 10, 0], 1.5), ([0, 0, 5], 2.0), ([50, 0, 50], 2.0)],
)
def test_the_95th_percentile_is_read_from_buckets(counts: list[int], seconds: float | None) -> None:
    """It is spread evenly in its bucket; beyond the last bound it is that bound."""
    assert quantile(counts, [1.0, 2.0]) == (seconds if seconds is None else pytest.approx(seconds))
