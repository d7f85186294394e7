"""Segments as bytes: MessagePack with extensions for Python types that it lacks.

Segments pass between tasks, and stay in the state of windows and joins, as these bytes. `unpack` returns a
value that equals the packed one and has the same type. There are four exceptions: a number of numpy becomes
Python's, a subclass of dict becomes a dict, a bytearray becomes bytes, and a zone that is not a ``ZoneInfo`` becomes
its offset. A value of any other type is refused, never turned into text.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import math
import uuid
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from onyxq.core.errors import BadRequest

BIG_INTEGER, DECIMAL, DATETIME, DATE, TIME, DURATION, UUID, TUPLE, SET, FROZENSET = range(64, 74)
"""Codes of the extensions. MessagePack leaves 0 to 127 to programs."""
HELD = (
    "None, bool, int, float, str, bytes, list, dict, tuple, set, frozenset, datetime, date, time, timedelta, "
    "Decimal and UUID"
)
"""Types that a segment can hold."""
encode_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
_NUMPY_KINDS = "biufUS"
"""Kinds of numpy's types that Python has as well."""
_REFUSALS = (TypeError, ValueError, OverflowError, RecursionError)
_HINTS = {
    "ndarray": "call its tolist()",
    "Timestamp": "call its to_pydatetime()",
    "DataFrame": "call its to_dict('records')",
    "Row": "call its asDict()",
}
"""What to do with some types, by their names."""


class Unfit(BadRequest):
    """A value that cannot be packed, with the path of the part at fault."""

    def __init__(self, path: str, why: str, hint: str = "") -> None:
        said = f"{path}: {why}" if path else why
        super().__init__(f"{said}; {hint}" if hint else said, field=path or "segment", hint=hint or None)
        self.why = why


def pack(value: Any) -> bytes:
    """Return a segment's bytes; raise `Unfit` for a value that cannot be packed exactly."""
    try:
        return _packed(value)
    except _REFUSALS:
        raise _unfit(value) from None


def pack_key(value: Any) -> bytes:
    """Return the bytes of a window's or join's key: equal decimals, times and maps have equal bytes."""
    if value is None or type(value) in (str, int, bytes, bool):
        return pack(value)
    return pack(_canonical(value))


def unpack(data: bytes) -> Any:
    """Return the segment of such bytes."""
    return msgpack.unpackb(data, strict_map_key=False, ext_hook=_restored)


def unpack_all(stream: Any) -> Iterator[Any]:
    """Yield the segments in a stream of their consecutive bytes."""
    yield from msgpack.Unpacker(stream, strict_map_key=False, ext_hook=_restored, max_buffer_size=0)


def to_json(data: bytes) -> str:
    """Return packed bytes as JSON; raise `Unfit` for a value that would come back from JSON as another one."""
    try:
        return encode_json(msgpack.unpackb(data, strict_map_key=True, ext_hook=_whole_number))
    except (TypeError, ValueError):
        raise _unfit_for_json(unpack(data)) from None


def shown(value: Any) -> str:
    """Return a value as a text for people: JSON, or Python's ``repr`` if JSON cannot hold the value."""
    try:
        return to_json(pack(value))
    except Unfit:
        return repr(value)


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a list, tuple, set or dict, each with its place: ``.name`` or ``[2]``."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield f".{key}" if type(key) is str else f"[{key!r:.80}]", part
    elif isinstance(value, (list, tuple, set, frozenset)):
        for place, part in enumerate(value):
            yield f"[{place}]", part


def called(value: Any) -> str:
    """Return the name of a value's type, with its module if it is not Python's own."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def milliseconds(value: datetime.datetime) -> int:
    """Return a time as milliseconds since 1970, rounded down; a time without a zone counts as UTC."""
    naive = value.replace(tzinfo=None) - (value.utcoffset() or datetime.timedelta())
    return (naive - _EPOCH) // datetime.timedelta(milliseconds=1)


# --- there -----------------------------------------------------------------------


def _packed(value: Any) -> bytes:
    # Twice as fast as `msgpack.packb`, which passes keywords on.
    data: bytes = msgpack.Packer(default=_extended, strict_types=True).pack(value)
    return data


def _extended(value: Any) -> Any:
    """Return the extension for a value that MessagePack lacks; raise `TypeError` if none fits."""
    packer = _PACKERS.get(type(value))
    if packer is not None:
        return packer(value)
    if isinstance(value, dict) and not isinstance(value, enum.Enum):
        return dict(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        if value.dtype.kind in _NUMPY_KINDS and (value.dtype.kind in "US" or value.dtype.itemsize <= 8):
            return value.item()
    raise TypeError(called(value))


def _datetime(value: datetime.datetime) -> Any:
    wall_us = (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    offset = value.utcoffset()
    offset_us = None if offset is None else offset // _MICROSECOND
    zone = value.tzinfo.key if isinstance(value.tzinfo, zoneinfo.ZoneInfo) else None
    return msgpack.ExtType(DATETIME, msgpack.packb([wall_us, offset_us, zone, value.fold]))


def _time(value: datetime.time) -> Any:
    if value.tzinfo is not None:
        raise TypeError("a time with a zone")
    since = datetime.timedelta(
        hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
    )
    return msgpack.ExtType(TIME, msgpack.packb([since // _MICROSECOND, value.fold]))


def _many(code: int) -> Callable[[Any], Any]:
    return lambda value: msgpack.ExtType(code, _packed(list(value)))


def _unordered(code: int) -> Callable[[Any], Any]:
    return lambda value: msgpack.ExtType(code, msgpack.packb(sorted(map(_packed, value))))


_PACKERS: dict[type[Any], Callable[[Any], Any]] = {
    int: lambda value: msgpack.ExtType(BIG_INTEGER, b"%d" % value),
    decimal.Decimal: lambda value: msgpack.ExtType(DECIMAL, str(value).encode()),
    datetime.datetime: _datetime,
    datetime.date: lambda value: msgpack.ExtType(DATE, msgpack.packb(value.toordinal())),
    datetime.time: _time,
    datetime.timedelta: lambda value: msgpack.ExtType(DURATION, b"%d" % (value // _MICROSECOND)),
    uuid.UUID: lambda value: msgpack.ExtType(UUID, value.bytes),
    tuple: _many(TUPLE),
    set: _unordered(SET),
    frozenset: _unordered(FROZENSET),
}


def _canonical(value: Any) -> Any:
    """Return the same value for all equal values, except that whole floats differ from integers."""
    if isinstance(value, decimal.Decimal) and value.is_finite():
        return value.normalize(_EXACT) if value else decimal.Decimal(0)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC)
    if isinstance(value, dict):
        return {key: _canonical(value[key]) for key in sorted(value, key=pack)}
    if type(value) in (list, tuple, frozenset, set):
        return type(value)(map(_canonical, value))
    return 0.0 if type(value) is float and value == 0 else value


def _unfit(value: Any) -> Unfit:
    """Return an error about the part of a value that could not be packed."""
    path, depth = "", 0
    while (found := next(((place, part) for place, part in parts(value) if not _packs(part)), None)) is not None:
        place, value = found
        depth += 1
        path += place
        if depth > 100:
            return Unfit(path[:80] + "...", "lists and maps inside each other are too deep for a segment")
    path = path.removeprefix(".")
    if type(value) is str:
        return Unfit(path, f"the text {value[:40]!r} is not valid Unicode: it has half of a surrogate pair")
    if isinstance(value, dict):
        value = next((key for key in value if not _packs(key)), value)
    if isinstance(value, enum.Enum):
        hint = "return its value"
    elif isinstance(value, tuple):
        hint = "return a tuple or a dict of it"
    elif isinstance(value, datetime.time):
        return Unfit(
            path, "a segment cannot hold a time of day with a zone", "return a datetime, or leave the zone out"
        )
    else:
        hint = _HINTS.get(type(value).__name__, f"segments hold {HELD}")
    return Unfit(path, f"a segment cannot hold a {called(value)}", hint)


def _packs(value: Any) -> bool:
    try:
        _packed(value)
    except _REFUSALS:
        return False
    return True


def _whole_number(code: int, data: bytes) -> int:
    if code != BIG_INTEGER:
        raise TypeError(f"JSON has no form of extension {code}")
    return int(data)


def _unfit_for_json(value: Any, path: str = "") -> Unfit:
    """Return an error about the part of a value that JSON cannot hold."""
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                return Unfit(
                    path.removeprefix("."), f"a key must be a string in JSON, not the {called(key)} {key!r:.60}"
                )
    if type(value) in (dict, list):
        place, part = next((place, part) for place, part in parts(value) if not _is_json(part))
        return _unfit_for_json(part, path + place)
    if type(value) is float and not math.isfinite(value):
        return Unfit(path.removeprefix("."), f"JSON has no {value}")
    why = f"JSON cannot hold the {called(value)} {value!r:.60} unchanged"
    return Unfit(path.removeprefix("."), why, "make it text, a number or a list")


def _is_json(value: Any) -> bool:
    try:
        to_json(pack(value))
    except Unfit:
        return False
    return True


# --- and back --------------------------------------------------------------------


def _restored(code: int, data: bytes) -> Any:
    restore = _RESTORERS.get(code)
    return msgpack.ExtType(code, data) if restore is None else restore(data)


def _to_datetime(data: bytes) -> datetime.datetime:
    wall_us, offset_us, zone, fold = msgpack.unpackb(data)
    zone_info: datetime.tzinfo | None = None
    if zone is not None:
        zone_info = zoneinfo.ZoneInfo(zone)
    elif offset_us is not None:
        zone_info = datetime.timezone(datetime.timedelta(microseconds=offset_us))
    return (_EPOCH + datetime.timedelta(microseconds=wall_us)).replace(tzinfo=zone_info, fold=fold)


def _to_time(data: bytes) -> datetime.time:
    since_us, fold = msgpack.unpackb(data)
    return (_EPOCH + datetime.timedelta(microseconds=since_us)).time().replace(fold=fold)


_RESTORERS: dict[int, Callable[[bytes], Any]] = {
    BIG_INTEGER: int,
    DECIMAL: lambda data: decimal.Decimal(data.decode()),
    DATETIME: _to_datetime,
    DATE: lambda data: datetime.date.fromordinal(msgpack.unpackb(data)),
    TIME: _to_time,
    DURATION: lambda data: datetime.timedelta(microseconds=int(data)),
    UUID: lambda data: uuid.UUID(bytes=data),
    TUPLE: lambda data: tuple(unpack(data)),
    SET: lambda data: set(map(unpack, msgpack.unpackb(data))),
    FROZENSET: lambda data: frozenset(map(unpack, msgpack.unpackb(data))),
}
