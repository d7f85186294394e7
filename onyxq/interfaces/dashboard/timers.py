"""The page of timers, by due time."""

from __future__ import annotations

from typing import get_args

from starlette.responses import Response

from onyxq.interfaces.dashboard.page import ROWS, After, Filter, PageArgs, filtered, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call
from onyxq.operations.table.timer import TimerState


class TimersPage(PageArgs):
    """Timers of a state."""

    state: Filter = ""
    after: After = None


async def get_timers(call: Call) -> Response:
    """Answer with a page of timers."""
    args: TimersPage = call.args
    state = filtered(args.state, TimerState)
    found = await call.ask("timer.list", state=state, after=args.after, limit=ROWS)
    return page(
        call,
        "timers.html",
        title="Timers",
        here="/ui/timers",
        timers=found["timers"],
        after=found["after"],
        is_first=args.after is None,
        state=state or "",
        states=get_args(TimerState),
    )


ENDPOINTS = (shows("/ui/timers", "timers_page", get_timers, args=TimersPage),)
