"""How long tasks waited and ran, and how often they were tried, by queue and hour; from the claims of archives.

A first claim waited since its task was due, which the task's id says; a later one since the
time that the attempt before it was put off to, or since that one ended.  An hour is that of
the grant, UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import asdict, frozen

from onyxq.history.parquet.schema import CLAIMS
from onyxq.spark.analysis.tables import read_table, session_for

SHARES = (0.5, 0.95, 0.99)
"""Of claims: which waits and run times are told beside the longest."""
ACCURACY = 1_000
"""Of these shares: one in so many."""
OUTCOMES = ("completed", "failed", "expired", "released", "cancelled")


@frozen
class Times:
    """Milliseconds that half, 95 and 99 of a hundred stayed within, and the longest; null if there are none."""

    half_ms: int | None
    p95_ms: int | None
    p99_ms: int | None
    longest_ms: int | None


@frozen
class Figures:
    """What became of the claims of a queue that were granted in an hour, or ever."""

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
    """Figures of every queue, and of each of its hours in which there were grants."""

    queues: tuple[Figures, ...]
    hours: tuple[Figures, ...]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def stats(session: Any, directories: Sequence[str], *, queue: str | None = None) -> Stats:
    """Sum up archives, or one queue of them; raises `NotFound` if a directory is no archive."""
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
    """Each claim once, with its place among those of its task, how long it waited and ran."""
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
    """A time span; two clocks may make it negative."""
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
