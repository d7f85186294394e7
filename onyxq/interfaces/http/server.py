"""The server of the HTTP interface, on trio with hypercorn's connections.

This module decides about listening, bounds on slow or many clients, and the end.  It disconnects clients that do not
read, because hypercorn would wait for them for ever.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from onyxq.interfaces.http.app import VITAL_ONLY, App
from onyxq.interfaces.http.connection import BoundedStream, Connection
from onyxq.wire.bounds import CONNECTIONS_MAX, CONNECTIONS_PERCENT, Newcomers, share
from onyxq.wire.tcp import cannot_listen, not_a_host, split_address

HEADER_BYTES_MAX = 32 * 1024
IDLE_TIME_MAX_S = 15.0
"""Longest time until a request's header, or without a request, in seconds."""
RESERVED = 32
"""Connections above the bound, for probes only."""
RESERVED_S = 5.0
"""Longest life of such a connection, in seconds; shorter if others need its place."""
STOP_TIME_MAX_S = 5.0
BACKLOG = 512

_log = logging.getLogger("onyxq.http")


async def listen(address: str) -> trio.SocketListener:
    """Return a listening socket at ``HOST:PORT`` (port 0: a free one); raises the reason if there is none."""
    host, port = split_address(address, field="http")
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        bound = trio.socket.socket(family, kind, protocol)
    except OSError as error:
        raise cannot_listen(address, error, setting="http") from None
    except UnicodeError as error:
        raise not_a_host(host, error, field="http") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await bound.bind(place)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise cannot_listen(address, error, setting="http") from None
    return trio.SocketListener(bound)


def address_of(listener: trio.SocketListener) -> str:
    """Return the ``HOST:PORT`` of a listener."""
    host, port = listener.socket.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _config() -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = _log
    config.include_server_header = False
    config.h11_max_incomplete_size = HEADER_BYTES_MAX
    config.keep_alive_timeout = IDLE_TIME_MAX_S
    config.ssl_handshake_timeout = IDLE_TIME_MAX_S
    return config


class Places:
    """Bound of the connections of all HTTP ports of a process.

    A few more are accepted for a moment, and answered if they ask whether the peer is live.
    """

    def __init__(self, ordinary: int | None = None, *, reserved: int = RESERVED) -> None:
        self._ordinary = share(CONNECTIONS_PERCENT, CONNECTIONS_MAX) if ordinary is None else ordinary
        self._reserved = Newcomers(reserved)
        self.used = 0
        """Ordinary connections that are open."""

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Count a connection, and yield whether it may make any request."""
        if self.used >= self._ordinary:
            with self._reserved.entered(RESERVED_S):
                yield False
            return
        self.used += 1
        try:
            yield True
        finally:
            self.used -= 1


class HttpServer:
    """The connections of one listener."""

    def __init__(self, app: ASGIApp, places: Places, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._places = places
        self._tls = tls
        self._config = _config()
        self._app = wrap_app(cast(ASGIFramework, app), self._config.wsgi_max_body_size, "asgi")
        self._context = WorkerContext(None)
        self._streams: set[BoundedStream] = set()

    async def handle(self, accepted: trio.SocketStream) -> None:
        """Serve one connection until it ends."""
        stream = BoundedStream(accepted)
        self._streams.add(stream)
        try:
            with self._places.taken() as ordinary, stream.scope:
                served: Any = stream
                if self._tls is not None:
                    served = trio.SSLStream(stream, self._tls(), server_side=True, https_compatible=True)
                state = ConnectionState({} if ordinary else {VITAL_ONLY: True})
                await Connection(self._app, self._config, self._context, state, served)
        except Exception:
            _log.exception("a connection failed")
        finally:
            self._streams.discard(stream)
            await trio.aclose_forcefully(accepted)

    async def stop(self) -> None:
        """Close idle connections, let the others finish their answer."""
        await self._context.terminated.set()

    async def cut(self) -> None:
        """Close every connection at once."""
        for stream in list(self._streams):
            await trio.aclose_forcefully(stream)


async def serve_http(
    app: ASGIApp,
    address: str,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    shutdown: trio.Event,
    tls: Callable[[], ssl.SSLContext] | None = None,
    places: Places | None = None,
) -> None:
    """Serve until ``shutdown`` is set, and report the bound ``HOST:PORT``.

    ``tls``: the context of a new connection with TLS.  ``places``: connections shared with other ports.  At the end
    waiting requests are answered, others have 5 s to finish, and all connections are closed.  Cancellation closes
    them at once.  Raises `Unavailable` or `Conflict` if the address is not available.
    """
    listener = await listen(address)
    server = HttpServer(app, places or Places(), tls)
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
    """Close the remaining connections after the time to finish, or on cancellation.

    Sending is shielded from cancellation; closing its stream ends it.
    """
    try:
        await stopping.wait()
        await trio.sleep(STOP_TIME_MAX_S)
    finally:
        with trio.CancelScope(shield=True):
            await server.cut()
