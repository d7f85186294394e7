"""One connection of the HTTP interface: hypercorn's with HTTP/1.1 only, and a time limit for slow readers."""

from __future__ import annotations

import h11
import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from trio.abc import HalfCloseableStream

from onyxq.core.errors import BadRequest
from onyxq.wire.protocol import CLIENT_PORT, refusal, starts_hello
from onyxq.wire.tcp import join_address

SEND_PAUSE_MAX_S = 30.0
"""Time in which a client must read one piece of an answer, in seconds."""
SEND_PIECE_BYTES = 64 * 1024


class BoundedStream(HalfCloseableStream):
    """A connection that is closed when its client does not read for too long."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.scope = trio.CancelScope()
        """Scope of the task that serves the connection, cancelled when sending fails.

        Reading is suspended while an answer is sent and the client has sent more, so it would not notice the end.
        """
        self.socket = stream.socket
        """Socket with the connection's two addresses."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all data; raises `trio.BrokenResourceError` if the client does not read it."""
        view = memoryview(data)
        for start in range(0, len(view), SEND_PIECE_BYTES):
            try:
                with trio.fail_after(SEND_PAUSE_MAX_S):
                    await self._stream.send_all(view[start : start + SEND_PIECE_BYTES])
            except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
                self.scope.cancel()
                await trio.aclose_forcefully(self)
                raise trio.BrokenResourceError("the client does not read its answer") from None

    async def wait_send_all_might_not_block(self) -> None:
        """Do as the connection does."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Do as the connection does."""
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        """Do as the connection does."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Do as the connection does."""
        await self._stream.aclose()


class _OtherVersion(Exception):
    """The client uses a version of HTTP that this server refuses."""


class Http1(H11Protocol):
    """HTTP/1.1 without an upgrade to HTTP/2, whose connections have other time limits."""

    async def handle(self, event: Event) -> None:
        """Handle an event. A request in another version or in OnyxQ's own protocol ends the connection."""
        if isinstance(event, RawData) and starts_hello(event.data):
            place = f"{join_address(*self.server)} is" if self.server else "this is"
            await self.send(RawData(refusal(BadRequest(f"{place} an HTTP port", hint=CLIENT_PORT))))
            await self.send(Closed())
            return
        try:
            await super().handle(event)
        except _OtherVersion:
            await self._send_error_response(505)
            await self.send(Closed())

    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore an offer to upgrade to HTTP/2."""
        if not event.http_version.startswith(b"1."):
            raise _OtherVersion


class Connection(TCPServer):
    """A connection that always speaks `Http1`.  Await it to serve it to its end."""

    @property
    def protocol(self) -> ProtocolWrapper:
        """Return the protocol."""
        return self._protocol

    @protocol.setter
    def protocol(self, chosen: ProtocolWrapper) -> None:
        chosen.protocol = Http1(
            chosen.app,
            chosen.config,
            chosen.context,
            chosen.task_group,
            chosen.state,
            chosen.ssl,
            chosen.client,
            chosen.server,
            chosen.send,
        )
        self._protocol = chosen

    async def _read_data(self) -> None:
        """Read until the client is gone, and then end at once; hypercorn would wait for its idle limit."""
        await super()._read_data()
        await self.idle_task.stop()
