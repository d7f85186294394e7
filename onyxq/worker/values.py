"""Conversion of values to and from JSON, checked against annotations (design: interfaces)."""

from __future__ import annotations

import base64
import binascii
import collections.abc
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from onyxq.worker import models
from onyxq.worker.models import Misfit


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _of_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


AS_TEXT: dict[Any, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    bytes: (_base64, _of_base64),
    datetime.datetime: (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: (datetime.time.isoformat, datetime.time.fromisoformat),
    uuid.UUID: (str, uuid.UUID),
    decimal.Decimal: (str, decimal.Decimal),
}
"""Types that are stored as strings: how they are written and read."""

SEQUENCES = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
MAPPINGS = (dict, collections.abc.Mapping)
SETS = (set, frozenset, collections.abc.Set)
UNIONS = (typing.Union, types.UnionType)

PLAIN: dict[Any, tuple[str, tuple[type, ...]]] = {
    None: ("None", (type(None),)),
    type(None): ("None", (type(None),)),
    bool: ("bool", (bool,)),
    str: ("str", (str,)),
    int: ("int", (int,)),
    float: ("float", (int, float)),
}
"""Annotations that JSON has itself: their names, and the accepted types."""


def to_json(value: Any, hint: Any, path: str) -> Any:
    """Return a value of the annotated type as JSON; raise `Misfit`. An unknown annotation leaves it unchanged."""
    return _convert(value, hint, path, write=True)


def from_json(value: Any, hint: Any, path: str) -> Any:
    """Return the value that `to_json` converted; raise `Misfit`."""
    return _convert(value, hint, path, write=False)


def _convert(value: Any, hint: Any, path: str, *, write: bool) -> Any:
    hint = _plain(hint)
    if hint in PLAIN:
        wanted, types_ = PLAIN[hint]
        return _checked(isinstance(value, types_), value, path, wanted, value)
    if hint in AS_TEXT:
        return _text(value, hint, path, write=write)
    origin, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    for origins, convert in COMPOSED:
        if origin in origins:
            return convert(value, origin, parts, path, write=write)
    return _class(value, origin, path, write=write) if isinstance(origin, type) else value


def _plain(hint: Any) -> Any:
    """Return an annotation without wrappers that do not change the value."""
    while True:
        if hasattr(hint, "__supertype__"):  # NewType
            hint = hint.__supertype__
        elif typing.get_origin(hint) in (typing.Annotated, typing.Required, typing.NotRequired):
            hint = typing.get_args(hint)[0]
        else:
            return hint


def _checked(fits: bool, value: Any, path: str, wanted: str, found: Any) -> Any:
    if not fits:
        raise Misfit(path, f"must be {wanted}, not {type(value).__name__}")
    return found


def _text(value: Any, hint: Any, path: str, *, write: bool) -> Any:
    writes, reads = AS_TEXT[hint]
    if write:
        fits = isinstance(value, hint) and not (hint is datetime.date and isinstance(value, datetime.datetime))
        return writes(_checked(fits, value, path, hint.__name__, value))
    try:
        return reads(_checked(isinstance(value, str), value, path, f"{hint.__name__} as a string", value))
    except (ValueError, ArithmeticError, binascii.Error) as error:
        raise Misfit(path, f"is not a {hint.__name__}: {error}") from None


def _union(value: Any, _: Any, parts: tuple[Any, ...], path: str, *, write: bool) -> Any:
    problems = []
    for place, part in enumerate(parts):
        try:
            made = _convert(value, part, path, write=write)
        except Misfit as error:
            problems.append(error)
            continue
        if write:
            _check_arrives(made, part, parts[:place], path)
        return made
    wanted = " or ".join(map(_name, parts))
    deeper = [problem for problem in problems if problem.path != path]
    raise deeper[0] if len(deeper) == 1 else Misfit(path, f"must be {wanted}, not {type(value).__name__}")


def _check_arrives(made: Any, part: Any, earlier: Sequence[Any], path: str) -> None:
    """Raise `Misfit` if JSON that was made of one part of a union would be read as an earlier part of it."""
    for other in earlier:
        try:
            found = from_json(made, other, path)
        except Misfit:
            continue
        wanted = from_json(made, part, path)
        if (type(found), found) != (type(wanted), wanted):
            alike = f"as JSON, {_name(other)} and {_name(part)} are alike"
            raise Misfit(path, f"would arrive as {type(found).__name__}: {alike}")
        return


def _name(part: Any) -> str:
    """Return the name of an annotation in an error."""
    return str(getattr(_plain(part), "__name__", part)).replace("NoneType", "None")


def _literal(value: Any, _: Any, parts: tuple[Any, ...], path: str, *, write: bool) -> Any:
    for part in parts:
        said = part.value if isinstance(part, enum.Enum) else part
        known = part if write else said
        if type(value) is type(known) and value == known:
            return said if write else part
    raise Misfit(path, f"must be one of {', '.join(map(repr, parts))}, not {value!r}")


def _many(value: Any, origin: Any, parts: tuple[Any, ...], path: str, *, write: bool) -> Any:
    if not write:
        allowed: tuple[type, ...] = (list,)
    elif origin in SETS:
        allowed = (set, frozenset)
    else:
        allowed = (tuple,) if origin is tuple else (list, tuple)
    name = getattr(origin, "__name__", str(origin))
    _checked(isinstance(value, allowed), value, path, f"{name} as a list" if not write else name, value)
    items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else list(value)
    if origin is tuple and parts and parts[-1] is not Ellipsis:
        if len(items) != len(parts):
            raise Misfit(path, f"must have {len(parts)} items, not {len(items)}")
        hints = list(parts)
    else:
        hints = [parts[0] if parts else Any] * len(items)
    made = [
        _convert(item, hint, f"{path}[{place}]", write=write)
        for place, (item, hint) in enumerate(zip(items, hints, strict=True))
    ]
    if write:
        return made
    if origin is frozenset:
        return frozenset(made)
    if origin in SETS:
        return set(made)
    return tuple(made) if origin is tuple else made


def _mapping(value: Any, _: Any, parts: tuple[Any, ...], path: str, *, write: bool) -> Any:
    _checked(isinstance(value, dict), value, path, "dict", value)
    for key in value:
        if type(key) is not str:
            raise Misfit(path, f"has the key {key!r}; in JSON keys are strings")
    hint = parts[1] if len(parts) == 2 else Any
    return {key: _convert(item, hint, f"{path}.{key}", write=write) for key, item in value.items()}


def _class(value: Any, hint: type, path: str, *, write: bool) -> Any:
    if issubclass(hint, enum.Enum):
        if write:
            return _checked(isinstance(value, hint), value, path, hint.__name__, getattr(value, "value", None))
        try:
            return hint(value)
        except ValueError:
            raise Misfit(path, f"is not a {hint.__name__}: {value!r}") from None
    if typing.is_typeddict(hint):
        _checked(isinstance(value, dict), value, path, "dict", value)
        return _fields(value, hint, _required_keys(hint), path, write=write)
    if models.converts_itself(hint):
        return (models.to_json if write else models.from_json)(value, hint, path)
    fields = models.fields_of(hint)
    if fields is not None:
        if write:
            _checked(isinstance(value, hint), value, path, hint.__name__, value)
            models.check_fields(value, hint, path)
            value = {field.name: getattr(value, field.name) for field in fields}
        _checked(isinstance(value, dict), value, path, f"{hint.__name__} as a dict", value)
        needed = frozenset(field.name for field in fields if field.needed)
        made = _fields(value, hint, needed, path, write=write)
        return made if write else hint(**{one.argument: made[one.name] for one in fields if one.name in made})
    return value


def _required_keys(hint: Any) -> frozenset[str]:
    hints = typing.get_type_hints(hint, include_extras=True)
    # ``__required_keys__`` misses annotations that are written as strings.
    told = {name: typing.get_origin(found) for name, found in hints.items()}
    optional = {name for name, found in told.items() if found is typing.NotRequired}
    required = {name for name, found in told.items() if found is typing.Required}
    return frozenset((hint.__required_keys__ - optional) | required)


def _fields(value: dict[str, Any], hint: Any, needed: frozenset[str], path: str, *, write: bool) -> dict[str, Any]:
    hints = typing.get_type_hints(hint, include_extras=True)
    for name in sorted(needed - value.keys()):
        raise Misfit(f"{path}.{name}", "is missing")
    for name in value:
        if name not in hints:
            raise Misfit(f"{path}.{name}", f"is not a field of {hint.__name__}")
    return {name: _convert(item, hints[name], f"{path}.{name}", write=write) for name, item in value.items()}


COMPOSED: tuple[tuple[tuple[Any, ...], Callable[..., Any]], ...] = (
    (UNIONS, _union),
    ((typing.Literal,), _literal),
    ((*SEQUENCES, *SETS, tuple), _many),
    (MAPPINGS, _mapping),
)
"""Annotations made of other annotations, and the function that converts each."""
