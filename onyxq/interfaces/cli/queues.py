"""``onyxq queue``: how deep queues are, and what they allow."""

from __future__ import annotations

import getpass
import socket
from typing import Any

from onyxq.core import queues
from onyxq.core.errors import BadRequest, NotFound
from onyxq.core.texts import whole
from onyxq.interfaces.cli.context import Context, is_duration, milliseconds
from onyxq.system.settings import did_you_mean

STATES = ("total", "ready", "claimed", "scheduled", "waiting", "completed", "failed", "cancelled")
NONE = ("none", "null", "forever")


def queue_list(context: Context) -> None:
    """Every queue with its depth, and whether it is paused."""
    found = {"queues": [shown(queue) for queue in context.call("queues")["queues"]]}
    columns = ("queue", "paused", *STATES, "oldest_ready")
    rows = ({**queue, **queue["depth"], "oldest_ready": _age(queue)} for queue in found["queues"])
    context.out.table(found, rows, columns, empty="no queues")


def queue_show(context: Context) -> None:
    """One queue; `NotFound` if there is neither a task nor a setting of that name."""
    name = context.args.queue
    found = context.call("queue.get", {"queue": name})
    default = all(found["settings"][key] == getattr(queues.DEFAULTS, key) for key in queues.SETTINGS)
    if not found["depth"]["total"] and default:
        hint = "A queue is there with its first task, or once it was set."
        raise NotFound(f"there is no queue {name!r}", field="queue", hint=hint)
    _print(context, found)


def queue_pause(context: Context) -> None:
    """Grant nothing of a queue any more."""
    _set(context, {"paused": True})


def queue_resume(context: Context) -> None:
    """Go on with a queue."""
    _set(context, {"paused": False})


def queue_set(context: Context) -> None:
    """Change settings, each given as ``key=value``."""
    _set(context, dict(parsed(text) for text in context.args.settings))


def parsed(text: str) -> tuple[str, Any]:
    """A setting and its value for the method ``queue.set``; raises `BadRequest` naming the setting."""
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if name not in queues.SETTINGS:
        known = f"there are {', '.join(queues.SETTINGS)}"
        meant = did_you_mean(name, list(queues.SETTINGS))
        raise BadRequest(f"there is no setting {name!r}{meant}", field=name, hint=f"Write key=value; {known}.")
    if not equals:
        raise BadRequest(f"{name} needs a value", field=name, hint=f"Write {name}=VALUE; default sets it back.")
    value = value.strip()
    if value == "default":
        return name, queues.DEFAULTS.retries if name == "retries" else None
    if name in queues.WORDS:
        return name, value.replace("-", " ").replace("_", " ")
    if name in queues.FLAGS:
        return name, _flag(name, value)
    return name, _number(name, value)


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false", "yes", "no", "on", "off"):
        raise BadRequest(f"{name} is true or false, not {value!r}", field=name)
    return value in ("true", "yes", "on")


def _number(name: str, value: str) -> int | float | None:
    if name == "retries" and value in NONE:
        return None
    if name.endswith("_ms") and whole(value) is None and is_duration(value):
        return milliseconds(value, field=name)
    try:
        return int(value) if name not in ("rate", "key_rate") else _plain(float(value.removesuffix("/s")))
    except ValueError:
        kind = "a number of tasks a second" if name in ("rate", "key_rate") else "a whole number"
        more = " of milliseconds, or a time such as 30s" if name.endswith("_ms") else ""
        raise BadRequest(f"{name} is {kind}{more}, not {value!r}", field=name) from None


def _plain(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _set(context: Context, settings: dict[str, Any]) -> None:
    args = context.args
    by = args.by or f"{_user()}@{socket.gethostname()}"
    with context.client() as client:
        client.call("queue.set", {"queue": args.queue, "settings": settings, "by": by, "why": args.why or ""})
        found = client.call("queue.get", {"queue": args.queue})
    _print(context, found)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "?"  # a user id without a name, as in containers


def _print(context: Context, found: dict[str, Any]) -> None:
    queue = shown(found)
    if context.out.as_json:
        context.out.document(queue)
        return
    rest = {name: value for name, value in queue.items() if name not in ("queue", "depth", "oldest_ready_ms")}
    rest["retries"] = "no limit" if rest["retries"] is None else rest["retries"]
    context.out.fields({"queue": queue["queue"], **queue["depth"], "oldest_ready": _age(queue), **rest})


def shown(queue: dict[str, Any]) -> dict[str, Any]:
    """A queue with its settings beside its depth."""
    return {**{name: value for name, value in queue.items() if name != "settings"}, **queue["settings"]}


def _age(queue: dict[str, Any]) -> str:
    age_ms = queue["oldest_ready_ms"]
    return "" if age_ms is None else f"{age_ms / 1000:.0f}s"
