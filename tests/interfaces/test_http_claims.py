"""Claims over HTTP: claims, completions, and clients that disconnect."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest

from onyxq.core.facts import pack_task
from onyxq.core.ids import make_id
from onyxq.errors import Unavailable
from onyxq.interfaces.http import app as http_app
from onyxq.interfaces.http.app import create_app
from tests.interfaces.http_world import NOW_MS, FakeService, access_of, app_of, check_problem, on_trio


async def claimed(client: httpx.AsyncClient, count: int) -> list[dict[str, Any]]:
    """Enqueue that many tasks and claim them."""
    tasks = [{"queue": "a", "data": n} for n in range(count)]
    assert (await client.post("/v1/tasks", json={"tasks": tasks})).status_code == 201
    answer = await client.post("/v1/claims", json={"queues": ["a"], "max": count})
    claims: list[dict[str, Any]] = answer.json()["claims"]
    return claims


def named(claim: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a claim in the form of completion requests."""
    return {"id": claim["task"]["id"], "token": claim["token"], **more}


@on_trio
async def test_a_claim_brings_the_task_and_its_token(client: httpx.AsyncClient) -> None:
    """Token, expiry, data and state are all there."""
    (claim,) = await claimed(client, 1)
    assert claim["expires_ms"] == NOW_MS + 30_000
    assert claim["task"]["data"] == 0
    assert claim["task"]["state"] == "claimed"
    assert claim["task"]["attempts"] == 0


@on_trio
async def test_a_claim_of_a_run_brings_each_task(service: FakeService, client: httpx.AsyncClient) -> None:
    """A run that is granted together is split into its tasks."""
    first = make_id(NOW_MS, 1, 1, 7)

    async def grant(args: dict[str, Any]) -> dict[str, Any]:
        return {"claims": [[5, 6, 2, first, pack_task({"queue": "a", "format": "json"}, [b"1", b"2"])]]}

    service._claim = grant  # type: ignore[method-assign]
    claims = (await client.post("/v1/claims", json={"queues": ["a"], "max": 2})).json()["claims"]
    assert [claim["task"]["data"] for claim in claims] == [1, 2]
    assert claims[1]["task"]["id"] == make_id(NOW_MS, 1, 1, 8).hex()
    assert {claim["task"]["attempts"] for claim in claims} == {2}


@on_trio
async def test_no_task_is_an_empty_list(client: httpx.AsyncClient) -> None:
    """Without waiting the answer comes at once."""
    answer = await client.post("/v1/claims", json={"queues": ["none"]})
    assert (answer.status_code, answer.json()) == (200, {"claims": []})


@on_trio
async def test_a_waiting_claim_gets_a_task_that_arrives(service: FakeService, client: httpx.AsyncClient) -> None:
    """A long poll ends with the first task."""
    answers: list[httpx.Response] = []

    async def wait() -> None:
        answers.append(await client.post("/v1/claims", json={"queues": ["a"], "wait_ms": 60_000}))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await service.claiming.wait()
        await client.post("/v1/tasks", json={"tasks": [{"queue": "a", "data": "x"}]})
    assert answers[0].json()["claims"][0]["task"]["data"] == "x"


@on_trio
async def test_completions_carry_results(client: httpx.AsyncClient) -> None:
    """JSON and bytes; a null result is none."""
    one, two, three = await claimed(client, 3)
    body = [named(one, result={"n": 1}), named(two, result_base64=base64.b64encode(b"\xff").decode()), named(three)]
    answer = await client.post("/v1/claims/complete", json={"claims": body})
    assert [result["ok"] for result in answer.json()["results"]] == [True, True, True]
    tasks = [(await client.get(f"/v1/tasks/{claim['id']}")).json() for claim in body]
    assert [task["state"] for task in tasks] == ["completed"] * 3
    assert tasks[0]["result"] == {"n": 1}
    assert tasks[1]["result_base64"] == "/w=="
    assert tasks[2]["result"] is None


@on_trio
async def test_one_bad_claim_does_not_spoil_the_others(service: FakeService, client: httpx.AsyncClient) -> None:
    """Each has its own result, in request order, with the reason if it was refused."""
    one, two, three = await claimed(client, 3)
    unknown = {"id": make_id(NOW_MS, 3, 3, 3).hex(), "token": 1}
    foreign = {"id": make_id(NOW_MS, 9_999, 3, 3).hex(), "token": 1}
    claims = [named(one), named(two) | {"token": 1}, unknown, foreign, named(three)]
    results = (await client.post("/v1/claims/complete", json={"claims": claims})).json()["results"]
    assert [result["id"] for result in results] == [claim["id"] for claim in claims]
    assert [result.get("code") for result in results] == [None, "stale_token", "not_found", "not_found", None]
    assert [result["ok"] for result in results] == [True, False, False, False, True]
    assert len(service.asked("complete")) == 1


@on_trio
async def test_claims_that_say_the_same_travel_as_a_run(service: FakeService, client: httpx.AsyncClient) -> None:
    """Consecutive ids under one token are one item; a refused part is mapped to its claims."""
    ids = [make_id(NOW_MS, 1, 1, n) for n in range(4)]
    claims = [{"id": one.hex(), "token": 9, "lease_ms": 5_000} for one in ids]
    results = (await client.post("/v1/claims/renew", json={"claims": claims})).json()["results"]
    assert service.asked("renew")[0]["items"] == [[ids[0], 4, 9, 5_000]]
    assert [result["id"] for result in results] == [one.hex() for one in ids]
    assert {result["code"] for result in results} == {"not_found"}
    await client.post("/v1/claims/renew", json={"claims": [{"id": ids[0].hex(), "token": 9}]})
    assert service.asked("renew")[1]["items"] == [[ids[0], 1, 9, None]]


@on_trio
async def test_updates_completed_by_number_are_never_grouped(service: FakeService, client: httpx.AsyncClient) -> None:
    """seq is about one task, so such completions stay single."""
    ids = [make_id(NOW_MS, 1, 1, n) for n in range(2)]
    await client.post("/v1/claims/complete", json={"claims": [{"id": i.hex(), "token": 9, "seq": 3} for i in ids]})
    assert service.asked("complete")[0]["items"] == [[one, 1, 9, 3, None] for one in ids]


@on_trio
async def test_failing_releasing_and_renewing(service: FakeService, client: httpx.AsyncClient) -> None:
    """error and retry_in_ms reach the node, and the task is ready again."""
    one, two = await claimed(client, 2)
    await client.post("/v1/claims/fail", json={"claims": [named(one, error="broken\n", retry_in_ms=5, traceback="at")]})
    assert service.asked("fail")[0]["items"][0][3:] == ["broken\n", 5, "at"]
    assert (await client.post("/v1/claims/renew", json={"claims": [named(two)]})).json()["results"][0]["ok"]
    assert (await client.post("/v1/claims/release", json={"claims": [named(two)]})).json()["results"][0]["ok"]
    tasks = [(await client.get(f"/v1/tasks/{claim['task']['id']}")).json() for claim in (one, two)]
    assert [(task["state"], task["attempts"]) for task in tasks] == [("ready", 1), ("ready", 0)]


@on_trio
async def test_updates_are_numbered(client: httpx.AsyncClient) -> None:
    """A gap and a stale token are conflicts; the log shows what is stored."""
    (claim,) = await claimed(client, 1)
    answer = await client.post("/v1/claims/update", json=named(claim, seq=0, data={"half": True}))
    assert (answer.status_code, answer.json()["ok"]) == (200, True)
    gap = await client.post("/v1/claims/update", json=named(claim, seq=2, data=1))
    check_problem(gap, 409, code="sequence_gap")
    stale = await client.post("/v1/claims/update", json=named(claim, seq=1, data=1) | {"token": 1})
    check_problem(stale, 409, code="stale_token")
    log = (await client.get(f"/v1/tasks/{claim['task']['id']}/log")).json()["updates"]
    assert [(update["seq"], update["data"]) for update in log] == [(0, {"half": True})]


@on_trio
async def test_an_update_needs_data(client: httpx.AsyncClient) -> None:
    """Null is data; a missing member is not."""
    (claim,) = await claimed(client, 1)
    assert (await client.post("/v1/claims/update", json=named(claim, seq=0, data=None))).status_code == 200
    missing = await client.post("/v1/claims/update", json=named(claim, seq=1))
    check_problem(missing, 400, code="bad_request", field="data")


@on_trio
async def test_a_damaged_run_does_not_keep_the_others_back(service: FakeService, client: httpx.AsyncClient) -> None:
    """A payload with a bad checksum is left out; if it is alone, it is an error."""
    good, bad = (make_id(NOW_MS, 1, 1, n) for n in (1, 2))
    body = pack_task({"queue": "a"}, [b"xyz"])
    grants = [[5, 6, 0, bad, body[:-1] + b"!"], [5, 6, 0, good, body]]

    async def grant(args: dict[str, Any]) -> dict[str, Any]:
        return {"claims": grants[: args.get("max", 1)]}

    service._claim = grant  # type: ignore[method-assign]
    claims = (await client.post("/v1/claims", json={"queues": ["a"], "max": 2})).json()["claims"]
    assert [claim["task"]["id"] for claim in claims] == [good.hex()]
    check_problem(await client.post("/v1/claims", json={"queues": ["a"], "max": 1}), 503, code="corrupt")


@on_trio
async def test_without_a_log_claims_say_so(service: FakeService, client: httpx.AsyncClient) -> None:
    """The answer is 503 with Retry-After."""
    service.broken["claim"] = Unavailable("the log cannot be reached")
    answer = await client.post("/v1/claims", json={"queues": ["a"]})
    check_problem(answer, 503, code="unavailable")
    assert answer.headers["retry-after"]


# --- clients that go away -------------------------------------------------------


class Wire:
    """One ASGI exchange under the control of a test."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.gone = anyio.Event()
        self.sent: list[Any] = []
        self._asked = False

    async def receive(self) -> dict[str, Any]:
        """Return the body, then wait until the client disconnects."""
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """Record what was sent."""
        self.sent.append(message)


def scope_of(path: str, *, method: str = "POST", query: bytes = b"") -> dict[str, Any]:
    """Return the scope of a request."""
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [(b"content-length", b"30")],
    }


@on_trio
async def test_a_client_that_goes_away_claims_nothing() -> None:
    """Its long poll is cancelled, and nothing is answered."""
    service = FakeService()
    wire = Wire(b'{"queues":["a"],"wait_ms":60000}')
    async with anyio.create_task_group() as group:
        group.start_soon(app_of(service), scope_of("/v1/claims"), wire.receive, wire.send)
        await service.claiming.wait()
        wire.gone.set()
    assert wire.sent == []
    assert service.asked("release") == []


@on_trio
async def test_claims_granted_to_a_client_that_is_gone_are_released() -> None:
    """A grant that arrives just after the disconnect is released at once."""
    service = FakeService()
    wire = Wire(b'{"queues":["a"],"max":2}')
    first = make_id(NOW_MS, 1, 1, 1)

    async def grant(args: dict[str, Any]) -> dict[str, Any]:
        wire.gone.set()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
        return {"claims": [[55, 6, 0, first, pack_task({"queue": "a"}, [b"1", b"2"])]]}

    service._claim = grant  # type: ignore[method-assign]
    await app_of(service)(scope_of("/v1/claims"), wire.receive, wire.send)
    assert wire.sent == []
    assert service.asked("release") == [{"items": [[first, 2, 55]]}]


@on_trio
async def test_a_server_that_stops_lets_waiting_clients_go() -> None:
    """Their polls end without a task."""
    service = FakeService()
    app = app_of(service)
    wire = Wire(b'{"queues":["a"],"wait_ms":60000}')
    async with anyio.create_task_group() as group:
        group.start_soon(app, scope_of("/v1/claims"), wire.receive, wire.send)
        await service.claiming.wait()
        app.close()
    assert wire.sent[0]["status"] == 200
    assert wire.sent[1]["body"] == b'{"claims":[]}'


class Waiting(FakeService):
    """A service at which no task and no flow ever ends, and no record comes."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = anyio.Event()

    async def _get(self, args: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        self.waits.set()
        await anyio.sleep_forever()
        raise AssertionError

    _flow_wait = _get  # type: ignore[assignment]
    _log_raw = _get  # type: ignore[assignment]


WAITING = scope_of(f"/v1/tasks/{'00' * 20}", method="GET", query=b"wait_ms=60000")
WAITING_FOR_FLOW = scope_of(f"/v1/flows/{'00' * 20}/outcome", method="GET", query=b"wait_ms=60000")
WAITING_FOR_RECORD = scope_of("/v1/log/raw", method="GET", query=b"from=1000&wait_ms=60000")


@pytest.mark.parametrize("scope", [WAITING, WAITING_FOR_FLOW, WAITING_FOR_RECORD])
def test_a_client_that_goes_away_no_longer_waits(scope: dict[str, Any]) -> None:
    """Else each connection could fill many places, one after the other."""

    async def main() -> None:
        service, wire = Waiting(), Wire(b"")
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(app_of(service), scope, wire.receive, wire.send)
                await service.waits.wait()
                wire.gone.set()
        assert wire.sent == []

    anyio.run(main, backend="trio")


@pytest.mark.long
@on_trio
async def test_requests_that_wait_leave_all_others_their_places() -> None:
    """Any credential that may read could else keep all requests of a peer from being served."""
    service, wire = Waiting(), Wire(b"")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(http_app, "REQUESTS_MAX", 1)
        served = app_of(service)
    async with anyio.create_task_group() as group:
        group.start_soon(served, WAITING, wire.receive, wire.send)
        await service.waits.wait()
        other = Wire(b"")
        await served(scope_of("/v1/ids", method="GET"), other.receive, other.send)
        assert other.sent[0]["status"] == 200
        served.close()
    assert wire.sent[0]["status"] == 503
    assert b'"stopping"' in wire.sent[1]["body"]


@on_trio
async def test_tokens_that_are_read_again_just_as_a_claim_begins_to_wait_end_its_wait() -> None:
    """The client was identified earlier: its wait must not continue with a token that may be void now."""
    service = FakeService()
    app = app_of(service)
    call = service.call

    async def renewing(method: str, args: dict[str, Any]) -> Any:
        app.answer_waiting()
        return await call(method, args)

    service.call = renewing  # type: ignore[method-assign]
    wire = Wire(b'{"queues":["a"],"wait_ms":600000}')
    with anyio.fail_after(10):
        await app(scope_of("/v1/claims"), wire.receive, wire.send)
    assert wire.sent[1]["body"] == b'{"claims":[]}'


@on_trio
async def test_a_request_whose_body_comes_after_its_token_was_taken_back_is_refused() -> None:
    """The tokens that are valid when the body is complete decide."""
    service = FakeService()
    access = access_of({"the token of somebody": "admin", "another token": "admin"})
    app = create_app(service, access=access, now_ms=lambda: NOW_MS, random_64=lambda: 42)

    async def body() -> AsyncIterator[bytes]:
        yield b'{"tasks":[{"queue":"a",'
        access.renew(access_of({"another token": "admin"}))
        app.answer_waiting()
        yield b'"data":1}]}'

    headers = {"authorization": "Bearer the token of somebody", "content-type": "application/json"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://peer", headers=headers) as client:
        check_problem(await client.post("/v1/tasks", content=body()), 401, code="unauthorized", field="Authorization")
    assert not service.calls
