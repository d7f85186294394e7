"""``onyxq timer``: callbacks that are made once a time has come."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from onyxq.client import Client
from onyxq.core.errors import BadRequest
from onyxq.interfaces.cli.context import Context, clock, milliseconds, task_id
from onyxq.interfaces.cli.output import cell

COLUMNS = ("id", "state", "due", "attempts", "callback", "error")
PAGE_TIMERS = 500


def timer_add(context: Context) -> None:
    """Set a timer and print it."""
    _set(context, context.args.id or str(uuid.uuid4()), replace=False)


def timer_replace(context: Context) -> None:
    """Set one anew that has not fired."""
    _set(context, context.args.id, replace=True)


def timer_show(context: Context) -> None:
    """Print one."""
    _print(context, context.call("timer.get", {"id": context.args.id}))


def timer_cancel(context: Context) -> None:
    """Cancel one that has not fired."""
    context.call("timer.cancel", {"id": context.args.id})
    context.out.result({"id": context.args.id, "cancelled": True}, "cancelled")


def timer_list(context: Context) -> None:
    """Print timers as they fall due, page after page up to the limit; with ``--all`` as a stream."""
    args = context.args
    after = task_id(args.after, field="after") if args.after else None
    with context.client() as client:
        pages = _pages(client, args.state, after, None if args.all else args.limit)
        if args.all:
            for timers, _ in pages:
                for timer in map(presented, timers):
                    context.out.line(timer, "  ".join(cell(_row(timer)[column]) for column in COLUMNS))
            return
        found: list[dict[str, Any]] = []
        for timers, behind in pages:
            found += map(presented, timers)
            after = behind
    more = after.hex() if after else None
    context.out.table({"timers": found, "after": more}, map(_row, found), COLUMNS, empty="no timers")


def _pages(
    client: Client, state: str | None, after: bytes | None, limit: int | None
) -> Iterator[tuple[list[dict[str, Any]], bytes | None]]:
    while limit is None or limit > 0:
        size = PAGE_TIMERS if limit is None else min(PAGE_TIMERS, limit)
        page = client.call("timer.list", {"state": state, "after": after, "limit": size})
        after = page["after"]
        yield page["timers"], after
        if after is None:
            return
        limit = None if limit is None else limit - len(page["timers"])


def _set(context: Context, timer: str, *, replace: bool) -> None:
    args = context.args
    said = {"timeout": milliseconds(args.timeout, field="in"), "data": _data(context)}
    callback = {"transport": args.transport, "uri": args.uri, "method": args.method}
    with context.client() as client:
        client.call("timer.set", {"id": timer, "replace": replace, "callback": callback, **said})
        _print(context, client.call("timer.get", {"id": timer}))


def _data(context: Context) -> Any:
    """The data that ``--data`` or ``--text`` names; raises `BadRequest`."""
    args = context.args
    if args.data is not None and args.text is not None:
        raise BadRequest("give either --data or --text", field="data")
    if args.data is None:
        return args.text
    try:
        return json.loads(args.data)
    except ValueError as error:
        raise BadRequest(f"not JSON: {error}", field="data", hint="Text goes with --text.") from None


def presented(timer: dict[str, Any]) -> dict[str, Any]:
    """A timer in types that JSON has."""
    return {**timer, "task": timer["task"].hex()}


def _row(timer: dict[str, Any]) -> dict[str, Any]:
    callback = timer["callback"] or {}
    shown = f"{callback.get('method', '')} {callback.get('uri', '')}".strip()
    return {**timer, "due": clock(timer["at_ms"]), "callback": shown}


def _print(context: Context, found: dict[str, Any]) -> None:
    timer = presented(found)
    if context.out.as_json:
        context.out.document(timer)
        return
    row = _row(timer) | {"data": json.dumps(timer["data"])}
    context.out.fields({name: row[name] for name in (*COLUMNS, "data", "task")})
