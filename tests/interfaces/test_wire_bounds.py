"""Clients that are slow, many, or send a lot: each is disconnected, and the others are served."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgpack
import pytest
from anyio.abc import ByteStream
from hypothesis import given
from hypothesis import strategies as st

from onyxq.errors import Forbidden
from onyxq.operations.table.everything import decoded
from onyxq.wire import bounds as bounds_module
from onyxq.wire import connection as connection_module
from onyxq.wire import server as server_module
from onyxq.wire.bounds import OWNER, PARTIAL_BYTES_FREE, Bounds
from onyxq.wire.protocol import FRAME_BYTES_MAX, Decoder, Hello, encode
from onyxq.wire.server import MESSAGE_PAUSE_S, MESSAGE_TIMEOUT_S, REQUESTS_MAX, Admit, Dispatch, Request, serve
from onyxq.wire.weight import LOOKED_AT_BYTES, decoded_bytes
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, play

HELLO = encode(Hello().to_message())
PEER = encode(Hello(cluster_id="c1", role="peer", node="n").to_message())

VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text()
    | st.binary(max_size=300)
)


class Caller:
    """One connection under the control of a test."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._decoder = Decoder()

    async def said(self, count: int = 1) -> list[Any]:
        """Return the next messages; fewer if the server closes."""
        found: list[Any] = []
        while len(found) < count:
            found += [message for message, _ in self._decoder.messages()]
            if len(found) < count:
                try:
                    self._decoder.feed(await self.stream.receive())
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    break
        return found

    async def answer(self, number: int) -> Any:
        """Return the answer to one request."""
        await self.stream.send(encode([number, "echo", {"a": number}]))
        return (await self.said())[0]


Open = Callable[..., Awaitable[Caller]]


def echo(request: Request) -> None:
    """Answer a request with its arguments."""
    request.reply(request.args)


def welcome(theirs: Hello) -> Hello:
    """Return the server's hello; the client's connection counts for its credential."""
    OWNER.set(theirs.credential or "")
    return Hello(cluster="main", cluster_id="c1")


def served(
    bounds: Bounds,
    body: Callable[[Open], Awaitable[None]],
    *,
    dispatch: Dispatch = echo,
    admit: Admit | None = None,
) -> None:
    """Run a test against a server on a clock that jumps; ``Open`` connects and says hello."""

    async def scenario(_: FakeCluster, network: SimulatedNetwork) -> None:
        async def handler(stream: Any) -> None:
            await serve(stream, hello=welcome, dispatch=dispatch, bounds=bounds, admit=admit)

        async with anyio.create_task_group() as group:
            address = await group.start(
                lambda task_status: network.host("a").serve("a:1", handler, task_status=task_status)
            )

            async def opened(hello: bytes = HELLO) -> Caller:
                caller = Caller(await network.host("b").connect(address, timeout_ms=1000))
                await caller.stream.send(hello)
                return caller

            await body(opened)
            group.cancel_scope.cancel()

    play(scenario)


def part_of_a_message(size: int) -> bytes:
    """Return the beginning of a much longer frame."""
    return (2 * size).to_bytes(4, "little") + bytes(size - 4)


def test_a_message_that_stops_half_way_ends_its_connection() -> None:
    """It ends after a pause, with the reason; a client that sends nothing may stay."""

    async def body(opened: Open) -> None:
        slow, idle = await opened(), await opened()
        await slow.said(), await idle.said()
        began = anyio.current_time()
        await slow.stream.send(part_of_a_message(1_000))
        ((number, status, error),) = await slow.said()
        assert (number, status, error["code"]) == (0, 1, "timed_out")
        assert MESSAGE_PAUSE_S <= anyio.current_time() - began < MESSAGE_PAUSE_S + 5
        assert await slow.said() == []
        await anyio.sleep(3_600)
        assert await idle.answer(1) == [1, 0, {"a": 1}]

    served(Bounds(), body)


def test_a_message_that_drips_ends_its_connection() -> None:
    """Even with short pauses it must end in time; whole messages before it do not extend the time."""

    async def body(opened: Open) -> None:
        slow = await opened()
        await slow.said()
        assert await slow.answer(1) == [1, 0, {"a": 1}]
        began = anyio.current_time()
        await slow.stream.send(part_of_a_message(1_000))

        async def drip() -> None:
            try:
                while True:
                    await anyio.sleep(MESSAGE_PAUSE_S / 2)
                    await slow.stream.send(b"x")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

        async with anyio.create_task_group() as group:
            group.start_soon(drip)
            ((_, _, error),) = await slow.said()
            group.cancel_scope.cancel()
        assert error["code"] == "timed_out"
        assert MESSAGE_TIMEOUT_S <= anyio.current_time() - began < MESSAGE_TIMEOUT_S + 5

    served(Bounds(), body)


def test_messages_in_pieces_arrive() -> None:
    """Slow messages within the limits are answered, repeatedly on one connection."""

    async def body(opened: Open) -> None:
        bounds_seen = set()
        caller = await opened()
        await caller.said()
        for number in range(1, 8):
            frame = encode([number, "echo", {"data": bytes(200_000)}])
            for start in range(0, len(frame), 50_000):
                await caller.stream.send(frame[start : start + 50_000])
                await anyio.sleep(MESSAGE_PAUSE_S / 2)
                bounds_seen.add(bounds.partial > 0)
            assert (await caller.said())[0][:2] == [number, 0]
        await anyio.sleep(1)
        assert bounds_seen == {True, False} and bounds.partial == 0

    bounds = Bounds()
    served(bounds, body)


def test_parts_of_large_messages_are_bounded_for_all_together() -> None:
    """Those above the limit are refused, small requests are not, and the memory is freed when a connection ends."""
    size = 3 * PARTIAL_BYTES_FREE
    bounds = Bounds(partial_bytes=4 * size)

    async def body(opened: Open) -> None:
        callers = [await opened() for _ in range(20)]
        for caller in callers:
            await caller.said()
            await caller.stream.send(part_of_a_message(size))
        await anyio.sleep(1)
        assert 0 < bounds.partial <= 4 * size + 64 * 1024
        small = await opened()
        await small.said()
        assert await small.answer(3) == [3, 0, {"a": 3}]
        codes = [said[0][2]["code"] for said in [await caller.said() for caller in callers]]
        assert codes.count("overloaded") >= 14 and set(codes) == {"overloaded", "timed_out"}
        assert bounds.partial == 0

    served(bounds, body)


def test_clients_are_bounded_and_peers_are_not() -> None:
    """The next one gets the reason; a closed connection makes room."""
    bounds = Bounds(clients=2)

    async def body(opened: Open) -> None:
        first, second = await opened(), await opened()
        assert (await first.said())[0][0] == (await second.said())[0][0] == "onyxq"
        assert await first.answer(1) == await second.answer(1) == [1, 0, {"a": 1}]
        third = await opened()
        assert (await third.said(2))[1][2]["code"] == "overloaded"
        peer = await opened(PEER)
        await peer.said()
        assert await peer.answer(1) == [1, 0, {"a": 1}]
        await first.stream.aclose()
        await anyio.sleep(1)
        fourth = await opened()
        await fourth.said()
        assert await fourth.answer(1) == [1, 0, {"a": 1}]
        assert bounds.clients == 2

    served(bounds, body)


def test_one_credential_does_not_keep_the_connections_of_all() -> None:
    """It may have all of them while no other client comes; then its newest ones make room, up to an equal share."""
    bounds = Bounds(clients=4)

    async def body(opened: Open) -> None:
        def of(credential: str) -> bytes:
            return encode(Hello(credential=credential).to_message())

        async def entered(credential: str) -> Caller:
            caller = await opened(of(credential))
            await caller.said()
            return caller

        greedy = [await entered("greedy") for _ in range(4)]
        assert (await (await opened(of("greedy"))).said(2))[1][2]["code"] == "overloaded"
        others = []
        for pushed_out in (greedy[3], greedy[2]):
            others.append(await entered("other"))
            assert (await pushed_out.said())[0][2]["code"] == "overloaded"
        assert (await (await opened(of("other"))).said(2))[1][2]["code"] == "overloaded"
        for one in (*greedy[:2], *others):
            assert await one.answer(1) == [1, 0, {"a": 1}]
        assert bounds.clients == 4

    served(bounds, body)


def test_connections_that_say_nothing_keep_nobody_out() -> None:
    """The oldest makes room for the next one, and a client that sends a hello at once is served."""
    bounds = Bounds(newcomers=10)

    async def body(opened: Open) -> None:
        silent = [await opened(b"") for _ in range(15)]
        await anyio.sleep(1)
        assert len(bounds.newcomers) == 10
        late = await opened()
        await late.said()
        assert await late.answer(1) == [1, 0, {"a": 1}]
        codes = [(await caller.said())[0][2]["code"] for caller in silent]
        assert codes == 15 * ["timed_out"] and len(bounds.newcomers) == 0

    served(bounds, body)


def test_a_hello_on_its_way_is_not_lost_to_connections_that_come_after_it() -> None:
    """The flood continues while a client's hello is in flight: only older connections make room."""

    async def body(opened: Open) -> None:
        silent = [await opened(b"") for _ in range(10)]
        await anyio.sleep(1)
        caller = await opened(b"")
        silent += [await opened(b"") for _ in range(5)]
        await anyio.sleep(1)
        await caller.stream.send(HELLO)
        await caller.said()
        assert await caller.answer(1) == [1, 0, {"a": 1}]
        for one in silent:
            await one.stream.aclose()

    served(Bounds(newcomers=10), body)


def requests(count: int, *, one_way: bool) -> bytes:
    """Return frames of that many requests that are never answered."""
    return b"".join(encode([0 if one_way else number, "wait", {}]) for number in range(1, count + 1))


@pytest.mark.parametrize("one_way", [True, False])
def test_requests_in_progress_are_bounded_whether_or_not_an_answer_is_expected(one_way: bool) -> None:
    """A connection has at most `REQUESTS_MAX` of them; the others wait unread until some are answered."""
    taken: list[Request] = []

    async def body(opened: Open) -> None:
        caller = await opened()
        await caller.said()
        await caller.stream.send(requests(3 * REQUESTS_MAX, one_way=one_way))
        await anyio.sleep(1)
        assert len(taken) == REQUESTS_MAX
        for request in taken[:100]:
            request.reply(None)
        await anyio.sleep(1)
        assert len(taken) == REQUESTS_MAX + 100

    served(Bounds(), body, dispatch=taken.append)


@pytest.mark.parametrize("one_way", [True, False])
@pytest.mark.parametrize("count", [10, REQUESTS_MAX, REQUESTS_MAX + 10])
def test_requests_of_a_gone_connection_are_withdrawn(one_way: bool, count: int) -> None:
    """This includes those without an answer, and the case that too many wait."""
    taken: list[Request] = []

    async def body(opened: Open) -> None:
        caller = await opened()
        await caller.said()
        await caller.stream.send(requests(count, one_way=one_way))
        await anyio.sleep(1)
        assert len(taken) == min(count, REQUESTS_MAX) and all(request.open for request in taken)
        await caller.stream.aclose()
        await anyio.sleep(2)
        assert not any(request.open for request in taken)
        assert bounds.clients == 0

    bounds = Bounds()
    served(bounds, body, dispatch=taken.append)


def test_a_one_way_request_may_finish_after_its_connection_ended() -> None:
    """A client that releases claims and closes at once does not wait for the answer."""
    taken: list[Request] = []

    async def body(opened: Open) -> None:
        caller = await opened()
        await caller.said()
        await caller.stream.send(requests(1, one_way=True))
        await caller.stream.aclose()
        await anyio.sleep(0.5)
        assert taken[0].open
        taken[0].reply(None)
        await anyio.sleep(0.1)
        assert bounds.clients == 0

    bounds = Bounds()
    served(bounds, body, dispatch=taken.append)


def of_empty_maps(method: str, lists: int, *, number: int = 1) -> bytes:
    """Return a frame of lists of 262,143 empty maps: each byte becomes 72 bytes in memory."""
    args = {"a": [b"x"] * lists}
    one = b"\xdd" + (262_143).to_bytes(4, "big") + b"\x80" * 262_143
    body = msgpack.packb([number, method, args]).replace(msgpack.packb(b"x"), one)
    return len(body).to_bytes(4, "little") + body


def of_numbers(method: str, field: str, count: int) -> bytes:
    """Return a frame with a list of zeros, one byte each."""
    head = b"\x93\x01" + msgpack.packb(method) + b"\x81" + msgpack.packb(field) + b"\xdd" + count.to_bytes(4, "big")
    return (len(head) + count).to_bytes(4, "little") + head + bytes(count)


def test_a_client_that_reads_no_answers_is_served_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """All its requests may have arrived together, and each answer may be far larger than its request."""
    for module in (connection_module, server_module):
        monkeypatch.setattr(module, "UNSENT_BYTES_MAX", 100_000)
    asked: list[Request] = []

    def answer(request: Request) -> None:
        asked.append(request)
        request.reply(bytes(10_000))

    async def body(opened: Open) -> None:
        caller = await opened(HELLO + b"".join(encode([number, "x", {}]) for number in range(1, 1_001)))
        await anyio.sleep(1)
        assert len(asked) < 200
        assert len(await caller.said(1_001)) == 1_001

    served(Bounds(), body, dispatch=answer)


def test_a_message_of_too_many_values_is_refused_before_it_is_decoded() -> None:
    """Its request gets an error, and the connection continues."""
    taken: list[Request] = []

    async def body(opened: Open) -> None:
        caller = await opened()
        await caller.said()
        tracemalloc.start()
        await caller.stream.send(of_empty_maps("echo", 79))
        ((number, status, error),) = await caller.said()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (number, status, error["code"]) == (1, 1, "too_large")
        assert not taken and peak < 8 * FRAME_BYTES_MAX
        await caller.stream.send(requests(1, one_way=False))
        await anyio.sleep(1)
        assert len(taken) == 1

    served(Bounds(), body, dispatch=taken.append)


@pytest.mark.long
def test_a_list_of_millions_of_numbers_is_refused_before_it_is_decoded() -> None:
    """A number of one byte is the smallest value; its operation would decode the list only to name the field."""

    def decode(request: Request) -> None:
        decoded(request.method, request.args)

    async def body(opened: Open) -> None:
        caller = await opened()
        await caller.said()
        message = of_numbers("enqueue", "runs", 3_000_000)
        tracemalloc.start()
        await caller.stream.send(message)
        ((number, status, error),) = await caller.said()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (number, status, error["code"]) == (1, 1, "too_large")
        assert peak < 4 * len(message)

    served(Bounds(), body, dispatch=decode)


def test_a_request_that_is_not_admitted_is_not_decoded() -> None:
    """Its arguments may be of any kind, even text that is not UTF-8: only their length is read."""

    def admit(method: str, size: int) -> None:
        raise Forbidden(f"{method} of {size} bytes")

    async def body(opened: Open) -> None:
        caller = await opened()
        await caller.said()
        malformed = msgpack.packb([7, "echo"]).replace(b"\x92", b"\x93", 1) + b"\xa1\xff"
        await caller.stream.send(len(malformed).to_bytes(4, "little") + malformed)
        ((number, status, error),) = await caller.said()
        assert (number, status, error["code"], error["message"]) == (7, 1, "forbidden", "echo of 9 bytes")

    served(Bounds(), body, admit=admit)


def test_decoded_requests_in_progress_are_bounded_for_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests above the limit are refused; answered and withdrawn ones make room."""
    monkeypatch.setattr(bounds_module, "REQUESTS_BYTES_MAX", 150 << 20)
    taken: list[Request] = []
    bounds = Bounds()

    async def body(opened: Open) -> None:
        first, second, third = callers = [await opened() for _ in range(3)]
        for caller in callers:
            await caller.said()
            await caller.stream.send(of_empty_maps("wait", 1))
        assert [(said[:2], said[2]["code"]) for said in await third.said()] == [([1, 1], "overloaded")]
        assert len(taken) == 2 and 128 << 20 < bounds.requests < 150 << 20
        taken[0].reply(None)
        await first.said()
        await second.stream.aclose()
        await anyio.sleep(2)
        assert bounds.requests == 0

    served(bounds, body, dispatch=taken.append)


@given(
    st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(st.integers(0, 1 << 60), inner), max_leaves=50)
)
def test_the_estimate_is_above_what_a_value_takes(value: Any) -> None:
    """For every value of MessagePack, it includes the value and all parts."""
    frame = msgpack.packb(value, use_bin_type=True)
    looked_at = frame + bytes(LOOKED_AT_BYTES)  # zeros at its end count as numbers
    assert decoded_bytes(memoryview(looked_at)) >= size_of(msgpack.unpackb(frame, strict_map_key=False))


def size_of(value: Any) -> int:
    """Return the bytes of a value in memory, with all parts."""
    inner = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else []
    return sys.getsizeof(value) + sum(size_of(one) for one in inner)
