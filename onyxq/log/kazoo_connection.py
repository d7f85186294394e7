"""A kazoo client whose messages cost few system calls and few changes of thread.

A peer reads every record of the log, so kazoo handles thousands of messages a minute.  Plain
kazoo makes a selector for each wait, waits before each part of a message, and wakes its thread
with a byte for each request.  This client takes all arrived messages with one read.  While a
session is established, the owner of the client waits for its socket and reads it (`read_with`);
kazoo's thread connects, pings, and writes only what the requesting thread could not write at once.
Over TLS, kazoo's thread reads too.

* A session that expired stays expired. Plain kazoo opens another session automatically, and a
  call made at that moment would be carried out in it. But the log may only be written in the
  session that owns the pulse.
* A session outlives a connection that is accepted and then ignored; ZooKeeper does that with
  some while it starts. With one server, plain kazoo waits there as long as the session lives.
* An answer that is missing among others, as when a session moves between servers, breaks the
  connection. In plain kazoo it ends the thread, and the session without a notice.
* Persistent watches (ZooKeeper 3.6's ``addWatch``) can be sent; plain kazoo does not know them.

All of these hook into kazoo's internals, so the package admits one minor version of kazoo;
``tests/conformance`` checks them against real servers.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.connection import PING_XID, ConnectionHandler
from kazoo.protocol.serialization import Connect, Create2, GetData, Watch, int_int_struct, int_struct, write_string
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE

RECONNECT_FIRST_S, RECONNECT_MAX_S = 0.05, 0.5
RECONNECT_TRIES = 3
"""Number of servers, or tries of the same one, that may leave a reconnecting session without an answer."""
RECEIVE_BYTES = 64 * 1024

_ADD_WATCH = 106
_PERSISTENT = 0
_SEQUENCE = 2
_XID_MAX = (1 << 31) - 1


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


def _framed(xid: int, request: Any) -> bytes:
    body = request.serialize()
    return b"".join((int_struct.pack(len(body) + 8), int_int_struct.pack(xid, request.type), body))


def _readable(one: Any, timeout_s: float | None) -> bool:
    poller = select.poll()
    poller.register(one, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """Reports events of persistently watched paths, and drops a server that does not answer in time.

    The thread that makes a request writes it to the socket.  kazoo's thread writes what the
    socket does not accept, and everything that is requested until that is written.
    """

    client: SessionClient
    _xid: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock = threading.RLock()
        """Held, never for long, to number and write requests and while the state of the client changes."""
        self._unsent = b""
        self._behind = False
        """Whether kazoo's thread has to write something before any other thread may write."""
        self._gathered: list[bytes] | None = None
        """Requests to be written `together`, or None."""
        self._received = b""
        self._taken = 0
        """Number of bytes of ``_received`` that were consumed."""
        self._on_socket: Callable[[socket.socket | None], None] | None = None
        self._shared: socket.socket | None = None
        """A duplicate of the socket, which the owner waits for and closes; None while kazoo's thread reads."""
        self._over: Any = None
        """What the owner's reading ended with, for kazoo's thread: an error, or the answer that closes."""

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        with self._lock:
            # The server refuses requests before the credentials: those requests go through kazoo's queue, after them.
            self._unsent, self._behind = b"", bool(self.client.auth_data or self.sasl_options)
        self._received, self._taken = b"", 0
        self._over = None
        return super()._connect(host, hostip, port)

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        finally:
            with self._lock:
                shared, self._shared = self._shared, None
            if shared is not None and self._on_socket is not None:
                self._on_socket(None)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if isinstance(request, Connect) and request.session_id:
            timeout = min(timeout, self.client._session_timeout / 1000 / RECONNECT_TRIES)
        return super()._invoke(timeout, request, xid)

    # --- reading

    def read_with(self, on_socket: Callable[[socket.socket | None], None]) -> None:
        """Let the owner of the client read; call this before connecting.

        ``on_socket`` is called in kazoo's thread: with a socket to wait for once a session is established
        (then call `read_here` whenever it is readable, and close it at the end), with None when the
        connection is over.
        """
        self._on_socket = on_socket

    def read_here(self, shared: socket.socket) -> bool:
        """Process the messages that arrived, in the caller's thread; return whether to wait for more."""
        with self._lock:
            if shared is not self._shared:
                return False
            try:
                self._over = self._process_messages(0.0)
            except Exception as error:  # whatever it is, kazoo's thread raises it and ends the connection
                self._over = error
            if self._over is None:
                return True
        self._wake()
        return False

    def select_messages(self, timeout: float | None) -> list[Any] | None:
        """Wait for kazoo's thread while the owner reads; return the ready ones of kazoo's two sockets, or None.

        None: kazoo's thread reads. If the owner is late, kazoo's thread reads what is there, because the
        server must not count as silent when only the owner was busy.
        """
        if self._on_socket is None or self.client.use_ssl:
            return None
        if self._shared is None and self._over is None:
            self._shared = self._socket.dup()
            self._on_socket(self._shared)
        woken = _readable(self._read_sock, timeout)
        if self._over is not None or (not woken and _readable(self._socket, 0)):
            return [self._socket]
        return [self._read_sock] if woken else []

    def _read_socket(self, read_timeout: float) -> Any:
        """Process all complete messages that arrived; keep the part of an incomplete one."""
        with self._lock:
            if self._over is None:
                return self._process_messages(read_timeout)
        if isinstance(self._over, Exception):
            raise self._over
        return self._over

    def _process_messages(self, read_timeout: float) -> Any:
        with self._socket_error_handling():
            try:
                data = self._receive()
            except (BlockingIOError, ssl.SSLWantReadError):
                return None
        if not data:
            raise ConnectionDropped("socket connection broken")
        self._received = self._received[self._taken :] + data
        self._taken = 0
        response = None
        while response is None and self._has_message():
            response = super()._read_socket(read_timeout)
        return response

    def _receive(self) -> bytes:
        data: bytes = self._socket.recv(RECEIVE_BYTES)
        return data

    def _has_message(self) -> bool:
        have = len(self._received) - self._taken
        return have >= 4 and have - 4 >= int_struct.unpack_from(self._received, self._taken)[0]

    def _read(self, length: int, timeout: float) -> bytes:
        if self._taken == len(self._received):  # while the connection is being made
            read: bytes = super()._read(length, timeout)
            return read
        start = self._taken
        self._taken += length
        return self._received[start : self._taken]

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        pending = self.client._pending
        if not pending or pending[0][2] != header.xid:
            raise ConnectionDropped(f"answer {header.xid} is not the expected one")
        return super()._read_response(header, buffer, offset)

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        callback = self.client.persistent.get(event.path)
        if callback is not None:
            callback()
        else:
            super()._read_watch_event(buffer, offset)

    # --- writing

    def send(self, request: Any, result: Any) -> bool:
        """Write a request now, in the caller's thread, as far as that is possible without waiting.

        Returns False if it must go through kazoo's queue instead.
        """
        client = self.client
        with self._lock:
            if self._behind or client._queue or not client._live.is_set():
                return False
            data = self._numbered(request, result)
            if self._gathered is None:
                self._write_now(data)
            else:
                self._gathered.append(data)
        return True

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write all requests sent inside with one system call at the end: each call lets other threads run first."""
        with self._lock:
            self._gathered = []
            try:
                yield
            finally:
                data, self._gathered = b"".join(self._gathered), None
                if data:
                    self._write_now(data)

    def _write_now(self, data: bytes) -> None:
        try:
            sent = self._socket.send(data)
        except OSError:  # full, or broken: then kazoo's thread will see it
            sent = 0
        if sent < len(data):
            self._unsent, self._behind = data[sent:], True
            self._wake()

    def _numbered(self, request: Any, result: Any) -> bytes:
        xid: int = self._xid % _XID_MAX + 1
        data = _framed(xid, request)
        self._xid = xid
        self.client._pending.append((request, result, xid))
        return data

    def _wake(self) -> None:
        if self._write_sock is not None:
            self._write_sock.send(b"\0")

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        if xid is None or xid != PING_XID:
            super()._submit(request, timeout, xid)
            return
        with self._lock:
            # Other threads write only while nothing is set aside: their data would overtake the ping, or replace it.
            self._unsent, self._behind = self._unsent + _framed(xid, request), True
        self._write_waiting(timeout)

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        self._read_sock.recv(RECEIVE_BYTES)
        self._write_waiting(connect_timeout)

    def _write_waiting(self, timeout: float) -> None:
        while data := self._waiting():
            self._write(data, timeout)

    def _waiting(self) -> bytes:
        """Return the bytes for kazoo's thread to write; no other thread writes until there are none."""
        queue = self.client._queue
        with self._lock:
            parts = [self._unsent]
            self._unsent = b""
            while queue:
                parts.append(self._numbered(*queue[0]))
                queue.popleft()
            data = b"".join(parts)
            self._behind = bool(data)
        return data


class _DirectResult(AsyncResult):  # type: ignore[misc]  # kazoo has no types
    """A result whose callbacks run in the connection's thread.

    The callbacks here only post to trio, so kazoo's callback thread would only add delay.
    """

    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            callback(self)


class _DirectHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    connection: _Connection

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect as kazoo does, but close a socket whose TLS fails, and check the server's name."""
        if not kwargs["use_ssl"]:
            return super().create_connection(*args, **kwargs)
        context = ssl.create_default_context(cafile=kwargs["ca"])
        if kwargs["certfile"]:
            context.load_cert_chain(kwargs["certfile"], kwargs["keyfile"])
        plain = socket.create_connection(kwargs["address"], kwargs["timeout"])
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(plain, server_hostname=kwargs["hostname"])
        except BaseException:
            plain.close()
            raise

    def async_result(self) -> _DirectResult:
        return _DirectResult(self)

    def select(self, readers: Any, writers: Any, others: Any, timeout: float | None = None) -> Any:
        """Wait with one system call; a broken socket counts as ready for anything."""
        # Only the loop of an established connection waits for two sockets.
        if len(readers) == 2 and (found := self.connection.select_messages(timeout)) is not None:
            return found, [], []
        poller = select.poll()
        for sockets, event in ((readers, select.POLLIN), (writers, select.POLLOUT)):
            for one in sockets:
                poller.register(one, event)
        numbers = {number for number, _ in poller.poll(None if timeout is None else timeout * 1000)}
        ready = [[one for one in sockets if one.fileno() in numbers] for sockets in (readers, writers)]
        return (*ready, [])


class SessionClient(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """One ZooKeeper session that reconnects until ZooKeeper reports that it expired.

    ``options``: credentials and TLS, in kazoo's form.
    """

    def __init__(self, hosts: str, *, session_timeout_ms: int, **options: Any) -> None:
        self.persistent: dict[str, Callable[[], None]] = {}
        super().__init__(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            handler=_DirectHandler(),
            connection_retry=KazooRetry(max_tries=-1, delay=RECONNECT_FIRST_S, max_delay=RECONNECT_MAX_S),
            logger=logging.getLogger("onyxq.log.kazoo"),
            **options,
        )
        sasl = options.get("sasl_options")
        self._connection = _Connection(self, self._conn_retry.copy(), logger=self.logger, sasl_options=sasl)
        self.handler.connection = self._connection

    def read_with(self, on_socket: Callable[[socket.socket | None], None]) -> None:
        """Read in the owner's thread; see `_Connection.read_with`."""
        self._connection.read_with(on_socket)

    def read_here(self, shared: socket.socket) -> bool:
        """Process arrived messages in this thread; return whether to wait for more."""
        return self._connection.read_here(shared)

    def watch_persistently(self, path: str, callback: Callable[[], None]) -> Any:
        """Call ``callback``, in kazoo's thread, at every change of ``path`` or its children.

        Holds for the present connection: repeat it after a reconnect. Returns kazoo's asynchronous result.
        """
        full = self.chroot + path
        self.persistent[full] = callback
        return self._ask(_AddWatch(full))

    def unwatch(self, path: str) -> None:
        """Stop calling the callback at changes of ``path``; the server still sends them."""
        self.persistent.pop(self.chroot + path, None)

    def get_record(self, path: str) -> Any:
        """Get a znode as ``get_async`` does, for a path that is known to be valid."""
        return self._ask(GetData(self.chroot + path, None))

    def create_record(self, path: str, data: bytes) -> Any:
        """Create a sequential znode with its stat as ``create_async`` does, for a path known to be valid.

        The path in the answer is the server's.
        """
        return self._ask(Create2(self.chroot + path, data, self.default_acl or OPEN_ACL_UNSAFE, _SEQUENCE))

    def together(self) -> AbstractContextManager[None]:
        """Send this thread's requests made inside all at once, at the end."""
        return self._connection.together()

    def finish(self) -> None:
        """Close session and connection and end kazoo's threads; blocks."""
        if not self._stopped.is_set():
            self.stop()
        else:
            self._safe_close()
        self.close()

    def _ask(self, request: Any) -> Any:
        result = self.handler.async_result()
        self._call(request, result)
        return result

    def _call(self, request: Any, async_object: Any) -> Any:
        return None if self._connection.send(request, async_object) else super()._call(request, async_object)

    def _session_callback(self, state: str) -> None:
        if state == KeeperState.EXPIRED_SESSION:
            self._stopped.set()  # before anything else: after this kazoo does not connect again
        with self._connection._lock:
            super()._session_callback(state)
