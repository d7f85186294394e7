"""A client while peers cannot serve it in time.

Long outages cost no memory, late calls make no second tasks, and unusable addresses are errors of the call.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
import trio

from onyxq.client import AsyncClient, Task
from onyxq.client.flow_calls import FlowCalls
from onyxq.client.jobs import Jobs
from onyxq.errors import BadRequest, ClusterMismatch, OnyxqError, Overloaded, TimedOut, Unavailable
from onyxq.wire.server import Request
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer, client_of, played, refuse_once, together
from tests.interfaces.test_unfinished import READY


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


@played
async def test_a_client_does_not_continue_at_a_new_cluster(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """The error names the address and says what to do: `onyxq dev` without a directory begins empty each time."""
    first = await cluster.start(network.host("a"), "a:1")
    async with client_of(network) as client:
        await client.enqueue("mail", b"1")
        first.stop()
        network.cut("a")
        await anyio.wait_all_tasks_blocked()
        cluster.id = "c2"
        await cluster.start(network.host("a"), "a:1")
        with pytest.raises(ClusterMismatch, match=r"server at a:1 is not of the cluster .* used so far") as caught:
            await client.enqueue("mail", b"2")
    assert "Start this program again." in caught.value.advice


@pytest.mark.parametrize("method", ["wait", "next_updates"])
@played
async def test_a_wait_outlasts_a_restart_of_the_peers(
    method: str, cluster: FakeCluster, network: SimulatedNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    """It has its own limit, and warns now and then. But a wait that reaches no peer fails as soon as other calls."""
    ended = READY | {"state": "completed"}

    async def restart() -> None:
        await anyio.sleep(2)
        first.stop()
        network.cut("a")
        await anyio.sleep(100)
        answer_with(await cluster.start(network.host("a"), "a:1"), "get", ended)

    first = await cluster.start(network.host("a"), "a:1")
    answer_with(first, "get", None if method == "wait" else READY)
    async with client_of(network, connect_timeout_ms=1_000) as client:
        wait = getattr(client, method)
        found, _ = await together(wait(bytes(20), wait_ms=120_000), restart())
        assert found == ([] if method == "next_updates" else Task.of(ended))
        assert [record.message.partition(": ")[0] for record in caplog.records] == [
            "a wait gets no answer and continues"
        ] * 2
        cluster.peers[-1].stop()
        network.cut("a")
        await anyio.sleep(1)
        began = trio.current_time()
        for wait_ms in (120_000, None):
            with pytest.raises(Unavailable):
                await wait(bytes(20), wait_ms=wait_ms)
        assert trio.current_time() - began <= 2 * 1.1


@played
async def test_a_wait_pauses_as_long_as_an_overloaded_peer_asks(peer: FakePeer, network: SimulatedNetwork) -> None:
    """Also if the time of one request is shorter than the pause."""
    refuse_once(peer, "get", Overloaded("too many", retry_after_ms=5_000), times=1_000)
    async with client_of(network, timeout_ms=1_000) as client:
        with pytest.raises(Overloaded):
            await client.next_updates(bytes(20), wait_ms=20_000)
    assert len(peer.methods("get")) <= 5


def answer_with(peer: FakePeer, method: str, answer: dict[str, Any] | None) -> None:
    """Let a peer give an answer to a method; None: it waits."""

    def intercept(request: Request) -> bool:
        if request.method == method and answer is not None:
            request.reply(answer)
        return request.method == method

    peer.intercept = intercept


@played
async def test_a_call_whose_time_ends_before_its_task_has_an_id_stores_nothing(
    cluster: FakeCluster, peer: FakePeer, client: AsyncClient
) -> None:
    """Its caller cannot know the id that the rest of the group would store the task under."""
    held: list[Request] = []

    def hold(request: Request) -> bool:
        if request.method == "routes":
            held.append(request)
        return request.method == "routes"

    async def release() -> None:
        await anyio.sleep(2)
        peer.intercept = None
        for request in held:
            cluster.answer(request)

    peer.intercept = hold
    calls = (client.enqueue("mail", b"x", timeout_ms=limit_ms) for limit_ms in (1_000, 5_000))
    late, stored, _ = await together(*calls, release())
    assert isinstance(late, TimedOut) and not late.ids
    assert cluster.tasks() == [stored]


@played
async def test_a_call_whose_time_is_over_is_not_sent_under_another_id(
    cluster: FakeCluster, peer: FakePeer, client: AsyncClient
) -> None:
    """If the request of a group is refused, its calls are sent one by one, with fresh ids."""
    await client.make_ids(1)
    held: list[Request] = []

    def hold(request: Request) -> bool:
        if request.method == "enqueue":
            held.append(request)
        return request.method == "enqueue"

    async def refuse() -> None:
        await anyio.sleep(2)
        peer.intercept = None
        held[0].fail(BadRequest("one of them is wrong"))

    peer.intercept = hold
    calls = (client.enqueue("mail", b"x", timeout_ms=limit_ms) for limit_ms in (1_000, 5_000))
    late, stored, _ = await together(*calls, refuse())
    assert isinstance(late, TimedOut) and len(late.ids) == 1
    assert cluster.tasks() == [stored]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_host_that_no_name_can_be_is_an_error_of_the_call(backend: str) -> None:
    """It does not end the client, which may have other addresses."""

    async def main() -> None:
        async with AsyncClient("m\u00fcller..example:7400", timeout_ms=1_000) as client:
            for _ in range(2):
                with pytest.raises(BadRequest, match="is not a host name"):
                    await client.cluster()

    anyio.run(main, backend=backend)


@played
async def test_a_client_that_is_not_open_says_so(network: SimulatedNetwork, peer: FakePeer) -> None:
    """In every call, before its block and after it. It may be opened again."""
    client = client_of(network)
    calls = (
        lambda: client.enqueue("mail", b"1"),
        lambda: client.claim("mail"),
        lambda: client.get(bytes(20)),
        lambda: client.pause("mail"),
        lambda: client.transact(),
    )
    for _ in range(2):
        for call in calls:
            with pytest.raises(Unavailable, match="^the client is not open\\b") as found:
                await call()
            assert found.value.advice.startswith("Use it in an async with block")
        async with client:
            await client.enqueue("mail", b"1")


@played
async def test_calls_under_way_end_with_their_client(network: SimulatedNetwork, peer: FakePeer) -> None:
    """They say so at once, and do not look for a peer any more."""
    peer.intercept = lambda request: request.method != "routes"
    said: list[str] = []

    async def made(call: Callable[[], Coroutine[Any, Any, object]]) -> None:
        with pytest.raises(Unavailable) as found:
            await call()
        said.append(found.value.message)

    async with anyio.create_task_group() as group:
        async with client_of(network) as client:
            for call in (
                lambda: client.get(bytes(20)),
                lambda: client.wait(bytes(20), None),
                lambda: client.claim("mail", wait_ms=20_000),
                lambda: client.wait_flow(bytes(20)),
            ):
                group.start_soon(made, call)
            await anyio.wait_all_tasks_blocked()
            began = trio.current_time()
    assert said == ["the client was closed while it waited for the answer"] * 4
    assert trio.current_time() == began


def test_a_client_that_is_not_open_can_be_the_model_of_a_mock() -> None:
    """A mock reads each attribute. Only an AttributeError says that an attribute is missing."""
    client = AsyncClient("127.0.0.1:1")
    assert not hasattr(client, "_pool")
    assert asyncio.iscoroutinefunction(Mock(spec=client).enqueue)
    assert "enqueue" in dict(inspect.getmembers(client))


class _Closed(FlowCalls, Jobs):
    """The calls of a client that is closed while a wait lasts, and whose peers are gone."""

    asked = 0

    async def _outlasts(self, error: OnyxqError, began: float, until: float) -> bool:
        return self.asked < 2

    async def _do(self, operation: Any, args: Any, *, timeout_ms: Any = None) -> dict[str, Any]:
        self.asked += 1
        assert self.asked <= 2, "it would ask for ever, and block the event loop"
        if self.asked == 1:
            return {"state": "running"}
        raise Unavailable("the client is not open")

    def random_name(self) -> str:
        return "name"


@pytest.mark.parametrize(
    "wait",
    [
        lambda calls: calls.wait_flow(bytes(20)),
        lambda calls: calls.wait_job("job"),
        lambda calls: calls.savepoint_job("job", "before"),
    ],
)
def test_a_wait_ends_with_its_client(wait: Callable[[_Closed], Coroutine[Any, Any, object]]) -> None:
    """A peer that is gone may come back during a wait, but a client that is closed does not."""

    async def main() -> None:
        with pytest.raises(Unavailable, match="not open"):
            await wait(_Closed())

    anyio.run(main)
