"""Durations as people write them: numbers, `timedelta`, or text such as ``10s``; and times (design: interfaces).

The command line and the Python interface read all durations here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from onyxq.core.errors import BadRequest

Milliseconds: TypeAlias = int | timedelta | str
"""A duration: a number of milliseconds, a `timedelta`, or text such as ``"10s"``."""
Timeout: TypeAlias = Milliseconds | None
"""The limit of one call, as `Milliseconds`; None for the limit of the client."""
Seconds: TypeAlias = float | timedelta | str
"""A duration: a number of seconds, a `timedelta`, or text such as ``"10s"``."""

Moment: TypeAlias = int | datetime
"""A time: a number of milliseconds since the epoch, or a `datetime` with a time zone."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHOWN_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
"""Units of time in milliseconds, and their names for people."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_duration(text: str) -> bool:
    """Return whether `milliseconds` accepts a text."""
    return _DURATION.fullmatch(text.strip()) is not None


def milliseconds(text: str, *, field: str) -> int:
    """Return the milliseconds of ``500ms``, ``10s``, ``5m``, ``2h``, ``1d`` or a bare number of seconds.

    Raises `BadRequest`.
    """
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise BadRequest(f"a duration looks like 10s, 500ms, 5m, 2h or 1d, not {text!r}", field=field)
    return round(float(found[1]) * _UNITS_MS[found[2] or "s"])


def as_milliseconds(value: Milliseconds, field: str) -> int:
    """Return a duration in milliseconds; numbers stay as they are. Raises `BadRequest` naming the field.

    In a program the unit of a bare number depends on the field, so text needs a unit.
    """
    if isinstance(value, str):
        if value.strip()[-1:].isdigit():
            raise BadRequest(f"{field} needs a unit: {value.strip()}s or {value.strip()}ms", field=field)
        if not is_duration(value):
            raise BadRequest(f"{field} must be a number, a timedelta or text such as 10s, not {value!r}", field=field)
        return milliseconds(value, field=field)
    return round(value / _MILLISECOND) if isinstance(value, timedelta) else value


def as_seconds(value: Seconds, field: str) -> float:
    """Return a duration in seconds; numbers stay as they are. Raises `BadRequest` naming the field."""
    if isinstance(value, (str, timedelta)):
        return as_milliseconds(value, field) / 1000
    return value


def as_moment_ms(value: Moment, field: str) -> int:
    """Return a time in milliseconds since the epoch; numbers stay as they are. Raises `BadRequest` naming the field."""
    if not isinstance(value, datetime):
        return value
    if value.utcoffset() is None:
        hint = "Make one with datetime.now(UTC), or give it a zone with .astimezone()."
        raise BadRequest(f"{field} needs a time zone, not {value!r}", field=field, hint=hint)
    return round((value - _EPOCH) / _MILLISECOND)


def span(ms: int) -> str:
    """Return a span of time in its largest whole unit: ``250 ms``, ``3 min``, ``2 d``."""
    return next((f"{ms // size} {unit}" for size, unit in _SHOWN_UNITS if ms >= size), f"{ms} ms")


def exact_span(ms: int) -> str:
    """Return a span of time in the largest unit that gives a whole number: ``90 s``, ``1500 ms``, ``2 d``."""
    return next((f"{ms // size} {unit}" for size, unit in _SHOWN_UNITS if ms >= size and not ms % size), f"{ms} ms")


def ago(ms: int, now_ms: int) -> str:
    """Return how long ago a time was, or how soon it is, in its largest whole unit."""
    past_ms = now_ms - ms
    if abs(past_ms) < 1_000:
        return "now"
    return f"{span(past_ms)} ago" if past_ms > 0 else f"in {span(-past_ms)}"
