"""Jobs on the status page: how each gets on, what it waits for or failed with, and nothing that a text could break."""

from __future__ import annotations

import re
from typing import Any

from onyxq.errors import LogUnavailable
from onyxq.http.job_rows import ENDED_MAX, HEADS, jobs_table
from onyxq.http.status import status_page
from tests.interfaces.http_world import JOB_VIEW, on_trio, world

TOLD = {
    "state": "running",
    "batch": 7,
    "rows_per_s": 1234.5,
    "watermark_ms": 1_700_000_000_000,
    "late": 3,
    "state_rows": 40,
    "state_bytes": 3 << 20,
}


def job(name: str, **more: Any) -> dict[str, Any]:
    """A job as the peer shows it."""
    return {**JOB_VIEW, "id": name, **more}


def cells(html: str) -> dict[str, dict[str, str]]:
    """By job, what stands under each head."""
    rows = [
        re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in re.findall(r"<tr>(<td.*?)</tr>", html, re.DOTALL)
    ]
    return {row[0]: dict(zip(HEADS, row, strict=True)) for row in rows}


def test_a_running_job_shows_what_its_driver_tells() -> None:
    """Batch, rows, watermark, late segments and state."""
    shown = cells(jobs_table([job("j", state="running", ready=True, driver="p1", slots=2, progress=TOLD)]))["j"]
    assert (shown["state"], shown["driver"], shown["batch"], shown["rows/s"]) == ("running", "p1", "7", "1234.5")
    assert (shown["watermark (UTC)"], shown["late"]) == ("2023-11-14 22:13:20", "3")
    assert shown["state kept"] == "40 rows, 3 MiB"


def test_a_job_whose_driver_does_not_answer_shows_what_the_log_knows() -> None:
    """The last batch that was committed; a failure in between is told once the driver tells it."""
    silent = job("silent", state="running", ready=False, driver="p1", batch=4, progress=None)
    failing = job("failing", state="running", driver="p1", progress={"state": "pausing", "failures": 2, "error": "no"})
    shown = cells(jobs_table([silent, failing]))
    assert (shown["silent"]["batch"], shown["silent"]["rows/s"]) == ("4", "–")
    assert shown["silent"]["state"] == "running, being started"
    assert shown["failing"]["state"] == "running, to be started again after 2 failures"
    assert shown["failing"]["why or error"] == "no"


def test_reasons_and_errors_are_shown_and_escaped() -> None:
    """A long error folds away behind its first line; nothing of it is HTML."""
    waits = job("waits", state="waiting", driver=None, why="no peer offers the tag <gpu>", progress=None)
    error = "ValueError: <b>bad</b>\nTraceback:\n  File <x>"
    failed = job("failed", state="failed", error=error, ended_ms=1_700_000_000_000)
    html = jobs_table([waits, failed])
    assert "no peer offers the tag &lt;gpu&gt;" in html
    assert "<summary>ValueError: &lt;b&gt;bad&lt;/b&gt;</summary>" in html and "File &lt;x&gt;" in html
    assert "<b>" not in html and "<gpu>" not in html


def test_only_the_latest_ended_jobs_are_shown() -> None:
    """What runs always is; how many are left out is said."""
    ended = [job(f"e{place}", state="completed", ended_ms=1_000_000 + place) for place in range(ENDED_MAX + 5)]
    html = jobs_table([*ended, job("runs", state="running", ended_ms=None)])
    shown = list(cells(html))
    assert shown[0] == "runs" and shown[1] == f"e{ENDED_MAX + 4}" and len(shown) == ENDED_MAX + 1
    assert "5 more have ended" in html


@on_trio
async def test_the_page_asks_for_progress() -> None:
    """Of all jobs at once; without any it says so."""
    async with world() as (service, client):
        assert re.search(r"<h2>Jobs</h2><p>none</p>", (await client.get("/")).text)
        assert service.asked("job.list") == [{"progress": True}]
        service.jobs["<j>"] = job("<j>", state="running", progress=TOLD)
        assert "&lt;j&gt;" in (await client.get("/")).text
    page = status_page({"job.list": LogUnavailable("no <log>")})
    assert "<h2>Jobs</h2><p>no &lt;log&gt;" in page
