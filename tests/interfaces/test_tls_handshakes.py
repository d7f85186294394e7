"""Clients that never finish their handshake: disconnected after a time, and limited in number, on both ports."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TypeAlias

import pytest
import trio
import trustme
from anyio.abc import ByteStream

from onyxq.interfaces.http import server
from onyxq.interfaces.http.server import Places, serve_http
from onyxq.wire import tcp
from onyxq.wire.tcp import TcpNetwork, split_address
from tests.interfaces.http_world import FakeService, app_of, on_trio

PATIENCE_S = 60.0
CUT_S = 0.3
"""Time limit of a handshake in these tests, in seconds."""
BEGINNING = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(32)
"""The start of a handshake; 16 KiB would follow."""
ANSWER = b"hello"

Port: TypeAlias = Callable[[], AbstractAsyncContextManager[str]]


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS contexts of a server at 127.0.0.1 and of a client that knows its authority."""
    authority = trustme.CA()
    serving, connecting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    authority.configure_trust(connecting)
    return serving, connecting


SERVING, CONNECTING = contexts()


@asynccontextmanager
async def http_port() -> AsyncIterator[str]:
    """Return the address of HTTP over TLS."""
    shutdown = trio.Event()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            serve = partial(
                serve_http,
                app_of(FakeService()),
                "127.0.0.1:0",
                shutdown=shutdown,
                tls=lambda: SERVING,
                places=Places(2, reserved=2),
            )
            yield await nursery.start(serve)
            shutdown.set()


@asynccontextmanager
async def wire_port() -> AsyncIterator[str]:
    """Return the address of a TCP port with TLS that sends a greeting after the handshake."""

    async def handler(stream: ByteStream) -> None:
        await stream.send(ANSWER)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(partial(TcpNetwork(serving=SERVING).serve, "127.0.0.1:0", handler))
            nursery.cancel_scope.cancel()


PORTS = pytest.mark.parametrize("port", [http_port, wire_port])


async def connected(address: str) -> trio.SocketStream:
    """Open a connection without sending anything."""
    return await trio.open_tcp_stream(*split_address(address))


async def ended(stream: trio.SocketStream) -> bool:
    """Wait until the other side has closed; return whether it sent nothing."""
    said = b""
    try:
        while piece := await stream.receive_some():
            said += piece
    except trio.BrokenResourceError:
        pass
    return said == b""


async def answered(address: str) -> bytes:
    """Return the answer after a handshake and a request; nothing if the connection is closed."""
    stream = trio.SSLStream(await connected(address), CONNECTING, server_hostname="127.0.0.1", https_compatible=True)
    try:
        await stream.do_handshake()
        await stream.send_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return bytes(await stream.receive_some(100))
    except trio.BrokenResourceError:
        return b""
    finally:
        await trio.aclose_forcefully(stream)


@pytest.mark.long
@PORTS
def test_a_handshake_that_never_ends_is_cut_off(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for no bytes, a part of a handshake, and single bytes at intervals."""
    monkeypatch.setattr(server, "IDLE_TIME_MAX_S", CUT_S)
    monkeypatch.setattr(tcp, "HANDSHAKE_TIMEOUT_S", CUT_S)

    async def check_dripping(stream: trio.SocketStream) -> None:
        await stream.send_all(BEGINNING)
        while True:  # the whole would take far longer than the test
            with trio.move_on_after(CUT_S / 3):
                assert await ended(stream)
                return
            try:
                await stream.send_all(b"\x00")
            except trio.BrokenResourceError:
                return

    @on_trio
    async def play() -> None:
        async with port() as address:
            for size in (0, 1, 7, len(BEGINNING)):
                async with await connected(address) as stream:
                    await stream.send_all(BEGINNING[:size])
                    assert await ended(stream), size
            async with await connected(address) as slow:
                await check_dripping(slow)

    play()


@PORTS
def test_handshakes_that_never_end_keep_nobody_out(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit the oldest is closed for the next one: a client with a quick handshake is answered."""
    monkeypatch.setattr(tcp, "NEWCOMERS_MAX", 2)
    for name in ("IDLE_TIME_MAX_S", "RESERVED_S"):
        monkeypatch.setattr(server, name, 10 * PATIENCE_S)
    monkeypatch.setattr(tcp, "HANDSHAKE_TIMEOUT_S", 10 * PATIENCE_S)

    @on_trio
    async def play() -> None:
        async with port() as address:
            silent = [await connected(address) for _ in range(8)]
            for stream in silent:
                await stream.send_all(BEGINNING)
            assert (await answered(address)).startswith((ANSWER, b"HTTP/1.1 200"))
            assert await ended(silent[-4])
            for stream in silent:
                await trio.aclose_forcefully(stream)

    play()
