"""``onyxq timer``: timers, which make a callback at a later time."""

from __future__ import annotations

import uuid
from typing import Any

from onyxq.core.errors import BadRequest, OnyxqError
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.operations import show
from onyxq.interfaces.cli.tasks import json_in
from onyxq.operations.table.operation import converted
from onyxq.operations.table.timer import GET_TIMER, TimerView
from onyxq.system.durations import milliseconds


def timer_add(context: Context) -> None:
    """Set a new timer and print it."""
    _set(context, context.args.id or str(uuid.uuid4()), replace=False)


def timer_replace(context: Context) -> None:
    """Replace a timer that has not fired, and print it."""
    _set(context, context.args.id, replace=True)


def _set(context: Context, timer: str, *, replace: bool) -> None:
    args = context.args
    said = {"timeout": milliseconds(args.timeout, field="in"), "data": _data(context)}
    callback = {"transport": args.transport, "uri": args.uri, "method": args.method}
    with context.client() as client:
        try:
            client.call("timer.set", {"id": timer, "replace": replace, "callback": callback, **said})
        except OnyxqError as error:
            error.field = (error.field or "").removeprefix("callback.") or None  # the name of the option
            raise
        found = converted(TimerView, client.call("timer.get", {"id": timer}))
    show(context, found, GET_TIMER.verbs[0].columns)


def _data(context: Context) -> Any:
    """Return the data from ``--data`` or ``--text``; raises `BadRequest`."""
    args = context.args
    if args.data is not None and args.text is not None:
        raise BadRequest("--data and --text were both given", field="data")
    if args.data is None:
        return args.text
    try:
        return json_in(args.data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"data is not JSON: {error}", field="data", hint="Send text with --text.") from None
