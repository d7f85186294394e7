"""Fixtures of tests of a single node: the node, a client and a command line at it, and a queue."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import count

import pytest

from onyxq.client import Client
from tests.interfaces.live_world import Line, Live, running

_serial = count(1)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """One node for all tests of a module, with HTTP. It asks for no credential, so callbacks may go to loopback."""
    with running(http=True) as cluster:
        found = Live(cluster)
        yield found
        found.close()


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[Client]:
    """A client of the node."""
    with Client(live.address) as found:
        yield found


@pytest.fixture
def queue() -> str:
    """A queue that no other test uses."""
    return f"queue-{next(_serial)}"


@pytest.fixture
def line(live: Live, capsys: pytest.CaptureFixture[str]) -> Line:
    """A command line at the node."""
    return Line(live.address, capsys)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address without a listener, which stays reserved while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"
