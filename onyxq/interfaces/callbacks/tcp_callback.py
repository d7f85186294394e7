"""Callbacks over TCP: one line of JSON on a new connection.

The line has ``timer``, ``idempotency_key``, ``attempt`` and ``data``.  From the second attempt on, ``repeats``
is the reason.  With the method ``plain``, the line is only the data, as in Skyring: a string unchanged, an
object as JSON.  Then a receiver cannot distinguish attempts.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import trio

from onyxq.core.errors import BadRequest
from onyxq.core.timer_model import Callback, Delivery, as_json
from onyxq.interfaces.callbacks.addresses import Failed, connect
from onyxq.interfaces.callbacks.targets import Resolver

PLAIN = "plain"
HEARD_S = 1.0
"""Longest wait for the receiver to close, in seconds. A reset in this time fails the attempt."""


def place(callback: Callback) -> tuple[str, int]:
    """Return host and port of a TCP callback; raises `BadRequest`."""
    try:
        parts = urlsplit(callback.uri)
        if parts.scheme != "tcp" or not parts.hostname or not parts.port or parts.path.strip("/") or parts.username:
            raise ValueError("tcp://HOST:PORT is expected")
    except ValueError as error:
        raise BadRequest(str(error), field="callback.uri") from None
    return parts.hostname, parts.port


async def deliver(resolver: Resolver, delivery: Delivery) -> None:
    """Send the line; return when the receiver closed, answered, or was silent for `HEARD_S`. Raises `Failed`."""
    stream = await connect(resolver, *place(Callback("tcp", delivery.uri, delivery.method)))
    try:
        await stream.send_all(_line(delivery))
        await stream.send_eof()
        with trio.move_on_after(HEARD_S):
            await stream.receive_some(1)
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise Failed(f"the connection was lost: {error.__cause__ or error}") from None
    finally:
        await trio.aclose_forcefully(stream)


def _line(delivery: Delivery) -> bytes:
    if delivery.method != PLAIN:
        message = {"timer": delivery.timer, "idempotency_key": delivery.key, "attempt": delivery.attempt}
        if delivery.repeats:
            message["repeats"] = delivery.repeats
        return as_json(message | {"data": delivery.data}) + b"\n"
    if isinstance(delivery.data, str):
        return delivery.data.encode() + b"\n"
    return (b"" if delivery.data is None else as_json(delivery.data)) + b"\n"
