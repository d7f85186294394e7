"""Callbacks over HTTP: one request on a new connection. An answer 2xx means that it was delivered.

An object is sent as JSON, a string as form data, null as an empty body.  Redirects are not followed, because
they would bypass the allowed targets.
"""

from __future__ import annotations

import ssl
from functools import cache
from urllib.parse import SplitResult, urlsplit

import h11
import trio

from onyxq import __version__
from onyxq.core.errors import BadRequest
from onyxq.core.timer_model import Callback, Delivery, as_json
from onyxq.interfaces.callbacks.addresses import Failed, connect
from onyxq.interfaces.callbacks.targets import Resolver

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
PORTS = {"http": 80, "https": 443}
HEAD_BYTES_MAX = 64 * 1024
READ_BYTES = 16 * 1024


def place(callback: Callback) -> tuple[str, int]:
    """Return host and port of an HTTP callback; raises `BadRequest`."""
    if callback.method.upper() not in METHODS:
        raise BadRequest(f"callback.method must be one of {', '.join(METHODS)}", field="callback.method")
    return _place(_split(callback.uri))


def _split(uri: str) -> SplitResult:
    try:
        if not uri.isascii() or any(sign <= " " for sign in uri):
            raise ValueError("spaces and non-ASCII characters must be percent-encoded")
        parts = urlsplit(uri)
        if parts.scheme not in PORTS or not parts.hostname:
            raise ValueError("http://HOST[:PORT]/PATH, or https, is expected")
        if parts.username is not None or parts.password is not None:
            raise ValueError("a user or password is not allowed in the address")
        if parts.port == 0:
            raise ValueError("port 0 is not allowed")
    except ValueError as error:
        raise BadRequest(str(error), field="callback.uri") from None
    return parts


def _place(parts: SplitResult) -> tuple[str, int]:
    return str(parts.hostname), parts.port or PORTS[parts.scheme]


async def deliver(resolver: Resolver, delivery: Delivery) -> int:
    """Make the request and return the status of the answer; raises `Failed`."""
    parts = _split(delivery.uri)
    request, body = _request(parts, delivery)
    stream: trio.abc.Stream = await connect(resolver, *_place(parts))
    try:
        if parts.scheme == "https":
            stream = trio.SSLStream(stream, _context(), server_hostname=parts.hostname, https_compatible=True)
        status = await _exchange(stream, request, body)
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError) as error:
        raise Failed(f"the connection was lost: {error.__cause__ or error}") from None
    except h11.ProtocolError as error:
        raise Failed(f"the answer is not HTTP: {error}") from None
    finally:
        await trio.aclose_forcefully(stream)
    if not 200 <= status <= 299:
        raise Failed(f"the answer was {status}")
    return status


@cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _request(parts: SplitResult, delivery: Delivery) -> tuple[h11.Request, bytes]:
    kind, body = None, b""
    if isinstance(delivery.data, str):
        kind, body = "application/x-www-form-urlencoded", delivery.data.encode()
    elif delivery.data is not None:
        kind, body = "application/json", as_json(delivery.data)
    headers = [
        ("Host", parts.netloc),
        ("User-Agent", f"onyxq/{__version__}"),
        ("Connection", "close"),
        ("Content-Length", str(len(body))),
        ("Idempotency-Key", delivery.key),
        ("X-Timer-Id", delivery.timer),
        ("X-Timer-Attempt", str(delivery.attempt)),
        *([("X-Timer-Repeats", _header(delivery.repeats))] if delivery.repeats else []),
        *([("Content-Type", kind)] if kind else []),
    ]
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return h11.Request(
        method=delivery.method.upper(),
        target=target,
        headers=[(name.encode(), value.encode()) for name, value in headers],
    ), body


def _header(text: str) -> str:
    """Return a text as the value of a header, in printable ASCII."""
    return "".join(one if " " <= one <= "~" else "?" for one in text).strip()


async def _exchange(stream: trio.abc.Stream, request: h11.Request, body: bytes) -> int:
    """Send the request and return the status of the answer."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
    sent = [connection.send(request), connection.send(h11.Data(data=body)), connection.send(h11.EndOfMessage())]
    await stream.send_all(b"".join(one for one in sent if one))
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(READ_BYTES)))
        elif isinstance(event, h11.Response):
            return int(event.status_code)
        elif isinstance(event, h11.ConnectionClosed):
            raise Failed("the connection was closed without an answer")
