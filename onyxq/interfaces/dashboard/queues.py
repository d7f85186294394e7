"""All queues a page at a time, and one of them with its settings."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from onyxq.core.limits import members
from onyxq.core.queue_settings import DEFAULTS, SETTINGS
from onyxq.interfaces.dashboard.page import COUNT_WAIT_MS, ROWS, filter_field, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call
from onyxq.interfaces.http.shapes import Field, Integer, Text
from onyxq.operations.table.json_form import parameter
from onyxq.operations.table.queue import GET_QUEUE, PAGE_QUEUES, GetQueue, QueueSettings

STATES = ("ready", "scheduled", "waiting", "claimed", "completed", "failed", "cancelled")
ORDERS = {"name": "name", "unfinished": "most unfinished", "failed": "most failed", "oldest": "longest wait"}


async def get_queues(call: Call) -> Response:
    """Those whose names hold a text, in some order."""
    like, order, skip = call.query.get("like", ""), call.query.get("order") or "name", call.query.get("skip", 0)
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
    """One queue."""
    name = call.query["name"]
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
    """A setting as its field of the form holds it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


ENDPOINTS = (
    shows(
        "/ui/queues",
        "queues_page",
        get_queues,
        query={
            "like": filter_field("Only names with this text."),
            "order": filter_field("By what they are sorted."),
            "skip": Field(Integer(0, 1_000_000), doc="How many to leave out."),
        },
    ),
    shows("/ui/queue", "queue_page", get_queue, query={"name": Field(Text(), required=True, doc="Name of the queue.")}),
)
