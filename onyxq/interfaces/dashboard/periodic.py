"""Periodic tasks."""

from __future__ import annotations

from starlette.responses import Response

from onyxq.interfaces.dashboard.page import shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call
from onyxq.operations.table.periodic import LIST_PERIODIC, ListPeriodic


async def get_periodic(call: Call) -> Response:
    """Answer with all periodic tasks."""
    found = await call.do(LIST_PERIODIC, ListPeriodic())
    return page(call, "periodic.html", title="Periodic tasks", here="/ui/periodic", periodic=found.periodic)


ENDPOINTS = (shows("/ui/periodic", "periodic_page", get_periodic),)
