"""The first page: health, rates of tasks, and the fullest queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from onyxq.core.errors import OnyxqError
from onyxq.interfaces.dashboard.page import COUNT_WAIT_MS, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.dashboard.session import refused
from onyxq.interfaces.dashboard.tasks import rows
from onyxq.interfaces.http.endpoint import Call, Endpoint, Handler
from onyxq.interfaces.http.values import answer
from onyxq.operations.table.queue import PAGE_QUEUES, PageQueues

FULLEST = 10
FAILURES = 3
"""Failed tasks on the page."""
LATE_MS = 60_000
"""Wait of a ready task above which the page warns, in milliseconds."""


async def get_overview(call: Call) -> Response:
    """Answer with the page."""
    found: dict[str, Any] = {}
    troubles: list[OnyxqError] = []
    fullest = PageQueues(order="unfinished", limit=FULLEST, wait_ms=COUNT_WAIT_MS)
    oldest = PageQueues(order="oldest", limit=1, wait_ms=0)
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        "cluster": lambda: call.ask("cluster"),
        "health": lambda: call.ask("health"),
        "queues": lambda: call.do(PAGE_QUEUES, fullest),
        "oldest": lambda: call.do(PAGE_QUEUES, oldest),
        "failures": lambda: call.ask("list", state="failed", limit=FAILURES, newest_first=True),
    }
    for name, ask in asked.items():
        try:
            found[name] = await ask()
        except OnyxqError as error:
            troubles.append(error)
    waits = [queue.oldest_ready_ms for queue in found["oldest"].queues] if "oldest" in found else []
    return page(
        call,
        "overview.html",
        title="Overview",
        here="/",
        cluster=found.get("cluster"),
        health=found.get("health"),
        queues=found.get("queues"),
        late_ms=waits[0] if waits else None,
        late_limit_ms=LATE_MS,
        failures=rows(found["failures"]["tasks"]) if "failures" in found else [],
        troubles=list({error.message: error for error in troubles}.values()),
    )


async def get_rates(call: Call) -> Response:
    """Answer with sums that only grow, and with times that tasks waited and ran, for the curves."""
    return answer({**await call.ask("rates"), "at_ms": call.kit.now_ms()})


async def get_history(call: Call) -> Response:
    """Answer with the minutes of the last 24 hours, for the curves."""
    return answer(await call.ask("rates.history"))


def _data(path: str, name: str, summary: str, handle: Handler) -> Endpoint:
    """Return the endpoint of data that a script of the page fetches."""
    return Endpoint(
        method="GET",
        path=path,
        name=name,
        tag="pages",
        summary=summary,
        handle=handle,
        answer={"type": "object"},
        page=True,
        tell=refused,
    )


ENDPOINTS = (
    shows("/", "overview", get_overview),
    _data("/ui/rates", "rates", "Sums for the present rates of the overview", get_rates),
    _data("/ui/rates/history", "rate_history", "Minutes for the curves of the overview", get_history),
)
