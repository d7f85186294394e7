"""Commands that follow from the table of operations: what they send and what they print."""

from __future__ import annotations

import getpass
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from onyxq.core.errors import BadRequest, NotFound, OnyxqError
from onyxq.core.limits import Member, members
from onyxq.core.texts import whole
from onyxq.history import words
from onyxq.interfaces.cli.commands.operations import offered, setting_names
from onyxq.interfaces.cli.context import ID_DIGITS, Context, age, clock, found_id, moment
from onyxq.interfaces.cli.output import cell
from onyxq.interfaces.cli.tasks import brief, is_printable, payload_given
from onyxq.operations.table.json_form import arguments, from_text, json_text
from onyxq.operations.table.operation import Operation, Verb, converted, plain
from onyxq.system.durations import is_duration, milliseconds
from onyxq.system.settings import did_you_mean

PAGE_ITEMS = 500
SHORT_ID_DIGITS = 16
"""Fewest digits of an id in a list on a terminal: its time and its partition."""
NO_LIMIT = ("none", "null", "forever")
YES, NO = ("true", "yes", "on"), ("false", "no", "off")


def run(context: Context) -> None:
    """Call the operation of a command and print its answer."""
    answered(context)


def answered(context: Context) -> Any:
    """Call the operation of a command, print its answer and return it; None for pages of answers."""
    operation, verb = context.args.command.row
    args = arguments(operation.args, dict(_given(context, operation, verb)))
    if verb.pages:
        _print_pages(context, operation, verb, args)
        return None
    with context.client() as client:
        result = _called(client, operation, args)
        if verb.shows is not None:
            shown = {name: getattr(args, name) for name in verb.shows.members if name in operation.members}
            result = _called(client, verb.shows, verb.shows.args(**shown))
        if verb.remark is not None and (remark := verb.remark(result)):
            context.out.note(remark + _near_queue(client, getattr(args, "queue", "")))
    _print(context, verb, args, result)
    return result


def _print_pages(context: Context, operation: Operation[Any, Any], verb: Verb, args: Any) -> None:
    """Print pages of items up to the limit; with ``--all``, print each item as it arrives."""
    after = None
    left = None if context.args.all else context.limit()
    name = _items(operation.result)
    found: dict[str, Any] = {name: [], "after": None}
    order = {"newest_first": not context.args.oldest_first} if hasattr(context.args, "oldest_first") else {}
    rows: list[dict[str, Any]] = []
    is_empty = True
    is_short = bool(verb.terminal) and context.out.on_terminal and not context.args.all
    columns = verb.terminal if is_short else verb.columns
    with context.client() as client:
        if context.args.after:
            after = found_id(client, context.args.after, field="after")
        while left is None or left > 0:
            size = PAGE_ITEMS if left is None else min(PAGE_ITEMS, left)
            page = _called(client, operation, msgspec.structs.replace(args, after=after, limit=size, **order))
            after, items = page.after, getattr(page, name)
            is_empty = is_empty and not items
            for one in items:
                shown = _document(one)
                row = _row(one, shown, columns)
                if left is None:
                    context.out.line(shown, "  ".join(cell(row[column]) for column in verb.columns))
                else:
                    found[name].append(shown)
                    rows.append(row)
            left = None if left is None else left - len(items)
            if after is None:
                break
        if is_empty and getattr(args, "queue", None) is not None:
            _note_unknown_queue(context, client, args.queue)
    if not context.args.all:
        found["after"] = after.hex() if after else None
        rows = _with_short_ids(rows) if is_short else rows
        empty = verb.empty + _conditions(context, operation, verb)
        context.out.table(found, rows, columns, empty=empty, cut=is_short)
        if after is not None and not context.out.as_json and not context.out.watching:
            context.out.note(f"There may be more. Add --after {after.hex()} to see the next ones, or --all.")


def _with_short_ids(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the first digits of their ids, as many as the rows need to differ; commands take these too."""
    ids = {row["id"] for row in rows}
    digits = next(
        size for size in range(SHORT_ID_DIGITS, ID_DIGITS + 1) if len({one[:size] for one in ids}) == len(ids)
    )
    return [{**row, "id": row["id"][:digits]} for row in rows]


def _note_unknown_queue(context: Context, client: Any, queue: str) -> None:
    """Print a note if there is no such queue: the name may be wrong, and the exit code stays 0."""
    try:
        client.call("queue.get", {"queue": queue, "known": True})
    except NotFound as error:
        context.out.note(error.message + _near_queue(client, queue))
    except OnyxqError:
        pass  # the list itself was read well


def _near_queue(client: Any, queue: str) -> str:
    """Return ``; did you mean ...?`` if the name of a queue with tasks is close to this one, else an empty text."""
    try:
        known = [str(one["queue"]) for one in client.call("queues", {})["queues"] if one["depth"]["total"]]
    except OnyxqError:
        return ""  # a credential may be for some queues only
    return did_you_mean(queue, known)


def _conditions(context: Context, operation: Operation[Any, Any], verb: Verb) -> str:
    """Return the conditions that a list was asked for, such as `` with queue=mail, state=failed``."""
    given = {member.name: getattr(context.args, member.name) for member in offered(operation, verb)}
    said = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
    return f" with {said}" if said else ""


def _items(result: Any) -> str:
    """Return the name of the member of a result that is its list of items."""
    return next((name for name, one in members(result).items() if isinstance(one.node, inspect.ListType)), "")


def _called(client: Any, operation: Operation[Any, Any], args: Any) -> Any:
    return converted(operation.result, client.call(operation.name, plain(args)))


# --- arguments


def _given(context: Context, operation: Operation[Any, Any], verb: Verb) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the operation's arguments, in the form of JSON."""
    yield from verb.fixed.items()
    for member in offered(operation, verb):
        if "data" in member.marks:
            yield from _data(context, member)
            continue
        value = getattr(context.args, member.name)
        if value is None and "caller" in member.marks:
            yield member.name, f"{_user()}@{socket.gethostname()}"
        elif isinstance(value, str):
            yield member.name, parsed(member, value)
        elif value is not None:
            yield member.name, value
    for text in context.args.settings if verb.pairs else ():
        yield _pair(operation, verb, text)


def _data(context: Context, member: Member) -> Iterator[tuple[str, Any]]:
    if context.args.data is None and context.args.file is None:
        return
    data, form = payload_given(context)
    if form == "json":
        yield member.name, json.loads(data)
    else:
        yield f"{member.name}_base64", msgspec.to_builtins(data)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "?"  # In a container, the user id may have no name.


def _pair(operation: Operation[Any, Any], verb: Verb, text: str) -> tuple[str, Any]:
    """Return name and value of a setting from KEY=VALUE; raises `BadRequest`."""
    name, equals, value = text.partition("=")
    name, value = name.strip().replace("-", "_"), value.strip()
    known = setting_names(operation, verb)
    if name not in known:
        hint = f"Write key=value; the settings are {', '.join(known)}."
        raise BadRequest(f"there is no setting {name!r}{did_you_mean(name, known)}", field=name, hint=hint)
    if not equals:
        raise BadRequest(f"{name} needs a value", field=name, hint=f"Write {name}=VALUE; default resets it.")
    member = operation.members[name]
    if value == "default":
        return name, operation.reset(name)
    return name, parsed(member, value)


def parsed(member: Member, text: str) -> Any:
    """Return the value that a typed argument means; raises `BadRequest`."""
    node, name = member.node, member.name
    also = f", or {NO_LIMIT[0]}" if member.nullable else ""
    if also and text in NO_LIMIT and not isinstance(node, inspect.StrType):
        return None
    if isinstance(node, inspect.BoolType) and text in (*YES, *NO):
        return text in YES
    if isinstance(node, inspect.LiteralType) and text not in node.values:
        return text.replace("-", " ").replace("_", " ")
    if isinstance(node, inspect.FloatType):
        return from_text(member, text.removesuffix("/s"), also=also)
    if isinstance(node, inspect.IntType) and "ms" in name.split("_") and whole(text) is None:
        return _past_moment(name, text) if "moment" in member.marks else _milliseconds(name, text)
    return from_text(member, text, also=also)


def _past_moment(name: str, text: str) -> int:
    """Return milliseconds since the epoch: of a time, or of the time that long ago for a duration such as ``1h``."""
    option = name.removesuffix("_ms")
    if not is_duration(text):
        hint = "Or write how long ago it was, such as 30m, 1h or 2d."
        return moment(text, field=option, hint=hint)
    if text.strip()[-1].isdigit():
        raise BadRequest(f"{option} needs a unit: {text.strip()}s, for that many seconds ago", field=option)
    return max(0, round(time.time() * 1000) - milliseconds(text, field=option))


def _milliseconds(name: str, text: str) -> int:
    """Return the milliseconds of a duration such as ``30s``; raises `BadRequest`, also for ``1.5`` without a unit."""
    if not is_duration(text) or text.strip()[-1].isdigit():
        raise BadRequest(f"{name} must be a whole number of milliseconds or a time like 30s, not {text!r}", field=name)
    return milliseconds(text, field=name)


# --- output


def _print(context: Context, verb: Verb, args: Any, result: msgspec.Struct) -> None:
    if verb.done:
        named = {member: getattr(args, member) for member in type(args).__struct_fields__}
        context.out.result({**named, verb.done: True}, verb.done, people=f"{verb.done} {next(iter(named.values()))}")
        return
    if verb.says and not context.out.as_json:
        context.out.text(verb.says.format_map(msgspec.structs.asdict(args)))
        return
    if not verb.empty:
        show(context, result, verb.columns)
        return
    found = _document(result)
    items = _items(result.__class__)
    rows = [_row(one, shown, verb.columns) for one, shown in zip(getattr(result, items), found[items], strict=True)]
    context.out.table(found, rows, verb.columns, empty=verb.empty)


def _document(result: msgspec.Struct) -> dict[str, Any]:
    """Return a result in types that JSON has; data is base64 unless it can be printed as JSON."""
    found: dict[str, Any] = json.loads(json_text(result, fits=is_printable))
    return found


def show(context: Context, result: msgspec.Struct, columns: tuple[str, ...] = ()) -> None:
    """Print one thing, a field per line; ``columns``: the fields to print if it has them, by default all."""
    found = _document(result)
    row = found if context.out.as_json else _row(result, found)
    if columns and not context.out.as_json:
        row = {name: row[name] for name in columns if name in row}
    context.out.fields(row)


def _row(value: msgspec.Struct, shown: dict[str, Any], columns: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of a struct for people: times and ages in words, short data, and maps as further fields.

    ``columns``: also its properties of these names.
    """
    out: dict[str, Any] = {}
    for name, member in members(type(value)).items():
        item = getattr(value, name)
        if "inlined" in member.marks:
            out |= _row(item, shown)
        elif "data" in member.marks:
            out[name] = brief(shown, name)
        elif "moment" in member.marks:
            out[name.removesuffix("_ms")] = clock(item)
        elif "age" in member.marks:
            out[name.removesuffix("_ms")] = age(item)
        elif "duration" in member.marks:
            out[name.removesuffix("_ms")] = "" if item is None else words.duration(item)
        elif isinstance(item, msgspec.Struct):
            out |= shown[name]
        elif name in shown:
            out[name] = member.marks.get("null", shown[name]) if item is None else shown[name]
    return out | {name: getattr(value, name) for name in columns if name not in out}
