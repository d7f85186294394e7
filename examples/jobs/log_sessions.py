"""Sessions: the visits to a web site, computed from the logs of its two servers.

    python examples/jobs/log_sessions.py

The job::

    logs -> parsed -> visits -> sessions   each visit: when, how many pages, how many bytes (JSON)
                   -> broken               lines that cannot be parsed, with the reason (JSON)

A visit continues while requests are less than half an hour apart. It is a window of the kind
``session``, by visitor, with an aggregation of the example's own. If ``parsed`` raises for a
truncated line, the job does not fail: a flow condition turns the error into a segment. Another
condition excludes robots.

Servers write a file every quarter of an hour. Each batch reads few files, in the order of their
times. Lines of the two servers are mixed, so the watermark lags behind. Lines that are late by less
than that still count.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import running

from onyxq import Aggregation, Condition, Function, Input, Job, Output, Predicate, Reduce, Trigger, Window

GAP_MS = 30 * 60_000
LATE_MS = 60 * 60_000
SERVERS = ("a", "b")
VISITORS = 400
BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
FILE = timedelta(minutes=15)
LINE = re.compile(r'(?P<visitor>\S+) \[(?P<at>[^]]+)\] "GET (?P<page>\S+)" 200 (?P<bytes>\d+) "(?P<agent>[^"]*)"')


def parsed(row: dict[str, str]) -> dict[str, Any]:
    """Return the request of a log line; raises `ValueError` for a broken line."""
    found = LINE.fullmatch(row["value"])
    if found is None:
        raise ValueError("no log line")
    at = datetime.strptime(found["at"], "%d/%b/%Y:%H:%M:%S %z")
    at_ms = round(at.timestamp() * 1000)
    return {"visitor": found["visitor"], "at_ms": at_ms, "bytes": int(found["bytes"]), "agent": found["agent"]}


def broken(row: dict[str, str], error: Exception) -> dict[str, str]:
    """Return the segment for a line that could not be parsed."""
    return {"line": row["value"], "error": str(error)}


def comes_from(request: dict[str, Any], agent: str) -> bool:
    """Return whether a request was made by such a program."""
    return agent in request["agent"]


def nothing() -> list[int]:
    """Return a visit without requests: pages, bytes."""
    return [0, 0]


def with_request(visit: list[int], request: dict[str, Any]) -> list[int]:
    """Return the visit with one more request."""
    return [visit[0] + 1, visit[1] + request["bytes"]]


def as_one(visit: list[int], other: list[int]) -> list[int]:
    """Join two visits that became one because of a request between them."""
    return [visit[0] + other[0], visit[1] + other[1]]


def log_sessions(folder: Path) -> Job:
    """Return the job, from a folder of logs to folders of visits and of broken lines."""
    return Job(
        id="log-sessions",
        workflow=[("logs", "parsed"), ("parsed", "visits"), ("visits", "sessions"), ("parsed", "broken")],
        catalog=[
            Input("logs", format="text", path=str(folder / "logs"), options={"maxFilesPerTrigger": "50"}),
            Function("parsed", parsed),
            Reduce("visits"),
            Output("sessions", format="json", path=str(folder / "sessions")),
            Output("broken", format="json", path=str(folder / "broken")),
        ],
        flow_conditions=[
            Condition("parsed", to=["broken"], exceptions=True, short_circuit=True, transform=broken),
            Condition("parsed", to=["visits"], when=~Predicate(comes_from, {"agent": "robot"})),
        ],
        windows=[
            Window(
                "visit",
                "visits",
                "session",
                gap_ms=GAP_MS,
                key="visitor",
                time="at_ms",
                watermark_ms=LATE_MS,
                aggregation=Aggregation(nothing, with_request, merge=as_one),
            )
        ],
        triggers=[Trigger("visit", "watermark")],
        key_groups=2,
    )


def requests() -> Iterator[tuple[datetime, str]]:
    """Return the log lines of a day and their times, the same at each run."""
    chance = random.Random(20)
    for number in range(VISITORS):
        visitor, agent = f"192.0.2.{number}", "robot/1.0" if number % 20 == 0 else "browser/2.0"
        at = BEGIN + timedelta(seconds=chance.randrange(8 * 3600))
        while at < BEGIN + timedelta(days=1):
            page, size = chance.choice(("/", "/news", "/shop", "/about")), chance.randrange(500, 50_000)
            line = f'{visitor} [{at:%d/%b/%Y:%H:%M:%S %z}] "GET {page}" 200 {size} "{agent}"'
            yield at, line if chance.random() > 0.005 else line[: chance.randrange(60)]
            longest = 300 if chance.random() < 0.9 else 4 * 3600
            at += timedelta(seconds=chance.randrange(1, longest))


def write_logs(folder: Path) -> list[str]:
    """Write each request to the log of one of the servers, in the file of its quarter of an hour; return the lines."""
    chance = random.Random(21)
    files: dict[tuple[datetime, str], list[tuple[datetime, str]]] = {}
    for at, line in requests():
        quarter = at - (at - BEGIN) % FILE
        files.setdefault((quarter, chance.choice(SERVERS)), []).append((at, line))
    folder.mkdir()
    for (quarter, server), lines in files.items():
        file = folder / f"{server}-{quarter:%H%M}.log"
        file.write_text("".join(line + "\n" for _, line in sorted(lines)))
        closed = (quarter + FILE).timestamp()
        os.utime(file, (closed, closed))
    return [line for lines in files.values() for _, line in lines]


def visits_of(lines: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Compute the same visits without a job: sort the requests of a visitor and cut at long pauses."""
    found: dict[str, list[tuple[int, int]]] = {}
    for match in filter(None, map(LINE.fullmatch, lines)):
        if "robot" not in match["agent"]:
            at = datetime.strptime(match["at"], "%d/%b/%Y:%H:%M:%S %z")
            found.setdefault(match["visitor"], []).append((round(at.timestamp() * 1000), int(match["bytes"])))
    for visitor, made in found.items():
        made.sort()
        cuts = [place for place in range(1, len(made)) if made[place][0] - made[place - 1][0] >= GAP_MS]
        for begin, end in zip([0, *cuts], [*cuts, len(made)], strict=True):
            visit = made[begin:end]
            yield visitor, visit[0][0], visit[-1][0] + GAP_MS, len(visit), sum(size for _, size in visit)


def main() -> None:
    """Run the job over logs, and compare its visits with those computed here."""
    with running.folder() as folder:
        lines = write_logs(folder / "logs")
        with running.local_cluster(folder / "peer") as cluster:
            running.run(log_sessions(folder), cluster)
        sessions = running.json_rows(folder / "sessions")
        rejected = running.json_rows(folder / "broken")

    print(f"{len(lines):,} lines of {VISITORS} visitors, robots among them")
    running.check(
        "visits", ((one["key"], one["start_ms"], one["end_ms"], *one["value"]) for one in sessions), visits_of(lines)
    )
    running.check(
        "broken lines",
        ((one["line"], one["error"]) for one in rejected),
        ((line, "no log line") for line in lines if LINE.fullmatch(line) is None),
    )


if __name__ == "__main__":
    running.main(main)
