"""Tasks with filters, and one task with its story."""

from __future__ import annotations

from typing import get_args

import anyio.to_thread
from starlette.responses import RedirectResponse, Response

from onyxq.core.errors import BadRequest
from onyxq.core.ids import partition_of
from onyxq.core.limits import TaskIdBytes
from onyxq.history.explain import from_log, from_store, merged
from onyxq.interfaces.dashboard.page import ROWS, After, Filter, PageArgs, shows
from onyxq.interfaces.dashboard.rendering import HEADERS, page, rendered
from onyxq.interfaces.http.endpoint import Call
from onyxq.operations.table.task import State

READ_AT_ONCE = 2_000
"""Most records of a log that a task's page reads without a click."""


class TasksPage(PageArgs):
    """Tasks of a queue or state, or the task to go to."""

    queue: Filter = ""
    state: Filter = ""
    id: Filter = ""
    after: After = None


class OneTask(PageArgs, kw_only=True):
    """One task."""

    id: TaskIdBytes


async def get_tasks(call: Call) -> Response:
    """Answer with a page of tasks in the order of their ids."""
    args: TasksPage = call.args
    if wanted := args.id.strip():
        return _found(wanted)
    queue, state = args.queue or None, args.state or None
    if state is not None and state not in get_args(State):
        raise BadRequest(f"state must be one of {', '.join(get_args(State))}", field="state")
    found = await call.ask("list", queue=queue, state=state, after=args.after, limit=ROWS)
    return page(
        call,
        "tasks.html",
        title="Tasks",
        here="/ui/tasks",
        tasks=found["tasks"],
        after=found["after"],
        is_first=args.after is None,
        queue=queue or "",
        state=state or "",
        states=get_args(State),
    )


def _found(wanted: str) -> Response:
    if len(wanted) != 40 or any(sign not in "0123456789abcdefABCDEF" for sign in wanted):
        raise BadRequest(f"an id is 40 hex digits, not {wanted[:60]!r}", field="id")
    return RedirectResponse(f"/ui/tasks/{wanted.lower()}", status_code=303, headers=dict(HEADERS))


async def get_task(call: Call) -> Response:
    """Answer with one task and its story from the store; the page then reads a short log too."""
    task_id: bytes = call.args.id
    known = await call.ask("task_history", id=task_id)
    position = int((await call.ask("health"))["position"])
    return page(
        call,
        "task.html",
        title=f"Task {task_id.hex()[:16]}…",
        here="/ui/tasks",
        task=known["task"],
        partition=partition_of(task_id),
        updates=known["updates"],
        story=merged(from_store(task_id, known)),
        since=None,
        reads_log=call.kit.past.records_to(position) <= READ_AT_ONCE,
    )


async def get_story(call: Call) -> Response:
    """Answer with the story from the store and from the whole log, for the page above, or as a page."""
    task_id: bytes = call.args.id
    known = await call.ask("task_history", id=task_id)
    dump = await call.kit.past.dump(call.api.call)
    events = await anyio.to_thread.run_sync(from_log, dump, task_id, 1 << 62)
    values = {
        "task": known["task"],
        "story": merged([*from_store(task_id, known), *events]),
        "since": dump.start.position + 1,
        "reads_log": False,
    }
    if "hx-request" in call.headers:
        return rendered("story.html", **values)
    return page(call, "story_page.html", title="History of a task", here="/ui/tasks", **values)


ENDPOINTS = (
    shows("/ui/tasks", "tasks_page", get_tasks, args=TasksPage),
    shows("/ui/tasks/{id}", "task_page", get_task, args=OneTask),
    shows("/ui/tasks/{id}/story", "task_story", get_story, args=OneTask, waits=True),
)
