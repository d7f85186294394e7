"""A client while peers cannot serve it: long outages cost no memory, and unusable addresses are errors of the call."""

from __future__ import annotations

import anyio
import trio

from onyxq.client import AsyncClient
from onyxq.errors import Unavailable
from tests.interfaces.fake_service import FakePeer, played, refuse_once


@played
async def test_errors_that_pass_leave_nothing_behind(peer: FakePeer, client: AsyncClient) -> None:
    """After each, the client looks for a peer again. In a long outage that must not fill its memory."""

    async def tasks() -> int:
        refuse_once(peer, "enqueue", Unavailable("no majority"))
        await client.enqueue("mail", b"x")
        await anyio.wait_all_tasks_blocked()
        return trio.lowlevel.current_statistics().tasks_living

    first = await tasks()
    assert [await tasks() for _ in range(9)] == [first] * 9
