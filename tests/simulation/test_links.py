"""Connections between nodes are opened once for all that call, and a failed attempt fails only those."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from onyxq.core.errors import OnyxqError, Unavailable
from onyxq.node import links
from onyxq.node.links import Link
from onyxq.wire.connection import Connection
from onyxq.wire.network import Network
from onyxq.wire.protocol import Hello


class Connecting:
    """Stands in for `Connection`: each attempt takes a second and ends as the test says."""

    def __init__(self, outcome: Callable[[], Any]) -> None:
        self.outcome = outcome
        self.attempts = 0

    async def start(self, *_: Any, **__: Any) -> Connection:
        """Connect."""
        self.attempts += 1
        await trio.sleep(1)
        return cast(Connection, self.outcome())


class Connected:
    """A connection that answers with its number of calls."""

    def __init__(self, *, closed: bool = False) -> None:
        self.peer = Hello(node="other")
        self.closed = trio.Event()
        self.calls = 0
        if closed:
            self.closed.set()

    async def call(self, *_: Any, **__: Any) -> int:
        """Count."""
        self.calls += 1
        return self.calls


def called(monkeypatch: pytest.MonkeyPatch, connecting: Connecting) -> list[Any]:
    """Return what three callers of a link to the other node get, the third of whom comes later."""
    monkeypatch.setattr(links, "Connection", connecting)
    found: list[Any] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            link = Link(
                node="other",
                network=cast(Network, None),
                nursery=nursery,
                hello=lambda: Hello(),
                address=lambda: "other:1",
            )

            async def call(after_s: float) -> None:
                await trio.sleep(after_s)
                try:
                    found.append(await link.call("x", {}, timeout_s=1))
                except OnyxqError as error:
                    found.append((type(error), error.message))

            for after_s in (0, 0.5, 1.1):
                nursery.start_soon(call, after_s)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return found


def test_all_that_call_wait_for_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later calls use the same connection."""
    connecting = Connecting(outcome=Connected)
    assert called(monkeypatch, connecting) == [1, 2, 3] and connecting.attempts == 1


@pytest.mark.parametrize("error", [Unavailable("nobody there"), ValueError("nobody there")])
def test_a_failed_attempt_fails_all_that_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """So it does those that call shortly after; a bug in it ends nothing else and is logged."""

    def fail() -> None:
        raise error

    connecting = Connecting(outcome=fail)
    with caplog.at_level(logging.ERROR):
        found = called(monkeypatch, connecting)
    assert found == [(Unavailable, "node other cannot be reached: nobody there")] * 3
    assert connecting.attempts == 1 and bool(caplog.records) == isinstance(error, ValueError)


def test_a_connection_that_closes_at_once_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call tries again."""
    connecting = Connecting(outcome=lambda: Connected(closed=True))
    assert called(monkeypatch, connecting) == [(Unavailable, "node other closed the connection")] * 3
    assert connecting.attempts == 2
