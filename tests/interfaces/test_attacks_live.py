"""Attacks on real nodes, with and without tokens: each was tried by hand once and is kept where it is cheap."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from onyxq.access.grants import Access, Token
from tests.interfaces.live_world import Live, running

pytestmark = pytest.mark.slow

ADMIN, TIMERS = "a token of everything", "a token for timers alone"
SECRET = "what the peers share"
ACCESS = Access((Token.of(ADMIN, "all", ["admin"]), Token.of(TIMERS, "timers", ["produce:onyxq.timers"])), SECRET)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    """A node that asks for tokens, reached on loopback as through a proxy."""
    with running(http=True, access=ACCESS) as cluster:
        live = Live(cluster)
        yield live
        live.close()


@pytest.fixture(scope="module")
def unguarded() -> Iterator[Live]:
    """A node that asks for nothing."""
    with running(http=True) as cluster:
        live = Live(cluster)
        yield live
        live.close()


@contextmanager
def listener() -> Iterator[socket.socket]:
    """A service on loopback that nobody but this machine is to reach."""
    with socket.create_server(("127.0.0.1", 0)) as serving:
        serving.setblocking(False)
        yield serving


# --- callbacks

LOOPBACK = (
    "127.0.0.1",
    "127.1",
    "127.000.000.001",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "017700000001",
    "localhost",
    "LOCALHOST",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[2002:7f00:1::]",
)
ELSEWHERE = (
    "0",
    "0.0.0.0",
    "[::]",
    "10.0.0.1",
    "10.1",
    "0xa000001",
    "192.168.1.1",
    "172.16.0.1",
    "169.254.169.254",
    "2852039166",
    "[::ffff:169.254.169.254]",
    "[fe80::1%25lo]",
    "[fd00::1]",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
)


def set_timer(live: Live, uri: str, *, token: str = "", transport: str = "http", method: str = "post") -> Any:
    """Set a timer that is due at once: the field that was refused, None if none was."""
    callback = {"transport": transport, "method": method, "uri": uri}
    headers = {"authorization": f"Bearer {token}"} if token else {}
    answer = live.http.post("/timer", json={"timeout": 1, "data": "x", "callback": callback}, headers=headers)
    return None if answer.status_code == 201 else answer.json()["field"]


@pytest.mark.parametrize("host", [*LOOPBACK, *ELSEWHERE])
def test_a_token_for_timers_reaches_no_private_address_however_it_is_spelled(guarded: Live, host: str) -> None:
    """Neither over HTTP nor over TCP; nothing is sent before it is refused."""
    with listener() as serving:
        port = serving.getsockname()[1]
        assert set_timer(guarded, f"http://{host}:{port}/x", token=TIMERS) == "callback.uri"
        assert (
            set_timer(guarded, f"tcp://{host}:{port}", token=TIMERS, transport="tcp", method="plain") == "callback.uri"
        )
        with pytest.raises(BlockingIOError):
            serving.accept()


@pytest.mark.parametrize("host", ELSEWHERE)
def test_without_tokens_no_other_private_address_than_loopback_is_reached(unguarded: Live, host: str) -> None:
    """Loopback is: whoever asks is on the machine already."""
    assert set_timer(unguarded, f"http://{host}:9/x") == "callback.uri"


@pytest.mark.parametrize("host", LOOPBACK[:13])
def test_without_tokens_loopback_is_reached_however_it_is_spelled(unguarded: Live, host: str) -> None:
    """So the attempts above are refused for the address and for nothing else."""
    assert set_timer(unguarded, f"http://{host}:9/x") is None
