"""Tasks as calls of functions: a worker's task has the function's name and its arguments in its data.

The data of other tasks may be anything. Their title is the beginning of the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from onyxq.history import words
from onyxq.interfaces.dashboard.rendering import beginning

CALL_BYTES_MAX = 64 * 1024
"""Largest data that is read as a call."""
TITLE_CHARS, ARGUMENTS_CHARS = 80, 160
"""Most characters of a function's name and of its arguments in a list."""


@frozen
class Title:
    """The title of a task on a page."""

    function: str | None
    """The name of the function; None: the data is not a call."""
    arguments: str
    """The arguments of the function, or the beginning of the data."""

    @property
    def text(self) -> str:
        """The function's name, or the beginning of the data."""
        return words.brief(self.function or self.arguments, TITLE_CHARS)


def title(task: Mapping[str, Any]) -> Title:
    """Return the title of a task from its data."""
    call = _call(task["data"])
    if call is None:
        return Title(None, beginning(task["data"]) or "no data")
    given = [*map(_shown, call.get("args", ())), *(f"{name}={_shown(one)}" for name, one in call["kwargs"].items())]
    return Title(call["task"], words.brief(", ".join(given), ARGUMENTS_CHARS))


def _call(data: bytes) -> dict[str, Any] | None:
    if len(data) > CALL_BYTES_MAX:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(found, dict) and isinstance(found.get("task"), str) and found["task"]):
        return None
    arguments = (found.get("args", []), found.get("kwargs", {}))
    is_call = isinstance(arguments[0], list) and isinstance(arguments[1], dict)
    return {"task": found["task"], "args": arguments[0], "kwargs": arguments[1]} if is_call else None


def _shown(value: Any) -> str:
    return words.brief(json.dumps(value, ensure_ascii=False), ARGUMENTS_CHARS)
