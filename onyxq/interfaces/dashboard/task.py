"""One task: its attempts, its progress, its data, and its history."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import anyio.to_thread
from attrs import frozen
from starlette.responses import RedirectResponse, Response

from onyxq.core.ids import partition_of
from onyxq.core.limits import FLOWS_QUEUE, TIMERS_QUEUE, TaskIdBytes
from onyxq.history import words
from onyxq.history.explain import from_log, from_store, lines, merged
from onyxq.interfaces.dashboard.calls import title
from onyxq.interfaces.dashboard.flows import flow_of
from onyxq.interfaces.dashboard.page import PageArgs, shows
from onyxq.interfaces.dashboard.rendering import HEADERS, link, page, rendered
from onyxq.interfaces.dashboard.tasks import UNFINISHED
from onyxq.interfaces.dashboard.timers import edited
from onyxq.interfaces.http.endpoint import Call

READ_AT_ONCE = 2_000
"""Most records of a log that a task's page reads without a click."""
EDITED_BYTES_MAX = 64 * 1024
"""Largest data that can be edited on the page."""
UPDATES_SHOWN = 3
"""First and last updates that are shown at once; those between are folded."""


class OneTask(PageArgs, kw_only=True):
    """One task."""

    id: TaskIdBytes


@frozen
class Progress:
    """The latest progress that a task's function reported."""

    done: float
    total: float | None
    note: str
    at_ms: int

    @property
    def percent(self) -> int | None:
        """How much is done; None: the function reported no total."""
        return round(100 * min(1, max(0, self.done / self.total))) if self.total else None


def progress_of(updates: Sequence[Mapping[str, Any]]) -> Progress | None:
    """Return the latest progress among the updates of a task; None if it reported none."""
    for update in reversed(updates):
        try:
            said = json.loads(update["data"])["progress"]
            total = said["total"]
            return Progress(
                float(said["done"]), None if total is None else float(total), str(said["note"]), update["at_ms"]
            )
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
            continue
    return None


@frozen
class Bar:
    """A part of the drawing of a task's life; the whole is `WIDTH` wide."""

    x: float
    width: float
    kind: str
    """``wait``, or how the attempt ended."""
    words: str


WIDTH = 1_000
BAR_WIDTH_MIN = 4
"""Narrowest attempt of the drawing, so that it can be seen."""


def drawn(task: Mapping[str, Any], now_ms: int) -> list[Bar]:
    """Return the attempts of a task, and the waits before them, from its due time to its end or to now."""
    claims = [one for one in task["claims"] if one["start_ms"] is not None]
    if not claims:
        return []
    begin = min(task["created_ms"], claims[0]["start_ms"])
    end = max(task["finished_ms"] or now_ms, claims[-1]["end_ms"] or 0, claims[-1]["start_ms"])
    scale = WIDTH / max(1, end - begin)
    bars, at_ms = [], begin
    for one in claims:
        until_ms = one["end_ms"] or end
        if one["start_ms"] > at_ms:
            waited = one["start_ms"] - at_ms
            bars.append(Bar((at_ms - begin) * scale, waited * scale, "wait", f"waited {words.duration(waited)}"))
        x, width = (one["start_ms"] - begin) * scale, (until_ms - one["start_ms"]) * scale
        said = f"attempt {one['attempt']}: {words.ending(one)}, {words.duration(max(0, until_ms - one['start_ms']))}"
        x = min(x, WIDTH - BAR_WIDTH_MIN)
        bars.append(Bar(x, max(width, BAR_WIDTH_MIN), one["outcome"] or "running", said))
        at_ms = until_ms
    return [Bar(round(one.x, 1), round(one.width, 1), one.kind, one.words) for one in bars]


def _text(data: bytes) -> str | None:
    """Return data for a text field; None if it is binary, or too long to edit."""
    if len(data) > EDITED_BYTES_MAX:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _copied(data: bytes) -> str | None:
    """Return data for a form that enqueues it again; None if it is too long for one."""
    return base64.b64encode(data).decode() if len(data) <= EDITED_BYTES_MAX else None


async def get_task(call: Call) -> Response:
    """Answer with one task and its history from the store; the page then reads a short log too.

    A flow has the id of its record. So the id of a flow, wherever it is typed in, leads to the flow's page.
    """
    task_id: bytes = call.args.id
    known = await call.ask("task_history", id=task_id)
    position = int((await call.ask("health"))["position"])
    task = known["task"]
    if task["queue"] == FLOWS_QUEUE:
        there = link("/ui/flow", id=task_id.hex())
        return RedirectResponse(there, status_code=303, headers=dict(HEADERS))
    name = title(task)
    is_timer = task["queue"] == TIMERS_QUEUE
    return page(
        call,
        "task.html",
        title=name.text,
        here="/ui/timers" if is_timer else "/ui/tasks",
        task=task,
        name=name,
        bars=drawn(task, call.kit.now_ms()),
        width=WIDTH,
        progress=progress_of(known["updates"]),
        is_open=task["state"] in UNFINISHED,
        is_timer=is_timer,
        timer=edited(task, call.kit.now_ms()),
        editable=None if is_timer else _text(task["data"]),
        again=None if is_timer else _copied(task["data"]),
        partition=partition_of(task_id),
        updates=known["updates"],
        shown_updates=UPDATES_SHOWN,
        story=lines(merged(from_store(task_id, known))),
        since=None,
        flow=await flow_of(call, task),
        reads_log=call.kit.past.records_to(position) <= READ_AT_ONCE,
    )


async def get_story(call: Call) -> Response:
    """Answer with the history from the store and from the whole log, for the page above, or as a page."""
    task_id: bytes = call.args.id
    known = await call.ask("task_history", id=task_id)
    dump = await call.kit.past.dump(call.api.call)
    events = await anyio.to_thread.run_sync(from_log, dump, task_id, 1 << 62)
    values = {
        "task": known["task"],
        "story": lines(merged([*from_store(task_id, known), *events])),
        "since": dump.start.position + 1,
        "reads_log": False,
    }
    if "hx-request" in call.headers:
        return rendered("story.html", **values)
    return page(call, "story_page.html", title="History of a task", here="/ui/tasks", **values)


ENDPOINTS = (
    shows("/ui/tasks/{id}", "task_page", get_task, args=OneTask),
    shows("/ui/tasks/{id}/story", "task_story", get_story, args=OneTask, waits=True),
)
