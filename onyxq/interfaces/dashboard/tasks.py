"""The list of tasks: tabs by state, a search, and actions on the chosen ones.

An action on several tasks has a page between: it shows which tasks the action will change, and how many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

import anyio
from attrs import frozen
from starlette.responses import RedirectResponse, Response

from onyxq.core.errors import BadRequest
from onyxq.core.ids import ID_BYTES
from onyxq.core.limits import FLOWS_QUEUE
from onyxq.history import words
from onyxq.interfaces.dashboard.actions import Form, list_of, one
from onyxq.interfaces.dashboard.calls import title
from onyxq.interfaces.dashboard.page import COUNT_WAIT_MS, ROWS, After, Filter, PageArgs, shows
from onyxq.interfaces.dashboard.rendering import HEADERS, Tab, link, page
from onyxq.interfaces.dashboard.session import refused
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.operations.table.queue import GET_QUEUE, PAGE_QUEUES, GetQueue, PageQueues
from onyxq.operations.table.task import State

STATES: tuple[str, ...] = get_args(State)
UNFINISHED = ("scheduled", "waiting", "ready", "claimed")
CHOSEN_MAX = 5_000
"""Most tasks that one action changes: their ids must fit in a form."""
CHOSEN_PAGE = 1_000
CHOOSE_S = 3.0
"""Longest search for all tasks of an action, in seconds."""
ERROR_CHARS = 160
"""Most characters of an error that is counted before an action."""
KINDS_MAX = 5
"""Most queues, functions and errors that are shown before an action."""
SEARCH_FIELDS = ("queue", "state", "where", "since", "until")


class TasksPage(PageArgs):
    """Tasks of a queue, a state and a time, with a text; or the id of a task to go to."""

    queue: Filter = ""
    state: Filter = ""
    where: Filter = ""
    since: Filter = ""
    until: Filter = ""
    id: Filter = ""
    after: After = None


class DeadPage(PageArgs):
    """Dead letters of a queue, or with a text."""

    queue: Filter = ""
    where: Filter = ""


@frozen
class Search:
    """Limits of a list of tasks; empty: no limit."""

    queue: str
    state: str
    where: str
    since: str
    until: str

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Search:
        """Return the search in the fields of a form or an address; raises `BadRequest`."""
        found = cls(**{name: fields.get(name, "").strip() for name in SEARCH_FIELDS})
        if found.state and found.state not in STATES:
            raise BadRequest(f"state must be one of {', '.join(STATES)}", field="state")
        return found

    def fields(self, **other: Any) -> dict[str, Any]:
        """Return the fields for an address, some of them changed."""
        return {name: getattr(self, name) for name in SEARCH_FIELDS} | other

    def asked(self) -> dict[str, Any]:
        """Return the arguments of the operation that lists tasks."""
        return {
            "queue": self.queue or None,
            "state": self.state or None,
            "where": self.where or None,
            "since_ms": _ms(self.since, "since"),
            "until_ms": _ms(self.until, "until"),
            "newest_first": True,
        }


def _ms(text: str, field: str) -> int | None:
    """Return a time of a form, which is UTC, in ms since the epoch."""
    if not text:
        return None
    try:
        return max(0, round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise BadRequest(f"a time looks like 2031-05-01T12:00, not {words.brief(text, 40)!r}", field=field) from None


async def get_tasks(call: Call) -> Response:
    """Answer with a page of tasks, the newest first."""
    args: TasksPage = call.args
    if wanted := args.id.strip():
        return _at_task(wanted)
    search = Search.of({name: getattr(args, name) for name in SEARCH_FIELDS})
    found = await call.ask("list", **search.asked(), after=args.after, limit=ROWS)
    return page(
        call,
        "tasks.html",
        title="Failed tasks" if search.state == "failed" else "Tasks",
        here="/ui/tasks?state=failed" if search.state == "failed" else "/ui/tasks",
        tasks=rows(found["tasks"]),
        after=found["after"],
        is_first=args.after is None,
        search=search,
        tabs=await _tabs(call, search),
    )


def rows(tasks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tasks with their titles."""
    return [{**task, "title": title(task)} for task in tasks]


async def get_dead(call: Call) -> Response:
    """Redirect to the failed tasks."""
    there = link("/ui/tasks", state="failed", queue=call.args.queue, where=call.args.where)
    return RedirectResponse(there, status_code=303, headers=dict(HEADERS))


def _at_task(wanted: str) -> Response:
    if len(wanted) != 2 * ID_BYTES or any(sign not in "0123456789abcdefABCDEF" for sign in wanted):
        raise BadRequest(f"an id is {2 * ID_BYTES} hex digits, not {wanted[:60]!r}", field="id")
    return RedirectResponse(f"/ui/tasks/{wanted.lower()}", status_code=303, headers=dict(HEADERS))


async def _tabs(call: Call, search: Search) -> list[Tab]:
    """Return a tab for all tasks and for each state."""
    counts = await counts_of(call, search.queue) or {}
    return [
        Tab(
            state or "all",
            link("/ui/tasks", **search.fields(state=state)),
            counts.get(state or "total"),
            is_current=state == search.state,
        )
        for state in ("", *STATES)
    ]


async def counts_of(call: Call, queue: str) -> Mapping[str, int] | None:
    """Return the number of tasks by state, of a queue or of all; None while they are counted."""
    if queue:
        depth = (await call.do(GET_QUEUE, GetQueue(queue=queue))).depth
        return {name: getattr(depth, name) for name in (*STATES, "total")}
    return (await call.do(PAGE_QUEUES, PageQueues(limit=1, wait_ms=COUNT_WAIT_MS))).sums


# --- actions on several tasks


@frozen
class Act:
    """An action on several tasks."""

    verb: str
    states: tuple[str, ...]
    """States of the tasks that it can change."""
    about: str
    is_dangerous: bool = False


ACTS: Mapping[str, Act] = {
    "requeue": Act("Requeue", ("failed",), "They are due at once, with all their retries."),
    "cancel": Act("Cancel", UNFINISHED, "They will not run. A worker that runs one of them is notified.", True),
    "discard": Act(
        "Discard", ("failed",), "They are cancelled for good, and an ordering key that they stopped continues.", True
    ),
}


@frozen
class Chosen:
    """What the page shows of a task. It holds no data: thousands of tasks may be chosen."""

    id: bytes
    state: str
    queue: str
    function: str
    error: str

    @classmethod
    def of(cls, task: Mapping[str, Any]) -> Chosen:
        """Return what is shown of a task."""
        error = words.brief(task["error"], ERROR_CHARS) if task["error"] else ""
        return cls(task["id"], task["state"], task["queue"], title(task).kind, error)


async def post_chosen(call: Call) -> Response:
    """Answer with the tasks that an action will change, and ask."""
    form: Form = call.body
    name = one(form, "action")
    if name not in ACTS:
        raise BadRequest(f"action must be one of {', '.join(ACTS)}", field="action")
    act, search = ACTS[name], Search.of({field: one(form, field, "") for field in SEARCH_FIELDS})
    if one(form, "which", "ticked") == "ticked":
        chosen, has_more = await _ticked(call, form), False
    else:
        chosen, has_more = await _matching(call, search, act)
    # The record of a flow would fail again because of the tasks that failed: the flow's page requeues those too.
    is_alone = name == "requeue" and one(form, "which", "ticked") == "ticked"
    flows = [task for task in chosen if is_alone and task.queue == FLOWS_QUEUE and task.state in act.states]
    chosen = [task for task in chosen if task not in flows]
    tasks = [task for task in chosen if task.state in act.states][:CHOSEN_MAX]
    return page(
        call,
        "chosen.html",
        title=f"{act.verb} tasks",
        here="/ui/tasks",
        name=name,
        act=act,
        ids=" ".join(task.id.hex() for task in tasks),
        count=len(tasks),
        unfit=len(chosen) - len(tasks),
        flows=flows,
        has_more=has_more,
        kinds=_kinds(tasks),
        search=search,
        back=list_of(search.fields()),
    )


async def _ticked(call: Call, form: Form) -> list[Chosen]:
    ids = form.get("id", [])
    if not ids:
        raise BadRequest("no task is ticked", field="id", hint="Go back and tick tasks, or choose all.")
    if len(ids) > 2 * ROWS or any(not _is_id(one_id) for one_id in ids):
        raise BadRequest(f"id must be the ids of at most {2 * ROWS} tasks", field="id")
    return [Chosen.of(await call.ask("get", id=bytes.fromhex(one_id))) for one_id in ids]


def _is_id(text: str) -> bool:
    return len(text) == 2 * ID_BYTES and all(sign in "0123456789abcdef" for sign in text)


async def _matching(call: Call, search: Search, act: Act) -> tuple[list[Chosen], bool]:
    """Return the tasks of a search that an action can change, and whether there may be more."""
    asked = search.asked()
    if asked["state"] is None and len(act.states) == 1:
        asked["state"] = act.states[0]
    found: list[Chosen] = []
    after, until = None, anyio.current_time() + CHOOSE_S
    while len(found) < CHOSEN_MAX and anyio.current_time() < until:
        listed = await call.ask("list", **asked, after=after, limit=CHOSEN_PAGE)
        found += [Chosen.of(task) for task in listed["tasks"] if task["state"] in act.states]
        after = listed["after"]
        if after is None:
            return found, False
    return found, True


def _kinds(tasks: Sequence[Chosen]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return the most frequent queues, functions and errors of tasks, with their numbers."""
    values = {
        "queue": Counter(task.queue for task in tasks),
        "function": Counter(task.function for task in tasks),
        "error": Counter(task.error for task in tasks if task.error),
    }
    return [(name, counts.most_common(KINDS_MAX)) for name, counts in values.items() if counts]


ENDPOINTS = (
    shows("/ui/tasks", "tasks_page", get_tasks, args=TasksPage),
    shows("/ui/dead", "dead_page", get_dead, args=DeadPage),
    Endpoint(
        method="POST",
        path="/ui/chosen",
        name="chosen_page",
        tag="pages",
        summary="The page between the choice of tasks and an action on them",
        handle=post_chosen,
        answer={"type": "string"},
        media="text/html",
        page=True,
        tell=refused,
    ),
)
