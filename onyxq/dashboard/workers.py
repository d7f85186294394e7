"""Workers: who holds claims now."""

from __future__ import annotations

from starlette.responses import Response

from onyxq.dashboard.rendering import page
from onyxq.dashboard.showing import shows
from onyxq.http.endpoint import Call


async def get_workers(call: Call) -> Response:
    """All that hold a claim."""
    found = await call.ask("workers")
    return page(call, "workers.html", title="Workers", here="/ui/workers", found=found)


ENDPOINTS = (shows("/ui/workers", "workers_page", get_workers),)
