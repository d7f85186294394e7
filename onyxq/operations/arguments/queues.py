"""Checks of what clients send about queues' settings and periodic tasks: each names the field at fault."""

from __future__ import annotations

import math
from typing import Any

from pyrsistent import pmap

from log_entries import set_queue
from log_entries.set_periodic import FORMATS, MISSED, PAYLOAD_BYTES_MAX, TEXT_CHARACTERS_MAX
from onyxq.core import queues
from onyxq.core.errors import BadRequest, TooLarge
from onyxq.node import arguments as check

RATES = ("rate", "key_rate")
"""Settings that users give in tasks a second, and entries have in tasks per 1,000 seconds."""


def queue_settings(args: dict[str, Any]) -> set_queue.Args:
    """The arguments of ``queue.set``: null is no limit for ``retries``, else the default."""
    check.only(args, ("queue", "settings", "by", "why"))
    queue = check.name(args.get("queue"), "queue", check.QUEUE_CHARS_MAX, least=1)
    settings = args.get("settings")
    if not isinstance(settings, dict):
        raise BadRequest("settings must be a map", field="settings")
    numbers, words, flags, cleared = dict[str, int](), dict[str, str](), dict[str, bool](), list[str]()
    for name, value in settings.items():
        if name not in queues.SETTINGS:
            known = ", ".join(queues.SETTINGS)
            raise BadRequest(f"there is no setting {str(name)[:100]!r}; there are {known}", field=str(name)[:100])
        if value is None and name != "retries":
            cleared.append(name)
        elif name in queues.WORDS:
            words[name] = _word(value, name, queues.WORDS[name])
        elif name in queues.FLAGS:
            flags[name] = switch(value, name)
        else:
            numbers[name] = _number(value, name)
    return set_queue.Args(
        queue=queue,
        numbers=pmap(numbers),
        words=pmap(words),
        flags=pmap(flags),
        cleared=tuple(sorted(cleared)),
        by=_said(args, "by"),
        why=_said(args, "why"),
    )


def queue_name(args: dict[str, Any]) -> str:
    """The one queue that is asked for."""
    check.only(args, ("queue",))
    return check.name(args.get("queue"), "queue", check.QUEUE_CHARS_MAX, least=1)


def periodic(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``periodic.set``, complete, by the names of ``set_periodic``."""
    known = ("name", "queue", "schedule", "zone", "data", "format", "priority", "missed", "paused")
    check.only(args, known)
    payload = args.get("data", b"")
    if not isinstance(payload, bytes):
        raise BadRequest("data must be bytes", field="data")
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise TooLarge(f"data has {len(payload)} bytes; a periodic task at most {PAYLOAD_BYTES_MAX}", field="data")
    return {
        "name": check.name(args.get("name"), "name", TEXT_CHARACTERS_MAX, least=1),
        "queue": check.name(args.get("queue"), "queue", check.QUEUE_CHARS_MAX, least=1),
        "schedule": check.name(args.get("schedule"), "schedule", TEXT_CHARACTERS_MAX, least=1),
        "zone": check.name(args.get("zone", "UTC"), "zone", TEXT_CHARACTERS_MAX, least=1),
        "payload": payload,
        "format": _word(args.get("format", "bytes"), "format", FORMATS),
        "priority": check.integer(args.get("priority", 0), "priority", *check.PRIORITY),
        "missed": _word(args.get("missed", "once"), "missed", MISSED),
        "paused": switch(args.get("paused", False), "paused"),
    }


def periodic_name(args: dict[str, Any], *more: str) -> str:
    """Which periodic task is meant; ``more``: other fields that there may be."""
    check.only(args, ("name", *more))
    return check.name(args.get("name"), "name", TEXT_CHARACTERS_MAX, least=1)


def switch(value: Any, field: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise BadRequest(f"{field} must be true or false", field=field)
    return value


def _said(args: dict[str, Any], name: str) -> str:
    value = args.get(name)
    return "" if value is None else check.name(value, name, queues.WHY_CHARACTERS_MAX)


def _word(value: Any, field: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise BadRequest(f"{field} must be one of: {', '.join(known)}", field=field)
    return str(value)


def _number(value: Any, name: str) -> int:
    if value is None:  # retries
        return queues.NO_LIMIT
    low, high = queues.NUMBERS[name]
    if name not in RATES:
        return check.integer(value, name, max(low, 0), high)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadRequest(f"{name} must be a number of tasks a second", field=name)
    if not 0 <= value <= high // 1_000:
        raise BadRequest(f"{name} must be 0 (no limit) to {high // 1_000} tasks a second", field=name)
    rounded = round(value * 1_000)
    if value and not rounded:
        raise BadRequest(f"{name} must be 0 (no limit), or 0.001 tasks a second at least", field=name)
    return rounded
