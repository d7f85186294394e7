"""Metrics and their Prometheus text."""

from __future__ import annotations

import re

import pytest

from onyxq.system.metrics import OTHER, TASK_EVENTS, Counter, Gauge, Histogram, Metrics

LINE = re.compile(r'[a-z_]+(\{[a-z_]+="(\\.|[^"\\])*"(,[a-z_]+="(\\.|[^"\\])*")*\})? [-+0-9.e]+')


def test_every_promised_metric_is_there() -> None:
    """Names are promises to dashboards."""
    text = Metrics(version="1").text()
    for name in (
        "onyxq_tasks_total onyxq_task_wait_seconds onyxq_task_run_seconds onyxq_queue_depth onyxq_queue_oldest_seconds "
        "onyxq_log_position onyxq_log_went_back onyxq_log_lag_entries onyxq_log_append_seconds "
        "onyxq_claims_expired_total "
        "onyxq_partition_leader onyxq_build_info"
    ).split():
        assert f"# TYPE {name} " in text
        assert f"# HELP {name} " in text
    assert 'onyxq_build_info{version="1"} 1' in text
    assert "onyxq_claims_expired_total 0" in text


def test_each_line_is_well_formed() -> None:
    """This holds for any name of a queue."""
    metrics = Metrics()
    metrics.tasks.add('a"b\\c\nd', "enqueued", n=3)
    metrics.queue_depth.set(7, "ü", "ready")
    metrics.task_wait_seconds.observe(0.3, 4)
    metrics.log_position.set(1 << 40)
    lines = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert r'onyxq_tasks_total{queue="a\"b\\c\nd",event="enqueued"} 3' in lines


def test_counters_add_up_by_run() -> None:
    """One call counts a whole run."""
    metrics = Metrics()
    metrics.tasks.add("q", "completed", n=500)
    metrics.tasks.add("q", "completed")
    metrics.claims_expired.add(n=2)
    assert metrics.tasks.value("q", "completed") == 501
    assert metrics.claims_expired.value() == 2


def test_histograms_are_cumulative() -> None:
    """Buckets include the lower ones; the bound itself belongs to its bucket."""
    histogram = Histogram("h", "doc", bounds=(1, 2))
    for value in (1, 1.5, 99, -5):
        histogram.observe(value)
    lines = list(histogram.render())
    assert lines[2:] == [
        'h_bucket{le="1"} 2',
        'h_bucket{le="2"} 3',
        'h_bucket{le="+Inf"} 4',
        "h_sum 101.5",
        "h_count 4",
    ]


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of queues come from users; above the bound they are counted together."""
    monkeypatch.setattr("onyxq.system.metrics.SERIES_MAX", 2 * len(TASK_EVENTS))
    metrics = Metrics()
    for number in range(5):
        metrics.tasks.add(f"q{number}", "enqueued")
    assert metrics.tasks.value(OTHER, "enqueued") == 3
    monkeypatch.setattr("onyxq.system.metrics.SERIES_MAX", 4)
    ready, scheduled = ({(f"q{number}", state): number for number in range(5)} for state in ("ready", "scheduled"))
    metrics.queue_depth.replace(ready | scheduled)
    assert [line for line in metrics.queue_depth.render() if not line.startswith("#")] == [
        'onyxq_queue_depth{queue="(other)",state="ready"} 9',
        'onyxq_queue_depth{queue="(other)",state="scheduled"} 9',
        'onyxq_queue_depth{queue="q0",state="ready"} 0',
        'onyxq_queue_depth{queue="q0",state="scheduled"} 0',
        'onyxq_queue_depth{queue="q1",state="ready"} 1',
        'onyxq_queue_depth{queue="q1",state="scheduled"} 1',
    ]
    metrics.queue_oldest_seconds.replace({(f"q{number}",): 9 - number for number in range(9)})
    assert metrics.queue_oldest_seconds.value(OTHER) == 5


def test_every_partition_has_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users do not name partitions, and the alert for partitions that are not served counts all of them."""
    monkeypatch.setattr("onyxq.system.metrics.SERIES_MAX", 2)
    metrics = Metrics()
    metrics.partition_leader.replace({(str(number),): 1 for number in range(5)})
    assert metrics.text().count("onyxq_partition_leader{") == 5


def test_known_series_of_a_counter_begin_together_at_zero() -> None:
    """Prometheus sees no increase in a series that appears with its first count."""
    metrics = Metrics()
    assert 'onyxq_repaired_total{what="indexes"} 0' in metrics.text()
    metrics.tasks.add("mail", "enqueued")
    assert all(f'onyxq_tasks_total{{queue="mail",event="{event}"}} ' in metrics.text() for event in TASK_EVENTS)
    assert metrics.tasks.value("mail", "failed") == 0


def test_replacing_a_gauge_forgets_the_rest() -> None:
    """A queue without tasks has no series."""
    gauge = Gauge("g", "doc", "queue")
    gauge.set(1, "old")
    gauge.replace({("new",): 2})
    assert (gauge.value("old"), gauge.value("new")) == (None, 2)


def test_labels_must_be_complete() -> None:
    """A call without some labels is a bug."""
    with pytest.raises(ValueError, match="labels"):
        Counter("c", "doc", "queue", "event").add("q")
    with pytest.raises(ValueError, match="labels"):
        Gauge("g", "doc", "queue").set(1)


def test_nodes_of_one_process_count_apart() -> None:
    """Each has its own registry; a name is registered once."""
    one, other = Metrics(), Metrics()
    one.tasks.add("q", "enqueued")
    assert other.tasks.value("q", "enqueued") == 0
    one.register(Counter("extra_total", "doc"))
    assert "extra_total 0" in one.text()
    with pytest.raises(ValueError, match="already"):
        one.register(Counter("extra_total", "doc"))
