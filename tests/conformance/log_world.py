"""What the suites of logs share: waiting, and what is done to ZooKeeper servers and sessions."""

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
"""Only a test that waits for ever takes so long."""
SESSION_TIMEOUT_MS = 10_000
"""No session expires by itself, however slow the machine is."""

Opener = Callable[[], Awaitable[LogSession]]

_CLOSE_SESSION = -11
_TIMEOUT = struct.Struct(">4xi")
"""In an answer to a connection's first request, behind the protocol's version."""


def bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A test that waits for ever fails instead."""

    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        with trio.fail_after(TEST_TIMEOUT_S):
            await test(*args, **kwargs)

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a server or a thread brings about."""
    while not condition():
        await trio.sleep(0.01)


@asynccontextmanager
async def session_with(backend: ZookeeperBackend) -> AsyncIterator[ZookeeperSession]:
    """A session that is closed behind the test however it ends: kazoo's threads would try for ever to reconnect."""
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
    """Return once what other tasks have asked of the session is answered, or waits for something to happen.

    A log answers the calls of a session in order; a read at the tail takes two.
    """
    for _ in range(2):
        await trio.testing.wait_all_tasks_blocked()
        await session.tail()
    await trio.testing.wait_all_tasks_blocked()


@contextmanager
def frozen(zookeeper: ZookeeperServer) -> Iterator[None]:
    """The server stands still in here."""
    zookeeper.pause()
    try:
        yield
    finally:
        zookeeper.resume()


@contextmanager
def killed(zookeeper: ZookeeperServer) -> Iterator[None]:
    """The server is gone in here; behind it, it starts."""
    zookeeper.kill()
    try:
        yield
    finally:
        zookeeper.spawn()


def identity_of(session: ZookeeperSession) -> tuple[int, bytes]:
    """Id and password, also while the session is not connected."""
    client = session._link.client
    return client._session_id, client._session_passwd


async def expire(zookeeper: ZookeeperServer, identity: tuple[int, bytes]) -> None:
    """End a session at the server, as its timeout would: another connection with its id closes it.

    The session's own client may take the session back in between: so until it is gone.
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
