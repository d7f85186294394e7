"""Waiting times, run times and attempts of tasks, by queue and hour, from the claims of archives.

The wait of a first claim begins when the task was due, which its id contains. A later one begins when the retry was
due, or when the attempt before it ended. The hour is that of the grant, UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import asdict, frozen

from onyxq.history.parquet.schema import CLAIMS
from onyxq.spark.analysis.tables import read_table, session_for

SHARES = (0.5, 0.95, 0.99)
"""Percentiles of waits and run times that are shown in addition to the longest."""
ACCURACY = 1_000
"""Accuracy of the percentiles: 1 / this number."""
OUTCOMES = ("completed", "failed", "expired", "released", "cancelled")


@frozen
class Times:
    """Percentiles 50, 95 and 99, and the maximum, in ms; null if there are none."""

    half_ms: int | None
    p95_ms: int | None
    p99_ms: int | None
    longest_ms: int | None


@frozen
class Figures:
    """The outcomes of a queue's claims that were granted in an hour, or ever."""

    queue: str
    hour: str | None
    """Its beginning, ISO 8601, UTC; null: all hours."""
    claims: int
    retries: int
    """Claims that were not the first of their task."""
    outcomes: dict[str, int]
    wait: Times
    run: Times


@frozen
class Stats:
    """Figures of every queue, and of each of its hours with grants."""

    queues: tuple[Figures, ...]
    hours: tuple[Figures, ...]

    def document(self) -> dict[str, Any]:
        """Return the figures as values for JSON."""
        return asdict(self)


def stats(session: Any, directories: Sequence[str], *, queue: str | None = None) -> Stats:
    """Return figures of archives, or of one queue in them; raises `NotFound` if a directory is not an archive."""
    from pyspark.sql import functions as F

    session = session_for(session, directories)
    claims = _timed(read_table(session, directories, CLAIMS))
    if queue is not None:
        claims = claims.where(F.col("queue") == queue)
    shares = F.array(*map(F.lit, SHARES))
    summed = claims.rollup("queue", "hour").agg(
        F.count("*").alias("claims"),
        F.count(F.when(F.col("place") > 1, 1)).alias("retries"),
        *(F.count(F.when(F.col("outcome") == name, 1)).alias(name) for name in OUTCOMES),
        *(F.percentile_approx(name, shares, F.lit(ACCURACY)).alias(f"{name}_shares") for name in ("wait", "run")),
        *(F.max(name).alias(f"{name}_longest") for name in ("wait", "run")),
    )
    rows = [_figures(row) for row in summed.where("queue IS NOT NULL").orderBy("queue", "hour").collect()]
    return Stats(tuple(one for one in rows if one.hour is None), tuple(one for one in rows if one.hour is not None))


def _timed(claims: Any) -> Any:
    """Return each claim once, with its place among those of its task, its wait and its run time."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    claims = claims.repartition("id")
    alike = Window.partitionBy("id", "token").orderBy(F.desc_nulls_last("ended"))
    of_task = Window.partitionBy("id").orderBy("token")
    due = F.conv(F.substring("id", 1, 12), 16, 10).cast("bigint")
    since = F.coalesce(F.lag("retry").over(of_task), F.lag("ended").over(of_task))
    began = F.unix_millis("granted")
    claims = claims.withColumn("repeat", F.row_number().over(alike)).where("repeat = 1")
    return claims.select(
        "queue",
        "outcome",
        F.date_trunc("hour", "granted").alias("hour"),
        F.row_number().over(of_task).alias("place"),
        _span(began - F.coalesce(F.unix_millis(since), due)).alias("wait"),
        _span(F.unix_millis("ended") - began).alias("run"),
    )


def _span(ms: Any) -> Any:
    """Return a time span that is at least 0: two clocks may make it negative."""
    from pyspark.sql import functions as F

    return F.when(ms < 0, 0).otherwise(ms)


def _figures(row: Any) -> Figures:
    def times(name: str) -> Times:
        half_ms, p95_ms, p99_ms = row[f"{name}_shares"] or (None, None, None)
        return Times(half_ms, p95_ms, p99_ms, row[f"{name}_longest"])

    return Figures(
        row["queue"],
        None if row["hour"] is None else f"{row['hour']:%Y-%m-%dT%H:00Z}",
        row["claims"],
        row["retries"],
        {name: row[name] for name in OUTCOMES if row[name]},
        times("wait"),
        times("run"),
    )
