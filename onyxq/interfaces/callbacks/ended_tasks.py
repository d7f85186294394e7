"""The callback of an ended task, as the timer that is delivered.

A callback is a task without data. Its target, and the outcome that it sends, are read from the reported task at
delivery. Both tasks are in one partition, so the leader that claimed the callback has the reported task too.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from onyxq.core import facts
from onyxq.core.errors import BadRequest, NotFound
from onyxq.core.facts import Completion
from onyxq.core.ids import Run, TaskId, callback_of
from onyxq.core.task_headers import CALLBACK
from onyxq.core.timer_model import DATA_BYTES_MAX, Timer, as_json, checked_callback
from onyxq.leader.completion_rows import completions_of
from onyxq.leader.state.view import Index


def callback_timer(store: Index, callback: TaskId) -> tuple[Timer, int]:
    """Return what the callback with this id delivers, and when its task ended, in ms since the epoch.

    Raises `NotFound` if the task is not stored, names no callback or did not end.
    """
    task_id = callback_of(callback)
    row = store.task_row(task_id)
    header: dict[str, Any] = {} if row is None else facts.task_header(row[1])[0]
    if CALLBACK not in header:
        raise NotFound(f"there is no task {task_id.hex()} with a callback")
    ended = completions_of(store, Run(task_id, 1))
    if not ended:
        raise NotFound(f"task {task_id.hex()} did not end")
    # A dead letter that was requeued meanwhile has this completion too, although it no longer counts.
    done = ended[0][1]
    data = {"id": task_id.hex(), "queue": header["queue"], "state": facts.OUTCOMES[done.outcome], **_outcome(done)}
    return Timer(task_id.hex(), 0, data, checked_callback(header[CALLBACK])), done.at_ms


def _outcome(done: Completion) -> dict[str, Any]:
    """Return the members about the end of a task: its result or error, and the time."""
    found = (done.results[0] if done.results else None) or b""
    if done.outcome == facts.COMPLETED:
        return {"finished_ms": done.at_ms, **(_result(found) if found else {"result": None}), "error": None}
    error = None if done.outcome == facts.CANCELLED else found.decode(errors="replace")
    return {"finished_ms": done.at_ms, "result": None, "error": error}


def _result(found: bytes) -> dict[str, Any]:
    """Return a JSON result as it is, another one in base64, and of a long one only the number of bytes."""
    if len(found) > DATA_BYTES_MAX:
        return {"result": None, "result_bytes": len(found)}
    try:
        value = json.loads(found.decode())
        as_json(value)
    except (BadRequest, ValueError, RecursionError):
        return {"result_base64": base64.b64encode(found).decode("ascii")}
    return {"result": value}
