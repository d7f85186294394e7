"""All jobs, and one job with the report of its driver."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from onyxq.core.jobs.lifetime import ENDED
from onyxq.interfaces.dashboard.page import PageArgs, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call
from onyxq.interfaces.http.values import plain
from onyxq.operations.table.job import JobId

JOBS_MAX = 200


async def get_jobs(call: Call) -> Response:
    """Answer with unfinished jobs, then with ended ones, the latest first."""
    jobs = (await call.ask("job.list", progress=True))["jobs"]
    ended = sorted((job for job in jobs if job["state"] in ENDED), key=lambda job: -(job["ended_ms"] or 0))
    listed = [job for job in jobs if job["state"] not in ENDED] + ended
    return page(
        call, "jobs.html", title="Jobs", here="/ui/jobs", jobs=listed[:JOBS_MAX], left=max(0, len(listed) - JOBS_MAX)
    )


class OneJob(PageArgs, kw_only=True):
    """One job."""

    id: JobId


async def get_job(call: Call) -> Response:
    """Answer with one job."""
    job: dict[str, Any] = await call.ask("job.get", id=call.args.id)
    described = job.get("job")
    return page(
        call,
        "job.html",
        title=f"Job {job['id']}",
        here="/ui/jobs",
        job=job,
        has_ended=job["state"] in ENDED,
        described=None if described is None else json.dumps(plain(described), indent=2, ensure_ascii=False),
    )


ENDPOINTS = (
    shows("/ui/jobs", "jobs_page", get_jobs),
    shows("/ui/job", "job_page", get_job, args=OneJob),
)
