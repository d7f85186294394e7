"""A client while peers cannot serve it: long outages cost no memory, and unusable addresses are errors of the call."""

from __future__ import annotations

import anyio
import pytest
import trio

from onyxq.client import AsyncClient
from onyxq.errors import BadRequest, Unavailable
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


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_host_that_no_name_can_be_is_an_error_of_the_call(backend: str) -> None:
    """It does not end the client, which may have other addresses."""

    async def main() -> None:
        async with AsyncClient("m\u00fcller..example:7400", timeout_ms=1_000) as client:
            for _ in range(2):
                with pytest.raises(BadRequest, match="is not a host name"):
                    await client.cluster()

    anyio.run(main, backend=backend)
