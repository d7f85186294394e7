"""Behaviour of a client when peers are overloaded: it waits as long as they ask, and delays large writes."""

from __future__ import annotations

import anyio
import pytest

from onyxq.client import AsyncClient
from onyxq.errors import Overloaded
from onyxq.wire.server import Request
from tests.interfaces.fake_service import FakeCluster, FakePeer, played, refuse_once, together

LARGE = bytes(100_000)


@played
async def test_an_overloaded_peer_is_asked_again_when_it_said(
    cluster: FakeCluster, peer: FakePeer, client: AsyncClient
) -> None:
    """It asks again not earlier, and its clients do so at different times."""
    await client.enqueue("mail", b"x")
    for _ in range(3):
        refuse_once(peer, "enqueue", Overloaded(retry_after_ms=4_000))
        began = anyio.current_time()
        await client.enqueue("mail", b"x")
        assert 4 <= anyio.current_time() - began < 8.1
    assert len(cluster.tasks()) == 4


@pytest.mark.parametrize("data", [b"x", LARGE])
@played
async def test_a_refusal_is_raised_at_once_if_there_is_no_time_for_another_attempt(
    peer: FakePeer, client: AsyncClient, data: bytes
) -> None:
    """The refusal itself is raised, not a timeout."""
    await client.enqueue("mail", b"x")
    refuse_once(peer, "enqueue", Overloaded(retry_after_ms=4_000), times=1000)
    began = anyio.current_time()
    with pytest.raises(Overloaded) as refused:
        await client.enqueue("mail", data, timeout_ms=2_000)
    assert anyio.current_time() - began < 0.1 and refused.value.retry_after_ms == 4_000


@played
async def test_large_writes_wait_together_after_a_refusal_and_small_ones_do_not(
    cluster: FakeCluster, peer: FakePeer, client: AsyncClient
) -> None:
    """One of them is tried first; each success lets twice as many follow."""
    await client.enqueue("mail", b"x")
    refuse_once(peer, "enqueue", Overloaded(retry_after_ms=2_000))
    await together(client.enqueue("mail", LARGE, timeout_ms=1_000))
    peer.asked.clear()
    with pytest.raises(Overloaded):
        await client.enqueue("mail", LARGE, timeout_ms=1_000)
    assert not peer.asked
    await client.enqueue("mail", b"small", timeout_ms=1_000)
    assert peer.methods("enqueue") == ["enqueue"]
    sizes: list[int] = []
    most = 0

    def slowly(request: Request) -> bool:
        nonlocal most
        if request.method != "enqueue":
            return False
        sizes.append(sum(len(run[1]) for run in request.args["runs"]))
        most = max(most, len(sizes) - served)
        cluster._group.start_soon(later, request)
        return True

    served = 0

    async def later(request: Request) -> None:
        nonlocal served
        await anyio.sleep(0.2)
        served += 1
        request.reply(cluster.do_enqueue(request.args))

    peer.intercept = slowly
    began = anyio.current_time()
    await together(*(client.enqueue_many("mail", [LARGE]) for _ in range(20)))
    assert len(sizes) == 20 and anyio.current_time() - began > 1.0
    assert len(cluster.tasks()) == 22
