"""Calls of functions in the data of tasks. Pure."""

from __future__ import annotations

import json
from typing import Any

from attrs import frozen

CALL_BYTES_MAX = 64 * 1024
"""Largest data that is read as a call."""


@frozen
class FunctionCall:
    """A call of a function of an application."""

    function: str
    args: list[Any]
    kwargs: dict[str, Any]


def call_of(data: bytes | None) -> FunctionCall | None:
    """Return the call in the data of a task; None if the data is none, or too long to be read for a list."""
    if data is None or len(data) > CALL_BYTES_MAX:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(found, dict) and isinstance(found.get("task"), str) and found["task"]):
        return None
    args, kwargs = found.get("args", []), found.get("kwargs", {})
    is_call = isinstance(args, list) and isinstance(kwargs, dict)
    return FunctionCall(found["task"], args, kwargs) if is_call else None
