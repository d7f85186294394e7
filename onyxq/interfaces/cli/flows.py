"""``onyxq flow make`` and ``onyxq flow wait``: the commands of flows that make several calls."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from onyxq.core.errors import BadRequest
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.operations import show
from onyxq.operations.table.flow import MAKE_FLOW, FlowMade, FlowView, MakeFlow
from onyxq.operations.table.json_form import arguments
from onyxq.operations.table.operation import converted, plain
from onyxq.system.durations import milliseconds

EXIT_FAILED = 1


def flow_make(context: Context) -> None:
    """Store the flow that a JSON file describes."""
    args = context.args
    given = {name: value for name in ("id", "name") if (value := getattr(args, name)) is not None}
    if args.on_done is not None:
        given["on_done"] = _object(args.on_done, "--on-done", field="on_done")
    asked = arguments(MakeFlow, {**_read(args.file), **given})
    with context.client() as client:
        if asked.id is None:  # so that an attempt can be repeated
            asked = msgspec.structs.replace(asked, id=client.make_ids(1)[0])
        made = converted(FlowMade, client.call(MAKE_FLOW.name, plain(asked)))
    show(context, made)


def flow_wait(context: Context) -> int | None:
    """Wait until a flow has ended and print it."""
    timeout_ms = milliseconds(context.args.timeout, field="timeout")
    with context.client() as client:
        found = converted(FlowView, client.wait_flow(context.args.id, timeout_ms))
    show(context, found)
    return None if found.state == "completed" else EXIT_FAILED


def _read(place: str) -> dict[str, Any]:
    """Return the JSON object in a file, or of the standard input; raises `BadRequest`."""
    try:
        text = sys.stdin.read() if place == "-" else Path(place).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise BadRequest(f"{place}: {getattr(error, 'strerror', None) or error}", field="file") from None
    return _object(text, place, field="file")


def _object(text: str, place: str, *, field: str) -> dict[str, Any]:
    """Return a JSON object; raises `BadRequest`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{place}: {error}", field=field) from None
    if not isinstance(found, dict):
        expected = '{"tasks": [...]}' if field == "file" else '{"queue": "report"}'
        raise BadRequest(f"{place} is not a JSON object; expected {expected}", field=field)
    return found
