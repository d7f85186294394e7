"""Errors of arguments in plain words: which field is wrong, what it has, and what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from msgspec import ValidationError, inspect

from onyxq.core.errors import BadRequest, TooLarge
from onyxq.core.limits import PLAIN, Node, bare, members

SHOWN_MAX = 80
"""Most characters of a value or name that an error repeats."""
_PLACE = re.compile(r" - at `(?:key in `)?\$([^`]*)`*$")
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_PART = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def clip(text: str) -> str:
    """Return a text cut short enough to be repeated in an error."""
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"


def refuse(kind: Any, value: Any, error: ValidationError, *, within: str = "") -> NoReturn:
    """Raise the `BadRequest` for a value, ``within`` a field, that `msgspec` did not convert to a type."""
    text = str(error)
    place = _PLACE.search(text)
    text = text[: place.start()] if place else text
    trail = list(_trail(inspect.type_info(kind), value, place[1] if place else "", within))
    where, node, found = trail[-1]
    if missing := _MISSING.fullmatch(text):
        field = dotted(where, missing[1])
        raise BadRequest(f"{field} is missing", field=field)
    if unknown := _UNKNOWN.fullmatch(text):
        field = dotted(where, clip(unknown[1]))
        raise BadRequest(f"{field} is not a known field", field=field, hint=_meant(node, unknown[1]))
    marks = [bare(one)[3] for _, one, _ in trail]
    if any("too_large" in one for one in marks) and isinstance(found, (bytes, str, list)):
        _, limited, _ = next(one for one in reversed(trail) if "too_large" in bare(one[1])[3])
        most = getattr(bare(limited)[0], "max_length", None)
        if most is not None and len(found) > most:
            raise TooLarge(f"{where} has {len(found)} bytes; at most {most} are allowed", field=where)
    raise BadRequest(f"{where or 'the request'} must be {expected(node)}, not {shown(found)}", field=where or None)


def dotted(where: str, name: str) -> str:
    """Return the path to a member, like ``tasks[0].priority``."""
    return f"{where}.{name}" if where else name


def _trail(node: Node, value: Any, path: str, where: str) -> Iterator[tuple[str, Node, Any]]:
    """Yield field, type and value of each step on the way to the wrong place; a type or value may be unknown."""
    yield where, node, value
    for name, index in _PART.findall(path):
        kind = bare(node)[0]
        if name:
            field = name
            node = _member(kind, name)
            value = value.get(name) if isinstance(value, Mapping) else None
            where = dotted(where, field)
        else:
            field, node = _item(kind, index)
            value = value[int(index)] if index.isdigit() and isinstance(value, Sequence) else None
            where = dotted(where, field) if field else f"{where}[{index}]"
        yield where, node, value


def _member(kind: Node, name: str) -> Node:
    fields = kind.fields if isinstance(kind, (inspect.StructType, inspect.DataclassType)) else ()
    return next((one.type for one in fields if one.encode_name == name), inspect.AnyType())


def _item(kind: Node, index: str) -> tuple[str, Node]:
    """Return the type of an item, and its name if the list is a struct without names on the wire."""
    place = int(index) if index.isdigit() else -1
    match kind:
        case inspect.StructType(fields=fields) | inspect.NamedTupleType(fields=fields) if 0 <= place < len(fields):
            return fields[place].encode_name, fields[place].type
        case inspect.TupleType(item_types=items) if 0 <= place < len(items):
            return "", items[place]
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return "", item
        case inspect.DictType(value_type=item):
            return "", item
    return "", inspect.AnyType()


def _meant(node: Node, name: str) -> str:
    kind = bare(node)[0]
    known = list(members(kind.cls)) if isinstance(kind, inspect.StructType) else []
    near = get_close_matches(clip(name), known, 1)
    return f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(sorted(known)) or 'none'}."


def expected(node: Node) -> str:
    """Return in words what values of a type are."""
    kind, nullable, _, _ = bare(node)
    return _expected(kind) + (" or null" if nullable else "")


def _expected(kind: Node) -> str:
    words = "a map with texts as keys"
    match kind:
        case inspect.BoolType():
            words = "true or false"
        case inspect.IntType(ge=low, le=high) | inspect.FloatType(ge=low, le=high):
            number = "an integer" if isinstance(kind, inspect.IntType) else "a number"
            words = f"{number} from {_whole(low)} to {_whole(high)}" if None not in (low, high) else number
        case inspect.LiteralType(values=values):
            words = f"one of {', '.join(map(str, values))}"
        case inspect.StrType(min_length=low, max_length=high, pattern=pattern):
            plain = " without control characters" if pattern == PLAIN else ""
            words = f"a string{_lengths(low, high, 'characters')}{plain}"
        case inspect.BytesType(min_length=low, max_length=high):
            words = f"binary{_lengths(low, high, 'bytes')}"
        case inspect.ListType(item_type=item, min_length=low, max_length=high):
            each = f", each {expected(item)}" if isinstance(bare(item)[0], inspect.NamedTupleType) else ""
            words = f"a list{_lengths(low, high, 'items')}{each}"
        case inspect.UnionType(types=types):
            words = " or ".join(map(expected, types))
        case inspect.StructType(array_like=True, fields=fields) | inspect.NamedTupleType(fields=fields):
            words = f"a list of {', '.join(one.encode_name for one in fields)}"
    return words


def _whole(number: float | None) -> float | None:
    """Return a bound as it is written: without a fraction if it has none."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _lengths(low: int | None, high: int | None, what: str) -> str:
    if high is None:
        return f" of at least {low} {what}" if low else ""
    if not low:
        return f" of at most {high} {what}"
    return f" of {high} {what}" if low == high else f" of {low} to {high} {what}"


def shown(value: Any) -> str:
    """Return a value as an error repeats it."""
    if value is None or isinstance(value, bool):
        text = "null" if value is None else str(value).lower()
    elif isinstance(value, (list, tuple)):
        text = f"a list of {len(value)}"
    elif isinstance(value, Mapping):
        text = "a map"
    elif isinstance(value, bytes):
        text = f"{len(value)} bytes"
    elif isinstance(value, int) and value.bit_length() > 128:
        text = f"a number of {value.bit_length()} bits"
    elif isinstance(value, str) and len(value) > SHOWN_MAX:
        text = f"a string of {len(value)} characters"
    else:
        text = repr(value)
    return text
