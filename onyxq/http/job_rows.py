"""Jobs on the status page: who drives each, how it gets on, what it waits for or failed with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from onyxq.http.pages import Html, table
from onyxq.jobs.lifetime import ENDED
from onyxq.words import brief, moment

ENDED_MAX = 20
"""Ended jobs that are shown, the latest."""
HEADS = (
    "job",
    "state",
    "driver",
    "slots",
    "batch",
    "rows/s",
    "watermark (UTC)",
    "late",
    "state kept",
    "since (UTC)",
    "why or error",
)


def jobs_table(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Jobs under way, then those that ended last, as HTML."""
    if not jobs:
        return "<p>none</p>"
    going = [job for job in jobs if job["state"] not in ENDED]
    ended = sorted((job for job in jobs if job["state"] in ENDED), key=lambda job: -(job["ended_ms"] or 0))
    more = len(ended) - ENDED_MAX
    left = f"<p class=dim>{more} more have ended: <code>onyxq job list</code></p>" if more > 0 else ""
    return table(HEADS, [_row(job) for job in [*going, *ended[:ENDED_MAX]]]) + left


def _row(job: Mapping[str, Any]) -> tuple[Any, ...]:
    told = job.get("progress") or {}
    ended = job["state"] in ENDED
    mark = told.get("watermark_ms")
    return (
        job["id"],
        _state(job, told),
        job.get("driver"),
        None if ended else _slots(job),
        told.get("batch", job.get("batch")),
        told.get("rows_per_s"),
        None if mark is None else _second(mark),
        told.get("late"),
        _kept(told),
        _second(job["ended_ms"] if ended and job["ended_ms"] is not None else job["submitted_ms"]),
        _said(job.get("why") or job.get("error") or told.get("error") or ""),
    )


def _second(ms: int) -> str:
    """A time, UTC, to the second."""
    return moment(ms).partition(".")[0]


def _state(job: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    if job["state"] != "running":
        return str(job["state"])
    if told.get("state") == "pausing":
        return f"running, to be started again after {told.get('failures')} failures"
    return "running" if job.get("ready") else "running, being started"


def _slots(job: Mapping[str, Any]) -> str:
    most = job.get("max_slots")
    return f"{job.get('slots')} ({job.get('min_slots')} to {most if most else 'any'})"


def _kept(told: Mapping[str, Any]) -> str | None:
    rows, size = told.get("state_rows"), told.get("state_bytes")
    if not rows:
        return None
    return f"{rows} rows, {_size(int(size or 0))}"


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.3g} {unit}"


def _said(text: str) -> Any:
    """A long text folds away behind its beginning."""
    head = brief(text.partition("\n")[0], 70)
    if head == text:
        return text
    return Html(f"<details><summary>{escape(head)}</summary><pre>{escape(text)}</pre></details>")
