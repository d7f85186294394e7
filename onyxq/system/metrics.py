"""Metrics of a node and their Prometheus text, without dependencies.

One `Metrics` per node: several nodes may live in one process.  Adding is a dictionary
lookup and an addition, and is meant to be done once per run of tasks, not per task.
The number of series whose first label has values from users is bounded.  Beyond the bound, that
label becomes ``(other)``.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol, TypeAlias

from onyxq import __version__

Labels: TypeAlias = tuple[str, ...]
Number: TypeAlias = int | float
Fold: TypeAlias = Callable[[Number, Number], Number]
"""Returns the value of one series in place of two."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SERIES_MAX = 10_000
"""Most series of a metric, without those of the label `OTHER`."""
OTHER = "(other)"
TASK_EVENTS = ("enqueued", "claimed", "completed", "failed", "retried", "released", "expired", "cancelled")
SECONDS: tuple[float, ...] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200, 43_200,
)  # fmt: skip
"""Upper bounds of the buckets for durations, in seconds."""


class Metric(Protocol):
    """Something with a name and series of values."""

    @property
    def name(self) -> str:
        """The metric's name."""

    def render(self) -> Iterator[str]:
        """Yield its lines of Prometheus text."""


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _labels(names: Sequence[str], values: Iterable[str]) -> str:
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _head(name: str, kind: str, doc: str) -> Iterator[str]:
    yield f"# HELP {name} {doc}"
    yield f"# TYPE {name} {kind}"


class _Series:
    """Numbers per combination of labels."""

    kind: ClassVar[str]

    def __init__(self, name: str, doc: str, *labels: str, fold: Fold | None = None) -> None:
        """Declare a metric; ``fold`` makes the series beyond the bound one. None: the program names all series."""
        self.name = name
        self.doc = doc
        self.labels = labels
        self._fold = fold
        self._values: dict[Labels, Number] = {}

    def _check(self, labels: Labels) -> None:
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}")

    def replace(self, values: Mapping[Labels, Number]) -> None:
        """Set all series at once; series that are not named are removed."""
        if self._fold is None or len(values) <= SERIES_MAX:
            self._values = dict(values)
            return
        ordered = sorted(values.items())
        self._values = dict(ordered[:SERIES_MAX])
        for labels, value in ordered[SERIES_MAX:]:
            other = (OTHER, *labels[1:])
            self._values[other] = self._fold(self._values[other], value) if other in self._values else value

    def render(self) -> Iterator[str]:
        yield from _head(self.name, self.kind, self.doc)
        for labels, value in sorted(self._values.items()):
            yield f"{self.name}{_labels(self.labels, labels)} {value}"


class Counter(_Series):
    """A sum that only grows, per combination of labels."""

    kind = "counter"

    def __init__(self, name: str, doc: str, *labels: str, values: Sequence[str] = ()) -> None:
        """Declare a counter; ``values``: all values of the last label.

        Their series appear together, at 0: Prometheus sees no increase where a series appears with its first count.
        """
        super().__init__(name, doc, *labels, fold=operator.add)
        self._last = tuple(values)
        if not labels:
            self._values[()] = 0
        elif len(labels) == 1:
            self._values = {(value,): 0 for value in values}

    def add(self, *labels: str, n: Number = 1) -> None:
        """Add ``n`` to the series with these label values."""
        values = self._values
        if labels in values:
            values[labels] += n
        else:
            self._add_new(labels, n)

    def _add_new(self, labels: Labels, n: Number) -> None:
        self._check(labels)
        if len(self._values) >= SERIES_MAX:
            labels = (OTHER, *labels[1:])
        for value in self._last:
            self._values.setdefault((*labels[:-1], value), 0)
        self._values[labels] = self._values.get(labels, 0) + n

    def value(self, *labels: str) -> Number:
        """Return the present sum of a series."""
        return self._values.get(labels, 0)

    def sums(self, place: int) -> dict[str, Number]:
        """Return the sums over all series with the same value of one label, by that value."""
        out: dict[str, Number] = {}
        for labels, value in self._values.items():
            out[labels[place]] = out.get(labels[place], 0) + value
        return out


class Gauge(_Series):
    """A present value, per combination of labels."""

    kind = "gauge"

    def set(self, value: Number, *labels: str) -> None:
        """Set a series to its present value."""
        self._check(labels)
        if labels in self._values or len(self._values) < SERIES_MAX:
            self._values[labels] = value

    def value(self, *labels: str) -> Number | None:
        """Return the present value of a series, or None."""
        return self._values.get(labels)


class Histogram:
    """The distribution of values over fixed buckets."""

    def __init__(self, name: str, doc: str, *, bounds: Sequence[float] = SECONDS) -> None:
        self.name = name
        self.doc = doc
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum: Number = 0

    def observe(self, value: Number, n: int = 1) -> None:
        """Count ``n`` equal values; a negative one (clocks differ) counts as 0."""
        value = max(value, 0)
        self._counts[bisect_left(self._bounds, value)] += n
        self._sum += value * n

    @property
    def bounds(self) -> tuple[float, ...]:
        """Upper bounds of the buckets; one more bucket has the values beyond them."""
        return self._bounds

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of values in each bucket."""
        return tuple(self._counts)

    @property
    def count(self) -> int:
        """Number of observed values."""
        return sum(self._counts)

    def render(self) -> Iterator[str]:
        yield from _head(self.name, "histogram", self.doc)
        below = 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            below += count
            yield f'{self.name}_bucket{{le="{bound:g}"}} {below}'
        yield f'{self.name}_bucket{{le="+Inf"}} {self.count}'
        yield f"{self.name}_sum {self._sum}"
        yield f"{self.name}_count {self.count}"


class Metrics:
    """All metrics of a node; times are in seconds, as Prometheus requires."""

    def __init__(self, *, version: str = __version__) -> None:
        self._add_tasks()
        self._add_log()
        self._add_claims()
        self._add_jobs()
        self._add_copies()
        self._add_store()
        self._add_timers()
        self.build_info = Gauge("onyxq_build_info", "Always 1; the label tells the version.", "version")
        self.build_info.set(1, version)
        self._all: list[Metric] = [item for item in vars(self).values() if hasattr(item, "render")]

    def _add_tasks(self) -> None:
        """Add metrics by queue; their number of series is bounded, because users name queues."""
        self.tasks = Counter(
            "onyxq_tasks_total", f"Tasks by event: {', '.join(TASK_EVENTS)}.", "queue", "event", values=TASK_EVENTS
        )
        self.task_wait_seconds = Histogram(
            "onyxq_task_wait_seconds", "Time from when a task was due until it was claimed."
        )
        self.task_run_seconds = Histogram(
            "onyxq_task_run_seconds", "Time from a task's claim until its worker completed or failed it, each attempt."
        )
        self.queue_depth = Gauge(
            "onyxq_queue_depth", "Tasks of the partitions led here, by state.", "queue", "state", fold=operator.add
        )
        self.queue_oldest_seconds = Gauge(
            "onyxq_queue_oldest_seconds", "Age of the oldest ready task of the partitions led here.", "queue", fold=max
        )

    def _add_log(self) -> None:
        self.log_position = Gauge("onyxq_log_position", "Position up to which the log was applied.")
        self.log_went_back = Gauge(
            "onyxq_log_went_back", "1 while the log is not the one that this node has read: nothing is granted."
        )
        self.log_lag_entries = Gauge("onyxq_log_lag_entries", "Records known to be in the log and not applied yet.")
        self.log_append_seconds = Histogram("onyxq_log_append_seconds", "Time that appending a record took.")

    def _add_claims(self) -> None:
        self.claims_expired = Counter("onyxq_claims_expired_total", "Tasks whose claim ran out.")
        self.partition_leader = Gauge(
            "onyxq_partition_leader", "1 for each partition led here and ready, 0 while it is taken over.", "partition"
        )
        self.prepared_transactions = Gauge(
            "onyxq_prepared_transactions",
            "Parts of transactions kept here for more than 5 s that are neither settled nor given up.",
        )

    def _add_jobs(self) -> None:
        """Add metrics of jobs; the number of series by job is bounded, because users name jobs and inputs."""
        self.spark_host_up = Gauge("onyxq_spark_host_up", "1 while the peer's Spark host has its session open.")
        self.jobs_driven = Gauge("onyxq_jobs_driven", "Jobs driven here: starting, running, pausing.", "state")
        self.job_failures = Counter("onyxq_job_failures_total", "Runs of jobs driven here that failed.")
        self.job_rows = Counter(
            "onyxq_job_rows_total", "Rows that a job driven here has read, each counted once.", "spark_job", "input"
        )
        self.job_lag_rows = Gauge(
            "onyxq_job_lag_rows",
            "Rows that a job driven here has still to read, those of its present batch included.",
            "spark_job",
            "input",
            fold=operator.add,
        )
        self.job_lag_files = Gauge(
            "onyxq_job_lag_files",
            "Files that Spark has listed for a job driven here and not read.",
            "spark_job",
            "input",
            fold=operator.add,
        )
        self.job_late_rows = Counter(
            "onyxq_job_late_rows_total",
            "Rows that came too late for windows and joins of a job driven here.",
            "spark_job",
        )
        self.job_watermark_seconds = Gauge(
            "onyxq_job_watermark_timestamp_seconds",
            "Watermark of a job driven here: windows that end before it are complete.",
            "spark_job",
            fold=min,
        )
        self.job_batch_seconds = Gauge(
            "onyxq_job_batch_seconds", "Time that the last batch of a job driven here took.", "spark_job", fold=max
        )
        self.job_state_rows = Gauge(
            "onyxq_job_state_rows", "Rows in the state of a job driven here.", "spark_job", fold=operator.add
        )
        self.job_state_bytes = Gauge(
            "onyxq_job_state_bytes", "Memory that the state of a job driven here takes.", "spark_job", fold=operator.add
        )

    def _add_copies(self) -> None:
        """Add metrics of copying rows between nodes, of purging them, and of refused writes."""
        directions = ("sent", "taken")
        self.sync_rows = Counter(
            "onyxq_sync_rows_total",
            "Rows exchanged as a leader to make copies equal: sent, taken.",
            "direction",
            values=directions,
        )
        self.sync_bytes = Counter(
            "onyxq_sync_bytes_total", "Bytes of these rows: sent, taken.", "direction", values=directions
        )
        self.sync_rows_left = Gauge(
            "onyxq_sync_rows_left", "Rows that holders of the partitions led here lack still, about.", "node"
        )
        self.sync_partitions_left = Gauge(
            "onyxq_sync_partitions_left", "Partitions led here with a live holder that still lacks rows.", "node"
        )
        self.purged_rows = Counter("onyxq_purged_rows_total", "Rows of purged tasks that this node deleted.")
        self.writes_refused = Gauge(
            "onyxq_writes_refused", "Writes that this peer has refused as overloaded since it started."
        )
        self.purge_waits = Gauge(
            "onyxq_purge_waits", "Partitions led here whose oldest finished tasks cannot be purged, by reason.", "why"
        )

    def _add_store(self) -> None:
        self.scrub_progress = Gauge(
            "onyxq_scrub_progress", "About what part of the present round through the store was checked, 0 to 1."
        )
        self.scrub_rounds = Counter("onyxq_scrub_rounds_total", "Rounds through the store that were completed.")
        self.store_writable = Gauge("onyxq_store_writable", "0 while the node's disk refuses writes, else 1.")
        self.damaged_rows = Gauge("onyxq_damaged_rows", "Rows known to be damaged and not repaired yet.")
        self.repaired = Counter(
            "onyxq_repaired_total",
            "Damaged rows that were fetched from another node, and partitions whose damaged index was rebuilt: "
            "rows, indexes.",
            "what",
            values=("rows", "indexes"),
        )

    def _add_timers(self) -> None:
        self.timer_deliveries = Counter(
            "onyxq_timer_deliveries_total",
            "Callbacks of timers: delivered, failed.",
            "transport",
            "outcome",
            values=("delivered", "failed"),
        )
        self.timer_delivery_seconds = Histogram("onyxq_timer_delivery_seconds", "Time that a callback took.")
        self.timer_late_seconds = Histogram(
            "onyxq_timer_late_seconds", "Time from when a timer was due until its first callback began."
        )

    def register(self, metric: Metric) -> None:
        """Render one more metric; raises `ValueError` if its name is taken."""
        if any(metric.name == known.name for known in self._all):
            raise ValueError(f"there is a metric {metric.name} already")
        self._all.append(metric)

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return "\n".join(line for metric in self._all for line in metric.render()) + "\n"
