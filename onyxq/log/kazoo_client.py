"""A ZooKeeper session for the log's code in trio: calls, their answers, and the session's state.

trio waits for the connection's socket and processes the answers; kazoo's threads connect and ping, and
post events to trio.  `kazoo_connection` changes how those threads work.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.protocol.states import KazooState

from onyxq.core.errors import LogUnavailable
from onyxq.core.log.interface import SessionLost
from onyxq.log.kazoo_connection import RECONNECT_FIRST_S, SessionClient

CLOSE_TIMEOUT_S = 3.0

BROKEN = (ConnectionLoss, OperationTimeoutError)
"""Errors of a broken connection: the call may or may not have been carried out."""
_ENDED = (SessionExpiredError, ConnectionClosedError, AuthFailedError)


class Reply:
    """A call on its way; `wait` returns its value or raises kazoo's error."""

    __slots__ = ("_done", "_error", "_value")

    def __init__(self) -> None:
        self._done = trio.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Store the answer; only the first counts."""
        if not self._done.is_set():
            self._value, self._error = value, error
            self._done.set()

    async def wait(self) -> Any:
        """Return the answer once it has arrived, or raise its error."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value


Start = Callable[[SessionClient], Any]
"""A function that makes one asynchronous kazoo call and returns kazoo's result object."""


def create(path: str, data: bytes = b"", *, acl: Sequence[Any] | None = None) -> Start:
    """Return the call that creates a plain znode; ``acl``: unless the session's default applies."""
    return lambda client: client.create_async(path, data, acl)


def delete(path: str) -> Start:
    """Return the call that deletes a znode."""
    return lambda client: client.delete_async(path)


def exists(path: str) -> Start:
    """Return the call that gives a znode's stat, or None."""
    return lambda client: client.exists_async(path)


def get(path: str) -> Start:
    """Return the call that gives a znode's data and stat."""
    return lambda client: client.get_record(path)


def append(path: str, data: bytes) -> Start:
    """Return the call that creates a znode named ``path`` plus a sequence number; it gives path and stat."""
    return lambda client: client.create_record(path, data)


def replace(path: str, data: bytes, *, version: int = -1) -> Start:
    """Return the call that sets a znode's data if it still has ``version`` (-1: any)."""
    return lambda client: client.set_async(path, data, version)


def children(path: str) -> Start:
    """Return the call that gives the names of a znode's children."""
    return lambda client: client.get_children_async(path)


def give(path: str, acl: Sequence[Any]) -> Start:
    """Return the call that sets a znode's access list."""
    return lambda client: client.set_acls_async(path, list(acl))


def sync(path: str) -> Start:
    """Return the call after which reads see all earlier writes."""
    return lambda client: client.sync_async(path)


class Link:
    """A ZooKeeper session as seen from trio; all attributes belong to the trio thread."""

    def __init__(self, hosts: str, *, session_timeout_ms: int, options: Mapping[str, Any] | None = None) -> None:
        self.client = SessionClient(hosts, session_timeout_ms=session_timeout_ms, **(options or {}))
        self.connected = False
        self.connections = 0
        """Number of times that the session connected."""
        self.suspected = False
        """Whether the server left a call unanswered for `patience_s` and has been silent since."""
        self.lost = trio.Event()
        self.on_connect: list[Callable[[], None]] = []
        """Functions called after every (re)connect."""
        self.on_end: list[Callable[[], None]] = []
        """Functions called once, when the session is lost or closed."""
        self.patience_s = session_timeout_ms * 2 / 3 / 1000
        """Seconds of silence after which a server counts as gone, as in kazoo."""
        self._hosts = hosts
        self._token = trio.lowlevel.current_trio_token()
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._scheduled = False
        self._reading = trio.CancelScope()
        self._processing = False
        """Whether trio's thread is processing messages, after which it runs what was posted."""
        self._changed = trio.Event()
        self._flying: set[Reply] = set()
        self._heard = trio.current_time()

    # --- from kazoo's threads ------------------------------------------------------

    def post(self, fn: Callable[..., None], *args: Any) -> None:
        """Run ``fn(*args)`` in trio. May be called from any thread; order is kept per thread."""
        self._posted.append((fn, args))
        if self._scheduled or self._processing:  # both are cleared before the queue is emptied, so no item is left
            return
        self._scheduled = True
        try:
            self._token.run_sync_soon(self._run_posted)
        except trio.RunFinishedError:
            return

    def _run_posted(self) -> None:
        self._scheduled = False
        while self._posted:
            fn, args = self._posted.popleft()
            fn(*args)

    def _listen(self, state: str) -> None:
        self.post(self._on_state, state)

    def _on_socket(self, shared: socket.socket | None) -> None:
        self.post(self._read_from, shared)

    # --- in trio -------------------------------------------------------------------

    async def open(self, *, timeout_s: float) -> None:
        """Connect; raises `LogUnavailable` if no session exists after ``timeout_s``."""
        self.client.add_listener(self._listen)
        self.client.read_with(self._on_socket)
        self.client.start_async()
        with trio.move_on_after(timeout_s):
            await self.wait_connected()
            return
        await self.close()
        raise LogUnavailable(f"no session with ZooKeeper at {self._hosts} within {timeout_s:.1f} s")

    def _read_from(self, shared: socket.socket | None) -> None:
        """Read a new connection's messages, or none until there is another connection."""
        self._reading.cancel()
        if shared is not None:
            self._reading = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._read, shared, self._reading)

    async def _read(self, shared: socket.socket, scope: trio.CancelScope) -> None:
        with shared, scope:
            more = True
            while more:
                await trio.lowlevel.wait_readable(shared)
                self._processing = True
                try:
                    more = self.client.read_here(shared)
                finally:
                    self._processing = False
                    self._run_posted()

    def check(self) -> None:
        """Raise `SessionLost` if the session is lost."""
        if self.lost.is_set():
            raise SessionLost("the ZooKeeper session has ended")

    async def wait_connected(self) -> None:
        """Return once connected; raises `SessionLost`."""
        while not self.connected:
            self.check()
            await self._changed.wait()
        self.check()

    def start(self, make: Start, first: Callable[[Any], None] | None = None) -> Reply:
        """Send a call now. Calls of one connection are carried out in the order they were sent.

        ``first`` is called with the value before any waiter runs.
        """
        self.check()
        reply = Reply()
        self._flying.add(reply)

        def answered(value: Any, error: BaseException | None) -> None:
            if first is not None and error is None:
                first(value)
            self._flying.discard(reply)
            reply.settle(value, error)

        self.then(make, answered)
        return reply

    def then(self, make: Start, done: Callable[[Any, BaseException | None], None]) -> None:
        """Send a call now and run ``done(value, error)`` in trio when it is answered."""
        try:
            result = make(self.client)
        except KazooException as error:
            self.post(self._answered, done, None, error)
            return
        # kazoo gives the exception it stored, or None, once the result is ready
        result.rawlink(lambda ready: self.post(self._answered, done, ready.value, ready.exception))

    async def call(self, make: Start) -> Any:
        """Make one call; raises kazoo's errors, with the end of the session as `SessionLost`."""
        return await self.start(make).wait()

    async def call_patiently(self, make: Start, first: Callable[[Any], None] | None = None) -> Any:
        """Make one call as `call` does, but treat a server silent for `patience_s` as a broken connection.

        `suspected` is then set.
        """
        reply = self.start(make, first)
        sent = trio.current_time()
        while (deadline := max(sent, self._heard) + self.patience_s) > trio.current_time():
            with trio.move_on_at(deadline):
                return await reply.wait()
        self.suspected = True
        raise OperationTimeoutError("the server is silent")

    async def insist(self, make: Start) -> Any:
        """Make a call that may be repeated: it is sent again after each reconnect until it is answered."""
        while True:
            await self.wait_connected()
            try:
                return await self.call(make)
            except BROKEN:
                await self.pause()

    async def pause(self) -> None:
        """Wait briefly for the state change that explains a broken call; bounds the rate of repeats."""
        with trio.move_on_after(RECONNECT_FIRST_S):
            await self._changed.wait()

    def end(self) -> None:
        """Mark the session as over and wake all waiters."""
        if self.lost.is_set():
            return
        self.lost.set()
        self._become(connected=False)
        for reply in self._flying:
            reply.settle(None, SessionLost("the ZooKeeper session has ended"))
        self._flying.clear()
        for notify in self.on_end:
            notify()

    async def close(self) -> None:
        """End the session and kazoo's threads; stop waiting after `CLOSE_TIMEOUT_S`."""
        self.end()
        with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await trio.to_thread.run_sync(self.client.finish, abandon_on_cancel=True)

    def _answered(
        self, done: Callable[[Any, BaseException | None], None], value: Any, error: BaseException | None
    ) -> None:
        if isinstance(error, _ENDED):
            self.end()
            error = SessionLost("the ZooKeeper session has ended")
        elif isinstance(error, BROKEN):
            # This arrives before the change of state that follows it. If kazoo is connected again, that arrived too.
            if self.connected and not self.client.connected:
                self._become(connected=False)
        else:
            self.suspected = False
            self._heard = trio.current_time()
        done(value, error)

    def _on_state(self, state: str) -> None:
        if self.lost.is_set():
            return
        if state == KazooState.LOST:
            self.end()
        elif state == KazooState.SUSPENDED:
            self._become(connected=False)
        else:
            self.connections += 1
            self._become(connected=True)
            for notify in self.on_connect:
                notify()

    def _become(self, *, connected: bool) -> None:
        self.connected = connected
        self.suspected = False
        self._changed.set()
        self._changed = trio.Event()
