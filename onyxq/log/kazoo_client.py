"""A ZooKeeper session as the log's code in trio uses it: calls, their answers, and its state.

kazoo's threads post what happened and touch nothing else; how they work is changed in
`kazoo_connection`.
"""

from __future__ import annotations

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
"""The connection broke: the call may or may not have been carried out."""
_ENDED = (SessionExpiredError, ConnectionClosedError, AuthFailedError)


class Reply:
    """A call on its way; `wait` gives its value or raises kazoo's error."""

    __slots__ = ("_done", "_error", "_value")

    def __init__(self) -> None:
        self._done = trio.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Take the answer; only the first counts."""
        if not self._done.is_set():
            self._value, self._error = value, error
            self._done.set()

    async def wait(self) -> Any:
        """The answer, once it is there."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value


Start = Callable[[SessionClient], Any]
"""Makes one asynchronous kazoo call and returns kazoo's result object."""


def create(path: str, data: bytes = b"", *, acl: Sequence[Any] | None = None) -> Start:
    """The call that creates a plain znode; ``acl``: if not the one of all that the session makes."""
    return lambda client: client.create_async(path, data, acl)


def delete(path: str) -> Start:
    """The call that deletes a znode."""
    return lambda client: client.delete_async(path)


def exists(path: str) -> Start:
    """The call that gives a znode's stat, or None."""
    return lambda client: client.exists_async(path)


def get(path: str) -> Start:
    """The call that gives a znode's data and stat."""
    return lambda client: client.get_record(path)


def append(path: str, data: bytes) -> Start:
    """The call that creates a znode whose name is ``path`` and a sequence number; gives its path and stat."""
    return lambda client: client.create_record(path, data)


def replace(path: str, data: bytes, *, version: int = -1) -> Start:
    """The call that sets a znode's data if it still has ``version`` (-1: any)."""
    return lambda client: client.set_async(path, data, version)


def children(path: str) -> Start:
    """The call that gives the names of a znode's children."""
    return lambda client: client.get_children_async(path)


def give(path: str, acl: Sequence[Any]) -> Start:
    """The call that says who may use a znode."""
    return lambda client: client.set_acls_async(path, list(acl))


def sync(path: str) -> Start:
    """The call after which reads see all that was written before it."""
    return lambda client: client.sync_async(path)


class Link:
    """A ZooKeeper session as seen from trio; all attributes belong to the trio thread."""

    def __init__(self, hosts: str, *, session_timeout_ms: int, options: Mapping[str, Any] | None = None) -> None:
        self.client = SessionClient(hosts, session_timeout_ms=session_timeout_ms, **(options or {}))
        self.connected = False
        self.connections = 0
        """Number of times that the session connected."""
        self.suspected = False
        """The server left a call unanswered for `patience_s` and was not heard of since."""
        self.lost = trio.Event()
        self.on_connect: list[Callable[[], None]] = []
        """Called after every (re)connect."""
        self.on_end: list[Callable[[], None]] = []
        """Called once, when the session is lost or closed."""
        self.patience_s = session_timeout_ms * 2 / 3 / 1000
        """A server that does not answer for so long counts as gone, as kazoo has it."""
        self._hosts = hosts
        self._token = trio.lowlevel.current_trio_token()
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._scheduled = False
        self._changed = trio.Event()
        self._flying: set[Reply] = set()
        self._heard = trio.current_time()

    # --- from kazoo's threads ------------------------------------------------------

    def post(self, fn: Callable[..., None], *args: Any) -> None:
        """Have ``fn(*args)`` run in trio; called from any thread, order is kept per thread."""
        self._posted.append((fn, args))
        if self._scheduled:  # the flag is cleared before the queue is emptied, so nothing is left behind
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

    # --- in trio -------------------------------------------------------------------

    async def open(self, *, timeout_s: float) -> None:
        """Connect; raises `LogUnavailable` if there is no session after ``timeout_s``."""
        self.client.add_listener(self._listen)
        self.client.start_async()
        with trio.move_on_after(timeout_s):
            await self.wait_connected()
            return
        await self.close()
        raise LogUnavailable(f"no session with ZooKeeper at {self._hosts} within {timeout_s:.1f} s")

    def check(self) -> None:
        """Raise `SessionLost` if it is."""
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

        ``first`` is given its value before anybody who waits for it runs.
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
        """Send a call now and have ``done(value, error)`` run in trio when it is answered."""
        try:
            result = make(self.client)
        except KazooException as error:
            self.post(self._answered, done, None, error)
            return
        # kazoo gives the exception it stored, or None, once the result is ready
        result.rawlink(lambda ready: self.post(self._answered, done, ready.value, ready.exception))

    async def call(self, make: Start) -> Any:
        """One call; raises kazoo's errors, with the end of the session as `SessionLost`."""
        return await self.start(make).wait()

    async def call_patiently(self, make: Start, first: Callable[[Any], None] | None = None) -> Any:
        """As `call`, but a server silent for `patience_s` is a broken connection: then `suspected`."""
        reply = self.start(make, first)
        sent = trio.current_time()
        while (deadline := max(sent, self._heard) + self.patience_s) > trio.current_time():
            with trio.move_on_at(deadline):
                return await reply.wait()
        self.suspected = True
        raise OperationTimeoutError("the server is silent")

    async def insist(self, make: Start) -> Any:
        """A call that may be repeated: sent again after each reconnect until it is answered."""
        while True:
            await self.wait_connected()
            try:
                return await self.call(make)
            except BROKEN:
                await self.pause()

    async def pause(self) -> None:
        """Let the state change that explains a broken call arrive; bounds the rate of repeats."""
        with trio.move_on_after(RECONNECT_FIRST_S):
            await self._changed.wait()

    def end(self) -> None:
        """The session is over: wake whoever waits."""
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
        """End the session and kazoo's threads; gives up waiting after `CLOSE_TIMEOUT_S`."""
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
            # Told before the change of state that follows. If kazoo is connected again by now, that was told too.
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
