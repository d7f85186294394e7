"""All queues a page at a time, and one of them with its settings."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from onyxq.core import queues
from onyxq.interfaces.dashboard.page import COUNT_WAIT_MS, ROWS, filter_field, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call
from onyxq.interfaces.http.routes.queues import SETTINGS
from onyxq.interfaces.http.shapes import Field, Integer, Text

STATES = ("ready", "scheduled", "waiting", "claimed", "completed", "failed", "cancelled")
ORDERS = {"name": "name", "unfinished": "most unfinished", "failed": "most failed", "oldest": "longest wait"}


async def get_queues(call: Call) -> Response:
    """Those whose names hold a text, in some order."""
    like, order, skip = call.query.get("like", ""), call.query.get("order") or "name", call.query.get("skip", 0)
    found = await call.ask("queues.page", like=like, order=order, skip=skip, limit=ROWS, wait_ms=COUNT_WAIT_MS)
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
    found = await call.ask("queue.get", queue=name)
    settings = [
        {
            "name": one,
            "value": found["settings"][one],
            "shown": _in_form(found["settings"][one]),
            "default": getattr(queues.DEFAULTS, one),
            "about": SETTINGS.fields[one].doc,
            "schema": SETTINGS.fields[one].shape.schema(),
        }
        for one in queues.SETTINGS
        if one != "paused"
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
