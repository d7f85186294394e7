"""Serving the HTTP interface on trio with hypercorn's connections.

Listening, bounds on slow or many clients, and the end are decided here: a client that
does not read is cut off, since hypercorn itself would wait for it for ever.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp
from trio.abc import HalfCloseableStream

from onyxq.errors import Unavailable
from onyxq.http.app import App
from onyxq.http.problems import RETRY_AFTER_S
from onyxq.wire.tcp import split_address

HEADER_BYTES_MAX = 32 * 1024
IDLE_TIME_MAX_S = 15.0
"""How long a connection may take to send a request's header, or stay open without one."""
SEND_PAUSE_MAX_S = 30.0
"""How long a client may take to read one piece of an answer."""
SEND_PIECE_BYTES = 64 * 1024
CONNECTIONS_MAX = 4_096
STOP_TIME_MAX_S = 5.0
BACKLOG = 512

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\nretry-after: %d\r\n\r\n"
    % RETRY_AFTER_S
)
_log = logging.getLogger("onyxq.http")


class BoundedStream(HalfCloseableStream):
    """A connection that is closed when its client does not read for too long."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.scope = trio.CancelScope()
        """Of the task that serves the connection: ended once nothing can be sent any more.

        Reading is suspended while an answer is under way and the client has sent more,
        so the end would not be noticed there.
        """
        self.socket = stream.socket
        """Where the connection's two addresses are read."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send it all; raises `trio.BrokenResourceError` if the client does not take it."""
        view = memoryview(data)
        for start in range(0, len(view), SEND_PIECE_BYTES):
            try:
                with trio.fail_after(SEND_PAUSE_MAX_S):
                    await self._stream.send_all(view[start : start + SEND_PIECE_BYTES])
            except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
                self.scope.cancel()
                await trio.aclose_forcefully(self)
                raise trio.BrokenResourceError("the client does not take its answer") from None

    async def wait_send_all_might_not_block(self) -> None:
        """As the connection does."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As the connection does."""
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        """As the connection does."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """As the connection does."""
        await self._stream.aclose()


async def listen(address: str) -> trio.SocketListener:
    """A listening socket at ``HOST:PORT`` (port 0: a free one); raises `Unavailable`."""
    host, port = split_address(address, field="http")
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        bound = trio.socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot(address, error) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await bound.bind(place)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise _cannot(address, error) from None
    return trio.SocketListener(bound)


def _cannot(address: str, error: OSError) -> Unavailable:
    reason = error.strerror or str(error)
    return Unavailable(f"cannot serve HTTP at {address}: {reason}", field="http", hint="Choose another --http address.")


def address_of(listener: trio.SocketListener) -> str:
    """``HOST:PORT`` that a listener is bound to."""
    host, port = listener.socket.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _config() -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = _log
    config.include_server_header = False
    config.h11_max_incomplete_size = HEADER_BYTES_MAX
    config.h2_max_header_list_size = HEADER_BYTES_MAX
    config.keep_alive_timeout = IDLE_TIME_MAX_S
    config.ssl_handshake_timeout = IDLE_TIME_MAX_S
    return config


class HttpServer:
    """The connections of one listener."""

    def __init__(self, app: ASGIApp, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._tls = tls
        self._config = _config()
        self._app = wrap_app(cast(ASGIFramework, app), self._config.wsgi_max_body_size, "asgi")
        self._context = WorkerContext(None)
        self._streams: set[BoundedStream] = set()

    async def handle(self, accepted: trio.SocketStream) -> None:
        """Serve one connection until it ends."""
        stream = BoundedStream(accepted)
        if len(self._streams) >= CONNECTIONS_MAX:
            await _turn_away(stream)
            return
        self._streams.add(stream)
        try:
            with stream.scope:
                served: Any = stream
                if self._tls is not None:
                    served = trio.SSLStream(stream, self._tls(), server_side=True, https_compatible=True)
                await TCPServer(self._app, self._config, self._context, ConnectionState({}), served)
        except Exception:
            _log.exception("a connection failed")
        finally:
            self._streams.discard(stream)

    async def stop(self) -> None:
        """Close idle connections, let the others finish their answer."""
        await self._context.terminated.set()

    async def cut(self) -> None:
        """Close every connection at once."""
        for stream in list(self._streams):
            await trio.aclose_forcefully(stream)


async def _turn_away(stream: BoundedStream) -> None:
    with trio.move_on_after(1):
        try:
            await stream.send_all(_FULL)
        except trio.BrokenResourceError:
            _log.debug("a client that was turned away is gone already")
    await trio.aclose_forcefully(stream)


async def serve_http(
    app: ASGIApp,
    address: str,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    shutdown: trio.Event,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> None:
    """Serve until ``shutdown`` is set; reports the bound ``HOST:PORT``.  ``tls``: the context of a new
    connection, if TLS is spoken.

    Then requests that wait are answered, others have 5 s to finish, and all connections
    are closed.  Being cancelled closes them at once.  Raises `Unavailable` if the address
    cannot be had.
    """
    listener = await listen(address)
    server = HttpServer(app, tls)
    stopping = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cut_at_end, server, stopping)
        async with trio.open_nursery() as connections:
            serve = partial(trio.serve_listeners, server.handle, [listener], handler_nursery=connections)
            async with trio.open_nursery() as accepting:
                await accepting.start(serve)
                task_status.started(address_of(listener))
                await shutdown.wait()
                accepting.cancel_scope.cancel()
            if isinstance(app, App):
                app.close()
            await server.stop()
            stopping.set()
            connections.cancel_scope.deadline = trio.current_time() + STOP_TIME_MAX_S
        nursery.cancel_scope.cancel()


async def _cut_at_end(server: HttpServer, stopping: trio.Event) -> None:
    """Cut what is left once the time to finish is over, or when cancelled.

    Sending is shielded from cancellation; closing its stream ends it.
    """
    try:
        await stopping.wait()
        await trio.sleep(STOP_TIME_MAX_S)
    finally:
        with trio.CancelScope(shield=True):
            await server.cut()
