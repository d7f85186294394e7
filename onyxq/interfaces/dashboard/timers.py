"""The page of timers and of callbacks of tasks: what is due next, and how the last delivery ended.

A timer is a task of its own queue. So its page is that of its task, and its list is a search among tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta
from starlette.responses import RedirectResponse, Response

from onyxq.core.errors import BadRequest, NotFound
from onyxq.core.limits import TIMERS_QUEUE, TimeMs
from onyxq.interfaces.dashboard.page import ROWS, After, Filter, PageArgs, filtered, shows
from onyxq.interfaces.dashboard.rendering import HEADERS, Tab, link, page
from onyxq.interfaces.dashboard.tasks import Search, counts_of, rows
from onyxq.interfaces.http.endpoint import Call
from onyxq.operations.table.timer import GET_TIMER, GetTimer, TimerId, TimerState
from onyxq.operations.timers import STATES as NAMES
from onyxq.operations.timers import shown

DUE_NEXT = ("claimed", "ready", "scheduled")
"""States of the timers of the first tab."""
TABS = ("", *(state for state in get_args(TimerState) if state not in DUE_NEXT))
SHORTENED = ("claimed", "ready")
"""The first tab has at most `SHORT_ROWS` timers of each of these states. Each state has a list of its own."""
SHORT_ROWS = ROWS // 2


class TimersPage(PageArgs):
    """Timers of a state, or with a text."""

    state: Filter = ""
    where: Filter = ""
    after_ms: Annotated[TimeMs | None, Meta(description="Show what is due at this time and later.")] = None
    after: After = None


class OneTimer(PageArgs, kw_only=True):
    """One timer."""

    id: TimerId


async def get_timers(call: Call) -> Response:
    """Answer with a page of timers: those that are due next, or those of a state."""
    args: TimersPage = call.args
    state = filtered(args.state, TimerState) or ""
    state = "" if state == "scheduled" else state  # these are on the pages of the first tab
    of_tasks = next((name for name, said in NAMES.items() if said == state), state)
    search = Search.of({"queue": TIMERS_QUEUE, "state": of_tasks, "where": args.where})
    counts = await counts_of(call, TIMERS_QUEUE) or {}
    tasks, following = await _found(call, search, args, has_claims=bool(counts.get("claimed")))
    return page(
        call,
        "timers.html",
        title="Timers",
        here="/ui/timers",
        tasks=rows(tasks),
        following=None if following is None else link("/ui/timers", state=state, where=search.where, **following),
        is_first=args.after is None,
        search=search,
        state=state,
        shortened=[] if state else [name for name in SHORTENED if counts.get(name, 0) > SHORT_ROWS],
        short_rows=SHORT_ROWS,
        tabs=_tabs(counts, state, search.where),
    )


async def _found(
    call: Call, search: Search, args: TimersPage, *, has_claims: bool
) -> tuple[list[Any], dict[str, Any] | None]:
    """Return a page of tasks, and the fields of the address of the next one.

    Unfinished tasks are in the order of their due times; finished ones are the newest first.
    """
    if search.state:
        asked = search.asked() | {"newest_first": search.state not in SHORTENED}
        found = await call.ask("list", **asked, after=args.after, limit=ROWS)
        return found["tasks"], {"after": found["after"].hex()} if found["after"] else None
    wanted = {"queue": TIMERS_QUEUE, "where": search.where or None}
    running: list[Any] = []
    if args.after is None:
        running = await _named(call, search.where)
    if args.after is None and has_claims:
        running += (await call.ask("list", **wanted, state="claimed", limit=SHORT_ROWS))["tasks"]
    found = await call.ask("list.next", **wanted, after_ms=args.after_ms, after=args.after, limit=ROWS)
    following = {"after_ms": found["after_ms"], "after": found["after"].hex()} if found["after"] is not None else None
    tasks = {task["id"]: task for task in (*running, *found["ready"][:SHORT_ROWS], *found["later"])}
    return [*tasks.values()], following


async def _named(call: Call, text: str) -> list[Any]:
    """Return the task of the timer with this id, which a search need not look for; none if there is none."""
    try:
        asked = GET_TIMER.decode({"id": text})
        return [await call.ask("get", id=(await call.do(GET_TIMER, asked)).task)]
    except (BadRequest, NotFound):
        return []


def _tabs(counts: Mapping[str, int], state: str, where: str) -> list[Tab]:
    numbers = {NAMES.get(name, name): number for name, number in counts.items()}
    numbers[""] = sum(numbers.get(name, 0) for name in DUE_NEXT)
    return [
        Tab(
            name or "due next",
            link("/ui/timers", state=name, where=where),
            numbers.get(name),
            is_current=name == state,
        )
        for name in dict.fromkeys((*TABS, state))
    ]


def edited(task: Mapping[str, Any], now_ms: int) -> dict[str, Any] | None:
    """Return the fields of the form that sets a timer again; None if a task is not a timer."""
    if task["queue"] != TIMERS_QUEUE or task["unique_key"] is None:
        return None
    timer = shown(dict(task))
    if timer.callback is None:
        return None
    is_text = isinstance(timer.data, str)
    return {
        "id": timer.id,
        "callback": timer.callback,
        "timeout": f"{max(1, ceil((timer.at_ms - now_ms) / 1000))}s",
        "data": timer.data if is_text else "" if timer.data is None else _indented(timer.data),
        "format": "text" if is_text else "json",
    }


def _indented(data: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


async def get_timer(call: Call) -> Response:
    """Redirect to the task of a timer."""
    task = (await call.do(GET_TIMER, GetTimer(id=call.args.id))).task
    there = link(f"/ui/tasks/{task.hex()}", did=call.args.did)
    return RedirectResponse(there, status_code=303, headers=dict(HEADERS))


ENDPOINTS = (
    shows("/ui/timers", "timers_page", get_timers, args=TimersPage),
    shows("/ui/timer", "timer_page", get_timer, args=OneTimer),
)
