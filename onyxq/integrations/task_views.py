"""What web pages show of a task, its changes as server-sent events, and errors as answers (design: interfaces).

Every caller who knows an id may ask for it. So a page shows no data of the task, and only tasks in the queues of the
application. Answers to a browser contain no addresses and no texts of exceptions unless the program asks for them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
from attrs import frozen

from onyxq.client import Task
from onyxq.client.values import as_id
from onyxq.core.errors import ClusterMismatch, Forbidden, NotFound, OnyxqError, Overloaded, Unauthorized
from onyxq.core.ids import TaskId, ms_of
from onyxq.worker.app import App
from onyxq.worker.attempts import Progress, latest_progress, unpack

LOOK_S = 0.5
"""Pause between two reads of a task whose changes are sent, in seconds."""
SILENCE_S = 15.0
"""Time without a change after which a comment is sent, so that no proxy ends the connection."""
RECORDED_MS = 3_600_000
"""Age up to which a task that does not exist may still be in the outbox, in milliseconds."""

FINISHED = ("completed", "failed", "cancelled")
EVENT_STREAM = "text/event-stream"
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
PROBLEM_JSON = "application/problem+json"

log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """An answer of HTTP: status, JSON and headers."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


def problem(error: OnyxqError) -> Answer:
    """Return the answer for an error that a view raised.

    Mistakes of the caller are explained. If the queue itself is at fault, the log has the reason and the caller learns
    only when to try again.
    """
    ours = error.status >= 500 or isinstance(error, (Unauthorized, Forbidden, Overloaded, ClusterMismatch))
    if ours:
        log.error("%s (%s)", error.named(), error.advice)
        body = {"title": "Service unavailable", "status": 503, "detail": "The task queue is not available now."}
        wait_ms = error.retry_after_ms if isinstance(error, Overloaded) else 1_000
        return Answer(503, {**body, "code": error.code}, {"Retry-After": str(max(1, -(-wait_ms // 1_000)))})
    title = error.code.replace("_", " ").capitalize()
    body = {"title": title, "status": error.status, "detail": error.named(), "code": error.code}
    return Answer(error.status, body, {})


@frozen(kw_only=True)
class TaskViews:
    """Views of the tasks of an application."""

    app: App
    errors: bool = False
    """Whether the text of a failed task's error is shown."""
    outbox: bool = False
    """Whether ids come from an outbox: a new one that does not exist yet is shown in the state ``recorded``."""

    def view(self, id: str) -> dict[str, Any]:
        """Return a task as JSON; raise `BadRequest` for a malformed id, `NotFound` for a task of no function here."""
        return Watch(self, id).look()

    def shown(self, task: Task, progress: Progress | None) -> dict[str, Any]:
        """Return what a page shows of a task."""
        view: dict[str, Any] = {
            "id": task.id.hex(),
            "state": task.state,
            "progress": None if progress is None else progress._asdict(),
            "result": None,
        }
        if task.state == "completed" and task.result is not None:
            result = unpack(task.result)
            view["result"] = None if isinstance(result, bytes) else result
        return {**view, "error": task.error} if self.errors else view

    def recorded(self, task_id: TaskId) -> bool:
        """Return whether a task that does not exist may be on its way."""
        return self.outbox and abs(time.time_ns() // 1_000_000 - ms_of(task_id)) < RECORDED_MS

    def watch(self, id: str) -> Watch:
        """Return a watch on a task that exists; raise as `view` does."""
        watch = Watch(self, id)
        watch.look()
        return watch


class Watch:
    """One caller that follows a task until it is finished: iterate over its events, in a thread or in an event loop.

    An event ``task`` has the view of the task, after each change. The last event is ``end``.
    """

    def __init__(self, views: TaskViews, id: str) -> None:
        self._views = views
        self._id = as_id(id)
        self._updates = 0
        self._progress: Progress | None = None
        self._last: dict[str, Any] | None = None
        self._said_at = time.monotonic()
        self._over = False

    def look(self) -> dict[str, Any]:
        """Read the task and return its view."""
        client = self._views.app.client
        try:
            task = client.get(self._id)
        except NotFound:
            if not self._views.recorded(self._id):
                raise self._unknown() from None
            return {"id": self._id.hex(), "state": "recorded", "progress": None, "result": None}
        if all(function.queue != task.queue for function in self._views.app.tasks.values()):
            raise self._unknown()
        if task.updates != self._updates:
            self._progress = latest_progress((one.data, one.at_ms) for one in client.task_log(self._id))
            self._updates = task.updates
        return self._views.shown(task, self._progress)

    def _unknown(self) -> NotFound:
        """Return the same error whether the task does not exist or belongs to another application."""
        return NotFound(f"this application has no task {self._id.hex()}", field="id")

    def _next(self) -> str:
        """Return the text to send now; empty for none."""
        try:
            view = self.look()
        except NotFound:
            self._over = True  # purged meanwhile
            return "event: end\ndata: {}\n\n"
        except OnyxqError as error:
            log.warning("cannot read task %s: %s", self._id.hex(), error.named())
            view = self._last or {}
        now = time.monotonic()
        if view == self._last or not view:
            if now < self._said_at + SILENCE_S:
                return ""
            self._said_at = now
            return ": no change\n\n"
        self._last, self._said_at = view, now
        self._over = view["state"] in FINISHED
        text = f"event: task\ndata: {json.dumps(view, separators=(',', ':'))}\n\n"
        return f"{text}event: end\ndata: {{}}\n\n" if self._over else text

    def __iter__(self) -> Iterator[str]:
        while not self._over:
            if text := self._next():
                yield text
            if not self._over:
                time.sleep(LOOK_S)

    async def __aiter__(self) -> AsyncIterator[str]:
        while not self._over:
            if text := await anyio.to_thread.run_sync(self._next):
                yield text
            if not self._over:
                await anyio.sleep(LOOK_S)
