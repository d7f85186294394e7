"""The answering side of the wire protocol: one call of `serve` per connection (design: wire).

``dispatch`` is synchronous: it gets each `Request` and answers it at once or later, so a request
costs no task.  The other side's data can end its connection but never harms the server.  Reading
stops while too much is in flight or unsent, and malformed data is answered with an error.
Everything here belongs to the event loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from typing import Any

import anyio
import msgspec
from anyio.abc import ByteStream

from onyxq.core.errors import OnyxqError, ProtocolError, TimedOut
from onyxq.wire.bounds import Bounds
from onyxq.wire.connection import BREAKS, RECEIVE_BYTES, UNSENT_BYTES_MAX, Outlet
from onyxq.wire.protocol import (
    ANSWER_BYTES_MAX,
    CANCEL,
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    PING,
    Decoder,
    Hello,
    Refused,
    check_cluster,
    encode,
    parse_request,
    refusal,
)
from onyxq.wire.weight import decoded_bytes

REQUESTS_MAX = 1024
"""Requests in progress per connection, one-way messages included; further ones wait."""
REQUEST_BYTES_MAX = 64 * 1024 * 1024
"""Bytes in memory of the requests in progress per connection; further requests wait."""
AHEAD_BYTES = 64 * 1024
"""Bytes read while no request is accepted, so that the end of the connection is noticed."""
HELLO_TIMEOUT_S = 5.0
NEVER = -1.0
MESSAGE_PAUSE_S = 30.0
"""Longest pause while a message is partly received, in seconds."""
MESSAGE_TIMEOUT_S = 120.0
"""Longest time to receive one message, in seconds."""
GOODBYE_TIMEOUT_S = 1.0
"""Seconds for the last answers to be sent, and for one-way messages to finish, once a connection has ended."""

_CANCEL = msgspec.msgpack.Decoder(dict[str, Any])

log = logging.getLogger(__name__)


class Request:
    """One request; answer it once with `reply` or `fail` (later answers are ignored)."""

    __slots__ = ("_exchange", "_number", "_size", "args", "method", "on_cancel", "open", "peer")

    def __init__(self, exchange: _Exchange, number: int, size: int, method: str, args: Any) -> None:
        self._exchange = exchange
        self._number = number
        """Id of the request on the connection; negative for a one-way message."""
        self._size = size
        self.method = method
        self.args = args
        self.peer = exchange.peer
        """The caller's hello."""
        self.on_cancel: Callable[[], None] | None = None
        """Called if the caller withdraws the request, or its connection ends, before the answer."""
        self.open = True
        """Whether the request is neither answered nor withdrawn."""

    @property
    def caller(self) -> object:
        """Connection of the request."""
        return self._exchange

    @property
    def size(self) -> int:
        """Bytes of the request in memory."""
        return self._size

    @property
    def one_way(self) -> bool:
        """Whether the caller expects no answer."""
        return self._number < 0

    def reply(self, result: Any) -> None:
        """Answer with a result (any value that msgpack holds)."""
        if self.open:
            self.open = False
            self._exchange.answer(self._number, self._size, 0, result)

    def fail(self, error: OnyxqError) -> None:
        """Answer with an error."""
        if self.open:
            self.open = False
            self._exchange.answer(self._number, self._size, 1, error.to_map())

    def withdraw(self) -> None:
        """Note that the caller no longer waits."""
        if self.open:
            self.open = False
            if self.on_cancel is not None:
                self.on_cancel()


Dispatch = Callable[[Request], None]
Admit = Callable[[str, int], None]
"""Checks a client's request by its method and bytes; raises an error to refuse it."""
Welcome = Callable[[Hello], Hello]


class _Exchange:
    """State of one connection."""

    def __init__(self, stream: ByteStream, dispatch: Dispatch, bounds: Bounds, admit: Admit | None) -> None:
        self.peer = Hello()
        self.outlet = Outlet(stream)
        self.decoder = Decoder(frame_bytes_max=HELLO_BYTES_MAX)
        self._stream = stream
        self._dispatch = dispatch
        self._admit = admit
        self._requests: dict[int, Request] = {}
        """Requests in progress, by number."""
        self._one_way = count(-1, -1)
        """Numbers for one-way messages."""
        self._bytes = 0
        self._bounds = bounds
        self._began = NEVER
        """Monotonic second at which the first part of the next message arrived."""
        self._partial = 0
        """Bytes of the partial message that count."""
        self._pause: anyio.CancelScope | None = None
        """Cancelled when a request in progress is answered; None if nothing waits for that."""
        self.written = anyio.Event()
        """Set when nothing more will be sent."""

    async def greet(self, hello: Hello | Welcome) -> None:
        """Receive the caller's hello and answer it; raises the reason to refuse."""
        while True:
            for message, _ in self.decoder.messages():
                self.peer = Hello.from_message(message)
                mine = hello if isinstance(hello, Hello) else hello(self.peer)
                check_cluster(mine, self.peer)
                self.decoder.frame_bytes_max = FRAME_BYTES_MAX
                self.outlet.put(encode(mine.to_message()))
                return
            self.decoder.feed(await self._stream.receive(HELLO_BYTES_MAX))

    async def read(self) -> None:
        """Accept requests until the stream ends; raises the stream's errors and `ProtocolError`."""
        screen = None if self.peer.role == "peer" else self._screen
        while True:
            whole = False
            for message, size in self.decoder.messages(screen):
                whole = True
                self._take(message, size)
                if self._is_full():
                    await self._room()
                if self.outlet.unsent >= UNSENT_BYTES_MAX:
                    await self.outlet.room()
            await self.outlet.room()
            if self.peer.role != "peer" and (self.decoder.waiting or self._partial):
                self.decoder.feed(await self._receive_rest(begins=whole))
            else:
                self.decoder.feed(await self._stream.receive(RECEIVE_BYTES))

    async def finish_one_way(self) -> None:
        """Give one-way messages a moment to finish: their caller closes without waiting for them."""
        with anyio.move_on_after(GOODBYE_TIMEOUT_S):
            while any(request.one_way for request in self._requests.values()):
                with anyio.CancelScope() as self._pause:
                    await anyio.sleep_forever()
                self._pause = None

    async def _receive_rest(self, *, begins: bool) -> bytes:
        """Receive more of a client's incomplete message; raises `TimedOut` and, for a large one, `Overloaded`."""
        waiting = self.decoder.waiting
        self._partial = self._bounds.hold(self._partial, waiting)
        if not waiting:
            self._began = NEVER
            return await self._stream.receive(RECEIVE_BYTES)
        if begins or self._began == NEVER:
            self._began = anyio.current_time()
        if self._partial:
            self._bounds.check_room()
        left_s = self._began + MESSAGE_TIMEOUT_S - anyio.current_time()
        with anyio.move_on_after(min(MESSAGE_PAUSE_S, left_s)):
            return await self._stream.receive(RECEIVE_BYTES)
        raise TimedOut("a message did not come to its end in time", hint="Send it without long pauses.")

    def forget_partial(self) -> None:
        """Stop counting the bytes of an incomplete message, since no more will arrive."""
        self._partial = self._bounds.hold(self._partial, 0)

    def answer(self, number: int, size: int, status: int, result: Any) -> None:
        """Queue the answer to a request and forget the request."""
        self._forget(number, size)
        if number < 0:
            return
        try:
            frame = encode([number, status, result], most=ANSWER_BYTES_MAX)
        except OnyxqError as error:
            log.error("the answer to a request could not be encoded: %s", error.message)
            frame = encode([number, 1, error.to_map()])
        self.outlet.put(frame)

    def refuse(self, error: OnyxqError) -> None:
        """Send the error that ends the connection, as the last frame."""
        self.outlet.put(refusal(error))
        self.outlet.end()

    def withdraw_all(self) -> None:
        """Withdraw all requests in progress, since their caller is gone."""
        requests, self._requests = self._requests, {}
        self._bounds.requests -= self._bytes
        self._bytes = 0
        for request in requests.values():
            request.withdraw()

    def _screen(self, number: int, method: str, frame: memoryview) -> int | Refused:
        """Check a client's request before its arguments are decoded, which may take far more memory."""
        try:
            if self._admit is not None and method not in (CANCEL, PING):
                self._admit(method, len(frame))
            size = decoded_bytes(frame)
            self._bounds.check_requests(size)
        except OnyxqError as error:
            return Refused(number, error)
        return size

    def _take(self, message: Any, size: int) -> None:
        if isinstance(message, Refused):
            if message.number:
                self.outlet.put(encode([message.number, 1, message.error.to_map()]))
            return
        number, method, args = parse_request(message)
        if method == CANCEL:
            self._cancel(args)
            return
        if number in self._requests:
            raise ProtocolError(f"request {number} is still in flight")
        request = Request(self, number or next(self._one_way), size, method, args)
        self._requests[request._number] = request
        self._bytes += size
        self._bounds.requests += size
        if method == PING:
            request.reply(None)
            return
        try:
            self._dispatch(request)
        except OnyxqError as error:
            request.fail(error)
        except Exception:
            # A bug in one request must not end the node's other work.
            log.exception("the request %s failed unexpectedly", method)
            request.fail(OnyxqError(f"{method} failed unexpectedly"))

    def _cancel(self, args: Any) -> None:
        try:
            number: Any = (_CANCEL.decode(args) if isinstance(args, msgspec.Raw) else args).get("id")
        except (ValueError, RecursionError):
            raise ProtocolError("a withdrawal is malformed") from None
        request = self._requests.get(number) if type(number) is int else None
        if request is not None:
            self._forget(number, request._size)
            request.withdraw()

    def _forget(self, number: int, size: int) -> None:
        if self._requests.pop(number, None) is not None:
            self._bytes -= size
            self._bounds.requests -= size
            if self._pause is not None:
                self._pause.cancel()

    def _is_full(self) -> bool:
        return len(self._requests) >= REQUESTS_MAX or self._bytes >= REQUEST_BYTES_MAX

    async def _room(self) -> None:
        """Wait until another request may be accepted; raises the stream's error at its end."""
        while self._is_full():
            with anyio.CancelScope() as self._pause:
                if self.decoder.waiting >= AHEAD_BYTES:
                    await anyio.sleep_forever()
                self.decoder.feed(await self._stream.receive(AHEAD_BYTES))
            self._pause = None


async def serve(
    stream: ByteStream,
    *,
    hello: Hello | Welcome,
    dispatch: Dispatch,
    bounds: Bounds | None = None,
    admit: Admit | None = None,
) -> None:
    """Serve one connection until it ends, then close it.

    ``bounds`` are those of all connections of the port.
    ``hello`` is this side's hello, or makes it from the caller's and may raise an
    `OnyxqError` to refuse.  ``admit`` checks each request of a client before its
    arguments are decoded.  Never raises for anything that the other side does.
    """
    bounds = bounds or Bounds()
    exchange = _Exchange(stream, dispatch, bounds, admit)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_write, exchange, group.cancel_scope)
            await _read(exchange, hello, bounds)
            with anyio.move_on_after(GOODBYE_TIMEOUT_S):
                await exchange.written.wait()
            group.cancel_scope.cancel()
    finally:
        exchange.withdraw_all()
        exchange.forget_partial()
        exchange.outlet.abandon()
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)


async def _read(exchange: _Exchange, hello: Hello | Welcome, bounds: Bounds) -> None:
    try:
        with bounds.newcomers.entered(HELLO_TIMEOUT_S) as scope:
            await exchange.greet(hello)
        if scope.cancelled_caught:
            raise TimedOut(f"no hello came in time (within {HELLO_TIMEOUT_S:g} s, less if many connect)")
        # A peer is admitted regardless of the number of clients.
        with nullcontext() if exchange.peer.role == "peer" else bounds.client():
            try:
                await exchange.read()
            except BREAKS:
                await exchange.finish_one_way()
                raise
    except BREAKS:
        exchange.outlet.end()
    except OnyxqError as error:
        exchange.refuse(error)


async def _write(exchange: _Exchange, scope: anyio.CancelScope) -> None:
    try:
        await exchange.outlet.run()
    except BREAKS:
        scope.cancel()
    finally:
        exchange.written.set()
