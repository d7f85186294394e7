"""Titles of tasks. A worker's task is a call: its data has the function's name and the arguments.

A timer has its id as a title, and its target as the arguments. A flow has its name. The title of other tasks is the
beginning of the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from onyxq.core import timer_model
from onyxq.core.errors import BadRequest
from onyxq.core.ids import callback_of, is_callback
from onyxq.core.limits import FLOWS_QUEUE, TIMERS_QUEUE
from onyxq.history import words
from onyxq.interfaces.dashboard.rendering import beginning
from onyxq.operations.flow.plan import record_of
from onyxq.operations.table.calls import FunctionCall, call_of

TITLE_CHARS, ARGUMENTS_CHARS = 80, 160
"""Most characters of a function's name and of its arguments in a list."""


@frozen
class Title:
    """The title of a task on a page."""

    function: str | None
    """The name of the function or of the timer; None: the data is neither."""
    arguments: str
    """The arguments of the function, the target of the timer, or the beginning of the data."""
    kind: str = "no function"
    """The group of tasks to which it belongs: the function, or the target of the timer."""

    @property
    def text(self) -> str:
        """The function's name, or the beginning of the data."""
        return words.brief(self.function or self.arguments, TITLE_CHARS)


def title(task: Mapping[str, Any]) -> Title:
    """Return the title of a task from its data."""
    if task["queue"] == TIMERS_QUEUE:
        return _of_timer(task)
    if task["queue"] == FLOWS_QUEUE and (flow := record_of(task["id"], task["data"])):
        return Title(f"flow {flow.name}" if flow.name else "flow", "", "flows")
    call = call_of(task["data"])
    if call is None:
        return Title(None, beginning(task["data"]) or "no data")
    return Title(call.function, arguments_of(call), call.function)


def arguments_of(call: FunctionCall) -> str:
    """Return the beginning of the arguments of a call."""
    given = [*map(_shown, call.args), *(f"{name}={_shown(one)}" for name, one in call.kwargs.items())]
    return words.brief(", ".join(given), ARGUMENTS_CHARS)


def _of_timer(task: Mapping[str, Any]) -> Title:
    """Return the title of a timer, or of the callback of a task, whose target is known to that task only."""
    if is_callback(task["id"]):
        return Title(f"callback of task {callback_of(task['id']).hex()}", "", "callbacks of tasks")
    try:
        callback = timer_model.unpack(task["data"]).callback
    except BadRequest:
        return Title(task["unique_key"], "")
    target = words.brief(f"{callback.method.upper()} {callback.uri}", ARGUMENTS_CHARS)
    return Title(task["unique_key"], target, target)


def _shown(value: Any) -> str:
    return words.brief(json.dumps(value, ensure_ascii=False), ARGUMENTS_CHARS)
