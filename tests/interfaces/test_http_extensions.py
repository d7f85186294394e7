"""Extensions over HTTP: submitting entries and reading states."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from onyxq.errors import BadRequest, NotEnabled, OnyxqError
from tests.interfaces.http_world import FakeService, check_problem, on_trio, world


@on_trio
async def test_an_entry_is_submitted_by_name(service: FakeService, client: httpx.AsyncClient) -> None:
    """Arguments are an object; bytes come as base64; the answer has the verdict."""
    sent = {"name": "db", "lease_ms": 5, "raw_base64": base64.b64encode(b"\xff\x00").decode()}
    answer = await client.post("/v1/entries/lock.acquire", json=sent)
    assert (answer.status_code, answer.json()) == (200, {"position": 12, "verdict": "applied"})
    arguments = {"name": "db", "lease_ms": 5, "raw": b"\xff\x00"}
    assert service.asked("submit") == [{"entry": "lock.acquire", "args": arguments}]


@on_trio
async def test_an_entry_without_arguments_needs_no_body(service: FakeService, client: httpx.AsyncClient) -> None:
    """An empty one will do."""
    assert (await client.post("/v1/entries/switch.flip")).status_code == 200
    assert service.asked("submit") == [{"entry": "switch.flip"}]


@on_trio
async def test_a_state_is_read_as_of_a_position(service: FakeService, client: httpx.AsyncClient) -> None:
    """Bytes are shown in hexadecimal."""
    plain = await client.get("/v1/extensions/lock")
    assert plain.json() == {"position": 12, "state": {"db": ["one", 7, "ff"]}}
    later = await client.get("/v1/extensions/lock?seen=99")
    assert later.json()["position"] == 99
    assert service.asked("extension") == [{"name": "lock"}, {"name": "lock", "seen": 99}]


BAD: list[tuple[str, Any, str]] = [
    ("/v1/entries/lock.acquire", [1], ""),
    ("/v1/entries/lock.acquire", {"raw_base64": "?"}, "raw_base64"),
    ("/v1/entries/lock.acquire", {"raw": 1, "raw_base64": "AA=="}, "raw_base64"),
]


@pytest.mark.parametrize(("path", "body", "field"), BAD)
def test_malformed_arguments_are_refused(path: str, body: Any, field: str) -> None:
    """Before the node hears of them."""

    @on_trio
    async def asked() -> None:
        async with world() as (service, client):
            check_problem(await client.post(path, json=body), 400, code="bad_request", field=field or None)
            assert service.asked("submit") == []

    asked()


@on_trio
async def test_a_seen_that_is_no_position_is_refused(client: httpx.AsyncClient) -> None:
    """Naming it."""
    check_problem(await client.get("/v1/extensions/lock?seen=x"), 400, code="bad_request", field="seen")


@pytest.mark.parametrize("error", [BadRequest("name: is missing", field="name"), NotEnabled()])
def test_what_the_node_refuses_is_a_problem(error: OnyxqError) -> None:
    """With its code."""

    @on_trio
    async def asked() -> None:
        async with world() as (service, client):
            service.broken["submit"] = error
            answer = await client.post("/v1/entries/lock.acquire", json={})
            check_problem(answer, error.status, code=error.code, field=error.field)

    asked()
