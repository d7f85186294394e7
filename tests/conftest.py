"""What all tests share: a clean environment and reproducible generated examples."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Some tests interrupt programs. What a shell starts in the background ignores that, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the ``ONYXQ_*`` settings of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("ONYXQ_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_session_with_zookeeper_stays() -> Iterator[None]:
    """What a test leaves open is closed, and told: kazoo's threads would try to reconnect for the rest of the run.

    They also draw from the module ``random``, and Hypothesis fails a test that draws its data just then.
    """
    before = _clients_of_zookeeper()
    yield
    left = [client for client in _clients_of_zookeeper() if client not in before]
    for client in left:
        client.stop()
        client.close()
    assert not left, f"{len(left)} sessions with ZooKeeper were left open"


def _clients_of_zookeeper() -> list[Any]:
    """Those of kazoo that nobody has stopped, found by their threads, whose loop is a connection's method."""
    loops = [getattr(one, "_target", None) for one in threading.enumerate() if one.name.endswith("(zk_loop)")]
    clients = [loop.__self__.client for loop in loops if loop is not None]
    return [client for client in clients if not client._stopped.is_set()]
