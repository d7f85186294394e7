"""Connections: many calls at once, withdrawn calls, few sends, broken and silent peers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import trio
from anyio.abc import ByteStream
from trio.testing import MockClock

from onyxq.errors import BadRequest, NotFound, OnyxqError, ProtocolError, TimedOut, Unavailable, Unknown
from onyxq.wire import connection as connection_module
from onyxq.wire.background import Background
from onyxq.wire.connection import CALLS_MAX, SEND_BYTES_MAX, STALL_S, Connection, Outlet
from onyxq.wire.network import Network
from onyxq.wire.protocol import Hello
from onyxq.wire.server import REQUESTS_MAX, Request, serve
from onyxq.wire.tcp import TcpNetwork
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, play, played, together

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


class Counting(ByteStream):
    """A stream that counts its sends."""

    def __init__(self, inner: ByteStream) -> None:
        self.inner = inner
        self.sends = 0

    async def send(self, item: bytes) -> None:
        """Count and pass on."""
        self.sends += 1
        await self.inner.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Pass on."""
        return await self.inner.receive(max_bytes)

    async def send_eof(self) -> None:
        """Pass on."""
        await self.inner.send_eof()

    async def aclose(self) -> None:
        """Pass on."""
        await self.inner.aclose()


class World:
    """A server on host ``a`` and a connection to it from host ``b``."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.requests: list[Request] = []
        self.connection: Connection
        self.near: Counting
        self.far: Counting

    async def connect(self, address: str, *, timeout_ms: int) -> ByteStream:
        """The `Network` that the connection uses."""
        self.near = Counting(await self.network.host("b").connect(address, timeout_ms=timeout_ms))
        return self.near

    async def serve(self, address: str, handler: Any, *, task_status: Any) -> None:
        """Not used: only the connecting side is of interest."""

    async def asked(self, count: int) -> None:
        """Wait until the server has this many requests."""
        while len(self.requests) < count:
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def opened(network: Network, address: str, *, hello: Hello, timeout_ms: int = 5_000) -> AsyncIterator[Connection]:
    """A connection for one block."""
    async with Background() as background:
        connection = await Connection.start(background, network, address, hello=hello, timeout_ms=timeout_ms)
        try:
            yield connection
        finally:
            connection.close()


@asynccontextmanager
async def connected(network: SimulatedNetwork, dispatch: Callable[[Request], None]) -> AsyncIterator[World]:
    """A connection to a server with this dispatch."""
    world = World(network)

    def keep(request: Request) -> None:
        request.args = msgspec.msgpack.decode(request.args)
        world.requests.append(request)
        dispatch(request)

    async def handler(stream: ByteStream) -> None:
        world.far = Counting(stream)
        await serve(world.far, hello=Hello(cluster="main"), dispatch=keep)

    async with anyio.create_task_group() as group:
        address = await group.start(
            lambda task_status: network.host("a").serve("a:1", handler, task_status=task_status)
        )
        async with opened(world, address, hello=Hello()) as world.connection:
            yield world
        group.cancel_scope.cancel()


def later(_: Request) -> None:
    """A dispatch that leaves the answer to the test."""


def echo(request: Request) -> None:
    """A dispatch that answers with the arguments."""
    request.reply(request.args)


@BACKENDS
@played
async def test_calls_in_flight_are_answered_in_any_order(network: SimulatedNetwork, backend: str) -> None:
    """Answers find their calls by number."""
    async with connected(network, later) as world:

        async def answer_backwards() -> list[Any]:
            await world.asked(3)
            for request in reversed(world.requests):
                request.reply(request.args["n"] * 10)
            return []

        calls = [world.connection.call("x", {"n": n}) for n in range(3)]
        assert (await together(*calls, answer_backwards()))[:3] == [0, 10, 20]


@BACKENDS
@played
async def test_calls_and_answers_of_one_turn_leave_in_one_send(network: SimulatedNetwork, backend: str) -> None:
    """A hundred small calls cost two sends, not two hundred."""
    async with connected(network, echo) as world:
        near, far = world.near.sends, world.far.sends
        assert await together(*(world.connection.call("x", {"n": n}) for n in range(100))) == [
            {"n": n} for n in range(100)
        ]
        assert (world.near.sends - near, world.far.sends - far) == (1, 1)


@played
async def test_more_calls_than_a_connection_takes_wait_in_line(network: SimulatedNetwork) -> None:
    """The limit holds, and all calls are served."""
    most = 0

    async with connected(network, later) as world:

        async def answer_slowly() -> None:
            nonlocal most
            done = 0
            while done < 2 * CALLS_MAX + 10:
                await anyio.sleep(0.001)
                most = max(most, len(world.connection._calls))
                for request in world.requests[done : done + 100]:
                    request.reply(None)
                    done += 1

        calls = [world.connection.call("x", {}) for _ in range(2 * CALLS_MAX + 10)]
        assert set(await together(*calls, answer_slowly())) == {None}
    assert most == CALLS_MAX


def test_a_call_that_fails_in_its_turn_lets_the_next_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that wait in line are not forgotten because of the call before."""
    monkeypatch.setattr(connection_module, "CALLS_MAX", 1)

    async def scenario(_: FakeCluster, network: SimulatedNetwork) -> None:
        async with connected(network, later) as world, anyio.create_task_group() as group:
            answers: list[Any] = []

            async def call(value: Any) -> None:
                try:
                    answers.append(await world.connection.call("x", {"value": value}, timeout_ms=1_000))
                except BadRequest:
                    answers.append("no form in msgpack")

            for value in (1, object(), 3):
                group.start_soon(call, value)
                await anyio.wait_all_tasks_blocked()
            for number in (0, 1):
                await world.asked(number + 1)
                world.requests[number].reply(number)
        assert sorted(map(str, answers)) == ["0", "1", "no form in msgpack"]

    play(scenario)


@played
async def test_a_server_stops_reading_when_too_many_requests_are_in_flight(
    network: SimulatedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that does not keep to the bound waits; it cannot make the server grow."""
    async with connected(network, later) as world:
        monkeypatch.setattr(connection_module, "CALLS_MAX", 10**9)
        async with anyio.create_task_group() as group:
            for _call in range(REQUESTS_MAX + 50):
                group.start_soon(world.connection.call, "x", {})
            await anyio.sleep(1)
            assert len(world.requests) == REQUESTS_MAX
            while len(world.requests) < REQUESTS_MAX + 50:
                for request in list(world.requests):
                    request.reply(None)
                await anyio.sleep(0.1)
            for request in world.requests:
                request.reply(None)


@BACKENDS
def test_a_server_error_is_raised_with_its_class_and_field(backend: str) -> None:
    """Errors travel as maps and come back as what they were."""

    def dispatch(request: Request) -> None:
        raise NotFound("no such task", field="id")

    async def scenario(_: FakeCluster, network: SimulatedNetwork) -> None:
        async with connected(network, dispatch) as world:
            with pytest.raises(NotFound, match="no such task") as caught:
                await world.connection.call("get", {})
            assert caught.value.field == "id"

    play(scenario, backend=backend)


def test_a_bug_in_a_handler_is_an_internal_error_for_its_request_only() -> None:
    """The connection and the other requests continue."""

    def dispatch(request: Request) -> None:
        request.reply(request.args["wanted"])

    async def scenario(_: FakeCluster, network: SimulatedNetwork) -> None:
        async with connected(network, dispatch) as world:
            with pytest.raises(OnyxqError, match="unexpectedly"):
                await world.connection.call("x", {})
            assert await world.connection.call("x", {"wanted": 1}) == 1

    play(scenario)


@played
async def test_an_answer_that_cannot_be_sent_is_an_error_for_its_request(network: SimulatedNetwork) -> None:
    """Not a silent wait until the time is over."""
    async with connected(network, lambda request: request.reply(object())) as world:
        with pytest.raises(BadRequest):
            await world.connection.call("x", {})


@BACKENDS
@played
async def test_a_call_given_up_is_withdrawn_at_the_server(network: SimulatedNetwork, backend: str) -> None:
    """The server hears of it and need not answer."""
    withdrawn = anyio.Event()

    def dispatch(request: Request) -> None:
        request.on_cancel = withdrawn.set

    async with connected(network, dispatch) as world:
        async with anyio.create_task_group() as group:
            group.start_soon(world.connection.call, "x", {})
            await world.asked(1)
            group.cancel_scope.cancel()
        await withdrawn.wait()
        assert not world.requests[0].open
        assert len(world.connection._calls) == 0


@BACKENDS
@played
async def test_a_call_without_answer_times_out_and_is_withdrawn(network: SimulatedNetwork, backend: str) -> None:
    """With the time it was given."""
    withdrawn = anyio.Event()

    def dispatch(request: Request) -> None:
        request.on_cancel = withdrawn.set

    async with connected(network, dispatch) as world:
        with pytest.raises(TimedOut):
            await world.connection.call("x", {}, timeout_ms=20)
        await withdrawn.wait()


@played
async def test_an_answer_that_crossed_the_withdrawal_goes_to_late(network: SimulatedNetwork) -> None:
    """Granted tasks must not be lost when the caller no longer waits."""
    network.delay("a", "b", delay_ms=50)
    async with connected(network, echo) as world:
        late: list[Any] = []
        with pytest.raises(TimedOut):
            await world.connection.call("claim", {"n": 1}, timeout_ms=75, late=late.append)
        await anyio.sleep(1)
        assert late == [{"n": 1}]


@BACKENDS
@played
async def test_a_connection_that_breaks_fails_its_calls(network: SimulatedNetwork, backend: str) -> None:
    """What was sent is `Unknown`; what was not is `Unavailable`."""
    async with connected(network, later) as world:

        async def cut() -> None:
            await world.asked(2)
            network.cut("a", "b")

        found = await together(world.connection.call("x", {}), world.connection.call("x", {}), cut())
        assert [type(error) for error in found[:2]] == [Unknown, Unknown]
        await world.connection.closed.wait()
        with pytest.raises(Unavailable, match="no connection"):
            await world.connection.call("x", {})


@played
async def test_requests_are_withdrawn_when_their_caller_is_gone(network: SimulatedNetwork) -> None:
    """The server stops work without a caller."""
    withdrawn = anyio.Event()

    def dispatch(request: Request) -> None:
        request.on_cancel = withdrawn.set

    async with connected(network, dispatch) as world, anyio.create_task_group() as group:

        async def call() -> None:
            with pytest.raises(Unknown):
                await world.connection.call("x", {})

        group.start_soon(call)
        await world.asked(1)
        network.cut("b")
        await withdrawn.wait()


@played
async def test_a_silent_peer_is_noticed_while_a_long_call_waits(network: SimulatedNetwork) -> None:
    """Packets vanish: no error comes, so signs of life are asked for."""
    async with connected(network, later) as world:

        async def part() -> None:
            await world.asked(1)
            network.part(["a"], ["b"])

        start = anyio.current_time()
        found = await together(world.connection.call("claim", {}, timeout_ms=600_000), part())
        assert isinstance(found[0], Unknown)
        assert anyio.current_time() - start <= 4 * connection_module.PING_AFTER_S


@played
async def test_a_silent_peer_is_noticed_by_short_calls_too(network: SimulatedNetwork) -> None:
    """No call need be in flight when the connection looks: each was given up before, and the next comes later."""
    async with connected(network, echo) as world:
        assert await world.connection.call("x", {}) == {}
        network.part(["a"], ["b"])
        await anyio.sleep(0.5)  # so that no call begins at a look
        start = anyio.current_time()
        while not world.connection.closed.is_set():
            with pytest.raises(TimedOut):
                await world.connection.call("x", {}, timeout_ms=1_000)
            assert anyio.current_time() - start <= 4 * connection_module.PING_AFTER_S
            await anyio.sleep(connection_module.PING_AFTER_S - 1)


@played
async def test_a_process_that_stood_still_does_not_take_its_peer_for_dead(network: SimulatedNetwork) -> None:
    """The answer to the ping arrived meanwhile, and the connection looks again before it is received."""
    async with connected(network, later) as world:

        async def stand_still() -> None:
            await world.asked(1)
            network.delay("a", "b", delay_ms=500)
            await anyio.sleep(connection_module.PING_AFTER_S + 0.25)  # the ping is on its way
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, MockClock)
            clock.jump(2 * connection_module.PING_AFTER_S)
            await anyio.sleep(2 * connection_module.PING_AFTER_S)
            world.requests[0].reply("at last")

        found = await together(world.connection.call("x", {}, timeout_ms=600_000), stand_still())
        assert found[0] == "at last"


@played
async def test_an_idle_connection_is_kept_without_signs_of_life(network: SimulatedNetwork) -> None:
    """What was asked has been answered, so silence means nothing; a call after hours goes through."""
    async with connected(network, echo) as world:
        assert await world.connection.call("x", {}) == {}
        await anyio.sleep(7_200)
        assert await world.connection.call("x", {}) == {}


@played
async def test_a_peer_that_only_waits_is_not_taken_for_dead(network: SimulatedNetwork) -> None:
    """A long poll of minutes goes through."""
    async with connected(network, later) as world:

        async def answer() -> None:
            await anyio.sleep(300)
            world.requests[0].reply("at last")

        assert (await together(world.connection.call("x", {}, timeout_ms=600_000), answer()))[0] == "at last"


@played
async def test_notices_need_no_answer(network: SimulatedNetwork) -> None:
    """One-way messages reach the dispatch and need no answer."""
    async with connected(network, echo) as world:
        world.connection.notify("hint", {"n": 1})
        await world.asked(1)
        assert world.requests[0].one_way
        assert await world.connection.call("x", {}) == {}


@played
async def test_connecting_to_nobody_is_unavailable_in_time(network: SimulatedNetwork) -> None:
    """Refused at once, or after the time given when packets vanish."""
    with pytest.raises(Unavailable, match="nobody listens"):
        async with opened(network.host("b"), "a:1", hello=Hello()):
            pass
    network.part(["a"], ["b"])
    start = anyio.current_time()
    with pytest.raises(Unavailable, match="in time|did not answer"):
        async with opened(network.host("b"), "a:1", hello=Hello(), timeout_ms=500):
            pass
    assert anyio.current_time() - start <= 1


@played
async def test_an_error_of_the_body_leaves_a_connection_as_it_is(network: SimulatedNetwork) -> None:
    """It is not wrapped in an exception group."""
    caught = []
    async with connected(network, echo) as world:
        try:
            async with opened(network.host("b"), world.connection.address, hello=Hello()):
                raise KeyError("mine")
        except KeyError as error:
            caught.append(error)
    assert len(caught) == 1


@played
async def test_a_server_that_answers_garbage_breaks_the_connection_only(network: SimulatedNetwork) -> None:
    """The call fails; nothing hangs."""

    async def handler(stream: ByteStream) -> None:
        await serve(stream, hello=Hello(), dispatch=lambda request: garbage(request, stream))

    def garbage(request: Request, stream: ByteStream) -> None:
        request.reply(b"x" * 10)
        request._exchange.outlet.put(b"\x01\x00\x00\x00\xc1")

    async with anyio.create_task_group() as group:
        address = await group.start(
            lambda task_status: network.host("a").serve("a:1", handler, task_status=task_status)
        )
        async with opened(network.host("b"), address, hello=Hello()) as connection:
            assert await connection.call("x", {}) == b"x" * 10
            await connection.closed.wait()
            with pytest.raises(Unavailable):
                await connection.call("x", {})
        group.cancel_scope.cancel()


@played
async def test_a_stream_that_must_send_twice_at_once_ends_its_connection_only(network: SimulatedNetwork) -> None:
    """TLS must do so if a client asks for new keys while an answer is sent. The server continues."""

    class Renewing(Counting):
        async def receive(self, max_bytes: int = 65536) -> bytes:
            data = await super().receive(max_bytes)
            if self.sends:
                raise anyio.BusyResourceError("writing to")
            return data

    async def handler(stream: ByteStream) -> None:
        await serve(Renewing(stream), hello=Hello(), dispatch=echo)

    async with anyio.create_task_group() as group:
        address = await group.start(
            lambda task_status: network.host("a").serve("a:1", handler, task_status=task_status)
        )
        for _ in range(2):
            async with opened(network.host("b"), address, hello=Hello()) as connection:
                with pytest.raises(Unavailable):
                    await connection.call("x", {})
        group.cancel_scope.cancel()


@BACKENDS
def test_tcp_carries_calls_on_a_free_port(backend: str) -> None:
    """The real network: port 0, a large answer, and a hello that is refused."""

    async def main() -> None:
        network = TcpNetwork()

        def welcome(other: Hello) -> Hello:
            if other.credential != "open sesame":
                raise ProtocolError("who are you?")
            return Hello(cluster="main")

        async def handler(stream: ByteStream) -> None:
            await serve(stream, hello=welcome, dispatch=echo)

        async with anyio.create_task_group() as group:
            address = await group.start(
                lambda task_status: network.serve("127.0.0.1:0", handler, task_status=task_status)
            )
            large = {"data": b"x" * 5_000_000}
            async with opened(network, address, hello=Hello(credential="open sesame")) as connection:
                assert await connection.call("x", large) == large
            with pytest.raises(ProtocolError, match="who are you"):
                async with opened(network, address, hello=Hello()):
                    pass
            group.cancel_scope.cancel()

    anyio.run(main, backend=backend)


@BACKENDS
def test_a_bug_in_one_connection_does_not_end_the_server(backend: str) -> None:
    """The connection ends, and the next one is served."""
    served: list[ByteStream] = []

    async def handler(stream: ByteStream) -> None:
        served.append(stream)
        if len(served) == 1:
            raise KeyError("a bug")
        await serve(stream, hello=Hello(), dispatch=echo)

    async def main() -> None:
        network = TcpNetwork()
        async with anyio.create_task_group() as group:
            address = await group.start(
                lambda task_status: network.serve("127.0.0.1:0", handler, task_status=task_status)
            )
            with pytest.raises(Unavailable):
                async with opened(network, address, hello=Hello()):
                    pass
            async with opened(network, address, hello=Hello()) as connection:
                assert await connection.call("x", {"a": 1}) == {"a": 1}
            group.cancel_scope.cancel()

    anyio.run(main, backend=backend)


def test_a_send_that_makes_no_progress_ends() -> None:
    """A stream that takes nothing for a minute is given up; one that takes something each time is not."""

    async def scenario(_: FakeCluster, network: SimulatedNetwork) -> None:
        taken: list[float] = []

        class Slow(ByteStream):
            async def send(self, item: bytes) -> None:
                await anyio.sleep(STALL_S - 1 if len(taken) < 3 else STALL_S + 1)
                taken.append(anyio.current_time())

            async def receive(self, max_bytes: int = 65536) -> bytes:
                raise NotImplementedError

            async def send_eof(self) -> None:
                raise NotImplementedError

            async def aclose(self) -> None:
                raise NotImplementedError

        outlet = Outlet(Slow())
        outlet.put(bytes(3 * SEND_BYTES_MAX + 1))
        start = anyio.current_time()
        with pytest.raises(TimeoutError):
            await outlet.run()
        assert len(taken) == 3 and outlet.unsent == 1
        assert anyio.current_time() - start == pytest.approx(4 * STALL_S - 3)

    play(scenario)
