"""The simulated network: effects of its faults on a stream, and repeatable runs."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream

from onyxq.errors import Unavailable
from simulation.world.network import BUFFER_BYTES_MAX, SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, play, played


@asynccontextmanager
async def ends(network: SimulatedNetwork) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    """Return both ends of a stream between hosts ``a`` and ``b``."""
    far: list[ByteStream] = []
    done = anyio.Event()

    async def handler(stream: ByteStream) -> None:
        far.append(stream)
        await done.wait()

    async with anyio.create_task_group() as group:
        address = await group.start(
            lambda task_status: network.host("b").serve("b:0", handler, task_status=task_status)
        )
        near = await network.host("a").connect(address, timeout_ms=1_000)
        while not far:
            await anyio.lowlevel.checkpoint()
        yield near, far[0]
        group.cancel_scope.cancel()


@played
async def test_bytes_arrive_in_order_after_the_delay(network: SimulatedNetwork) -> None:
    """This holds if the delay becomes shorter meanwhile."""
    async with ends(network) as (near, far):
        start = anyio.current_time()
        network.delay("a", "b", delay_ms=100)
        await near.send(b"first")
        network.delay("a", "b", delay_ms=0)
        await near.send(b"second")
        assert await far.receive() == b"first"
        assert anyio.current_time() - start == pytest.approx(0.1)
        assert await far.receive() == b"second"


@played
async def test_a_partition_holds_bytes_back_until_it_heals(network: SimulatedNetwork) -> None:
    """TCP repeats lost bytes: they are late, but complete and in order."""
    async with ends(network) as (near, far):
        await near.send(b"before")
        network.part(["a"], ["b", "c"])
        await near.send(b"after")
        await near.aclose()
        with anyio.move_on_after(60) as waited:
            await far.receive()
        assert waited.cancelled_caught
        with pytest.raises(Unavailable):
            await network.host("a").connect("b:40000", timeout_ms=1_000)
        network.heal()
        assert [await far.receive(), await far.receive()] == [b"before", b"after"]
        with pytest.raises(anyio.EndOfStream):
            await far.receive()


@played
async def test_a_half_open_stream_carries_bytes_in_one_direction_until_it_heals(network: SimulatedNetwork) -> None:
    """The other end has the request, and its answer is late; there is no new connection meanwhile."""
    async with ends(network) as (near, far):
        network.part(["b"], ["a", "c"], one_way=True)
        await near.send(b"request")
        assert await far.receive() == b"request"
        await far.send(b"answer")
        await far.aclose()
        with anyio.move_on_after(60) as waited:
            await near.receive()
        assert waited.cancelled_caught
        await near.send(b"nobody said that the other end is closed")
        for source, address in (("a", "b:40000"), ("b", "a:1")):
            with pytest.raises(Unavailable, match="no answer in time"):
                await network.host(source).connect(address, timeout_ms=1_000)
        network.heal()
        assert await near.receive() == b"answer"
        with pytest.raises(anyio.BrokenResourceError):
            await near.send(b"now it is known")


@played
async def test_a_dead_connection_carries_nothing_and_a_new_one_works(network: SimulatedNetwork) -> None:
    """Both ends see no error. Bytes that are sent and the end of the stream are lost, also after the link heals."""
    async with ends(network) as (near, far):
        await near.send(b"under way")
        network.deaden("a", "c")
        assert await far.receive() == b"under way"
        network.deaden("a", "b")
        await near.send(b"lost")
        await far.send(b"lost")
        await near.aclose()
        network.heal()
        with anyio.move_on_after(60) as waited:
            await far.receive()
        assert waited.cancelled_caught
        async with await network.host("a").connect("b:40000", timeout_ms=1_000) as again:
            await again.send(b"new")


@played
async def test_a_cut_breaks_both_ends_at_once(network: SimulatedNetwork) -> None:
    """This includes a task that waits in receive."""
    async with ends(network) as (near, far), anyio.create_task_group() as group:

        async def wait() -> None:
            with pytest.raises(anyio.BrokenResourceError):
                await far.receive()

        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        network.cut("a", "b")
        with pytest.raises(anyio.BrokenResourceError):
            await near.send(b"x")


@played
async def test_a_sender_waits_while_nobody_receives(network: SimulatedNetwork) -> None:
    """A stream holds a bounded number of bytes."""
    async with ends(network) as (near, far):
        await near.send(bytes(BUFFER_BYTES_MAX))
        with anyio.move_on_after(60) as waited:
            await near.send(b"more")
        assert waited.cancelled_caught
        await far.receive()
        await near.send(b"more")


def test_the_same_seed_cuts_the_bytes_in_the_same_places() -> None:
    """So a run can be repeated."""

    def pieces(seed: int) -> list[int]:
        sizes: list[int] = []

        async def scenario(_: FakeCluster, network: SimulatedNetwork) -> None:
            async with ends(network) as (near, far):
                await near.send(bytes(10_000))
                while sum(sizes) < 10_000:
                    sizes.append(len(await far.receive()))

        play(scenario, network=SimulatedNetwork(generator=random.Random(seed)))
        return sizes

    assert pieces(7) == pieces(7)
    assert len({tuple(pieces(seed)) for seed in range(10)}) > 1
