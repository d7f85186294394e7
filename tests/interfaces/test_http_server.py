"""The HTTP server on real sockets: large and slow clients, disconnects, and its stop."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest
import trio

from onyxq.client import AsyncClient
from onyxq.errors import BadRequest, Conflict, Unavailable
from onyxq.interfaces.http import connection, server
from onyxq.interfaces.http.server import Places, serve_http
from onyxq.wire.tcp import split_address
from tests.interfaces.http_world import FakeService, app_of, check_problem, on_trio

PATIENCE_S = 60.0


@asynccontextmanager
async def serving(service: FakeService, places: Places | None = None) -> AsyncIterator[tuple[str, trio.Event]]:
    """Run a server; return its address and the event that stops it."""
    shutdown = trio.Event()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            start = partial(serve_http, app_of(service), "127.0.0.1:0", shutdown=shutdown, places=places)
            yield await nursery.start(start), shutdown
            shutdown.set()


async def connected(address: str) -> trio.SocketStream:
    """Return a plain connection to the server."""
    host, port = split_address(address)
    return await trio.open_tcp_stream(host, port)


def post(path: str, body: bytes, *, length: int | None = None) -> bytes:
    """Return a raw request."""
    size = len(body) if length is None else length
    return b"POST %s HTTP/1.1\r\nhost: peer\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), size, body)


def get(path: str, headers: str = "") -> bytes:
    """Return a raw request without a body."""
    return f"GET {path} HTTP/1.1\r\nhost: peer\r\n{headers}\r\n".encode()


async def until(holds: Callable[[], bool]) -> None:
    """Wait for an effect of the server."""
    while not holds():
        await trio.lowlevel.checkpoint()


async def read_answer(stream: trio.SocketStream) -> tuple[int, bytes]:
    """Return status and body of one answer that has a Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = await stream.receive_some()
        assert piece, f"the connection ended early: {data!r}"
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    while len(body) < length:
        body += await stream.receive_some()
    return int(head.split()[1]), body


async def read_all(stream: trio.SocketStream) -> bytes:
    """Return everything until the connection ends."""
    data = b""
    try:
        while piece := await stream.receive_some():
            data += piece
    except trio.BrokenResourceError:
        return data
    return data


@on_trio
async def test_requests_are_served_on_one_connection() -> None:
    """Enqueue, claim and complete through real HTTP."""
    async with serving(FakeService()) as (address, _), httpx.AsyncClient(base_url=f"http://{address}") as client:
        ids = (await client.post("/v1/tasks", json={"tasks": [{"queue": "a", "data": "ü"}]})).json()["ids"]
        (claim,) = (await client.post("/v1/claims", json={"queues": ["a"]})).json()["claims"]
        assert (claim["task"]["id"], claim["task"]["data"]) == (ids[0], "ü")
        done = {"claims": [{"id": ids[0], "token": claim["token"]}]}
        assert (await client.post("/v1/claims/complete", json=done)).json()["results"][0]["ok"]
        assert (await client.get(f"/v1/tasks/{ids[0]}")).json()["state"] == "completed"
        assert "server" not in (await client.head("/")).headers


@on_trio
async def test_an_oversized_upload_still_reads_its_answer() -> None:
    """The client may send all of its 20 MiB and then finds the 413."""
    service = FakeService()
    async with serving(service) as (address, _), httpx.AsyncClient(base_url=f"http://{address}") as client:
        check_problem(await client.post("/v1/tasks", content=b" " * (20 << 20)), 413, code="too_large")
        assert (await client.get("/livez")).status_code == 200
        assert service.calls == []


@on_trio
async def test_an_oversized_upload_is_answered_before_it_is_sent() -> None:
    """The declared length is enough."""
    async with serving(FakeService()) as (address, _):
        async with await connected(address) as stream:
            await stream.send_all(post("/v1/tasks", b"{", length=20 << 20))
            status, body = await read_answer(stream)
            assert (status, json.loads(body)["code"]) == (413, "too_large")


@on_trio
async def test_an_upload_that_breaks_off_stores_nothing() -> None:
    """A partial body is not a request."""
    service = FakeService()
    async with serving(service) as (address, _):
        async with await connected(address) as stream:
            await stream.send_all(post("/v1/tasks", b'{"tasks":[{"queue":"a"}]}', length=1_000))
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            assert (await client.get("/livez")).status_code == 200
        assert service.calls == []


@on_trio
async def test_a_disconnect_ends_a_long_poll() -> None:
    """The node's wait is cancelled; a later task can be claimed by others."""
    service = FakeService()
    async with serving(service) as (address, _):
        ended = trio.Event()
        claim = service._claim

        async def noted(args: object) -> object:
            try:
                return await claim(args)  # type: ignore[arg-type]
            finally:
                ended.set()

        service._claim = noted  # type: ignore[method-assign, assignment]
        stream = await connected(address)
        await stream.send_all(post("/v1/claims", b'{"queues":["a"],"wait_ms":600000}'))
        await service.claiming.wait()
        await stream.aclose()
        await ended.wait()
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}]})
            assert len((await client.post("/v1/claims", json={"queues": ["a"]})).json()["claims"]) == 1


@on_trio
async def test_a_stop_answers_waiting_clients_and_frees_the_port() -> None:
    """A long poll ends with an empty list, idle connections are closed."""
    service = FakeService()
    async with serving(service) as (address, shutdown):
        idle, polling = await connected(address), await connected(address)
        await polling.send_all(post("/v1/claims", b'{"queues":["a"],"wait_ms":600000}'))
        await service.claiming.wait()
        shutdown.set()
        assert await read_answer(polling) == (200, b'{"claims":[]}')
        assert await read_all(idle) == b""
        await idle.aclose()
        await polling.aclose()
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(split_address(address))


@on_trio
async def test_garbage_does_not_harm_the_server() -> None:
    """Bytes that are not HTTP are refused or ignored."""
    async with serving(FakeService()) as (address, _):
        for garbage in (b"\x00\xff" * 100 + b"\r\n\r\n", b"GET\r\n\r\n", b"GET /" + b"x" * 100_000, b"\x16\x03\x01"):
            async with await connected(address) as stream:
                await stream.send_all(garbage)
                await stream.send_eof()
                assert b" 200 " not in await read_all(stream)
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            assert (await client.get("/livez")).status_code == 200


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""The start of a client that speaks HTTP/2 without asking."""


@on_trio
async def test_http_2_without_asking_is_refused_at_once() -> None:
    """The limits of HTTP/1.1 do not apply to it: nothing would limit the idle time of such a connection."""
    async with serving(FakeService()) as (address, _):
        for said in (PREFACE, get("/livez") + PREFACE):
            async with await connected(address) as stream:
                await stream.send_all(said)
                with trio.fail_after(5):
                    answered = await read_all(stream)
                assert answered.endswith(b"\r\n\r\n") and b"HTTP/1.1 505 " in answered


@on_trio
async def test_an_upgrade_to_another_protocol_is_answered_in_http_1() -> None:
    """A client that offers HTTP/2 or a websocket gets an HTTP/1.1 answer or none, and the connection ends in time."""
    async with serving(FakeService()) as (address, _):
        for upgrade in (
            "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",
            "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: eA==\r\n",
        ):
            async with await connected(address) as stream:
                await stream.send_all(get("/livez", upgrade + "connection: close\r\n"))
                with trio.fail_after(5):
                    answered = await read_all(stream)
                assert b"HTTP/1.1 101" not in answered and answered.startswith(b"HTTP/1.1 ")


def test_probes_are_answered_although_no_other_connection_is_taken() -> None:
    """Some places are reserved for them: the oldest connection in one is closed for a new one."""

    @on_trio
    async def full() -> None:
        places = Places(3, reserved=2)
        async with serving(FakeService(), places=places) as (address, _):
            idle = [await connected(address) for _ in range(20)]
            await until(lambda: places.used == 3)
            for path, status in (("/livez", 200), ("/readyz", 200), ("/v1/cluster", 503), ("/openapi.json", 503)):
                async with await connected(address) as stream:
                    await stream.send_all(get(path))
                    assert (await read_answer(stream))[0] == status
            for stream in idle:
                await stream.aclose()
            await until(lambda: places.used == 0)
            async with httpx.AsyncClient(base_url=f"http://{address}") as client:
                answer = await client.get("/v1/cluster")
                assert answer.status_code == 200, answer.text

    full()


def test_places_are_shared_by_the_ports_of_a_process() -> None:
    """Connections of one port reduce those of another: both need the same descriptors."""

    @on_trio
    async def shared() -> None:
        places = Places(2, reserved=1)
        async with (
            serving(FakeService(), places=places) as (first, _),
            serving(FakeService(), places=places) as (second, _),
        ):
            async with await connected(first), await connected(first), httpx.AsyncClient() as client:
                await until(lambda: places.used == 2)
                assert (await client.get(f"http://{second}/v1/cluster")).status_code == 503
                assert (await client.get(f"http://{second}/livez")).status_code == 200

    shared()


def test_a_slow_header_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without a complete request is closed after a while."""
    monkeypatch.setattr(server, "IDLE_TIME_MAX_S", 0.5)

    @on_trio
    async def slow() -> None:
        async with serving(FakeService()) as (address, _):
            async with await connected(address) as stream:
                await stream.send_all(b"GET /livez HTTP/1.1\r\nhost: ")
                assert await read_all(stream) == b""

    slow()


def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream to a client that does not read ends, and so does the reading of pages."""

    @on_trio
    async def stuck() -> None:
        service = FakeService()
        async with serving(service) as (address, _):
            async with httpx.AsyncClient(base_url=f"http://{address}") as client:
                tasks = [{"queue": "a", "data": "x" * 1_000}] * 12_000
                assert (await client.post("/v1/tasks", json={"tasks": tasks})).status_code == 201
            monkeypatch.setattr(connection, "SEND_PAUSE_MAX_S", 0.1)
            stream = await connected(address)
            await stream.send_all(b"GET /v1/tasks HTTP/1.1\r\nhost: p\r\naccept: application/x-ndjson\r\n\r\n")
            with pytest.raises(trio.BrokenResourceError):
                while True:
                    # Sending detects the end without reading the answer.
                    await stream.send_all(b"x")
                    await trio.lowlevel.checkpoint()
            await stream.aclose()
            assert len(service.asked("list")) < 12

    stuck()


@on_trio
async def test_a_stream_that_fails_midway_ends_unfinished() -> None:
    """The last line is the problem, and the client sees that the answer is incomplete."""
    service = FakeService()
    pages = service._list

    def failing(args: dict[str, object]) -> dict[str, object]:
        if args.get("after"):
            raise Unavailable("no leader any more")
        return pages(args)

    async with serving(service) as (address, _), httpx.AsyncClient(base_url=f"http://{address}") as client:
        await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}] * 1_500})
        service._list = failing  # type: ignore[method-assign]
        lines: list[str] = []
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("GET", "/v1/tasks", headers={"accept": "application/x-ndjson"}) as answer:
                async for line in answer.aiter_lines():
                    lines.append(line)
        assert len(lines) == 1_001
        assert json.loads(lines[-1])["problem"]["code"] == "unavailable"


@on_trio
async def test_an_address_in_use_is_a_clear_error() -> None:
    """The message names the address, and the hint the option."""
    async with serving(FakeService()) as (address, _):
        with pytest.raises(Conflict, match=f"{address} is in use") as refused:
            await serve_http(app_of(FakeService()), address, shutdown=trio.Event())
    assert "--http" in refused.value.advice


@on_trio
async def test_a_client_of_the_other_protocol_is_told_of_its_mistake_at_once() -> None:
    """The port of HTTP instead of the one for clients is a common mistake."""
    async with serving(FakeService()) as (address, _):
        with pytest.raises(BadRequest, match=f"{address} is an HTTP port") as refused, trio.fail_after(1):
            async with AsyncClient(address) as client:
                await client.queues()
        assert "7400" in refused.value.advice
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            assert (await client.get("/livez")).status_code == 200


@pytest.mark.parametrize("address", ["http://host:7400", "host/path:7400"])
def test_an_address_is_not_a_url(address: str) -> None:
    """The hint shows how one is written."""
    with pytest.raises(BadRequest) as refused:
        split_address(address)
    assert "127.0.0.1:7400" in refused.value.advice


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:x", "host:70000", "host:-1"])
def test_a_malformed_address_is_refused(address: str) -> None:
    """HOST:PORT is needed."""
    with pytest.raises(BadRequest):
        split_address(address)


def test_addresses_of_ipv6_are_in_brackets() -> None:
    """This is as in URLs."""
    assert split_address("[::1]:7480") == ("::1", 7480)
