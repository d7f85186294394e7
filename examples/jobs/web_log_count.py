"""The files of the web log, and a count of them by pandas alone: the tables that `web_log.py` must make of them.

A few lines are broken. Some requests come late, and count; others come 40 minutes late, after all their
windows have ended, and do not count in windows. All times are multiples of `STEP` after a full hour, so
no two requests are exactly a gap or the watermark apart.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pandas  # type: ignore[import-untyped]
import running
from pyarrow import parquet

from onyxq import Job

FILES, LINES = 12, 250
BEGIN, STEP = datetime(2027, 1, 15, tzinfo=UTC), timedelta(milliseconds=2_003)
LATE_FROM, LATE = 5, 1_200 * STEP
"""The first file with requests that are too late, and how late they are."""
WATERMARK, GAP = timedelta(minutes=2), timedelta(minutes=3)
USERS = [f"u{number}" for number in range(44)]
LANDS = {user: ("NO", "SE", "FI")[number % 3] for number, user in enumerate(USERS[:40])}


def lines(file: int) -> list[str]:
    """Return the lines of a file."""
    random, found = Random(file), []
    for number in range(file * LINES, (file + 1) * LINES):
        at, fate = BEGIN + number * STEP, random.random()
        if fate < 0.015 and file >= LATE_FROM:
            at -= LATE
        elif fate < 0.05:
            at -= random.randrange(50) * STEP
        status = random.choices((200, 404, 500, 503), (90, 6, 3, 1))[0]
        size = random.randrange(50_000)
        line = json.dumps(
            {"id": number, "at": at.isoformat(), "user": random.choice(USERS), "status": status, "bytes": size}
        )
        found.append(line[: random.randrange(1, len(line))] if fate > 0.99 else line)
    return found


def write_users(at: Path) -> None:
    """Write the table of users; some of the log's users are not in it."""
    _write(at / "users/users.csv", [f"{user},{land}" for user, land in LANDS.items()])


def write_log(at: Path, files: Iterable[int] = range(FILES)) -> None:
    """Write files of the log; Spark reads the file with the lowest time of modification first."""
    for file in files:
        _write(at / f"log/{file}.json", lines(file), modified=1_800_000_000 + file)


def _write(path: Path, lines: list[str], modified: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    hidden.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    os.utime(hidden, (modified, modified))
    hidden.rename(path)


def read(at: Path) -> tuple[Any, list[str]]:
    """Return the requests in all files of the log, with their file and the country of their user, and the bad lines."""
    good, bad = [], []
    for path in (at / "log").glob("*.json"):
        for line in path.read_text("utf-8").splitlines():
            try:
                good.append({**json.loads(line), "file": int(path.stem)})
            except ValueError:
                bad.append(line)
    users = pandas.read_csv(at / "users/users.csv", names=["user", "land"])
    log = pandas.DataFrame(good).merge(users, "left", "user").fillna({"land": "unknown"})
    return log.assign(at=pandas.to_datetime(log["at"], format="ISO8601")), bad


def too_late(log: Any) -> Any:
    """Return which requests are too late for windows: they are, whether a batch has one file or up to three."""
    closed = log.groupby("file")["at"].max().cummax() - WATERMARK
    late = log["at"] < log["file"].map(closed.shift(1))
    if not late.any() or (late != (log["at"] + GAP < log["file"].map(closed.shift(3)))).any():
        raise running.Failed("what is late depends on the batches")
    return late


def counted(at: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each table, with the columns in the order of their names."""
    log, bad = read(at)
    late = too_late(log)
    log = log.drop(columns="file")
    in_time = log[~late].sort_values(["user", "at"])
    alerts = log[log["status"] >= 500].drop(columns="bytes")
    minutes = in_time.groupby([in_time["at"].dt.floor("1min").rename("minute"), "land"])
    begins = (in_time["user"] != in_time["user"].shift()) | (in_time["at"].diff() >= GAP)
    visits = in_time.groupby(["user", begins.cumsum().rename("number")])
    bursts = alerts.groupby([alerts["at"].dt.floor("10min").rename("start"), "status"])
    sums = {"requests": ("bytes", "size"), "bytes": ("bytes", "sum")}
    tables = {
        "requests": log,
        "bad": pandas.DataFrame({"line": bad}),
        "minutes": minutes.agg(**sums).reset_index(),
        "visits": visits.agg(start=("at", "min"), **sums).reset_index().drop(columns="number"),
        "reports": alerts,
        "bursts": bursts.size().rename("alerts").reset_index(),
    }
    return {name: [*table[sorted(table)].itertuples(index=False, name=None)] for name, table in tables.items()}


def found(at: Path, table: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table that a job has written, with the columns in the order of their names."""
    rows = parquet.read_table(at / table).to_pylist()
    return [tuple(row[name] for name in sorted(row)) for row in rows]


def check(at: Path) -> None:
    """Compare all tables with the count, row by row and window by window; raises `running.Failed`."""
    for name, rows in counted(at).items():
        running.check(name, found(at, name), rows)


def compare(web_log: Callable[[Path], Job], reports: Callable[[Path], Job]) -> None:
    """Run both jobs, and compare their tables with the count."""
    with running.folder() as at, running.local_cluster(at / "peer") as cluster:
        write_users(at)
        write_log(at)
        running.run(web_log(at), cluster)
        running.run(reports(at), cluster, "alerts")
        check(at)
