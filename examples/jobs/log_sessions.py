"""Sessions: what visitors of a web site did, from one visit to the next, told by the logs of its two servers.

    python examples/jobs/log_sessions.py

The job::

    logs -> parsed -> visits -> sessions   each visit: when, how many pages, how many bytes (JSON)
                   -> broken               lines that are no log lines, with what is wrong with them (JSON)

A visit goes on as long as one request comes less than half an hour after the other: a window of the kind
``session``, by visitor, with an aggregation of the example's own. What ``parsed`` raises for a line that was cut
short is no failure of the job: a flow condition makes a segment of it. Another one keeps robots out.

Servers write a file a quarter of an hour, and batches read few files each, in the order of their times. Lines of
the two servers come mixed up, so the watermark stays behind: what is late by less than that still counts.
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
    """The request that a line of a log tells of; raises `ValueError` if it tells of none."""
    found = LINE.fullmatch(row["value"])
    if found is None:
        raise ValueError("no log line")
    at = datetime.strptime(found["at"], "%d/%b/%Y:%H:%M:%S %z")
    at_ms = round(at.timestamp() * 1000)
    return {"visitor": found["visitor"], "at_ms": at_ms, "bytes": int(found["bytes"]), "agent": found["agent"]}


def broken(row: dict[str, str], error: Exception) -> dict[str, str]:
    """What goes on in place of a line that could not be parsed."""
    return {"line": row["value"], "error": str(error)}


def comes_from(request: dict[str, Any], agent: str) -> bool:
    """Whether a request was made by such a program."""
    return agent in request["agent"]


def nothing() -> list[int]:
    """A visit of no request: pages, bytes."""
    return [0, 0]


def with_request(visit: list[int], request: dict[str, Any]) -> list[int]:
    """The visit with one request more."""
    return [visit[0] + 1, visit[1] + request["bytes"]]


def as_one(visit: list[int], other: list[int]) -> list[int]:
    """Two visits that a request between them has made one."""
    return [visit[0] + other[0], visit[1] + other[1]]


def log_sessions(folder: Path) -> Job:
    """The job, from a folder of logs to folders of visits and of broken lines."""
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
    """A day on the site: lines of its logs and their times, the same at each run."""
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
    """Each request on one of the servers, in the file of its quarter of an hour; the lines."""
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
    """The same visits by hand: all requests of a visitor sorted, and cut where nothing came for too long."""
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
    """Run the job over logs, and cut the same logs into visits here."""
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
