"""The model of a timer as a task: the queue, the payload, and the limits of requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgpack
from attrs import frozen

from onyxq.core.errors import BadRequest, TooLarge
from onyxq.core.limits import NAME_CHARACTERS_MAX, is_plain
from onyxq.core.limits import TIMER_URI_CHARS_MAX as URI_CHARS_MAX

DATA_BYTES_MAX = 1 << 20
CALLBACK = ("transport", "uri", "method")


@frozen
class Callback:
    """The destination of a delivery."""

    transport: str
    uri: str
    method: str


@frozen
class Timer:
    """A timer, as it was requested under an id."""

    id: str
    timeout: int
    """Milliseconds from the time when it was set."""
    data: Any
    callback: Callback
    request: str = ""
    """Name of the request that set it, which distinguishes a repeat from a new request."""


def timer_id(value: Any) -> str:
    """Return a timer's id; raises `BadRequest`."""
    if not isinstance(value, str) or not 1 <= len(value) <= NAME_CHARACTERS_MAX or not _printable(value):
        raise BadRequest(
            f"id must be a string of 1 to {NAME_CHARACTERS_MAX} characters, none a control character", field="id"
        )
    if value != value.strip():
        raise BadRequest("id must not begin or end with a space", field="id")
    return value


def checked(timer: Any, *, timeout: Any, data: Any, callback: Any, longest_ms: int, request: Any = "") -> Timer:
    """Return the timer that is requested; raises `BadRequest` naming the field."""
    if type(timeout) is not int:
        raise BadRequest("timeout must be an integer: milliseconds from now", field="timeout")
    if not 1 <= timeout <= longest_ms:
        raise BadRequest(f"timeout must be 1 to {longest_ms} ms, not {timeout}", field="timeout")
    if data is not None and not isinstance(data, (str, dict)):
        raise BadRequest("data must be null, a string or an object", field="data")
    if not isinstance(request, str) or len(request) > NAME_CHARACTERS_MAX or not _printable(request):
        raise BadRequest(f"request must be a string of at most {NAME_CHARACTERS_MAX} characters", field="request")
    return Timer(timer_id(timer), timeout, data, checked_callback(callback), request)


def checked_callback(value: Any) -> Callback:
    """Return the callback that a map describes; raises `BadRequest` naming the field, which begins with `callback`."""
    if not isinstance(value, Mapping):
        raise BadRequest(f"callback must be an object with {', '.join(CALLBACK)}", field="callback")
    for name in value:
        if name not in CALLBACK:
            raise BadRequest(f"a callback has no field {str(name)[:100]!r}", field=f"callback.{str(name)[:100]}")
    return Callback(*(_text(value.get(name), f"callback.{name}") for name in CALLBACK))


def _text(value: Any, field: str) -> str:
    longest = URI_CHARS_MAX if field == "callback.uri" else NAME_CHARACTERS_MAX
    if not isinstance(value, str) or not 1 <= len(value) <= longest or not _printable(value):
        raise BadRequest(f"{field} must be a string of 1 to {longest} characters", field=field)
    return value


def _printable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False  # half a surrogate pair
    return is_plain(text)


def pack(timer: Timer) -> bytes:
    """Return the payload of the timer's task, JSON; raises `BadRequest`, `TooLarge`.

    Data that HTTP can carry and the TCP port cannot is refused too.
    """
    try:
        msgpack.packb(timer.data)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequest(f"data cannot be kept: {error}"[:200], field="data") from None
    callback = {name: getattr(timer.callback, name) for name in CALLBACK}
    said = {"id": timer.id, "timeout": timer.timeout, "data": timer.data, "callback": callback}
    if timer.request:
        said["request"] = timer.request
    packed = as_json(said)
    if len(packed) > DATA_BYTES_MAX:
        raise TooLarge(f"data is over {DATA_BYTES_MAX} bytes", field="data")
    return packed


def unpack(payload: bytes) -> Timer:
    """Return the timer in a payload, the reverse of `pack`; raises `BadRequest` if there is none."""
    try:
        said = json.loads(payload)
        timer, timeout, data, callback = said["id"], said["timeout"], said["data"], said["callback"]
        request = said.get("request", "")
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadRequest("the task's payload is not a timer", field="data") from None
    return checked(timer, timeout=timeout, data=data, callback=callback, longest_ms=1 << 48, request=request)


def request_of(payload: bytes) -> str:
    """Return the request that set a timer; empty if the payload does not contain it."""
    try:
        return unpack(payload).request
    except BadRequest:
        return ""


def as_json(value: Any) -> bytes:
    """Return compact UTF-8 JSON; raises `BadRequest`."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRequest(f"data is not JSON: {error}", field="data") from None


@frozen
class Delivery:
    """One attempt at a callback."""

    timer: str
    """The timer's id."""
    key: str
    """The idempotency key: the same for every attempt, another one if the timer is set again."""
    attempt: int
    """Number of the attempt, from 1."""
    uri: str
    method: str
    data: Any
    """None, a string or a map."""
    repeats: str = ""
    """Why the previous attempt did not suffice; empty at the first."""
