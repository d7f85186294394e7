"""The real network: TCP through anyio, so on trio and on asyncio (design: wire)."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream, TaskStatus

from onyxq.errors import BadRequest, Unavailable

BACKLOG = 1024
ACCEPT_PAUSE_S = 0.1
"""Pause after an accept failed because descriptors or memory ran out."""
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED, errno.EPROTO)

log = logging.getLogger(__name__)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[IPV6]:PORT``; raises `BadRequest`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise BadRequest(f"{address!r} is not HOST:PORT", field="address")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """The reverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TcpNetwork:
    """`onyxq.wire.network.Network` over TCP."""

    async def connect(self, address: str, *, timeout_ms: int) -> ByteStream:
        """A stream to ``HOST:PORT``; raises `Unavailable` and, for no address, `BadRequest`."""
        host, port = split_address(address)
        try:
            with anyio.fail_after(timeout_ms / 1000):
                stream = await anyio.connect_tcp(host, port)
        except (OSError, anyio.ConnectionFailed) as error:
            raise Unavailable(f"cannot connect to {address}: {error or 'no answer in time'}") from None
        _tune(stream)
        return stream

    async def serve(
        self,
        address: str,
        handler: Callable[[ByteStream], Awaitable[None]],
        *,
        task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept until cancelled; reports the bound ``HOST:PORT``; raises `Unavailable` if it cannot listen."""
        host, port = split_address(address)
        try:
            bound = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=BACKLOG)
        except OSError as error:
            raise Unavailable(f"cannot listen on {address}: {error}", hint="Choose another address or port.") from None
        async with bound:
            task_status.started(join_address(host, bound.extra(SocketAttribute.local_port)))
            async with anyio.create_task_group() as group:
                for listener in bound.listeners:
                    assert isinstance(listener, SocketListener)
                    group.start_soon(_accept, listener, handler)


async def _accept(listener: SocketListener, handler: Callable[[ByteStream], Awaitable[None]]) -> None:
    async with anyio.create_task_group() as group:
        while True:
            try:
                stream = await listener.accept()
            except (OSError, anyio.BrokenResourceError) as error:
                cause = error if isinstance(error, OSError) else error.__cause__
                if not isinstance(cause, OSError) or cause.errno not in _PASSING:
                    raise
                log.warning("cannot accept a connection now: %s", cause)
                await anyio.sleep(ACCEPT_PAUSE_S)
                continue
            group.start_soon(_handle, stream, handler)


async def _handle(stream: SocketStream, handler: Callable[[ByteStream], Awaitable[None]]) -> None:
    try:
        _tune(stream)
        await handler(stream)
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream) as error:
        log.info("a connection ended: %r", error)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)


def _tune(stream: SocketStream) -> None:
    raw = stream.extra(SocketAttribute.raw_socket)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
