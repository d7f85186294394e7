"""The first page: health, rates of tasks, and the fullest queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from onyxq.core.errors import OnyxqError
from onyxq.interfaces.dashboard.page import COUNT_WAIT_MS, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.dashboard.session import refused
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.values import answer
from onyxq.operations.table.queue import PAGE_QUEUES, PageQueues

FULLEST = 10


async def get_overview(call: Call) -> Response:
    """Answer with the page."""
    found: dict[str, Any] = {}
    troubles: list[OnyxqError] = []
    fullest = PageQueues(order="unfinished", limit=FULLEST, wait_ms=COUNT_WAIT_MS)
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        "cluster": lambda: call.ask("cluster"),
        "health": lambda: call.ask("health"),
        "queues": lambda: call.do(PAGE_QUEUES, fullest),
    }
    for name, ask in asked.items():
        try:
            found[name] = await ask()
        except OnyxqError as error:
            troubles.append(error)
    return page(
        call,
        "overview.html",
        title="Overview",
        here="/",
        cluster=found.get("cluster"),
        health=found.get("health"),
        queues=found.get("queues"),
        troubles=troubles,
    )


async def get_rates(call: Call) -> Response:
    """Answer with sums that only grow, and with times that tasks waited and ran, for the curves."""
    return answer({**await call.ask("rates"), "at_ms": call.kit.now_ms()})


ENDPOINTS = (
    shows("/", "overview", get_overview),
    Endpoint(
        method="GET",
        path="/ui/rates",
        name="rates",
        tag="pages",
        summary="Sums for the curves of the overview",
        handle=get_rates,
        answer={"type": "object"},
        page=True,
        tell=refused,
    ),
)
