"""The real network: TCP through anyio, so on trio and on asyncio (design: wire)."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream, TaskStatus
from anyio.streams.tls import TLSStream

from onyxq.core.errors import BadRequest, Conflict, OnyxqError, Unavailable
from onyxq.core.texts import whole
from onyxq.wire.bounds import NEWCOMERS_MAX, NEWCOMERS_PERCENT, Newcomers, share

BACKLOG = 1024
HANDSHAKE_TIMEOUT_S = 5.0
ACCEPT_PAUSE_S = 0.1
"""Pause in seconds after an accept failed because descriptors or memory ran out."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ENDED_BEFORE = tuple(
    getattr(errno, name)
    for name in (
        *("EPERM", "ECONNABORTED", "ECONNRESET", "EPROTO", "ENETDOWN", "ENOPROTOOPT", "EHOSTDOWN", "ENONET"),
        *("EHOSTUNREACH", "EOPNOTSUPP", "ENETUNREACH", "ENOSR", "ESOCKTNOSUPPORT", "EPROTONOSUPPORT", "ETIMEDOUT"),
    )
    if hasattr(errno, name)
)
"""Errors of accept that are about one connection only, such as those of its network; see accept(2)."""

log = logging.getLogger(__name__)

Handler = Callable[[ByteStream], Awaitable[None]]


def split_address(address: str, *, field: str = "address") -> tuple[str, int]:
    """Split ``HOST:PORT`` or ``[IPV6]:PORT`` into host and port; raises `BadRequest` that names ``field``."""
    host, _, digits = address.rpartition(":")
    host, port = host.removeprefix("[").removesuffix("]"), whole(digits)
    if not host or "/" in host or port is None or port >= 1 << 16:
        hint = "Write it like 127.0.0.1:7400 or [::1]:7400."
        raise BadRequest(f"{field} must be HOST:PORT, not {address!r}", field=field, hint=hint)
    return host, port


def join_address(host: str, port: int) -> str:
    """Join host and port to an address; the reverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def not_a_host(host: str, error: UnicodeError, *, field: str = "address") -> BadRequest:
    """Return the error for a host name that cannot be encoded, in a value that ``field`` names."""
    return BadRequest(f"{host!r} is not a host name: {error}", field=field)


def cannot_listen(address: str, error: OSError, *, setting: str) -> OnyxqError:
    """Return the error for a listener at ``address``, which ``setting`` names: `Conflict` if the port is in use."""
    other = f"another address with --{setting} or ONYXQ_{setting.upper()}; port 0 takes a free one."
    if error.errno == errno.EADDRINUSE:
        hint = f"If it is a peer, such as another `onyxq dev`, use that one. Otherwise choose {other}"
        return Conflict(f"{address} is in use by another process", field=setting, hint=hint)
    problem = f"cannot listen on {address}: {error.strerror or error}"
    return Unavailable(problem, field=setting, hint=f"Choose {other}")


class TcpNetwork:
    """`onyxq.wire.network.Network` over TCP; with TLS where a context for that side is given."""

    def __init__(self, *, connecting: ssl.SSLContext | None = None, serving: ssl.SSLContext | None = None) -> None:
        self._connecting = connecting
        self._serving = serving
        self._handshakes = Newcomers(share(NEWCOMERS_PERCENT, NEWCOMERS_MAX))
        """Accepted connections before the end of their TLS handshake."""

    def use(self, *, connecting: ssl.SSLContext, serving: ssl.SSLContext) -> None:
        """Use other contexts for new connections from now on; existing ones continue."""
        self._connecting, self._serving = connecting, serving

    async def connect(self, address: str, *, timeout_ms: int) -> ByteStream:
        """Return a stream to ``HOST:PORT``; raises `Unavailable` and, for a malformed address, `BadRequest`."""
        host, port = split_address(address)
        try:
            with anyio.fail_after(timeout_ms / 1000):
                stream = await self._connect(host, port)
        except (OSError, anyio.ConnectionFailed, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise Unavailable(f"cannot connect to {address}: {error or 'no answer in time'}") from None
        except UnicodeError as error:
            raise not_a_host(host, error) from None
        _tune(stream)
        return stream

    async def _connect(self, host: str, port: int) -> SocketStream | TLSStream:
        if self._connecting is None:
            return await anyio.connect_tcp(host, port)
        return await anyio.connect_tcp(
            host, port, ssl_context=self._connecting, tls_hostname=host, tls_standard_compatible=False
        )

    async def serve(
        self,
        address: str,
        handler: Handler,
        *,
        task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept until cancelled; report the bound ``HOST:PORT``; raises the reason if it cannot."""
        host, port = split_address(address)
        try:
            bound = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=BACKLOG)
        except OSError as error:
            raise cannot_listen(address, error, setting="listen") from None
        except UnicodeError as error:
            raise not_a_host(host, error, field="listen") from None
        async with bound:
            task_status.started(join_address(host, bound.extra(SocketAttribute.local_port)))
            async with anyio.create_task_group() as group:
                for listener in bound.listeners:
                    assert isinstance(listener, SocketListener)
                    group.start_soon(_accept, listener, self._handler(handler))

    def _handler(self, handler: Handler) -> Handler:
        if self._serving is None:
            return handler

        async def encrypted(stream: ByteStream) -> None:
            wrapped = None
            try:
                with self._handshakes.entered(HANDSHAKE_TIMEOUT_S):
                    wrapped = await TLSStream.wrap(
                        stream, server_side=True, ssl_context=self._serving, standard_compatible=False
                    )
            except ssl.SSLError as error:
                log.info("a TLS handshake failed: %r", error)
            if wrapped is not None:
                await handler(wrapped)

        return encrypted


async def _accept(listener: SocketListener, handler: Handler) -> None:
    async with anyio.create_task_group() as group:
        while True:
            try:
                stream = await listener.accept()
            except (OSError, anyio.BrokenResourceError) as error:
                cause = error if isinstance(error, OSError) else error.__cause__
                number = cause.errno if isinstance(cause, OSError) else None
                if number in _EXHAUSTED:
                    log.warning("cannot accept a connection now: %s", cause)
                    await anyio.sleep(ACCEPT_PAUSE_S)
                elif number in _ENDED_BEFORE:
                    log.info("a connection ended before it was accepted: %s", cause)
                else:
                    raise
                continue
            group.start_soon(_handle, stream, handler)


async def _handle(stream: SocketStream, handler: Handler) -> None:
    try:
        _tune(stream)
        await handler(stream)
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream) as error:
        log.info("a connection ended: %r", error)
    except Exception:
        # A bug in one connection must not end the node's other work.
        log.exception("a connection failed unexpectedly")
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)


def _tune(stream: SocketStream | TLSStream) -> None:
    raw = stream.extra(SocketAttribute.raw_socket)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
