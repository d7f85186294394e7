"""``onyxq periodic``: tasks that are enqueued again and again."""

from __future__ import annotations

from typing import Any

from onyxq.interfaces.cli.context import Context, clock
from onyxq.interfaces.cli.tasks import brief, member, payload_given

COLUMNS = ("name", "queue", "schedule", "zone", "next", "paused", "missed", "fired", "data")


def periodic_list(context: Context) -> None:
    """Print all by name."""
    found = [presented(one) for one in context.call("periodic.list")["periodic"]]
    context.out.table({"periodic": found}, map(_row, found), COLUMNS, empty="no periodic tasks")


def periodic_show(context: Context) -> None:
    """Print one."""
    _print(context, context.call("periodic.get", {"name": context.args.name}))


def periodic_add(context: Context) -> None:
    """Set one up, or change the one of that name."""
    args = context.args
    data, form = payload_given(context)
    said = {"name": args.name, "queue": args.queue, "schedule": args.schedule, "zone": args.zone}
    more = {"data": data, "format": form, "priority": args.priority, "missed": args.missed, "paused": args.paused}
    _print(context, context.call("periodic.set", {**said, **more}))


def periodic_remove(context: Context) -> None:
    """End one."""
    context.call("periodic.remove", {"name": context.args.name})
    context.out.result({"name": context.args.name, "removed": True}, "removed")


def periodic_pause(context: Context) -> None:
    """Enqueue nothing until it is resumed."""
    _print(context, context.call("periodic.pause", {"name": context.args.name, "paused": True}))


def periodic_resume(context: Context) -> None:
    """Go on with the next time from now."""
    _print(context, context.call("periodic.pause", {"name": context.args.name, "paused": False}))


def presented(periodic: dict[str, Any]) -> dict[str, Any]:
    """A periodic task in types that JSON has."""
    plain = {name: value for name, value in periodic.items() if name not in ("data", "format")}
    return {**plain, **member("data", periodic["data"], periodic.get("format", "bytes"))}


def _row(periodic: dict[str, Any]) -> dict[str, Any]:
    return {**periodic, "next": clock(periodic["next_ms"]), "data": brief(periodic)}


def _print(context: Context, found: dict[str, Any]) -> None:
    shown = presented(found)
    if context.out.as_json:
        context.out.document(shown)
        return
    row = _row(shown)
    context.out.fields({name: row[name] for name in ("name", *(one for one in COLUMNS if one != "name"), "priority")})
