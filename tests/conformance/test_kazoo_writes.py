"""Writes of several threads to one ZooKeeper connection arrive complete and in order, even if the socket is full."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.protocol.connection import PING_XID
from kazoo.protocol.serialization import Ping, int_int_struct, int_struct
from kazoo.protocol.states import KeeperState

from onyxq.log.kazoo_connection import SessionClient

PATH = "/some/record"


class NarrowSocket:
    """Accepts a few bytes of the next write, and all bytes of later ones."""

    def __init__(self) -> None:
        self.written = b""
        self.room = 1 << 20

    def send(self, data: bytes) -> int:
        """Accept as many bytes as there is room for."""
        taken = data[: self.room]
        self.written += taken
        self.room = 1 << 20
        return len(taken)


def requests_in(written: bytes) -> list[int]:
    """Return the numbers of the requests, in order; fails for bytes that are no whole requests."""
    found = []
    while written:
        length = int_struct.unpack_from(written)[0]
        assert len(written) >= 4 + length, "a request was cut"
        found.append(int_int_struct.unpack_from(written, 4)[0])
        written = written[4 + length :]
    return found


@pytest.fixture
def client() -> SessionClient:
    """Return a client that takes itself for connected, on a socket that is full."""
    client = SessionClient("127.0.0.1:1", session_timeout_ms=10_000)
    client._live.set()
    client._state = KeeperState.CONNECTED
    client._connection._xid = 0
    client._connection._write_sock = NarrowSocket()
    client._connection._socket = NarrowSocket()
    return client


def test_a_ping_survives_a_request_that_another_thread_writes_in_part(
    client: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request comes between the preparation of the ping and its writing; both reach the server complete."""
    connection: Any = client._connection
    monkeypatch.setattr(connection, "_write", lambda data, timeout: connection._socket.send(data))
    monkeypatch.setattr(connection, "_wake", lambda: None)
    connection._socket.room = 5
    write_waiting = connection._write_waiting

    def interrupted(timeout: float) -> None:
        client.get_record(PATH)
        connection._socket.room = 1 << 20
        write_waiting(timeout)

    monkeypatch.setattr(connection, "_write_waiting", interrupted)
    connection._submit(Ping, 1.0, PING_XID)
    assert requests_in(connection._socket.written) == [PING_XID, 1]
