"""The archive compared with the log: differences are found exactly, and correct ones are not reported."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onyxq.errors import NotFound
from onyxq.history.parquet.layout import day_of
from onyxq.history.parquet.schema import RECORDS, schema_of
from onyxq.spark.analysis.history_check import check
from onyxq.spark.analysis.log_check import ELSEWHERE
from onyxq.spark.analysis.rules import LOST, UNCLAIMED
from tests.spark.archive_world import MS, Row, claim, id_of, task, write
from tests.spark.test_history_check import aged, told

pytestmark = pytest.mark.long


HOUR_S = 3_600


def granted(position: int, *runs: tuple[int, int], at: int = 0, verdict: str = "applied", queue: str = "") -> Row:
    """Return a record that grants runs of tasks: the number of the first, and how many."""
    grant = {"worker": "w", "lease_ms": 1, "runs": [{"first": id_of(first), "count": count} for first, count in runs]}
    args = {"partition": 3, "epoch": 1, "grants": [grant]} | ({"queue": queue} if queue else {})
    entry = "grant_limited_claims" if queue else "grant_claims"
    return _row(position, entry, args, at, verdict)


def other(position: int, at: int = 0) -> Row:
    """Return a record of something else."""
    return _row(position, "release_claims", {"partition": 3, "releases": []}, at, "applied")


def _row(position: int, entry: str, args: Any, at: int, verdict: str) -> Row:
    more = {"peer": "p", "number": position, "index": 0, "version": 1}
    return {"position": position, "time": MS + at, "entry": entry, "args": json.dumps(args), "verdict": verdict, **more}


def write_log(directory: Path, rows: Sequence[Row], first: int, last: int, *, old_s: int = HOUR_S) -> Path:
    """Write a file of the table of records that looks old enough."""
    file = directory / "records" / f"day={day_of(MS)}" / f"{first:019d}-{last:019d}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema_of(RECORDS)]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema_of(RECORDS)), file)
    then = time.time() - old_s
    os.utime(file, (then, then))
    return directory


def listed(file: Path, *numbers: int) -> str:
    """Return the output of ``task list --all --json``."""
    file.write_text("".join(json.dumps({"id": id_of(number), "queue": "q"}) + "\n" for number in numbers))
    return str(file)


def tasks_and_claims() -> tuple[list[Row], list[Row]]:
    """Four tasks; the second was tried twice, the fourth was cancelled under its second claim."""
    tasks = [task(1, 10), task(2, 30), task(3, 10), task(4, None, state="cancelled", finished=MS + 60_000)]
    claims = [
        claim(1, 10, 0, 1_000),
        claim(2, 20, 0, 400, outcome="failed", until=25),
        claim(2, 30, 500, 1_000),
        claim(3, 10, 0, 1_000),
        claim(4, 20, 0, 400, outcome="failed", until=26),
        claim(4, 40, 50_000, 60_000, outcome="cancelled", until=45),
    ]
    return tasks, claims


def records() -> list[Row]:
    """Return the log of these claims, and records that are irrelevant for them."""
    return [
        granted(10, (1, 1), (3, 1)),
        granted(20, (2, 1)),
        granted(20, (4, 1), queue="q") | {"index": 1},
        other(25),
        granted(28, (1, 3), verdict="not the leader"),
        granted(30, (2, 1), at=500),
        granted(40, (4, 1), at=50_000),
        other(45),
    ]


def test_a_log_that_agrees_is_clean(spark: Any, tmp_path: Path) -> None:
    """Refused grants, grants of unfinished tasks, and claims outside the log's records are not faults."""
    tasks, claims = tasks_and_claims()
    tasks.append(task(5, 90))
    claims.append(claim(5, 90, 0, 1_000))
    rows = [*records(), granted(50, (7, 2), at=70_000)]
    aged(write(tmp_path, tasks, claims))
    write_log(tmp_path, rows, 0, 60)
    live = listed(tmp_path / "live.json", 7, 8)
    report = check(spark, [str(tmp_path)], live=[live])
    assert report.clean, report.first
    assert report.grants == 8
    # They are in two places and count once.
    write_log(tmp_path / "more", rows[:4], 0, 27)
    report = check(spark, [str(tmp_path)], records=[str(tmp_path / "more")], live=[live])
    assert (report.clean, report.grants) == (True, 8)


def test_what_the_log_and_the_archive_do_not_agree_on_is_found(spark: Any, tmp_path: Path) -> None:
    """Found are a claim that was never granted, a missing claim of an archived task, and missing tasks."""
    tasks, claims = tasks_and_claims()
    lost = [one for one in claims if (one["id"], one["token"]) not in {(id_of(2), 20), (id_of(4), 40)}]
    invented = claim(3, 5, -5_000, -4_000, outcome="failed", until=7)
    rows = [*records(), granted(50, (7, 3), at=70_000), granted(51, (20, 1), queue="slow")]
    aged(write(tmp_path, tasks, [*lost, invented]))
    write_log(tmp_path, rows, 0, 60)
    write_log(tmp_path, [granted(70, (30, 1))], 61, 70, old_s=0)
    report = check(spark, [str(tmp_path)], live=[listed(tmp_path / "live.json", 8)], apart_ms=1_000)
    assert told(report) == {
        (UNCLAIMED, id_of(3), 5),
        (LOST, id_of(2), 20),
        (LOST, id_of(4), 40),
        (LOST, id_of(7), 50),
        (LOST, id_of(9), 50),
        (LOST, id_of(20), 51),
    }
    queues = {one.id: one.queue for one in report.first}
    assert (queues[id_of(2)], queues[id_of(7)], queues[id_of(20)]) == ("q", ELSEWHERE, "slow")
    assert report.counts[LOST] == 5
    unlisted = check(spark, [str(tmp_path)], apart_ms=1_000)
    assert told(unlisted) == {(UNCLAIMED, id_of(3), 5), (LOST, id_of(2), 20), (LOST, id_of(4), 40)}


def test_a_completion_under_a_token_that_the_log_does_not_know_is_found(spark: Any, tmp_path: Path) -> None:
    """The archive alone is consistent: only the log shows that the task was never granted."""
    aged(write(tmp_path, [task(1, 12)], [claim(1, 12, 0, 1_000)]))
    assert check(spark, [str(tmp_path)]).grants is None
    write_log(tmp_path, [granted(10, (1, 1)), other(12)], 0, 20)
    report = check(spark, [str(tmp_path)])
    assert told(report) == {(UNCLAIMED, id_of(1), 12), (LOST, id_of(1), 10)}


def test_what_is_no_table_of_records_is_refused(spark: Any, tmp_path: Path) -> None:
    """A task list without such a table is refused, because it could show nothing."""
    archive = str(aged(write(tmp_path / "a", [task(1, 10)], [claim(1, 10, 0, 1_000)])))
    with pytest.raises(NotFound, match="no table of the log's records") as caught:
        check(spark, [archive], records=[str(tmp_path)])
    assert caught.value.field == "records"
    with pytest.raises(NotFound, match="beside the log's records"):
        check(spark, [archive], live=[listed(tmp_path / "live.json", 1)])
