"""Bad requests over HTTP: each is answered with a problem that names the field, and nothing is stored."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onyxq.core.ids import make_id
from onyxq.errors import TooLarge
from onyxq.interfaces.http import bodies
from onyxq.interfaces.http.bodies import BODY_BYTES_MAX, SMALL_BODY_BYTES_MAX, Budget
from tests.interfaces.http_world import NOW_MS, FakeService, app_of, check_problem, client_of, on_trio, world

ID = make_id(NOW_MS, 1, 2, 3).hex()
OK: dict[str, Any] = {"queue": "a"}
CLAIM: dict[str, Any] = {"id": ID, "token": 1}


def task(**members: Any) -> dict[str, Any]:
    """Return a request for one task with these members."""
    return {"tasks": [OK | members]}


BAD_TASKS: list[tuple[Any, str | None]] = [
    ([], None),
    ("text", None),
    (None, None),
    ({}, "tasks"),
    ({"tasks": None}, "tasks"),
    ({"tasks": {}}, "tasks"),
    ({"tasks": []}, "tasks"),
    ({"tasks": [OK], "extra": 1}, "extra"),
    ({"tasks": [OK], "w": 0}, "w"),
    ({"tasks": [OK], "w": 10}, "w"),
    ({"tasks": [OK], "w": True}, "w"),
    ({"tasks": [OK, 5]}, "tasks[1]"),
    ({"tasks": [OK, {}]}, "tasks[1].queue"),
    ({"tasks": [OK, OK | {"colour": 1}]}, "tasks[1].colour"),
    (task(queue=None), "tasks[0].queue"),
    (task(queue=""), "tasks[0].queue"),
    (task(queue="q" * 201), "tasks[0].queue"),
    (task(queue="a\u0000b"), "tasks[0].queue"),
    (task(queue="\ud800"), "tasks[0].queue"),
    (task(queue=7), "tasks[0].queue"),
    (task(priority=True), "tasks[0].priority"),
    (task(priority="5"), "tasks[0].priority"),
    (task(priority=5.0), "tasks[0].priority"),
    (task(priority=1 << 31), "tasks[0].priority"),
    (task(priority=-(1 << 31) - 1), "tasks[0].priority"),
    (task(priority=10**4000), "tasks[0].priority"),
    (task(delay_ms=-1), "tasks[0].delay_ms"),
    (task(delay_ms=10**15), "tasks[0].delay_ms"),
    (task(delay_ms=1, at_ms=NOW_MS), "tasks[0].delay_ms"),
    (task(at_ms=1 << 48), "tasks[0].at_ms"),
    (task(at_ms=NOW_MS - 60_000), "tasks[0].at_ms"),
    (task(retries=-1), "tasks[0].retries"),
    (task(backoff_ms=86_400_001), "tasks[0].backoff_ms"),
    (task(id="xyz"), "tasks[0].id"),
    (task(id=ID[:-1]), "tasks[0].id"),
    (task(id=ID[:-1] + "ä"), "tasks[0].id"),
    (task(id=5), "tasks[0].id"),
    (task(id=make_id(NOW_MS, 64, 1, 1).hex()), "tasks[0].id"),
    ({"tasks": [OK | {"id": ID}, OK | {"id": ID.upper()}]}, "tasks[1].id"),
    (task(data=1, data_base64="AA=="), "tasks[0].data"),
    (task(data_base64="AA"), "tasks[0].data_base64"),
    (task(data_base64="A*A="), "tasks[0].data_base64"),
    (task(data_base64=1), "tasks[0].data_base64"),
    (task(ordering_key=""), "tasks[0].ordering_key"),
    (task(ordering_key=5), "tasks[0].ordering_key"),
    (task(ordering_key="k\0"), "tasks[0].ordering_key"),
    (task(unique_key="k" * 201), "tasks[0].unique_key"),
    (task(depends=ID), "tasks[0].depends"),
    (task(depends=["zz"]), "tasks[0].depends[0]"),
    (task(depends=[ID, ID]), "tasks[0].depends"),
    (task(id=ID, depends=[ID]), "tasks[0].depends"),
    (task(depends=[f"{n:040x}" for n in range(101)]), "tasks[0].depends"),
    (task(on_dependency_failed="panic"), "tasks[0].on_dependency_failed"),
    (task(expires_ms=0), "tasks[0].expires_ms"),
    (task(expires_ms="soon"), "tasks[0].expires_ms"),
    (task(callback={"url": "http://x"}), "tasks[0].callback.url"),
    (task(callback={"transport": "http", "uri": "http://x"}), "tasks[0].callback.method"),
    (task(callback="http://x"), "tasks[0].callback"),
]
BAD_CLAIMS = [
    ({}, "queues"),
    ({"queues": []}, "queues"),
    ({"queues": ["a"] * 101}, "queues"),
    ({"queues": "a"}, "queues"),
    ({"queues": ["a", 1]}, "queues[1]"),
    ({"queues": ["a"], "max": 0}, "max"),
    ({"queues": ["a"], "max": 1_001}, "max"),
    ({"queues": ["a"], "lease_ms": 999}, "lease_ms"),
    ({"queues": ["a"], "lease_ms": 86_400_001}, "lease_ms"),
    ({"queues": ["a"], "wait_ms": 600_001}, "wait_ms"),
    ({"queues": ["a"], "worker": "w" * 201}, "worker"),
    ({"queues": ["a"], "worker": ""}, "worker"),
    ({"queue": "a"}, "queue"),
]
BAD_ITEMS = [
    ("renew", {}, "claims"),
    ("renew", {"claims": []}, "claims"),
    ("renew", {"claims": [CLAIM, {"id": ID}]}, "claims[1].token"),
    ("renew", {"claims": [CLAIM | {"lease_ms": 1}]}, "claims[0].lease_ms"),
    ("renew", {"claims": [CLAIM | {"token": -1}]}, "claims[0].token"),
    ("renew", {"claims": [CLAIM | {"token": 1 << 63}]}, "claims[0].token"),
    ("complete", {"claims": [CLAIM | {"seq": True}]}, "claims[0].seq"),
    ("complete", {"claims": [CLAIM | {"result": 1, "result_base64": ""}]}, "claims[0].result"),
    ("complete", {"claims": [CLAIM | {"lease_ms": 5_000}]}, "claims[0].lease_ms"),
    ("fail", {"claims": [CLAIM | {"error": 5}]}, "claims[0].error"),
    ("fail", {"claims": [CLAIM | {"error": "x" * 65_537}]}, "claims[0].error"),
    ("fail", {"claims": [CLAIM | {"retry_in_ms": -1}]}, "claims[0].retry_in_ms"),
    ("release", {"claims": [CLAIM | {"id": "zz"}]}, "claims[0].id"),
    ("postpone", {"claims": [CLAIM]}, "claims[0].retry_in_ms"),
    ("postpone", {"claims": [CLAIM | {"retry_in_ms": -1}]}, "claims[0].retry_in_ms"),
    ("update", {"token": 1, "seq": 0, "data": 1}, "id"),
    ("update", CLAIM | {"seq": -1, "data": 1}, "seq"),
]
BAD_QUERIES = [
    ("/v1/ids?count=0", "count"),
    ("/v1/ids?count=10001", "count"),
    ("/v1/ids?count=1.0", "count"),
    ("/v1/ids?count=+1", "count"),
    ("/v1/ids?count=" + "9" * 40, "count"),
    ("/v1/ids?count=1&count=2", "count"),
    ("/v1/ids?cuont=1", "cuont"),
    ("/v1/ids?key=k", "queue"),
    ("/v1/dead?limit=0", "limit"),
    ("/v1/dead?where=", "where"),
    ("/v1/dead?queeue=a", "queeue"),
    ("/v1/ids?count", None),
    ("/v1/ids?count=%ff", None),
    ("/v1/tasks?limit=0", "limit"),
    ("/v1/tasks?limit=1001", "limit"),
    ("/v1/tasks?state=lost", "state"),
    ("/v1/tasks?after=12", "after"),
    (f"/v1/tasks?queue={'q' * 201}", "queue"),
    (f"/v1/tasks/{ID}?seen_token=-1", "seen_token"),
    (f"/v1/tasks/{ID[:-2]}", "id"),
    ("/v1/tasks/%FF", None),
    ("/v1/log?from=x", "from"),
    ("/v1/log?limit=9999", "limit"),
    ("/v1/cluster?x=1", "x"),
]
BAD_BODIES = {
    "empty": (b"", "empty"),
    "blank": (b" \n", "empty"),
    "cut": (b'{"tasks":[', "malformed"),
    "trailing": (b'{"tasks":[]} x', "malformed"),
    "not utf-8": (b'{"tasks":[{"queue":"\xff"}]}', "not UTF-8"),
    "utf-16": ('{"tasks":[]}'.encode("utf-16"), "not UTF-8"),
    "byte order mark": (b'\xef\xbb\xbf{"tasks":[]}', "malformed"),
    "NaN": (b'{"tasks":[{"queue":"a","data":NaN}]}', "NaN"),
    "Infinity": (b'{"tasks":[{"queue":"a","data":[-Infinity]}]}', "Infinity"),
    "deep arrays": (b'{"tasks":[{"queue":"a","data":' + b"[" * 100_000, "deep"),
    "deep objects": (b'{"a":' * 100_000, "deep"),
    "long number": (b'{"tasks":[{"queue":"a","priority":' + b"9" * 5_000 + b"}]}", "digits"),
    "same key twice": (b'{"tasks":[],"tasks":[]}', "twice"),
    "control character": (b'{"tasks":[{"queue":"a\nb"}]}', "malformed"),
}


@pytest.mark.parametrize(("body", "field"), BAD_TASKS)
def test_a_bad_task_is_refused_by_field(body: Any, field: str | None) -> None:
    """One bad task refuses the whole request; nothing is stored."""

    @on_trio
    async def refused() -> None:
        async with world() as (service, client):
            answer = await client.post("/v1/tasks", content=json.dumps(body))
            check_problem(answer, 400, code="bad_request", field=field)
            assert service.tasks == {}
            assert service.asked("enqueue") == []

    refused()


@pytest.mark.parametrize(("body", "field"), BAD_CLAIMS)
def test_a_bad_claim_request_is_refused_by_field(body: Any, field: str) -> None:
    """Nothing is claimed."""

    @on_trio
    async def refused() -> None:
        async with world() as (service, client):
            check_problem(await client.post("/v1/claims", json=body), 400, code="bad_request", field=field)
            assert service.calls == []

    refused()


@pytest.mark.parametrize(("name", "body", "field"), BAD_ITEMS)
def test_a_malformed_item_is_refused_by_field(name: str, body: Any, field: str) -> None:
    """An impossible claim refuses the whole request."""

    @on_trio
    async def refused() -> None:
        async with world() as (service, client):
            check_problem(await client.post(f"/v1/claims/{name}", json=body), 400, code="bad_request", field=field)
            assert service.calls == []

    refused()


@pytest.mark.parametrize(("url", "field"), BAD_QUERIES)
def test_a_bad_query_is_refused_by_parameter(url: str, field: str | None) -> None:
    """Path and query are checked as strictly as bodies."""

    @on_trio
    async def refused() -> None:
        async with world() as (service, client):
            check_problem(await client.get(url), 400, code="bad_request", field=field)
            assert service.calls == []

    refused()


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_body_that_is_no_json_is_refused(name: str) -> None:
    """The reason says what is wrong, and the server continues."""
    body, word = BAD_BODIES[name]

    @on_trio
    async def refused() -> None:
        async with world() as (service, client):
            problem = check_problem(await client.post("/v1/tasks", content=body), 400, code="bad_request")
            assert word in problem["detail"]
            assert service.calls == []
            assert (await client.get("/livez")).status_code == 200

    refused()


@on_trio
async def test_numbers_and_nesting_in_data_are_bounded() -> None:
    """A number beyond a double is refused by the task's field."""
    async with world() as (service, client):
        answer = await client.post("/v1/tasks", content=b'{"tasks":[{"queue":"a","data":{"n":1e999}}]}')
        check_problem(answer, 400, code="bad_request", field="tasks[0].data")
        assert service.tasks == {}


@on_trio
async def test_data_nested_as_deep_as_can_be_read_comes_back() -> None:
    """All accepted data can be returned."""
    async with world() as (_, client):
        for depth in range(700, 1_000, 20):
            body = b'{"tasks":[{"queue":"a","data":' + b"[" * depth + b"]" * depth + b"}]}"
            answer = await client.post("/v1/tasks", content=body)
            if answer.status_code == 201:
                shown = await client.get(f"/v1/tasks/{answer.json()['ids'][0]}")
                assert shown.status_code == 200
            else:
                assert "deep" in answer.json()["detail"]


@on_trio
async def test_a_typing_slip_gets_a_suggestion() -> None:
    """The hint names the most similar field. If there is none to suggest, it says where fields are described."""
    async with world() as (_, client):
        answer = await client.post("/v1/tasks", json={"tasks": [{"queue": "a", "prioritiy": 1}]})
        assert "priority" in check_problem(answer, 400, code="bad_request", field="tasks[0].prioritiy")["hint"]
        answer = await client.post("/v1/tasks", json={"tasks": [{"queue": "a", "priority": "high"}]})
        hint = check_problem(answer, 400, code="bad_request", field="tasks[0].priority")["hint"]
        assert hint == "Nothing was changed. /docs describes the fields of each request."


@on_trio
async def test_a_foreign_content_type_is_refused() -> None:
    """The default type of tools is accepted as JSON; other types give 415."""
    async with world() as (_, client):
        body = b'{"tasks":[{"queue":"a"}]}'
        for media in ("application/json; charset=utf-8", "application/x-www-form-urlencoded", "application/ld+json"):
            answer = await client.post("/v1/tasks", content=body, headers={"content-type": media})
            assert answer.status_code == 201
        for header, value in (
            ("content-type", "application/xml"),
            ("content-type", "application/json; charset=latin-1"),
            ("content-encoding", "gzip"),
        ):
            answer = await client.post("/v1/tasks", content=body, headers={header: value})
            check_problem(answer, 415, code="unsupported_media_type", field=header.title())


# --- sizes --------------------------------------------------------------------


class Upload:
    """A body that counts how much of it was read."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.left:
            piece = min(self.left, 1 << 20)
            self.left -= piece
            self.taken += piece
            yield b" " * piece


@on_trio
async def test_a_declared_body_that_is_too_large_is_refused_unread() -> None:
    """413 from the Content-Length alone."""
    service = FakeService()
    sent: list[Any] = []
    read: list[str] = []

    async def receive() -> dict[str, Any]:
        read.append("before" if not sent else "after")
        return {"type": "http.request", "body": b" " * 1024, "more_body": len(read) < 3}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-length", str(20 << 20).encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/tasks", "query_string": b"", "headers": headers}
    await app_of(service)(scope, receive, send)
    assert sent[0]["status"] == 413
    assert json.loads(sent[1]["body"])["code"] == "too_large"
    assert "before" not in read


@on_trio
async def test_a_streamed_body_that_grows_too_large_is_refused() -> None:
    """Without a declared length it is cut at the limit."""
    async with world() as (service, client):
        upload = Upload(20 << 20)
        answer = await client.post("/v1/tasks", content=upload)
        check_problem(answer, 413, code="too_large")
        assert service.calls == []


@on_trio
async def test_the_largest_body_is_taken() -> None:
    """Exactly 16 MiB pass; one byte more does not."""
    async with world() as (service, client):
        start, end = b'{"tasks":[{"queue":"a","data":"', b'"}]}'
        fill = b"x" * (BODY_BYTES_MAX - len(start) - len(end))
        assert (await client.post("/v1/tasks", content=start + fill + end)).status_code == 201
        check_problem(await client.post("/v1/tasks", content=start + fill + b"x" + end), 413, code="too_large")
        assert len(service.tasks) == 1


@on_trio
async def test_many_large_bodies_at_one_time_are_overload() -> None:
    """Memory for bodies is bounded, and released again."""
    service = FakeService()
    app = app_of(service)
    app._budget = Budget(limit=1_000)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
        body = json.dumps({"tasks": [{"queue": "a", "data": "x" * 600}]}).encode()
        for _ in range(3):
            assert (await client.post("/v1/tasks", content=body)).status_code == 201
        answer = await client.post("/v1/tasks", content=body * 2)
        check_problem(answer, 429, code="overloaded")
        assert answer.headers["retry-after"] == "1"
        assert app._budget.used == 0


@on_trio
async def test_a_body_of_too_many_values_is_refused_before_it_is_decoded() -> None:
    """Three bytes of it become over 64 in memory; commas and braces within strings do not count."""
    service = FakeService()
    app = app_of(service)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
        maps = b'{"tasks":[' + b"{}," * 5_000_000 + b"{}]}"
        tracemalloc.start()
        answer = await client.post("/v1/tasks", content=maps)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        check_problem(answer, 413, code="too_large")
        assert peak < 4 * len(maps)
        text = '\\"{[,:' * 1_000_000
        assert (await client.post("/v1/tasks", json={"tasks": [{"queue": "a", "data": text}]})).status_code == 201
        assert app._decoded.used == 0


@pytest.mark.long
@pytest.mark.parametrize("text", ['"' + '\\"' * 8_000_000, "\\" * 16_000_000, '"' * 16_000_000, '"a,' * 5_000_000])
def test_strings_that_never_end_are_looked_at_once(text: str) -> None:
    """The time is linear: quadratic in 16 MB would be days."""
    began = time.perf_counter()
    with suppress(TooLarge):
        bodies.decoded_bytes(b"," * 3_000_000 + text.encode())
    assert time.perf_counter() - began < 20


@on_trio
async def test_a_body_that_holds_no_list_of_tasks_is_small() -> None:
    """A claim request must not use 16 MiB of memory."""
    app = app_of(FakeService())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
        asked = {"queues": ["a"], "worker": "x" * SMALL_BODY_BYTES_MAX}
        check_problem(await client.post("/v1/claims", json=asked), 413, code="too_large")


@on_trio
async def test_requests_in_progress_are_bounded() -> None:
    """Above the bound 429; probes are still answered."""
    service = FakeService()
    app = app_of(service)
    app._waiting.limit = 1
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
        async with anyio.create_task_group() as group:
            waiting = {"queues": ["a"], "wait_ms": 60_000}
            group.start_soon(lambda: client.post("/v1/claims", json=waiting))
            await service.claiming.wait()
            check_problem(await client.post("/v1/claims", json=waiting), 429, code="overloaded")
            assert (await client.get("/readyz")).status_code == 200
            await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}]})


def test_a_body_that_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """408 once nothing came for a while."""
    monkeypatch.setattr(bodies, "BODY_PAUSE_MAX_S", 0.01)
    monkeypatch.setattr(bodies, "DRAIN_TIME_MAX_S", 0.01)

    @on_trio
    async def stalled() -> None:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            if sent and not sent[-1].get("more_body", True):
                return {"type": "http.disconnect"}
            await anyio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)
            await anyio.lowlevel.checkpoint()

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/tasks",
            "query_string": b"",
            "headers": [(b"content-length", b"10")],
        }
        await app_of(FakeService())(scope, receive, send)
        assert sent[0]["status"] == 408

    stalled()


# --- generated ----------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PATHS = ("/v1/tasks", "/v1/claims", "/v1/claims/complete", "/v1/claims/update", "/v1/gc", "/v1/peers/p1/leave")
MEMBERS = st.sampled_from(("tasks", "queue", "id", "claims", "token", "data", "queues", "w", "max", "seq", "error"))
NEAR_MISSES = st.recursive(
    JSON_VALUES | st.just(ID),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=60)
@given(path=st.sampled_from(PATHS), body=NEAR_MISSES | st.binary(max_size=60))
def test_no_body_makes_the_server_fail(path: str, body: Any) -> None:
    """Any body gets a result or a problem for the client."""

    @on_trio
    async def asked() -> None:
        async with world() as (_, client):
            content = body if isinstance(body, bytes) else json.dumps(body)
            answer = await client.post(path, content=content)
            assert answer.status_code < 500, answer.text
            if answer.status_code >= 400:
                assert answer.json()["status"] == answer.status_code

    asked()


@settings(max_examples=40)
@given(data=JSON_VALUES)
def test_any_json_value_comes_back_equal(data: Any) -> None:
    """data may be anything."""

    @on_trio
    async def asked() -> None:
        async with world() as (_, client):
            answer = await client.post("/v1/tasks", content=json.dumps({"tasks": [{"queue": "a", "data": data}]}))
            shown = (await client.get(f"/v1/tasks/{answer.json()['ids'][0]}")).json()
            assert json.dumps(shown["data"]) == json.dumps(data)

    asked()


@on_trio
async def test_a_bug_is_told_apart_from_bad_input() -> None:
    """An unexpected exception is a 500 without internal details."""
    service = FakeService()
    service.broken["cluster"] = RuntimeError("secret detail")
    async with client_of(service) as client:
        answer = await client.get("/v1/cluster")
        check_problem(answer, 500, code="internal")
        assert "secret" not in answer.text


@on_trio
async def test_a_bug_in_a_write_does_not_promise_that_nothing_was_stored() -> None:
    """An unexpected exception of a POST is 503 `unknown`, to be repeated."""
    service = FakeService()
    service.broken["enqueue"] = ValueError("secret detail")
    async with client_of(service) as client:
        answer = await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}]})
        check_problem(answer, 503, code="unknown")
        assert "secret" not in answer.text and answer.headers["retry-after"]
