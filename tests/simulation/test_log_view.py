"""A node reads the log for clients: what is being read is neither closed nor dropped, however slow that is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from onyxq.core.log.interface import LogBackend, LogSession, Origin, SessionLost
from onyxq.core.replica import EMPTY
from onyxq.errors import LogUnavailable
from onyxq.node import log_view
from onyxq.node.log_view import IDLE_S, LogView
from onyxq.node.node import Node
from onyxq.operations.table.log import GetOrigin, GetReplicaPart
from tests.entries.world import created

LONG_S = 3 * IDLE_S


class SlowSession:
    """A session whose origin takes a time to read, unless the session is closed or lost meanwhile."""

    def __init__(self, takes_s: float) -> None:
        self.closed = trio.Event()
        self.connected = True
        self._takes_s = takes_s

    async def origin(self) -> Origin:
        """Read the origin."""
        with trio.move_on_after(self._takes_s):
            await self.closed.wait()
            raise SessionLost("the session has ended")
        return Origin(7, b"origin", -1, 0)

    async def aclose(self) -> None:
        """Close the session."""
        self.closed.set()
        await trio.lowlevel.checkpoint()


class SlowLog:
    """A log that opens such sessions."""

    def __init__(self, takes_s: float) -> None:
        self.sessions: list[SlowSession] = []
        self._takes_s = takes_s

    async def session(self) -> LogSession:
        """Open a session."""
        await trio.lowlevel.checkpoint()
        self.sessions.append(SlowSession(self._takes_s))
        return cast(LogSession, self.sessions[-1])


def viewed(log: SlowLog, use: Callable[[LogView, Any], Awaitable[None]]) -> None:
    """Use the view of a log at a node, on a clock that jumps."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            node = SimpleNamespace(start_soon=nursery.start_soon, replica=EMPTY)
            await use(LogView(cast(Node, node), cast(LogBackend, log)), node)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_session_is_not_closed_while_an_origin_is_read() -> None:
    """A large origin of a slow log takes longer than a session may be idle; the session is closed after that."""
    log = SlowLog(LONG_S)

    async def use(view: LogView, node: Any) -> None:
        assert (await view.origin(GetOrigin())).data == b"origin"
        await trio.sleep(2 * IDLE_S + 1)
        assert [session.closed.is_set() for session in log.sessions] == [True]

    viewed(log, use)


def test_a_session_that_is_lost_is_an_outage_of_the_log_and_the_next_request_opens_another() -> None:
    """This holds however long the request has waited for the log."""
    log = SlowLog(LONG_S)

    async def use(view: LogView, node: Any) -> None:
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await trio.sleep(IDLE_S + 1)
                log.sessions[0].closed.set()

            nursery.start_soon(end)
            with pytest.raises(LogUnavailable, match="was lost"):
                await view.origin(GetOrigin())
        assert (await view.origin(GetOrigin())).position == 7
        assert len(log.sessions) == 2

    viewed(log, use)


def test_a_request_does_not_wait_for_a_log_that_is_out_of_reach_for_long() -> None:
    """Later requests for the log wait for this one, and the log may be away for hours."""
    log = SlowLog(100 * IDLE_S)

    async def use(view: LogView, node: Any) -> None:
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await trio.sleep(2 * IDLE_S)
                log.sessions[0].connected = False

            nursery.start_soon(end)
            with pytest.raises(LogUnavailable, match="was lost"):
                await view.origin(GetOrigin())
        assert 2 * IDLE_S <= trio.current_time() <= 4 * IDLE_S

    viewed(log, use)


def test_the_parts_of_a_replica_stay_while_a_slow_client_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica moves on meanwhile, so a part that is dropped could not be made again."""
    monkeypatch.setattr(log_view, "PART_BYTES", 100)
    world = created("p1", "p2", "p3")

    async def use(view: LogView, node: Any) -> None:
        node.replica = world.replicas[-2]
        first = await view.replica_part(GetReplicaPart())
        assert first.parts > 3
        node.replica = world.replicas[-1]
        for number in range(1, first.parts):
            await trio.sleep(IDLE_S - 1)
            part = await view.replica_part(GetReplicaPart(part=number, position=first.position))
            assert (part.position, part.part, part.digest) == (first.position, number, first.digest)

    viewed(SlowLog(0), use)
