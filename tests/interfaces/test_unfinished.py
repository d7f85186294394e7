"""What an unfinished task waits for, as the error of a wait says it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from onyxq.client import AsyncClient, Task, unfinished
from onyxq.errors import TimedOut
from onyxq.operations.table.cluster import WAITS_FOR_MAX
from onyxq.wire.server import Request
from tests.interfaces.fake_service import FakePeer, played

READY: dict[str, Any] = {
    "id": bytes(20),
    "queue": "mail",
    "state": "ready",
    "data": b"",
    "format": "bytes",
    "priority": 0,
    "at_ms": 0,
    "attempts": 0,
    "claims": [],
    "depends": [],
    "updates": 0,
    "error": None,
    "result": None,
}
QUEUE: dict[str, Any] = {"settings": {"paused": False}, "depth": {"claimed": 0}}
NO_WORKER, NOT_FREE = "no worker asks for queue 'mail'", "no worker that has a free slot asks for queue 'mail'"


@pytest.mark.parametrize(
    ("waits_for", "said"),
    [
        ([], NO_WORKER),
        ([["index"]], NO_WORKER),
        ([["index"], []], NOT_FREE),
        ([["index", "mail"]], ""),
        ([[f"q{number}" for number in range(WAITS_FOR_MAX)]], ""),
    ],
)
def test_a_worker_is_missing_only_if_that_is_certain(waits_for: list[list[str]], said: str) -> None:
    """A worker whose slots are full asks for nothing, and of many queues it names only some."""
    workers = {"silent": [], "all": len(waits_for), "workers": [{"waits_for": names} for names in waits_for]}
    error = unfinished.late(Task.of(READY), 1_000, 0, [QUEUE, workers], field="wait_ms")
    assert error.message == f"task {bytes(20).hex()} is ready after 1 s" + (f": {said}" if said else "")


@played
async def test_the_reason_takes_little_more_time_than_the_wait(peer: FakePeer, client: AsyncClient) -> None:
    """The error comes without the reason if the cluster does not give it soon. A mere look does not ask for it."""

    def answer(request: Request) -> bool:
        if request.method == "get":
            request.reply(READY)
        return request.method in ("get", "queue.get", "workers")

    peer.intercept = answer
    for wait_ms, most_s in ((0, 0.0), (1_000, 1 + unfinished.QUESTION_TIMEOUT_MS / 1000)):
        began = trio.current_time()
        with pytest.raises(TimedOut, match="is ready after"):
            await client.next_updates(bytes(20), wait_ms=wait_ms)
        assert trio.current_time() - began <= most_s + 0.1
        assert bool(peer.methods("queue.get")) is bool(wait_ms)


@played
async def test_a_caller_that_waits_on_its_own_gets_the_same_error(peer: FakePeer, client: AsyncClient) -> None:
    """Such as the command line. It names its own argument, and gets the error as soon."""
    peer.intercept = lambda request: request.method in ("queue.get", "workers")
    began = trio.current_time()
    error = await client.late(Task.of(READY), 1_000, field="timeout")
    assert (error.field, error.message) == ("timeout", f"task {bytes(20).hex()} is ready after 1 s")
    assert trio.current_time() - began <= unfinished.QUESTION_TIMEOUT_MS / 1000 + 0.1
