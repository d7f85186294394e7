"""Reading of a request: its query, and its body within bounds of size, time and memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qs, parse_qsl, unquote_to_bytes

import anyio
from attrs import define
from starlette.types import Receive

from onyxq.core.errors import BadRequest, Overloaded, TooLarge
from onyxq.core.texts import whole
from onyxq.interfaces.http.problems import BodyTooSlow, UnsupportedMedia
from onyxq.wire.weight import CONTAINER_BYTES, VALUE_BYTES

BODY_BYTES_MAX = 16 * 1024 * 1024
SMALL_BODY_BYTES_MAX = 256 * 1024
"""Most bytes of a body without a list of tasks and without data."""
SIGN_INS_MAX = 64
"""Forms of callers without a credential that are received at a time. Beyond it the oldest is refused."""
SIGN_IN_BYTES_MAX = 8 * 1024
"""Most bytes of such a form. Together they take little of `BODIES_BYTES_MAX`, so they keep out no other body."""
SIGN_IN_S = 30.0
"""Longest time to receive such a form, in seconds."""
BODIES_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of all bodies in progress."""
DECODED_BYTES_MAX = 128 * 1024 * 1024
"""Most estimated bytes of the values in one body."""
BODIES_DECODED_BYTES_MAX = 512 * 1024 * 1024
"""Most estimated bytes of the values in all bodies in progress."""
BODY_PAUSE_MAX_S = 30.0
BODY_TIME_MAX_S = 120.0
DRAIN_BYTES_MAX = 64 * 1024 * 1024
DRAIN_TIME_MAX_S = 5.0
QUERY_PARTS_MAX = 100
FORM_FIELDS_MAX = 2_000
FORM = "application/x-www-form-urlencoded"

_MEDIA = ("application/json", "application/x-www-form-urlencoded", "application/octet-stream", "text/plain")


_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string of JSON. One without a closing quote reaches to the end, so that no byte is scanned twice."""


class Disconnected(Exception):
    """The client went away."""


@define
class Budget:
    """Memory for bodies that all requests share."""

    limit: int
    used: int = 0

    def take(self, count: int) -> None:
        """Reserve bytes; raises `Overloaded`."""
        if self.used + count > self.limit:
            raise Overloaded("too many large requests at one time", hint="Send smaller or fewer requests at a time.")
        self.used += count


class Body:
    """The body of one request, read at most once."""

    def __init__(self, headers: Mapping[str, str], receive: Receive, budget: Budget, decoded: Budget) -> None:
        self._receive = receive
        self._budget = budget
        self._taken = 0
        self._decoded = decoded
        self._values = 0
        self.length = _length(headers)
        self.complete = self.length == 0 and "transfer-encoding" not in headers

    @contextmanager
    def accounted(self) -> Iterator[None]:
        """Return the reserved memory at the end."""
        try:
            yield
        finally:
            self.release()
            self._decoded.used -= self._values

    def release(self) -> None:
        """Return the memory that is reserved for the bytes of the body."""
        self._budget.used -= self._taken
        self._taken = 0

    async def read(self, limit: int = BODY_BYTES_MAX) -> bytes:
        """Return the body, at most ``limit`` bytes; raises `TooLarge`, `BodyTooSlow`, `Overloaded`, `Disconnected`."""
        if self.length > limit:
            raise _too_large("the body is larger", limit)
        self._take(self.length)
        chunks: list[bytes] = []
        size = 0
        with anyio.move_on_after(BODY_TIME_MAX_S):
            while True:
                chunk, more = await self._next()
                size += len(chunk)
                if size > limit:
                    raise _too_large("the body is larger", limit)
                self._take(size)
                chunks.append(chunk)
                if not more:
                    return b"".join(chunks)
        raise BodyTooSlow(f"the body did not arrive within {BODY_TIME_MAX_S:.0f} s")

    def check_values(self, raw: bytes) -> None:
        """Reserve memory for the values of JSON before it is decoded; raises `TooLarge` or `Overloaded`."""
        size = decoded_bytes(raw)
        self._decoded.take(size - self._values)
        self._values = size

    def _take(self, size: int) -> None:
        if size > self._taken:
            self._budget.take(size - self._taken)
            self._taken = size

    async def _next(self) -> tuple[bytes, bool]:
        with anyio.move_on_after(BODY_PAUSE_MAX_S):
            message = await self._receive()
            if message["type"] != "http.request":
                self.complete = True
                raise Disconnected
            more = bool(message.get("more_body", False))
            self.complete = not more
            return message.get("body", b""), more
        raise BodyTooSlow(f"no byte of the body arrived for {BODY_PAUSE_MAX_S:.0f} s")

    async def drain(self) -> None:
        """Drop the rest, within bounds, so that the client can read its answer."""
        size = 0
        with anyio.move_on_after(DRAIN_TIME_MAX_S):
            while not self.complete and size < DRAIN_BYTES_MAX:
                await anyio.lowlevel.checkpoint()
                message = await self._receive()
                size += len(message.get("body", b""))
                self.complete = message["type"] != "http.request" or not message.get("more_body", False)


def _length(headers: Mapping[str, str]) -> int:
    length = whole(headers.get("content-length", "0"))
    return BODY_BYTES_MAX + 1 if length is None else length


def _too_large(what: str, limit: int) -> TooLarge:
    return TooLarge(f"{what}; at most {limit} bytes are taken here")


def decoded_bytes(raw: bytes, limit: int = DECODED_BYTES_MAX) -> int:
    """Estimate how much memory a JSON text takes once it is decoded; raises `TooLarge` above ``limit``."""
    size = _estimate(raw)
    if size > limit:  # until here, characters within strings count too
        size = _estimate(_TEXT.sub(b"", raw))
        if size > limit:
            raise TooLarge("the body has too many values", hint="Send fewer of them at a time.")
    return size


def _estimate(raw: bytes) -> int:
    values, containers = raw.count(b",") + raw.count(b":"), raw.count(b"[") + raw.count(b"{")
    return len(raw) + VALUE_BYTES * values + CONTAINER_BYTES * containers


def check_media(headers: Mapping[str, str]) -> None:
    """Raise `UnsupportedMedia` unless the body can be JSON in UTF-8.

    The defaults of common tools (forms, plain text) are accepted as JSON too.
    """
    media, _, parameters = headers.get("content-type", "application/json").lower().partition(";")
    if media.strip() not in _MEDIA and not media.strip().endswith("+json"):
        raise UnsupportedMedia("the content type is not JSON", field="Content-Type")
    charset = parameters.partition("charset=")[2].strip(' "')
    if charset and not charset.startswith(("utf-8", "utf8", "us-ascii")):
        raise UnsupportedMedia("the charset is not UTF-8", field="Content-Type")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMedia("compressed bodies are not accepted", field="Content-Encoding")


def form_fields(headers: Mapping[str, str], body: bytes) -> dict[str, list[str]]:
    """Return the fields of a form with all their values; raises `BadRequest`."""
    if headers.get("content-type", FORM).partition(";")[0].strip().lower() != FORM:
        raise UnsupportedMedia("the content type is not that of a form", field="Content-Type", hint=f"Send {FORM}.")
    try:
        return parse_qs(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FORM_FIELDS_MAX)
    except ValueError:
        raise BadRequest("the form is malformed, or has too many fields") from None


def query_pairs(query: bytes) -> list[tuple[str, str]]:
    """Return the names and values of a query string; raises `BadRequest`."""
    try:
        text = query.decode("ascii")
        return parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=QUERY_PARTS_MAX
        )
    except UnicodeDecodeError:
        raise BadRequest("the query is not UTF-8") from None
    except ValueError:
        raise BadRequest("the query is malformed", hint="Write it as name=value&name=value.") from None


def form_text(body: bytes, field: str) -> bytes:
    """Return a field of a form, or the body itself if it has another form. Raises `BadRequest`."""
    if not body.startswith(f"{field}=".encode()):
        return body
    try:
        found = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_PARTS_MAX)
    except ValueError:
        raise BadRequest("the form is malformed", hint=f"Write it as {field}=JSON, percent-encoded.") from None
    return dict(reversed(found))[field].encode()


def path_segments(raw_path: bytes) -> list[str]:
    """Return the decoded parts of a path; an escaped slash stays within its part. Raises `BadRequest`."""
    try:
        return [unquote_to_bytes(part).decode() for part in raw_path.removeprefix(b"/").split(b"/")]
    except UnicodeDecodeError:
        raise BadRequest("the path is not UTF-8") from None
