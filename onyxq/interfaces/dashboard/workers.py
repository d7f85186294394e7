"""The page of workers that hold claims or wait for tasks."""

from __future__ import annotations

from starlette.responses import Response

from onyxq.interfaces.dashboard.page import shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call


async def get_workers(call: Call) -> Response:
    """Return the page."""
    found = await call.ask("workers")
    return page(call, "workers.html", title="Workers", here="/ui/workers", found=found)


ENDPOINTS = (shows("/ui/workers", "workers_page", get_workers),)
