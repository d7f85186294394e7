"""A connection to a ZooKeeper server that breaks exactly where a test wants it to.

It passes ZooKeeper's frames on in both directions, and watches for requests of one kind, by default
the creation of records. Each such request takes the next step of `Proxy.plan` and is cut there.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from attrs import define, field

_CREATE, _SET_DATA, _CREATE_WITH_STAT = 1, 5, 15
RECORDS = (b"/log/", frozenset({_CREATE_WITH_STAT}))
POINTERS = (b"/origin/pointer", frozenset({_CREATE, _SET_DATA}))
"""Requests that write records, or the pointer to the origin: part of their path, and their kinds."""
_INT = struct.Struct(">i")
_HEAD = struct.Struct(">ii")
"""Start of a request: its number and its kind."""

BEFORE = "before"
"""The request never reaches the server."""
DURING = "during"
"""The request reaches the server, and the connection breaks at once."""
AFTER = "after"
"""The server has carried it out and answered, and the answer is lost."""
ANSWERED = "answered"
"""The connection breaks directly after the answer."""
MISSING = "missing"
"""The server has carried it out, its answer is lost, and later answers arrive."""
WHOLE = "whole"
"""Nothing happens."""


@define(eq=False)
class Proxy:
    """One address that leads to one server."""

    target: tuple[str, int]
    plan: deque[str] = field(factory=deque)
    watched: tuple[bytes, frozenset[int]] = RECORDS
    """The requests that take the next step of the plan."""
    cuts: int = 0
    """How often the connection was cut by the plan."""
    refusing: bool = False
    """Whether it refuses all connections."""
    refused: int = 0
    """How many it has not let in."""
    ignoring: int = 0
    """Number of next connections that it accepts and then ignores, like a server that is starting."""
    address: str = ""
    _streams: set[trio.SocketStream] = field(factory=set)

    @property
    def used(self) -> bool:
        """Whether a client is connected."""
        return bool(self._streams)

    async def interrupt(self) -> None:
        """Break all connections."""
        for stream in list(self._streams):
            await trio.aclose_forcefully(stream)

    async def handle(self, client: trio.SocketStream) -> None:
        """Serve one connection."""
        if self.refusing:
            self.refused += 1
            await trio.aclose_forcefully(client)
            return
        if self.ignoring:
            self.ignoring -= 1
            async with client:
                await _to_the_end(client)
            return
        self._streams.add(client)
        awaited: dict[int, str] = {}
        try:
            server = await trio.open_tcp_stream(*self.target)
            async with client, server, trio.open_nursery() as nursery:
                nursery.start_soon(self._requests, client, server, awaited, nursery.cancel_scope)
                nursery.start_soon(self._answers, client, server, awaited, nursery.cancel_scope)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._streams.discard(client)

    async def _requests(
        self, client: trio.SocketStream, server: trio.SocketStream, awaited: dict[int, str], scope: trio.CancelScope
    ) -> None:
        first = True
        incoming = Frames(client)
        while frame := await incoming.next():
            where = WHOLE
            text, kinds = self.watched
            if not first and text in frame:
                number, kind = _HEAD.unpack_from(frame, 4)
                if kind in kinds and self.plan:
                    where = self.plan.popleft()
                    awaited[number] = where
            first = False
            if where != BEFORE:
                await server.send_all(frame)
            if where in (BEFORE, DURING):
                self.cuts += 1
                break
        scope.cancel()

    async def _answers(
        self, client: trio.SocketStream, server: trio.SocketStream, awaited: dict[int, str], scope: trio.CancelScope
    ) -> None:
        incoming = Frames(server)
        while frame := await incoming.next():
            where = awaited.get(_INT.unpack_from(frame, 4)[0], WHOLE)
            if where not in (AFTER, MISSING):
                await client.send_all(frame)
            if where in (AFTER, ANSWERED):
                self.cuts += 1
                break
        scope.cancel()


async def _to_the_end(stream: trio.SocketStream) -> None:
    """Read until the other side goes."""
    try:
        while await stream.receive_some():
            continue
    except trio.BrokenResourceError:
        return


@define(eq=False)
class Frames:
    """What comes, frame by frame, each with its length in front."""

    stream: trio.SocketStream
    _buffer: bytearray = field(factory=bytearray)

    async def next(self) -> bytes:
        """The next frame; empty at the end."""
        while len(self._buffer) < 4 or len(self._buffer) < 4 + _INT.unpack_from(self._buffer)[0]:
            part = await self.stream.receive_some()
            if not part:
                return b""
            self._buffer += part
        size = 4 + _INT.unpack_from(self._buffer)[0]
        frame = bytes(self._buffer[:size])
        del self._buffer[:size]
        return frame


@asynccontextmanager
async def proxies(hosts: str) -> AsyncIterator[list[Proxy]]:
    """One proxy for each of ``HOST:PORT,...``."""
    async with trio.open_nursery() as nursery:
        found = []
        for host in hosts.split(","):
            name, port = host.rsplit(":", 1)
            proxy = Proxy((name, int(port)))
            listeners = await nursery.start(lambda task_status, proxy=proxy: _serve(proxy, task_status))
            proxy.address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            found.append(proxy)
        yield found
        nursery.cancel_scope.cancel()


async def _serve(proxy: Proxy, task_status: trio.TaskStatus[list[trio.SocketListener]]) -> None:
    await trio.serve_tcp(proxy.handle, 0, host="127.0.0.1", task_status=task_status)
