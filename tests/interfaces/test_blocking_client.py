"""The client for plain threads: the end of its background thread."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from onyxq.client import Client
from onyxq.errors import Unavailable
from tests.interfaces.live_world import running

ROOT = Path(__file__).resolve().parents[2]
INTERRUPTED = """
import os, signal, threading
import anyio.from_thread
from onyxq.client import Client

started = anyio.from_thread.run_eventloop

def interrupted(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGINT)
    heard.wait()  # the interrupt comes first
    return started(*args, **kwargs)

heard = threading.Event()
signal.signal(signal.SIGINT, lambda *_: (heard.set(), signal.default_int_handler(signal.SIGINT, None)))
anyio.from_thread.run_eventloop = interrupted
try:
    Client("127.0.0.1:1").open()
except KeyboardInterrupt:
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(10)
    print([thread.name for thread in threading.enumerate()])
"""


def test_calls_of_other_threads_end_when_it_is_closed() -> None:
    """Each ends at once with `Unavailable`, whether it waits for tasks, an answer, or a dead peer."""
    with running() as cluster:
        client = Client(cluster.addresses[0]).open()
        client.call("count", {})
        calls = [partial(client.claim, ["none"], wait_ms=60_000), partial(client.wait, client.enqueue("a", b"1"))]
        ended: list[BaseException] = []

        def wait(call: Callable[[], object]) -> None:
            with pytest.raises(Unavailable, match="closed") as found:
                call()
            ended.append(found.value)

        threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        while len(client._under_way) < len(calls):
            client.call("count", {})
        began = time.monotonic()
        client.close()
        for thread in threads:
            thread.join()
    assert len(ended) == len(calls) and time.monotonic() - began < 10
    with pytest.raises(Unavailable, match="not open"):
        client.call("count", {})


def test_a_call_that_comes_while_it_is_closed_is_too_late() -> None:
    """The waiting calls have already failed, and this one would never be answered."""
    with running() as cluster, Client(cluster.addresses[0]) as client:
        portal = client._portal
        assert portal is not None
        portal.call(client._end_calls)
        with pytest.raises(Unavailable, match="not open"):
            client.claim(["none"], wait_ms=60_000)


def test_an_interrupt_while_a_client_is_opened_ends_it() -> None:
    """The background thread is starting: it is ended, and the wait is no longer than that takes."""
    command = [sys.executable, "-c", INTERRUPTED]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT, check=False)
    assert (found.stdout.strip(), found.stderr) == ("['MainThread']", "")
