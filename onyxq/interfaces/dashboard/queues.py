"""All queues page by page, and one queue with its settings."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta
from starlette.responses import Response

from onyxq.core.limits import Name, members
from onyxq.core.queue_settings import DEFAULTS, SETTINGS
from onyxq.interfaces.dashboard.page import COUNT_WAIT_MS, ROWS, Filter, PageArgs, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call
from onyxq.operations.table.json_form import parameter
from onyxq.operations.table.queue import GET_QUEUE, PAGE_QUEUES, GetQueue, QueueSettings

STATES = ("ready", "scheduled", "waiting", "claimed", "completed", "failed", "cancelled")
ORDERS = {"name": "name", "unfinished": "most unfinished", "failed": "most failed", "oldest": "longest wait"}


class QueuesPage(PageArgs):
    """Queues with a text in their name, in some order."""

    like: Filter = ""
    order: Filter = ""
    skip: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class OneQueue(PageArgs, kw_only=True):
    """One queue."""

    name: Name


async def get_queues(call: Call) -> Response:
    """Answer with queues that have a text in their name, in some order."""
    like, order, skip = call.args.like, call.args.order or "name", call.args.skip
    asked = {"like": like, "order": order, "skip": skip, "limit": ROWS, "wait_ms": COUNT_WAIT_MS}
    found = await call.do(PAGE_QUEUES, PAGE_QUEUES.decode(asked))
    return page(
        call,
        "queues.html",
        title="Queues",
        here="/ui/queues",
        found=found,
        like=like,
        order=order,
        orders=ORDERS,
        skip=skip,
        rows=ROWS,
        states=STATES,
    )


async def get_queue(call: Call) -> Response:
    """Answer with one queue."""
    name = call.args.name
    found = await call.do(GET_QUEUE, GetQueue(queue=name))
    settings = [
        {
            "name": one,
            "value": getattr(found.settings, one),
            "shown": _in_form(getattr(found.settings, one)),
            "default": getattr(DEFAULTS, one),
            "about": member.about,
            "schema": parameter(member),
        }
        for one, member in members(QueueSettings).items()
        if one in SETTINGS and one != "paused"
    ]
    return page(
        call,
        "queue.html",
        title=f"Queue {name}",
        here="/ui/queues",
        queue=found,
        settings=settings,
        states=STATES,
    )


def _in_form(value: Any) -> str:
    """Return a setting as its form field has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


ENDPOINTS = (
    shows("/ui/queues", "queues_page", get_queues, args=QueuesPage),
    shows("/ui/queue", "queue_page", get_queue, args=OneQueue),
)
