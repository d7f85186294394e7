"""The client for plain threads: the end of its background thread, and calls whose caller is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from onyxq.client import AsyncClient, Client, blocking
from onyxq.client.claims import ClaimBatch, ClaimedRun
from onyxq.core.ids import make_id
from onyxq.errors import Unavailable
from simulation.world.network import SimulatedNetwork
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


def test_a_traceback_shows_the_call_and_little_of_the_client() -> None:
    """It has no frames of the event loop, and no comments of ours that look like instructions to the reader."""
    network = SimulatedNetwork().host("w")
    with Client("a:1", network=network, connect_timeout_ms=1, backend="trio") as client:
        with pytest.raises(Unavailable) as refused:
            client.get("00" * 20)
    shown = "".join(traceback.format_exception(refused.value))
    assert len(refused.traceback) <= 3
    assert "client.get(" in shown and "noqa" not in shown and "#" not in shown


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


CLAIMS = ClaimBatch([ClaimedRun(token=7, first=make_id(1, 0, 1, 0), count=2)])


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[ClaimBatch]:
    """Claims that clients gave back."""
    found: list[ClaimBatch] = []
    monkeypatch.setattr(AsyncClient, "_give_back", lambda _, claims: found.append(claims))
    return found


def test_claims_that_come_after_an_interrupt_are_given_back(given_back: list[ClaimBatch]) -> None:
    """No worker would run the tasks until their lease ends."""
    main, gone = threading.main_thread().ident, threading.Event()
    assert main is not None

    async def claim() -> ClaimBatch:
        signal.pthread_kill(main, signal.SIGINT)
        gone.wait(1)
        return CLAIMS

    with Client("127.0.0.1:1") as client:
        with pytest.raises(KeyboardInterrupt):
            client._run(claim)
        gone.set()
    assert given_back == [CLAIMS]


def test_an_interrupt_cancels_the_call() -> None:
    """It would continue in the background, and could claim tasks that are never run."""
    main, cancelled = threading.main_thread().ident, threading.Event()
    assert main is not None

    async def wait() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    with Client("127.0.0.1:1") as client:
        with pytest.raises(KeyboardInterrupt):
            client._run(wait)
        assert cancelled.wait(5)


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_claims_of_a_cancelled_wait_are_given_back(
    given_back: list[ClaimBatch], monkeypatch: pytest.MonkeyPatch, backend: str, answered: bool
) -> None:
    """Whether they came just before the wait was cancelled or come after it."""
    gone = threading.Event()

    async def claim(_: AsyncClient) -> ClaimBatch:
        if not answered:
            gone.wait(1)
        return CLAIMS

    async def done(future: Future[Any]) -> None:
        if answered:
            assert future.result(10) is CLAIMS
        await anyio.lowlevel.checkpoint()

    async def main(client: Client) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await client.awaited(claim)

    monkeypatch.setattr(blocking, "_done", done)
    with Client("127.0.0.1:1") as client:
        anyio.run(main, client, backend=backend)
        gone.set()
    assert given_back == [CLAIMS]


def test_claims_that_are_taken_stay_with_their_caller(given_back: list[ClaimBatch]) -> None:
    """From any thread and from async code."""

    async def claim(_: AsyncClient | None = None) -> ClaimBatch:
        return CLAIMS

    with Client("127.0.0.1:1") as client:
        assert client._run(claim) is CLAIMS
        assert anyio.run(client.awaited, claim) is CLAIMS
    assert not given_back
