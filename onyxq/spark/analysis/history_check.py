"""Checks an archive of tasks on Spark: one pass over all rows about each task, one over ordering keys.

All rows about a task are sorted by token, and each is compared with running maxima of the rows before it. So no
group is ever held in Python, and a group that does not fit into memory is sorted on disk. The rules are in
`onyxq.spark.analysis.rules`; ``docs/history.rst`` describes how they are judged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Any

from onyxq.core.errors import NotFound
from onyxq.history.parquet.schema import CLAIMS, TASKS, UPDATES
from onyxq.spark.analysis.log_check import NO_RECORDS, crossed, grants, log_of
from onyxq.spark.analysis.rules import (
    APART_MS,
    FIRST,
    KEYS,
    LOST,
    OVERLAPPING,
    RULES,
    TOKENS,
    UNCLAIMED,
    Offender,
    Report,
)
from onyxq.spark.analysis.tables import FRESH_S, read_table, session_for

CLAIM, TASK, UPDATE = 0, 1, 2
"""Kinds of rows.

Of the rows of one token the claim sorts first.
"""


def check(
    session: Any,
    directories: Sequence[str],
    *,
    apart_ms: int = APART_MS,
    first: int = FIRST,
    records: Sequence[str] = (),
    live: Sequence[str] = (),
) -> Report:
    """Check archives, and compare them with the log's records in them or in ``records``.

    ``apart_ms``: largest difference between the cluster's clocks; ``first``: maximum number of offenders named for each
    rule; ``live``: files that list the tasks that are still in the store. Raises `NotFound` if a directory is not an
    archive.
    """
    from pyspark import StorageLevel
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    log = log_of(session, directories, records)
    if live and log is None:
        raise NotFound("a list of tasks is of use only beside the log's records", field="records", hint=NO_RECORDS)
    session, disk = session_for(session, [*directories, *records]), StorageLevel.DISK_ONLY
    all_rows, distinct_rows = Observation("all"), Observation("distinct")
    rows = _rows(session, directories).observe(all_rows, F.count("*").alias("rows"))
    known = _with_past(_without_repeats(rows)).observe(
        distinct_rows,
        *(F.count(F.when(F.col("kind") == kind, 1)).alias(name) for kind, name in _NAMES.items()),
    )
    judged = _judged(known, apart_ms)
    keyed = (F.col("kind") == CLAIM) & F.col("key").isNotNull()
    kept = judged.where((F.size("found") > 0) | keyed).persist(disk)
    try:
        broken = _exploded(kept).unionByName(_exploded(_keys_judged(kept.where(keyed), apart_ms)))
        if log is not None:
            broken = broken.unionByName(crossed(session, log, directories, live, apart_ms=apart_ms)).persist(disk)
        counts = {row["rule"]: row["count"] for row in broken.groupBy("rule").count().collect()}
        named = _first(broken, [rule for rule in RULES if rule in counts], first)
        granted = grants(session, log).count() if log is not None else None
        if log is not None:
            broken.unpersist()
    finally:
        kept.unpersist()
    seen = distinct_rows.get
    return Report(
        tasks=seen["tasks"],
        claims=seen["claims"],
        updates=seen["updates"],
        grants=granted,
        repeats=all_rows.get["rows"] - sum(seen.values()),
        counts={rule: counts.get(rule, 0) for rule in RULES},
        first=tuple(named),
    )


_NAMES = {CLAIM: "claims", TASK: "tasks", UPDATE: "updates"}


def _rows(session: Any, directories: Sequence[str]) -> Any:
    """Return all rows about tasks in one table.

    Claims and updates are listed before tasks, so that what is archived meanwhile has its task.
    """
    from pyspark.sql import functions as F

    claims = read_table(session, directories, CLAIMS).select(
        F.unhex("id").alias("id"),
        F.lit(CLAIM).cast("byte").alias("kind"),
        "token",
        F.lit(0).alias("seq"),
        "queue",
        F.unix_millis("granted").alias("began"),
        F.unix_millis("ended").alias("ended"),
        "until",
        F.xxhash64("worker").alias("worker"),
        # If an entry ended the claim, its completion was found later: no client had an acknowledgement of it.
        (F.col("outcome") == "completed").alias("completed"),
    )
    updates = read_table(session, directories, UPDATES).select(
        F.unhex("id").alias("id"),
        F.lit(UPDATE).cast("byte").alias("kind"),
        "token",
        "seq",
        "queue",
        F.unix_millis("stored").alias("ended"),
    )
    tasks = read_table(session, directories, TASKS).select(
        F.unhex("id").alias("id"),
        F.lit(TASK).cast("byte").alias("kind"),
        "token",
        F.lit(0).alias("seq"),
        "queue",
        F.unix_millis("finished").alias("ended"),
        (F.col("state") == "completed").alias("completed"),
        F.col("requeued").isNotNull().alias("requeued"),
        F.col("updates").alias("said_updates"),
        F.col("ordering_key").alias("key"),
        "turn",
        (F.col("archived") > F.now() - F.expr(f"INTERVAL {FRESH_S} SECONDS")).alias("fresh"),
    )
    rows = claims.unionByName(updates, allowMissingColumns=True).unionByName(tasks, allowMissingColumns=True)
    return rows.repartition("id")


def _without_repeats(rows: Any) -> Any:
    """Return each row once.

    Of differing claims under one token keep the last to end, with a note if workers differ.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    alike = Window.partitionBy("id", "token", "kind", "seq").orderBy(F.desc_nulls_last("ended"))
    whole = alike.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    return (
        rows.withColumn("repeat", F.row_number().over(alike))
        .withColumn("two_workers", F.min("worker").over(whole) != F.max("worker").over(whole))
        .where("repeat = 1")
        .drop("repeat", "worker")
    )


def _with_past(rows: Any) -> Any:
    """Return each row with maxima of the earlier rows about its task, and with values of the task's own row.

    Everything is in one window, because a group is a task and each group has a cost. If a task was requeued after
    it had been archived, only the row of its last end stays.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    of_task = Window.partitionBy("id").orderBy("token", "kind", "seq")
    before = of_task.rowsBetween(Window.unboundedPreceding, -1)
    whole = of_task.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    claim, task, update = (F.col("kind") == kind for kind in (CLAIM, TASK, UPDATE))
    no_entry = claim & F.col("until").isNull()
    said = F.struct("ended", "token", "key", "turn", "requeued", "said_updates", "fresh")
    rows = rows.select(
        "*",
        F.max(F.when(task, said)).over(whole).alias("task"),
        F.count(F.when(update, 1)).over(whole).alias("has_updates"),
        F.row_number().over(of_task).alias("place"),
        ((F.lag("kind").over(of_task) == UPDATE) & (F.lag("token").over(of_task) == F.col("token"))).alias("goes_on"),
        F.max(F.when(claim, F.col("token"))).over(before).alias("claimed"),
        F.max(F.when(claim, F.col("until"))).over(before).alias("past_until"),
        F.max(F.when(no_entry, F.col("ended"))).over(before).alias("past_ended"),
        F.max(F.when(no_entry & F.col("ended").isNull(), F.col("token"))).over(before).alias("endless"),
        F.max(F.when(no_entry & F.col("completed"), F.col("token"))).over(before).alias("completed_token"),
        F.max(F.when(claim, F.col("began"))).over(before).alias("past_began"),
        F.max(F.when(update, F.col("ended"))).over(before).alias("past_updated"),
    )
    older = task & ~F.struct("ended", "token").eqNullSafe(F.struct("task.ended", "task.token"))
    return rows.where(~older).select(
        *(name for name in rows.columns if name not in ("task", "key", "turn", "requeued", "said_updates", "fresh")),
        F.col("task").isNotNull().alias("has_task"),
        F.col("task.ended").alias("finished"),
        "task.key",
        "task.turn",
        "task.requeued",
        "task.said_updates",
        F.coalesce("task.fresh", F.lit(False)).alias("fresh"),
    )


def _judged(rows: Any, apart_ms: int) -> Any:
    """Return each row with the rules that it breaks, given the other rows about its task."""
    from pyspark.sql import functions as F

    claim, task, update = (F.col("kind") == kind for kind in (CLAIM, TASK, UPDATE))
    own = F.coalesce(F.col("claimed") == F.col("token"), F.lit(False))
    no_claim = ~own & ~F.col("fresh")
    late = F.col("past_updated") > F.col("ended") + apart_ms
    found = (
        (OVERLAPPING, claim & (F.col("past_until") > F.col("token")), "another claim ended at {past_until}"),
        (
            OVERLAPPING,
            claim & _stood("past_ended", "past_began", apart_ms),
            "another claim ended {past_ended - began} ms after its grant",
        ),
        (OVERLAPPING, claim & F.col("endless").isNotNull(), "the claim under {endless} never ended"),
        (TOKENS, claim & F.col("two_workers"), "two workers have claims under it"),
        (TOKENS, claim & (F.col("until") <= F.col("token")), "its claim ended at {until}, before it began"),
        (
            TOKENS,
            claim & F.col("completed_token").isNotNull(),
            "the task was completed under {completed_token}, a lower one",
        ),
        (
            TOKENS,
            update & ~F.coalesce("goes_on", F.lit(False)) & late,
            "an update under a lower token was stored {past_updated - ended} ms later",
        ),
        (
            TOKENS,
            task & F.col("completed") & late,
            "an update under a lower token was stored {past_updated - ended} ms later",
        ),
        (UNCLAIMED, task & F.col("completed") & no_claim, "completed under {token}, which no claim has"),
        (UNCLAIMED, update & no_claim, "updated under {token}, which no claim has"),
        (LOST, ~F.col("has_task") & (F.col("place") == 1), "there are claims or updates, but no task"),
        (
            LOST,
            task & (F.col("has_updates") < F.col("said_updates")) & ~F.col("fresh"),
            "{has_updates} updates are there of {said_updates}",
        ),
    )
    return rows.withColumn("found", _found(found))


def _keys_judged(claims: Any, apart_ms: int) -> Any:
    """Return claims of tasks with ordering keys, with the rules that they break.

    An overlap within one task does not count here.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    before = Window.partitionBy("queue", "key").orderBy("token", "id").rowsBetween(Window.unboundedPreceding, -1)
    no_entry = F.when(F.col("until").isNull(), F.coalesce("ended", "finished"))
    claims = claims.select(
        "queue",
        "id",
        "token",
        "began",
        "turn",
        "requeued",
        (~F.exists("found", lambda one: one["rule"] == OVERLAPPING)).alias("own"),
        F.max("until").over(before).alias("past_until"),
        F.max(no_entry).over(before).alias("past_ended"),
        F.max("began").over(before).alias("past_began"),
        F.max(F.when(F.col("turn").isNotNull(), F.struct("turn", "began", F.hex("id").alias("id"))))
        .over(before)
        .alias("ahead"),
    )
    passed = (F.col("ahead.turn") > F.col("turn")) & (F.col("ahead.began") > F.col("turn")[0] + apart_ms)
    found = (
        (KEYS, F.col("own") & (F.col("past_until") > F.col("token")), "a claim of its key ended at {past_until}"),
        (
            KEYS,
            F.col("own") & _stood("past_ended", "past_began", apart_ms),
            "a claim of its key ended {past_ended - began} ms after its grant",
        ),
        (KEYS, passed & ~F.col("requeued"), "granted after {lower(ahead.id)}, which comes later"),
    )
    return claims.withColumn("found", _found(found))


def _stood(past_ended: str, past_began: str, apart_ms: int) -> Any:
    """Return whether an earlier claim, ended by a completion, was valid at the grant.

    False if the log's clock ran backwards.
    """
    from pyspark.sql import functions as F

    return (F.col(past_ended) > F.col("began") + apart_ms) & (F.col(past_began) <= F.col("began"))


def _found(rules: Sequence[tuple[str, Any, str]]) -> Any:
    """Return an array of what is broken, once for each rule; ``{...}`` in a text is an SQL expression."""
    from pyspark.sql import functions as F

    said: dict[str, Any] = {}
    for rule, condition, text in rules:
        parts = (F.expr(part).cast("string") if odd else F.lit(part) for odd, part in _pieces(text))
        told = F.when(condition, F.concat(*parts))
        said[rule] = F.coalesce(said[rule], told) if rule in said else told
    return F.array_compact(
        F.array(
            *(
                F.when(what.isNotNull(), F.struct(F.lit(rule).alias("rule"), what.alias("what")))
                for rule, what in said.items()
            )
        )
    )


def _pieces(text: str) -> list[tuple[int, str]]:
    """Return a text split at braces; parts with 1 were within braces."""
    return [(place % 2, part) for place, part in enumerate(re.split(r"[{}]", text))]


def _exploded(rows: Any) -> Any:
    from pyspark.sql import functions as F

    return rows.select("queue", "id", "token", F.explode("found").alias("one")).select(
        "one.rule", "queue", F.lower(F.hex("id")).alias("id"), "token", "one.what"
    )


def _first(broken: Any, rules: Sequence[str], limit: int) -> list[Offender]:
    """Return the first offenders of each of some rules."""
    from pyspark.sql import functions as F

    order = ("id", "token", "what")
    each = [broken.where(F.col("rule") == rule).orderBy(*order).limit(limit) for rule in rules]
    rows = reduce(lambda some, more: some.unionByName(more), each).collect() if each else []
    found = [Offender(row["rule"], row["queue"], row["id"], row["token"], row["what"]) for row in rows]
    return sorted(found, key=lambda one: (RULES.index(one.rule), one.id, one.token or 0, one.what))
