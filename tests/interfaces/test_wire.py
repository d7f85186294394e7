"""Framing: for any cut, damage or invention of bytes, frames stay intact and garbage does no harm."""

from __future__ import annotations

from typing import Any

import anyio
import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onyxq.errors import BadRequest, ClusterMismatch, OnyxqError, ProtocolError, TooLarge
from onyxq.wire.protocol import FRAME_BYTES_MAX, Decoder, Hello, encode, parse_answer, parse_request
from onyxq.wire.server import serve
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, play

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=50) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner),
    max_leaves=10,
)
MESSAGES = st.lists(st.lists(VALUES, min_size=1, max_size=3), min_size=1, max_size=8)


def decoded(decoder: Decoder, data: bytes) -> list[Any]:
    """Return the messages that become complete with ``data``."""
    decoder.feed(data)
    return [message for message, _ in decoder.messages()]


@pytest.mark.long
@given(messages=MESSAGES, cuts=st.lists(st.integers(0, 2000), max_size=20))
def test_any_cut_of_the_stream_gives_the_same_messages(messages: list[list[Any]], cuts: list[int]) -> None:
    """TCP may deliver bytes in any pieces."""
    decoder = Decoder()
    data = b"".join(encode(message) for message in messages)
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    found = [
        message
        for start, end in zip(borders, borders[1:], strict=False)
        for message in decoded(decoder, data[start:end])
    ]
    assert found == messages
    assert decoder.waiting == 0


@given(messages=MESSAGES, keep=st.integers(0, 10_000))
def test_a_truncated_stream_gives_the_messages_that_are_complete(messages: list[list[Any]], keep: int) -> None:
    """The missing part is awaited; nothing is invented."""
    decoder = Decoder()
    frames = [encode(message) for message in messages]
    data = b"".join(frames)
    data = data[: keep % (len(data) + 1)]
    found = decoded(decoder, data)
    assert found == messages[: len(found)]
    assert decoder.waiting == len(data) - sum(map(len, frames[: len(found)]))


@given(data=st.binary(max_size=500))
def test_random_bytes_give_messages_or_a_protocol_error(data: bytes) -> None:
    """Nothing else is raised, also not by the parsers of messages."""
    decoder = Decoder(frame_bytes_max=400)
    try:
        for message in decoded(decoder, data):
            for parse in (parse_request, parse_answer, Hello.from_message):
                try:
                    parse(message)
                except OnyxqError:
                    continue
    except ProtocolError:
        with pytest.raises(ProtocolError):
            list(decoder.messages())


@given(body=st.binary(max_size=200))
def test_a_frame_of_random_bytes_gives_a_message_or_a_protocol_error(body: bytes) -> None:
    """This holds with a right length in front."""
    decoder = Decoder()
    try:
        assert len(decoded(decoder, len(body).to_bytes(4, "little") + body)) == 1
    except ProtocolError:
        assert decoder.waiting == len(body) + 4


def test_an_oversized_frame_is_refused_by_its_length_alone() -> None:
    """A receiver neither waits for such bytes nor reserves memory."""
    decoder = Decoder()
    decoder.feed((FRAME_BYTES_MAX + 1).to_bytes(4, "little"))
    with pytest.raises(ProtocolError, match="at most"):
        list(decoder.messages())


def test_messages_before_a_malformed_one_are_delivered() -> None:
    """The error comes at its place, not earlier."""
    decoder, found = Decoder(), []
    decoder.feed(encode([1, "a", {}]) + b"\x01\x00\x00\x00\xc1")
    with pytest.raises(ProtocolError):
        for message, _ in decoder.messages():
            found.append(message)
    assert found == [[1, "a", {}]]


def test_a_list_that_claims_to_be_huge_is_refused() -> None:
    """Five bytes must not reserve gigabytes."""
    with pytest.raises(ProtocolError):
        decoded(Decoder(), b"\x05\x00\x00\x00\xdd\x7f\xff\xff\xff")


def test_a_message_that_is_too_large_or_no_msgpack_is_not_sent() -> None:
    """Later messages are."""
    with pytest.raises(TooLarge):
        encode([1, 0, b"x" * FRAME_BYTES_MAX])
    with pytest.raises(BadRequest):
        encode([1, 0, object()])
    with pytest.raises(BadRequest):
        encode([1, 0, "\ud800"])
    assert decoded(Decoder(), encode([1, 0, "fine"])) == [[1, 0, "fine"]]


def test_a_hello_comes_back_as_it_was_said() -> None:
    """All its fields are sent."""
    hello = Hello(cluster="main", cluster_id="c1", credential="secret", role="peer", node="n1", peer="p1")
    assert Hello.from_message(msgpack.unpackb(msgpack.packb(hello.to_message()))) == hello
    assert "secret" not in repr(hello)


@pytest.mark.parametrize(
    "message", [None, 7, [], ["onyxq"], ["onyxq", 2, {}], ["onyxq", 1, {"node": 3}], ["x", 1, {}], [0, 1, {}]]
)
def test_a_wrong_hello_is_a_protocol_error(message: Any) -> None:
    """Another program, another version, or a damaged hello."""
    with pytest.raises(ProtocolError):
        Hello.from_message(message)


@pytest.mark.parametrize(
    "message", [None, [], [1], [-1, "a", {}], ["1", "a", {}], [1, 2, {}], [1, "a", []], [1, "a", {}, 4], [1.0, "a", {}]]
)
def test_a_malformed_request_is_a_protocol_error(message: Any) -> None:
    """Requests are id, method and args."""
    with pytest.raises(ProtocolError):
        parse_request(message)


def exchange(data: bytes, *, hello: Any = None, ends: bool = False) -> list[Any]:
    """Return a server's answer to a client that sends ``data`` and then nothing, or ends its side at once."""
    answers: list[Any] = []

    async def scenario(_: FakeCluster, network: SimulatedNetwork) -> None:
        async def handler(stream: Any) -> None:
            mine = Hello(cluster="main", cluster_id="c1") if hello is None else hello
            await serve(stream, hello=mine, dispatch=lambda request: request.reply(request.args))

        async with anyio.create_task_group() as group:
            address = await group.start(
                lambda task_status: network.host("a").serve("a:1", handler, task_status=task_status)
            )
            stream = await network.host("b").connect(address, timeout_ms=1000)
            decoder = Decoder()
            try:
                await stream.send(data)
                if ends:  # the data may end within a frame, for whose rest a server waits for ever
                    await stream.send_eof()
                while True:
                    decoder.feed(await stream.receive())
                    answers.extend(message for message, _ in decoder.messages())
                    if len(answers) > 1 and not ends:
                        await stream.send_eof()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                group.cancel_scope.cancel()

    play(scenario)
    return answers


HELLO = encode(Hello().to_message())


def test_a_server_answers_requests_after_the_hello() -> None:
    """This is the plain case, byte for byte."""
    answers = exchange(HELLO + encode([5, "echo", {"a": 1}]))
    assert answers[0][:2] == ["onyxq", 1]
    assert answers[1:] == [[5, 0, {"a": 1}]]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        encode([1, "echo", {}]),
        b"\x01\x00\x00\x00\xc1",
        (FRAME_BYTES_MAX + 1).to_bytes(4, "little"),
        HELLO + b"\xff\xff\xff\xff",
        HELLO + encode(["no", "request"]),
        HELLO + encode([1, "slow", {}]) + b"\x01\x00\x00\x00\xc1",
    ],
    ids=["http", "no hello", "no msgpack", "oversized", "oversized later", "no request", "garbage later"],
)
def test_a_server_says_what_is_wrong_and_closes(data: bytes) -> None:
    """Garbage ends only its own connection, with an error about the connection."""
    last = exchange(data)[-1]
    assert last[:2] == [0, 1]
    assert last[2]["code"] == "protocol_error"


@pytest.mark.parametrize("field", ["field", "details"])
def test_a_server_takes_no_error_for_a_hello(field: str) -> None:
    """A server that repeats the error of a stranger fails if the error holds a value that it cannot send."""
    body = msgpack.packb([0, 1, {"code": "unavailable", field: [[msgpack.Timestamp(1)]]}])
    ((number, status, error),) = exchange(len(body).to_bytes(4, "little") + body)
    assert (number, status, error["code"]) == (0, 1, "protocol_error")


def test_a_server_gives_up_on_a_caller_that_says_nothing() -> None:
    """An idle client does not keep a connection; it gets the reason."""
    for said in (b"", HELLO[:7]):
        ((number, status, error),) = exchange(said)
        assert (number, status, error["code"]) == (0, 1, "timed_out")


def test_a_server_refuses_a_caller_of_another_cluster() -> None:
    """The id of the cluster is compared in the hello."""
    answers = exchange(encode(Hello(cluster_id="c2").to_message()))
    assert answers[0][2]["code"] == ClusterMismatch.code


@given(data=st.binary(max_size=300), greeted=st.booleans(), framed=st.booleans())
@example(data=b"\x10\x00\x00\x00", greeted=True, framed=False)
def test_no_bytes_harm_a_server(data: bytes, greeted: bool, framed: bool) -> None:
    """For any bytes, `serve` ends the connection and raises nothing."""
    body = len(data).to_bytes(4, "little") + data if framed else data
    exchange((HELLO if greeted else b"") + body + b"\xff\xff\xff\xff", ends=True)
