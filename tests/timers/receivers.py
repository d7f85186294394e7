"""Receivers of callbacks on loopback: real servers that record the requests."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attrs import define, field, frozen

WAIT_S = 60.0
"""Longest wait, far above what a busy machine needs."""


@frozen
class Request:
    """One received request."""

    at_ms: int
    method: str
    path: str
    headers: dict[str, str]
    """By lower-case names."""
    body: bytes


@define
class Receiver:
    """A server's address and its requests. ``answer`` returns the status for a request; None: no answer at all."""

    uri: str = ""
    requests: list[Request] = field(factory=list)
    answer: Callable[[Request], int | None] = lambda request: 200
    over: threading.Event = field(factory=threading.Event)
    _changed: threading.Condition = field(factory=threading.Condition)

    def add(self, request: Request) -> None:
        """Record a request."""
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()

    def until(self, count: int) -> list[Request]:
        """Return the requests once there are a number of them; fail if that takes too long."""
        with self._changed:
            found = self._changed.wait_for(lambda: len(self.requests) >= count, WAIT_S)
            assert found, f"{len(self.requests)} of {count} requests within {WAIT_S:.0f} s"
            return list(self.requests)


def wall_ms() -> int:
    """Return the time of this machine's clock."""
    return time.time_ns() // 1_000_000


@contextmanager
def http_receiver(
    answer: Callable[[Request], int | None] | None = None, *, tls: ssl.SSLContext | None = None
) -> Iterator[Receiver]:
    """Run a receiver of HTTP on a free port, of HTTPS with ``tls``."""
    found = Receiver(answer=answer) if answer else Receiver()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            at_ms = wall_ms()
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(at_ms, self.command, self.path, headers, body)
            status = found.answer(request)
            found.add(request)
            if status is None:
                found.over.wait(WAIT_S)
                return
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", found.uri)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def log_message(self, *_: Any) -> None:
            """Print nothing on stderr."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 512

        def handle_error(self, *_: Any) -> None:
            """Ignore errors, because the caller has closed the connection."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    found.uri = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found
    finally:
        found.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def tcp_receiver() -> Iterator[Receiver]:
    """Run a receiver of lines on a free port: all that one connection sent is the body of one request."""
    found = Receiver()
    listener = socket.create_server(("127.0.0.1", 0))
    found.uri = f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                found.add(Request(wall_ms(), "", "", {}, lines.read()))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield found
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
