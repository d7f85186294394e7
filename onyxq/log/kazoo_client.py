"""The ZooKeeper client as the log needs it: kazoo, plus what its 2.11 does not have.

* Persistent watches (ZooKeeper 3.6's ``addWatch``): the log's reader keeps one on the
  segment instead of setting a watch anew for every record.
* A session that expired stays expired. kazoo opens another session by itself, and a call
  made at that moment would be carried out in it; the log may only be written in the
  session that owns the pulse.
* A server that stopped answering is noticed under load too. kazoo counts every request
  it sends as a sign of life of the server.
* A session outlives a connection that is taken and then ignored, as ZooKeeper does with
  some while it starts. kazoo waits there as long as the session lives, if there is one server.
* An answer that is missing among others, as when a session moves between servers, breaks the
  connection. kazoo's thread ends by it, and the session with nobody told.

All five hook into kazoo's internals, so the package admits one minor version of kazoo;
``tests/conformance`` checks them against real servers.  `Link` is the bridge to trio:
kazoo's threads post what happened and touch nothing else.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import trio
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect, Watch, int_struct, write_string
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from onyxq.errors import LogUnavailable
from onyxq.log.interface import SessionLost

RECONNECT_FIRST_S, RECONNECT_MAX_S = 0.05, 0.5
RECONNECT_TRIES = 3
"""How many servers, or how often the same one, may leave a reconnecting session without an answer."""
CLOSE_TIMEOUT_S = 3.0

BROKEN = (ConnectionLoss, OperationTimeoutError)
"""The connection broke: the call may or may not have been carried out."""
_ENDED = (SessionExpiredError, ConnectionClosedError, AuthFailedError)

_ADD_WATCH = 106
_PERSISTENT = 0


class _AddWatch:
    """The request ``addWatch(path, PERSISTENT)``, in the form kazoo sends requests."""

    type = _ADD_WATCH

    def __init__(self, path: str) -> None:
        self.path = path

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(_PERSISTENT))

    @staticmethod
    def deserialize(data: bytes, offset: int) -> bool:
        return True


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """Reports events of persistently watched paths, and drops a server that does not answer in time."""

    client: SessionClient
    _heard = 0.0

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        result = super()._connect(host, hostip, port)
        self._heard = time.monotonic()
        return result

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if isinstance(request, Connect) and request.session_id:
            timeout = min(timeout, self.client._session_timeout / 1000 / RECONNECT_TRIES)
        return super()._invoke(timeout, request, xid)

    def _read_socket(self, read_timeout: float) -> Any:
        result = super()._read_socket(read_timeout)
        self._heard = time.monotonic()
        return result

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        pending = self.client._pending
        if not pending or pending[0][2] != header.xid:
            raise ConnectionDropped(f"answer {header.xid} is not the one that is due")
        return super()._read_response(header, buffer, offset)

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        if self.client._pending and time.monotonic() - self._heard > read_timeout:
            raise self.handler.timeout_exception("calls are not answered")
        super()._send_request(read_timeout, connect_timeout)

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        callback = self.client.persistent.get(event.path)
        if callback is not None:
            callback()
        super()._read_watch_event(buffer, offset)


class _DirectResult(AsyncResult):  # type: ignore[misc]  # kazoo has no types
    """Calls back in the connection's thread: the callbacks here only post to trio, so the
    thread that kazoo keeps for callbacks would add nothing but its delay."""

    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            callback(self)


class _DirectHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    def async_result(self) -> _DirectResult:
        return _DirectResult(self)


class SessionClient(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """One ZooKeeper session: reconnects until it is told that the session expired."""

    def __init__(self, hosts: str, *, session_timeout_ms: int) -> None:
        self.persistent: dict[str, Callable[[], None]] = {}
        super().__init__(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            handler=_DirectHandler(),
            connection_retry=KazooRetry(max_tries=-1, delay=RECONNECT_FIRST_S, max_delay=RECONNECT_MAX_S),
            logger=logging.getLogger("onyxq.log.kazoo"),
        )
        self._connection = _Connection(self, self._conn_retry.copy(), logger=self.logger)

    def watch_persistently(self, path: str, callback: Callable[[], None]) -> Any:
        """Have ``callback`` called, in kazoo's thread, at every change of ``path`` or its children.

        Holds for the present connection: repeat it after a reconnect. Returns kazoo's asynchronous result.
        """
        full = self.chroot + path
        self.persistent[full] = callback
        result = self.handler.async_result()
        self._call(_AddWatch(full), result)
        return result

    def unwatch(self, path: str) -> None:
        """Call nobody any more at changes of ``path``; the server goes on telling of them."""
        self.persistent.pop(self.chroot + path, None)

    def finish(self) -> None:
        """Close session and connection and end kazoo's threads; blocks."""
        if not self._stopped.is_set():
            self.stop()
        else:
            self._safe_close()
        self.close()

    def _session_callback(self, state: str) -> None:
        if state == KeeperState.EXPIRED_SESSION:
            self._stopped.set()  # before anything else: from here on kazoo connects no more
        super()._session_callback(state)


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


def create(path: str, data: bytes = b"") -> Start:
    """The call that creates a plain znode."""
    return lambda client: client.create_async(path, data)


def delete(path: str) -> Start:
    """The call that deletes a znode."""
    return lambda client: client.delete_async(path)


def exists(path: str) -> Start:
    """The call that gives a znode's stat, or None."""
    return lambda client: client.exists_async(path)


def get(path: str) -> Start:
    """The call that gives a znode's data and stat."""
    return lambda client: client.get_async(path)


def replace(path: str, data: bytes, *, version: int = -1) -> Start:
    """The call that sets a znode's data if it still has ``version`` (-1: any)."""
    return lambda client: client.set_async(path, data, version)


def sync(path: str) -> Start:
    """The call after which reads see all that was written before it."""
    return lambda client: client.sync_async(path)


class Link:
    """A ZooKeeper session as seen from trio; all attributes belong to the trio thread."""

    def __init__(self, hosts: str, *, session_timeout_ms: int) -> None:
        self.client = SessionClient(hosts, session_timeout_ms=session_timeout_ms)
        self.connected = False
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

    def start(self, make: Start) -> Reply:
        """Send a call now. Calls of one connection are carried out in the order they were sent."""
        self.check()
        reply = Reply()
        self._flying.add(reply)
        self.then(make, lambda value, error: self._settle(reply, value, error))
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

    async def call_patiently(self, make: Start) -> Any:
        """As `call`, but a server silent for `patience_s` is a broken connection: then `suspected`."""
        reply = self.start(make)
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

    def _settle(self, reply: Reply, value: Any, error: BaseException | None) -> None:
        self._flying.discard(reply)
        reply.settle(value, error)

    def _on_state(self, state: str) -> None:
        if self.lost.is_set():
            return
        if state == KazooState.LOST:
            self.end()
        elif state == KazooState.SUSPENDED:
            self._become(connected=False)
        else:
            self._become(connected=True)
            for notify in self.on_connect:
                notify()

    def _become(self, *, connected: bool) -> None:
        self.connected = connected
        self.suspected = False
        self._changed.set()
        self._changed = trio.Event()
