"""Dead letters: tasks that failed for good, to be requeued or discarded, some or all."""

from __future__ import annotations

from starlette.responses import Response

from onyxq.interfaces.dashboard.page import AFTER, ROWS, filter_field, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call


async def get_dead(call: Call) -> Response:
    """A page of them."""
    queue, where = call.query.get("queue") or None, call.query.get("where") or None
    found = await call.ask("dead", queue=queue, where=where, after=call.query.get("after"), limit=ROWS)
    return page(
        call,
        "dead.html",
        title="Dead letters",
        here="/ui/dead",
        tasks=found["tasks"],
        after=found["after"],
        is_first="after" not in call.query,
        queue=queue or "",
        where=where or "",
    )


ENDPOINTS = (
    shows(
        "/ui/dead",
        "dead_page",
        get_dead,
        query={
            "queue": filter_field("Only of this queue."),
            "where": filter_field("Only with this text in the error."),
            "after": AFTER,
        },
    ),
)
