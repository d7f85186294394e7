"""All jobs, and one job: why it failed, what its driver reports, its curves and its inputs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, get_args

import anyio
from attrs import define, frozen
from msgspec import Meta
from starlette.responses import Response

from onyxq.core.errors import NotFound, OnyxqError
from onyxq.core.jobs.lifetime import ENDED
from onyxq.history import words
from onyxq.interfaces.dashboard.page import ROWS, Filter, PageArgs, filtered, shows
from onyxq.interfaces.dashboard.rendering import Tab, link, moment, number, page
from onyxq.interfaces.http.endpoint import Call
from onyxq.interfaces.http.values import plain
from onyxq.operations.table.job import JobId, JobState
from onyxq.operations.table.queue import GET_QUEUE, GetQueue

WIDTH, HEIGHT = 1_000, 80
"""Size of a curve, in its units."""
PLAN_LINE = re.compile(
    r"[ :|]*[+:]- |=+ .+ =+$|(Identifier|Current (Committed|Available) Offsets|Current State|Thread State|"
    r"(Logical|Streaming) Plan):"
)
"""A line of Spark's description of a query."""
PLAN_ROOT = re.compile(r"['!~]?[A-Z]\w+\b")
"""The first line of a plan, which comes before the first branch."""


class JobsPage(PageArgs):
    """Jobs of a state, or with a text in their id."""

    state: Filter = ""
    like: Filter = ""
    skip: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class OneJob(PageArgs, kw_only=True):
    """One job."""

    id: JobId


@define
class Source:
    """An input of a job."""

    name: str
    queue: str | None
    format: str
    can_seal: bool
    is_sealed: bool
    rows: int | None = None
    """Rows that were read; None before the first batch."""
    lag: int | None = None
    """Rows that are still to be read; None if that is unknown."""
    lag_files: int | None = None
    """Files that are still to be read; None if that is unknown."""


@frozen
class Report:
    """A job with what its driver reports."""

    job: Mapping[str, Any]
    sources: Sequence[Source] = ()

    @property
    def progress(self) -> Mapping[str, Any]:
        """The report of the driver; empty without one."""
        return self.job.get("progress") or {}

    @property
    def batch(self) -> int | None:
        """The latest batch."""
        found: int | None = self.progress.get("batch", self.job.get("batch"))
        return found

    @property
    def lag(self) -> int | None:
        """Rows that it has still to read; None if that is unknown."""
        known = [one.lag for one in self.sources if one.lag is not None]
        return sum(known) if known else None

    @property
    def lag_files(self) -> int | None:
        """Files that it has still to read; None if that is unknown."""
        known = [one.lag_files for one in self.sources if one.lag_files is not None]
        return sum(known) if known else None

    @property
    def trouble(self) -> str:
        """Why it failed, waits, or was started again; or which job replaced it."""
        return str(self.job.get("error") or self.job.get("why") or self.progress.get("error") or "")


@frozen
class Explained:
    """An error in parts: the first line, the other lines, and the lines of Spark's plan."""

    summary: str
    rest: str
    plan: str


@frozen
class Curve:
    """One figure of all batches as a line in a box of `WIDTH` by `HEIGHT`."""

    title: str
    """With the highest value."""
    line: str
    bars: Sequence[tuple[float, float, str]]
    """Left side, width and words of the part of the box that belongs to each point."""
    first_ms: int
    last_ms: int


CURVES: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "rows_per_s": ("Rows per second", lambda value: number(round(value) if value >= 10 else value)),
    "lag": ("Lag, rows", number),
    "lag_files": ("Lag, files", number),
    "late": ("Late rows", number),
    "duration_ms": ("Batch time", words.duration),
    "watermark_age_ms": ("Age of the watermark", words.duration),
    "state_bytes": ("State, KiB", lambda value: number(-(-value // 1024))),
}
"""Figure of a batch -> its name, and how its values are written."""


async def get_jobs(call: Call) -> Response:
    """Answer with a page of jobs: unfinished jobs, then ended ones, the latest first."""
    args: JobsPage = call.args
    state, like = filtered(args.state, JobState) or "", args.like.strip()
    known = [job for job in (await call.ask("job.list"))["jobs"] if like in job["id"]]
    found = sorted((job for job in known if state in ("", job["state"])), key=_latest_first)
    shown = [Report(job) for job in found[args.skip : args.skip + ROWS]]
    return page(
        call,
        "jobs.html",
        title="Jobs",
        here="/ui/jobs",
        jobs=await _reported(call, shown),
        count=len(found),
        tabs=_tabs(known, state, like),
        state=state,
        like=like,
        skip=args.skip,
        rows=ROWS,
    )


def _latest_first(job: Mapping[str, Any]) -> tuple[bool, int, str]:
    has_ended = job["state"] in ENDED
    return has_ended, -((job["ended_ms"] or 0) if has_ended else job["submitted_ms"]), job["id"]


def _tabs(known: Sequence[Mapping[str, Any]], state: str, like: str) -> list[Tab]:
    return [
        Tab(
            name or "all",
            link("/ui/jobs", state=name, like=like),
            sum(name in ("", job["state"]) for job in known),
            is_current=name == state,
        )
        for name in ("", *get_args(JobState))
    ]


async def _reported(call: Call, rows: Sequence[Report]) -> list[Report]:
    """Return jobs with the reports of those that run; their drivers are asked together."""
    out = list(rows)

    async def look(place: int) -> None:
        try:
            out[place] = await _report(call, out[place].job["id"])
        except NotFound:
            pass  # It was forgotten meanwhile.

    async with anyio.create_task_group() as group:
        for place, row in enumerate(rows):
            if row.job["state"] == "running":
                group.start_soon(look, place)
    return out


async def _report(call: Call, name: str) -> Report:
    """Return a job, what its driver reports, and its inputs; raises `NotFound`."""
    job: Mapping[str, Any] = await call.ask("job.get", id=name)
    sources = sources_of(job)
    inputs = (job.get("progress") or {}).get("inputs") or {}
    for one in sources:
        told = inputs.get(one.name, {})
        one.rows, one.lag, one.lag_files = told.get("rows"), told.get("lag"), told.get("lag_files")
        if one.queue is not None and job["state"] not in ENDED:
            one.lag = await _waiting(call, one.queue)
    return Report(job, sources)


async def _waiting(call: Call, queue: str) -> int | None:
    try:
        depth = (await call.do(GET_QUEUE, GetQueue(queue=queue))).depth
    except OnyxqError:
        return None
    return depth.ready + depth.claimed


def sources_of(job: Mapping[str, Any]) -> list[Source]:
    """Return the inputs of a job; none if only its outcome is kept."""
    sealed, is_open = job.get("sealed") or (), job["state"] not in ENDED
    tasks: Iterable[Mapping[str, Any]] = (job.get("job") or {}).get("catalog", ())
    return [
        Source(
            one["name"],
            one.get("queue"),
            str(one.get("format") or ("queue" if one.get("queue") else "files")),
            can_seal=is_open and one["name"] in (job.get("inputs") or ()) and one["name"] not in sealed,
            is_sealed=one["name"] in sealed,
        )
        for one in tasks
        if one.get("type") == "input"
    ]


async def get_job(call: Call) -> Response:
    """Answer with one job."""
    report = await _report(call, call.args.id)
    described = report.job.get("job")
    return page(
        call,
        "job.html",
        title=f"Job {report.job['id']}",
        here="/ui/jobs",
        report=report,
        job=report.job,
        has_ended=report.job["state"] in ENDED,
        error=explained(report.trouble) if report.trouble else None,
        curves=curves_of(report.progress.get("batches") or ()),
        size=(WIDTH, HEIGHT),
        described=None if described is None else json.dumps(plain(described), indent=2, ensure_ascii=False),
    )


def explained(error: str) -> Explained:
    """Return an error with the lines of Spark's plan apart."""
    lines = [line for line in error.splitlines() if line.strip()]
    is_plan = [bool(PLAN_LINE.match(line)) for line in lines]
    for place in range(1, len(lines)):
        is_root = is_plan[place] and not is_plan[place - 1] and PLAN_ROOT.match(lines[place - 1])
        is_plan[place - 1] = is_plan[place - 1] or bool(is_root and place > 1)
    plan = [line for line, of_plan in zip(lines, is_plan, strict=True) if of_plan]
    said = [line for line, of_plan in zip(lines, is_plan, strict=True) if not of_plan] or ["no text"]
    return Explained(said[0], "\n".join(said[1:]), "\n".join(plan))


def curves_of(points: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return a curve of each figure that is known of at least two points; ``points``: oldest first."""
    found = []
    for name in CURVES:
        known = [one for one in points if one.get(name) is not None]
        if len(known) > 1:
            found.append(_curve(name, known))
    return found


def _curve(name: str, points: Sequence[Mapping[str, Any]]) -> Curve:
    title, written = CURVES[name]
    most = max(one[name] for one in points)
    first_ms, last_ms = points[0]["at_ms"], points[-1]["at_ms"]
    scale = WIDTH / max(1, last_ms - first_ms)
    places = [round((one["at_ms"] - first_ms) * scale, 1) for one in points]
    heights = [round(HEIGHT * (1 - one[name] / (most or 1)), 1) for one in points]
    ends = [0.0, *((left + right) / 2 for left, right in zip(places, places[1:], strict=False)), float(WIDTH)]
    bars = [
        (round(left, 1), round(max(1.0, right - left), 1), f"{written(one[name])}: {_words(one)}")
        for one, left, right in zip(points, ends, ends[1:], strict=False)
    ]
    line = " ".join(f"{x},{y}" for x, y in zip(places, heights, strict=True))
    return Curve(f"{title}, up to {written(most)}", line, bars, first_ms, last_ms)


def _words(point: Mapping[str, Any]) -> str:
    return f"up to batch {point['batch']}, from {moment(point['at_ms'])}, {number(point['rows'])} rows"


ENDPOINTS = (
    shows("/ui/jobs", "jobs_page", get_jobs, args=JobsPage),
    shows("/ui/job", "job_page", get_job, args=OneJob),
)
