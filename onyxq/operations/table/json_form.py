"""Arguments and results of operations as JSON: for HTTP, the command line and OpenAPI.

On the wire ids and data are bytes.  In JSON an id is 40 hex digits, and data is any JSON value under its
name or base64 under the name with ``_base64``.  Null means a missing member, unless it is a value.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NoReturn, TypeAlias

import msgspec
from msgspec import inspect

from onyxq.core.errors import BadRequest
from onyxq.core.limits import Member, Node, bare, members
from onyxq.operations.table.operation import A, Args, converted
from onyxq.operations.table.problems import clip, dotted

Schema: TypeAlias = dict[str, Any]

JSON, BYTES = "json", "bytes"
_ID = re.compile(r"[0-9a-fA-F]{40}")
_INTEGER = re.compile(r"-?[0-9]{1,30}")
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,9})?")
_BASE64: Schema = {"type": "string", "contentEncoding": "base64", "format": "byte"}
_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_ESCAPED = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


# --- requests


Reader: TypeAlias = Callable[[Any], Any]
"""Returns a JSON value as it is on the wire; what does not fit is left for the decoder to refuse. Raises `_Wrong`."""


class _Wrong(Exception):
    """A value that cannot be read; ``path`` names the place, innermost part first."""

    def __init__(self, reason: str, *path: str | int, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.path = list(path)

    def refuse(self) -> NoReturn:
        """Raise the `BadRequest`."""
        field = ""
        for part in reversed(self.path):
            field = f"{field}[{part}]" if isinstance(part, int) else dotted(field, part)
        raise BadRequest(f"{field} {self.reason}", field=field, hint=self.hint)


def arguments(kind: type[A], given: Mapping[str, Any], *, fixed: Mapping[str, Any] | None = None) -> A:
    """Return the arguments that members of JSON give, with those that are fixed; raises `BadRequest`."""
    hidden = {name: value for name, value in (fixed or {}).items() if name not in given}
    try:
        read = _struct_reader(kind)(dict(given))
    except _Wrong as wrong:
        wrong.refuse()
    for name in fixed or {}:
        if name in given:
            raise BadRequest(f"{name} is not a known field", field=name)
    return converted(kind, {**read, **hidden})


@cache
def _struct_reader(kind: Any) -> Reader:
    known = members(kind)
    data = [name for name, member in known.items() if "data" in member.marks]
    apart = {*data, *(f"{name}_base64" for name in data)}
    with_format = bool(data) and "format" in known
    readers = {name: _reader(member.node, member.marks) for name, member in known.items()}
    never_null = {name for name, member in known.items() if not member.nullable}
    if with_format:
        readers["format"] = _no_format

    def read(given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        out: dict[str, Any] = {}
        for name, value in given.items():
            if name in apart or (value is None and name in never_null):
                continue
            reader = readers.get(name)
            if reader is None or value is None:
                out[name] = value
                continue
            try:
                out[name] = reader(value)
            except _Wrong as wrong:
                wrong.path.append(name)
                raise
        for name in data:
            _read_data(name, given, out, with_format=with_format)
        return out

    return read


def _reader(node: Node, marks: Mapping[str, Any]) -> Reader | None:
    """Return the reader of a type; None if its values are the same on the wire."""
    found: Reader | None = None
    match node:
        case inspect.StructType(array_like=False):
            found = _struct_reader(node.cls)
        case inspect.ListType(item_type=item):
            one, _, _, marks_of_items = bare(item)
            inner = _reader(one, marks_of_items)
            found = None if inner is None else _list_reader(inner)
        case inspect.BytesType() if "id" in marks:
            found = _read_id
        case _ if "encoded" in marks:
            found = _read_encoded
        case inspect.StrType() | inspect.AnyType() | inspect.UnionType():
            found = _read_text
    return found


def _list_reader(inner: Reader) -> Reader:
    def read(given: Any) -> Any:
        if not isinstance(given, list):
            return given
        out: list[Any] = []
        try:
            for item in given:
                out.append(inner(item))
        except _Wrong as wrong:
            wrong.path.append(len(out))
            raise
        return out

    return read


def _no_format(given: Any) -> NoReturn:
    raise _Wrong("is not a known field", hint="It follows from how the data is given.")


def _read_encoded(given: Any) -> Any:
    """Return a map with bytes; errors name its member alone, as only the declaration of an entry knows it."""
    if not isinstance(given, dict):
        return _read_text(given)
    out: dict[str, Any] = {}
    for name, value in given.items():
        plain = name.removesuffix("_base64")
        if plain in out:
            raise BadRequest(f"{name} and {plain} exclude each other", field=name)
        try:
            out[plain] = value if plain == name else _from_base64(value)
        except _Wrong as wrong:
            wrong.path.append(name)
            wrong.refuse()
    return out


def _read_text(given: Any) -> Any:
    if isinstance(given, str) and not given.isascii() and any("\ud800" <= sign <= "\udfff" for sign in given):
        raise _Wrong("contains half of a surrogate pair, which is not a character")
    return given


def _read_id(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    if not _ID.fullmatch(given):
        hint = "Ids come from GET /v1/ids or POST /v1/tasks."
        raise _Wrong(f"must be 40 hex digits, not {clip(given)!r}", hint=hint)
    return bytes.fromhex(given)


def _read_data(name: str, given: Mapping[str, Any], out: dict[str, Any], *, with_format: bool) -> None:
    """Add data to the members that are read, and its format if they have one."""
    encoded = f"{name}_base64"
    if given.get(encoded) is not None:
        if name in given:
            raise _Wrong(f"and {encoded} exclude each other", name)
        try:
            form, out[name] = BYTES, _from_base64(given[encoded])
        except _Wrong as wrong:
            wrong.path.append(encoded)
            raise
    elif name in given:
        form, out[name] = JSON, _encoded(given[name], name)
    else:
        return
    if with_format:
        out["format"] = form


def _from_base64(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _Wrong("must be a base64 string")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise _Wrong("must be standard base64 with padding") from None


def _encoded(value: Any, name: str) -> bytes:
    """Return compact UTF-8 JSON of a decoded value."""
    try:
        return _COMPACT(value).encode()
    except UnicodeEncodeError:
        return _ESCAPED(value).encode("ascii")  # half a surrogate pair is legal as an escape only
    except RecursionError:
        raise _Wrong("is nested too deeply", name) from None
    except ValueError:
        raise _Wrong("holds a number beyond the range of a double", name) from None


def from_text(member: Member, text: str, *, also: str = "") -> Any:
    """Return the JSON value that a text means, in a query or on the command line; raises `BadRequest`.

    ``also``: what else a number may be there, for the error.
    """
    match member.node:
        case inspect.IntType():
            if not _INTEGER.fullmatch(text):
                raise BadRequest(f"{member.name} must be an integer{also}, not {text!r}", field=member.name)
            return int(text)
        case inspect.FloatType():
            if not _NUMBER.fullmatch(text):
                raise BadRequest(f"{member.name} must be a number{also}, not {text!r}", field=member.name)
            return float(text) if "." in text else int(text)
        case inspect.BoolType():
            if text not in ("true", "false"):
                raise BadRequest(f"{member.name} must be true or false", field=member.name)
            return text == "true"
    return text


# --- answers


Fits: TypeAlias = Callable[[bytes], bool]
"""Returns whether data is shown as the JSON that it is."""


def json_text(value: msgspec.Struct, *, fits: Fits | None = None) -> str:
    """Return a result as JSON; ``fits``: which data is shown as JSON, by default all that is JSON."""
    return msgspec.json.encode(_shown(value, fits or _is_json)).decode()


def _shown(value: Any, fits: Fits) -> Any:
    if isinstance(value, msgspec.Struct):
        return _shown_members(value, fits)
    if isinstance(value, (list, tuple)):
        return [_shown(one, fits) for one in value]
    if isinstance(value, dict):
        return {key.hex() if isinstance(key, bytes) else str(key): _shown(one, fits) for key, one in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value.hex() if isinstance(value, bytes) else value


def _shown_members(value: msgspec.Struct, fits: Fits) -> dict[str, Any]:
    out: dict[str, Any] = {}
    known = members(type(value))
    has_data = any("data" in member.marks for member in known.values())
    for name, member in known.items():
        item = getattr(value, name)
        if item is msgspec.UNSET or (value.__struct_config__.omit_defaults and item == member.default):
            continue
        if "data" in member.marks or "blob" in member.marks:
            form = BYTES if "blob" in member.marks else getattr(value, "format", None)
            key, shown = data_member(name, item, None if "any" in member.marks else form, fits)
            out[key] = shown
        elif "inlined" in member.marks:
            out |= _shown(item, fits)
        elif not (has_data and name == "format"):
            out[name] = _shown(item, fits)
    return out


def data_member(name: str, data: bytes | None, form: str | None, fits: Fits | None = None) -> tuple[str, Any]:
    """Return name and value of stored bytes in JSON, as they are if they are JSON."""
    if data is None:
        return name, None
    if form != BYTES and (fits or _is_json)(data):
        # Line breaks can only be between tokens; without them a value fits in one line.
        return name, msgspec.Raw(data.translate(_BREAKS))
    return f"{name}_base64", base64.b64encode(data).decode("ascii")


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data.decode(), parse_constant=_refuse)  # of bytes it would accept other encodings than UTF-8
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)


# --- schemas


def schema(node: Node) -> Schema:
    """Return the JSON schema of a type; structs are references to components."""
    kind, nullable, about, marks = bare(node)
    found = _or_null(_schema(kind, marks)) if nullable else _schema(kind, marks)
    return {**found, "description": about} if about else found


def _schema(kind: Node, marks: Mapping[str, Any]) -> Schema:
    found: Schema = {}
    match kind:
        case inspect.BoolType():
            found = {"type": "boolean"}
        case inspect.IntType(ge=low, le=high):
            found = {"type": "integer", "format": "int64", **_bounds(minimum=low, maximum=high)}
        case inspect.FloatType(ge=low, le=high):
            found = {"type": "number", **_bounds(minimum=low, maximum=high)}
        case inspect.StrType(min_length=low, max_length=high, pattern=pattern):
            found = {"type": "string", **_bounds(minLength=low, maxLength=high, pattern=pattern)}
        case inspect.LiteralType(values=values):
            found = {"type": "string", "enum": list(values)}
        case inspect.BytesType():
            found = {"type": "string", "pattern": "^[0-9a-fA-F]{40}$" if "id" in marks else "^[0-9a-f]*$"}
        case inspect.ListType(item_type=item, min_length=low, max_length=high):
            found = {"type": "array", "items": schema(item), **_bounds(minItems=low, maxItems=high)}
        case inspect.DictType(value_type=item):
            found = {"type": "object", "additionalProperties": schema(item)}
        case inspect.UnionType(types=types):
            found = {"anyOf": [schema(one) for one in types]}
        case inspect.StructType(cls=cls):
            found = {"$ref": f"#/components/schemas/{cls.__name__}"}
    return found


def _bounds(**bounds: Any) -> Schema:
    return {name: value for name, value in bounds.items() if value is not None}


def _or_null(found: Schema) -> Schema:
    if "enum" in found:
        return {**found, "type": [found["type"], "null"], "enum": [*found["enum"], None]}
    if "type" in found:
        return {**found, "type": [found["type"], "null"]}
    return found if not found else {"anyOf": [*found.get("anyOf", [found]), {"type": "null"}]}


def request_components(kind: type[Args], names: Iterable[str]) -> dict[str, Schema]:
    """Return the JSON schemas of a request's body and of all structs in it, by name of the type.

    ``names``: the arguments in the body; the others are in the path or are fixed.
    """
    out: dict[str, Schema] = {}
    waiting: list[tuple[str, Mapping[str, Member]]] = [(kind.__name__, {name: members(kind)[name] for name in names})]
    while waiting:
        title, known = waiting.pop()
        required = [name for name, member in known.items() if member.required and "data" not in member.marks]
        out[title] = {
            "type": "object",
            "properties": _properties(known, answer=False),
            "additionalProperties": False,
            **({"required": required} if required else {}),
        }
        waiting += [(one.__name__, members(one)) for member in known.values() for one in _structs(member.node)]
    return out


def parameter(member: Member) -> Schema:
    """Return the schema of an argument in a path or query."""
    found = _schema(member.node, member.marks)
    return found if member.default is None else {**found, "default": member.default}


def components(kind: type[msgspec.Struct]) -> dict[str, Schema]:
    """Return the schemas of a result and of all structs in it, by name."""
    out: dict[str, Schema] = {}
    waiting: list[Any] = [kind]
    while waiting:
        one = waiting.pop()
        if one.__name__ in out:
            continue
        known = dict(_inlined(one))
        required = [_shown_as(member) for member in known.values() if member.required and "data" not in member.marks]
        properties = _properties(known, answer=True)
        out[one.__name__] = {"type": "object", "required": required, "properties": properties}
        for member in known.values():
            waiting += _structs(member.node)
    return out


def _shown_as(member: Member) -> str:
    return f"{member.name}_base64" if "blob" in member.marks else member.name


def _inlined(kind: Any) -> Iterator[tuple[str, Member]]:
    known = members(kind)
    has_data = any("data" in member.marks for member in known.values())
    for name, member in known.items():
        if "inlined" in member.marks:
            yield from _inlined(_struct_of(member))
        elif not (has_data and name == "format"):
            yield name, member


def _struct_of(member: Member) -> Any:
    assert isinstance(member.node, inspect.StructType)
    return member.node.cls


def _structs(node: Node) -> list[Any]:
    kind = bare(node)[0]
    match kind:
        case inspect.StructType(cls=cls):
            return [cls]
        case inspect.ListType(item_type=item) | inspect.DictType(value_type=item):
            return _structs(item)
    return []


def _properties(known: Mapping[str, Member], *, answer: bool) -> dict[str, Schema]:
    has_data = any("data" in member.marks for member in known.values())
    out: dict[str, Schema] = {}
    for name, member in known.items():
        about = {"description": member.about} if member.about else {}
        if "data" in member.marks:
            out[name] = about
            out[f"{name}_base64"] = _BASE64 if answer else {**_BASE64, "description": f"Bytes, instead of {name}."}
        elif "blob" in member.marks:
            out[f"{name}_base64"] = {**_BASE64, **about}
        elif not (has_data and name == "format"):
            found = _schema(member.node, member.marks)
            missing = not answer and not member.required
            found = _or_null(found) if member.nullable or missing else found
            default = {"default": member.default} if missing and member.default is not None else {}
            out[name] = {**found, **default, **about}
    return out
