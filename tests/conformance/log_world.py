"""Helpers of the tests of logs: waiting, and faults of ZooKeeper servers and sessions."""

from __future__ import annotations

import functools
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trio
import trio.testing
from kazoo.client import KazooClient

from onyxq.core.log.interface import LogSession
from onyxq.log.zookeeper import ZookeeperBackend, ZookeeperSession
from onyxq.log.zookeeper_server import ZookeeperServer
from tests.conformance.zookeeper_proxy import Frames

TEST_TIMEOUT_S = 120.0
"""Time limit of a test, which only a test that waits for ever exceeds."""
SESSION_TIMEOUT_MS = 10_000
"""Session timeout so long that no session expires on a slow machine."""

Opener = Callable[[], Awaitable[LogSession]]

_CLOSE_SESSION = -11
_TIMEOUT = struct.Struct(">4xi")
"""Place of the timeout in the answer to a connection's first request, after the protocol's version."""


def bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let a test that waits for ever fail instead."""

    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        with trio.fail_after(TEST_TIMEOUT_S):
            await test(*args, **kwargs)

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Wait for an effect of a server or a thread."""
    while not condition():
        await trio.sleep(0.01)


@asynccontextmanager
async def session_with(backend: ZookeeperBackend) -> AsyncIterator[ZookeeperSession]:
    """Open a session that is always closed after the test, because kazoo's threads would try to reconnect for ever."""
    session = await backend.session()
    try:
        yield session
    finally:
        with trio.CancelScope(shield=True):
            await session.aclose()


@contextmanager
def intruder(hosts: str) -> Iterator[Any]:
    """Another program's client of ZooKeeper, connected."""
    client = KazooClient(hosts)
    try:
        client.start()
        yield client
    finally:
        client.stop()
        client.close()


async def under_way(session: LogSession) -> None:
    """Wait until the calls of other tasks on the session are answered, or wait for an event.

    A log answers the calls of a session in order; a read at the tail takes two.
    """
    for _ in range(2):
        await trio.testing.wait_all_tasks_blocked()
        await session.tail()
    await trio.testing.wait_all_tasks_blocked()


@contextmanager
def frozen(zookeeper: ZookeeperServer) -> Iterator[None]:
    """Stop the server's process inside the context."""
    zookeeper.pause()
    try:
        yield
    finally:
        zookeeper.resume()


@contextmanager
def killed(zookeeper: ZookeeperServer) -> Iterator[None]:
    """Kill the server inside the context, and start it afterwards."""
    zookeeper.kill()
    try:
        yield
    finally:
        zookeeper.spawn()


def identity_of(session: ZookeeperSession) -> tuple[int, bytes]:
    """Return id and password, also while the session is not connected."""
    client = session._link.client
    return client._session_id, client._session_passwd


async def expire(zookeeper: ZookeeperServer, identity: tuple[int, bytes]) -> None:
    """End a session at the server, as its timeout would: another connection with its id closes it.

    The session's own client may take the session back meanwhile, so this is repeated until the session is gone.
    """
    session_id, password = identity
    connect = struct.pack(">iqiqi", 0, 0, SESSION_TIMEOUT_MS, session_id, len(password)) + password + b"\0"
    close = struct.pack(">ii", 1, _CLOSE_SESSION)
    message = b"".join(struct.pack(">i", len(request)) + request for request in (connect, close))
    there = True
    while there:
        async with await trio.open_tcp_stream("127.0.0.1", zookeeper.ports[0]) as stream:
            answers = Frames(stream)
            try:
                await stream.send_all(message)
                if answer := await answers.next():
                    there = _TIMEOUT.unpack_from(answer, 4)[0] > 0
                while await answers.next():
                    continue
            except trio.BrokenResourceError:
                continue
