"""Timers in the order of their due times."""

from __future__ import annotations

from starlette.responses import Response

from onyxq.core.errors import BadRequest
from onyxq.interfaces.dashboard.page import AFTER, ROWS, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call
from onyxq.interfaces.http.routes.timers import STATES
from onyxq.interfaces.http.shapes import Field, Text


async def get_timers(call: Call) -> Response:
    """A page of them."""
    state = call.query.get("state") or None
    if state is not None and state not in STATES:
        raise BadRequest(f"state must be one of {', '.join(STATES)}", field="state")
    found = await call.ask("timer.list", state=state, after=call.query.get("after"), limit=ROWS)
    return page(
        call,
        "timers.html",
        title="Timers",
        here="/ui/timers",
        timers=found["timers"],
        after=found["after"],
        is_first="after" not in call.query,
        state=state or "",
        states=STATES,
    )


ENDPOINTS = (
    shows(
        "/ui/timers",
        "timers_page",
        get_timers,
        query={"state": Field(Text(0, 20), doc="Only in this state."), "after": AFTER},
    ),
)
