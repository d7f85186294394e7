"""Compares the archive of tasks with the log: every claim must have a grant there, and every grant a result.

The log's side is the table of its records (`onyxq.history.parquet.records`). It is complete between the positions in
the names of its files; grants outside are not judged. A list of the tasks that are still in the store, as
``onyxq task list --all --json`` prints it, distinguishes lost tasks from active ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from attrs import frozen

from onyxq.core.errors import NotFound
from onyxq.history.archive import Range
from onyxq.history.parquet.records import ranges
from onyxq.history.parquet.schema import CLAIMS, RECORDS, TASKS
from onyxq.spark.analysis.rules import LOST, UNCLAIMED
from onyxq.spark.analysis.tables import FRESH_S, files_below, read_table

GRANTS = ("grant_claims", "grant_limited_claims")
ELSEWHERE = "an unknown queue"
"""Queue of a violation whose queue is unknown: a grant in the log often has none."""
NO_RECORDS = "Have peers write it (record_archive), or write it yourself: onyxq archive log."
_ARGS = "queue string, grants array<struct<runs: array<struct<first: string, count: int>>>>"


@frozen
class Log:
    """A table of records: the directories that have one, and the positions that it has without a gap."""

    directories: tuple[str, ...]
    spans: tuple[Range, ...]


def log_of(session: Any, archives: Sequence[str], more: Sequence[str]) -> Log | None:
    """Return the records in archives and in ``more``; None if there are none.

    Raises `NotFound` if one of ``more`` has none.
    """
    found = {directory: files_below(session, f"{directory.rstrip('/')}/{RECORDS}") for directory in (*archives, *more)}
    for directory in more:
        if not found[directory]:
            raise NotFound(
                f"{directory} has no table of the log's records: it has no {RECORDS}/ in it",
                field="records",
                hint="Name the directory of the peers' record_archive, or one that onyxq archive log wrote.",
            )
    spans = ranges(name for names in found.values() for name in names)
    return Log(tuple(name for name, files in found.items() if files), tuple(spans)) if spans else None


def crossed(session: Any, log: Log, directories: Sequence[str], live: Sequence[str], *, apart_ms: int) -> Any:
    """Return the contradictions between archive and log: rows ``(rule, queue, id, token, what)``.

    ``live``: files of JSON lines, the tasks that the store still has.
    """
    from pyspark.sql import functions as F

    granted = grants(session, log, live).select("*", F.lit(False).alias("archived"), F.lit(True).alias("granted"))
    claims = read_table(session, directories, CLAIMS).where(_within(log.spans))
    claims = claims.select(
        F.unhex("id").alias("id"), "token", "queue", F.lit(True).alias("archived"), F.lit(False).alias("granted")
    )
    known = ("queue", "at_ms", "listed", "archived", "granted")
    both = granted.unionByName(claims, allowMissingColumns=True).groupBy("id", "token")
    apart = both.agg(*(F.max(name).alias(name) for name in known)).where("archived != granted")
    apart = apart.join(_known(session, directories), "id", "left")
    return _judged(apart.join(_live(session, live), "id", "left"), apart_ms)


def grants(session: Any, log: Log, live: Sequence[str] = ()) -> Any:
    """Return each applied grant of a task: ``(id, token, queue, at_ms, listed)``.

    ``listed``: whether the lists ``live`` were made after the grant.
    """
    from pyspark.sql import functions as F

    tables = [session.read.parquet(f"{directory.rstrip('/')}/{RECORDS}") for directory in log.directories]
    written = F.col("_metadata.file_modification_time") + F.expr(f"INTERVAL {FRESH_S} SECONDS")
    rows = reduce(lambda some, more: some.unionByName(more), [one.withColumn("written", written) for one in tables])
    rows = rows.where((F.col("verdict") == "applied") & F.col("entry").isin(*GRANTS))
    if len(tables) > 1:
        rows = rows.dropDuplicates(["position", "index"])
    args = F.from_json("args", _ARGS)
    runs = rows.select(
        F.col("position").alias("token"),
        F.unix_millis("time").alias("at_ms"),
        args["queue"].alias("queue"),
        (F.col("written") < F.lit(_listed(session, live))).alias("listed"),
        F.explode(F.flatten(args["grants"]["runs"])).alias("run"),
    )
    place = F.explode(F.sequence(F.lit(0), F.col("run.count") - 1)).alias("place")
    counter = F.conv(F.substring("run.first", 33, 8), 16, 10).cast("bigint") + F.col("place")
    name = F.unhex(F.concat(F.substring("run.first", 1, 32), F.lpad(F.hex(counter), 8, "0")))
    return runs.select("*", place).select("token", "at_ms", "queue", "listed", name.alias("id"))


def _listed(session: Any, live: Sequence[str]) -> Any:
    """Return when the first of the lists was made; the epoch if there are none."""
    from pyspark.sql import functions as F

    if not live:
        return datetime.fromtimestamp(0, UTC)
    files = session.read.format("binaryFile").load(list(live)).select(F.min("modificationTime"))
    return files.first()[0]


def _known(session: Any, directories: Sequence[str]) -> Any:
    """Return for each archived task: its last end, the highest token, and whether it was archived just now."""
    from pyspark.sql import functions as F

    fresh = F.col("archived") > F.now() - F.expr(f"INTERVAL {FRESH_S} SECONDS")
    tasks = read_table(session, directories, TASKS)
    return (
        tasks.groupBy(F.unhex("id").alias("id"))
        .agg(
            F.max("token").alias("last_token"),
            F.max(F.unix_millis("finished")).alias("finished"),
            F.max(fresh).alias("fresh"),
            F.max("queue").alias("task_queue"),
        )
        .withColumn("has_task", F.lit(True))
    )


def _live(session: Any, live: Sequence[str]) -> Any:
    from pyspark.sql import functions as F

    if not live:
        return session.createDataFrame([], "id binary, live boolean")
    rows = session.read.schema("id string").json(list(live))
    return rows.where(F.col("id").isNotNull()).select(F.unhex("id").alias("id"), F.lit(True).alias("live")).distinct()


def _judged(apart: Any, apart_ms: int) -> Any:
    from pyspark.sql import functions as F

    has_task, fresh, is_live = (F.coalesce(name, F.lit(False)) for name in ("has_task", "fresh", "live"))
    over = (F.col("token") <= F.col("last_token")) | (F.col("at_ms") < F.col("finished") - apart_ms)
    lost_claim = F.col("granted") & has_task & F.coalesce(over, F.lit(False)) & ~fresh
    rule = (
        F.when(F.col("archived"), F.struct(F.lit(UNCLAIMED).alias("rule"), F.lit(_NOT_GRANTED).alias("what")))
        .when(lost_claim, F.struct(F.lit(LOST).alias("rule"), F.lit(_NOT_KEPT).alias("what")))
        .when(~has_task & ~is_live & F.col("listed"), F.struct(F.lit(LOST).alias("rule"), F.lit(_GONE).alias("what")))
    )
    return (
        apart.withColumn("found", rule)
        .where("found IS NOT NULL")
        .select(
            "found.rule",
            F.coalesce("task_queue", "queue", F.lit(ELSEWHERE)).alias("queue"),
            F.lower(F.hex("id")).alias("id"),
            "token",
            "found.what",
        )
    )


_NOT_GRANTED = "the log has no grant of it at this position"
_NOT_KEPT = "granted as the log says, but the archive has no such claim"
_GONE = "granted as the log says, but the task is neither archived nor in the store"


def _within(spans: Sequence[Range]) -> Any:
    from pyspark.sql import functions as F

    return reduce(lambda one, other: one | other, (F.col("token").between(span.first, span.last) for span in spans))
