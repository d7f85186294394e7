"""Timers in the order of their due times."""

from __future__ import annotations

from typing import get_args

from starlette.responses import Response

from onyxq.core.errors import BadRequest
from onyxq.interfaces.dashboard.page import AFTER, ROWS, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call
from onyxq.interfaces.http.shapes import Field, Text
from onyxq.operations.table.timer import TimerState


async def get_timers(call: Call) -> Response:
    """A page of them."""
    state = call.query.get("state") or None
    if state is not None and state not in get_args(TimerState):
        raise BadRequest(f"state must be one of {', '.join(get_args(TimerState))}", field="state")
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
        states=get_args(TimerState),
    )


ENDPOINTS = (
    shows(
        "/ui/timers",
        "timers_page",
        get_timers,
        query={"state": Field(Text(0, 20), doc="Only in this state."), "after": AFTER},
    ),
)
