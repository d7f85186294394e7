"""Jobs over HTTP: requests to the node, and refusals before that."""

from __future__ import annotations

import json
from typing import Any

import attrs
import httpx
import pytest

from onyxq.errors import JobConflict, LogUnavailable
from onyxq.interfaces.http.routes.jobs import NewJob
from onyxq.jobs.encoding import decode
from onyxq.jobs.model import Function, Input, Job, Output
from tests.interfaces.http_world import JOB, FakeService, check_problem, on_trio, world

FUNCTION = {"type": "function", "name": "work", "fn": {"import": "pkg:work"}, "params": {"x": [1, None]}}
CATALOG: Any = JOB["catalog"]


@on_trio
async def test_a_job_is_sent_as_its_bytes(service: FakeService, client: httpx.AsyncClient) -> None:
    """They are the bytes that a Python program would submit."""
    said = {**JOB, "workflow": [["in", "work"], ["work", "out"]], "catalog": [*CATALOG, FUNCTION], "max_slots": 3}
    answer = await client.post("/v1/jobs", json={**said, "keep_ms": 60_000})
    assert (answer.status_code, answer.json()["id"]) == (201, "j")
    (asked,) = service.asked("job.submit")
    assert asked["keep_ms"] == 60_000
    assert decode(asked["body"]) == Job(
        id="j",
        workflow=[("in", "work"), ("work", "out")],
        catalog=[
            Input("in", queue="a"),
            Output("out", queue="b"),
            Function("work", "pkg:work", {"x": [1, None]}),
        ],
        max_slots=3,
    )


@on_trio
async def test_a_job_without_an_id_gets_one(client: httpx.AsyncClient) -> None:
    """Each request gets another one."""
    nameless = {name: value for name, value in JOB.items() if name != "id"}
    ids = {(await client.post("/v1/jobs", json=nameless)).json()["id"] for _ in range(2)}
    assert len(ids) == 2 and all(len(one) == 32 for one in ids)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workflow": None}, "workflow"),
        ({"catalog": 5}, "catalog"),
        ({"catalog": [{"type": "input"}]}, "catalog[0].name"),
        ({"catalog": [{"type": "inptu", "name": "in"}]}, "catalog[0].type"),
        ({"catalog": [{**FUNCTION, "colour": 1}]}, "catalog[0].colour"),
        ({"catalog": [{**FUNCTION, "fn": {"pickled": "gASVAA==", "named": "f"}}]}, "catalog[0].fn.pickled"),
        ({"triggers": [{"window": "w", "odd": {"pickled": 1}}]}, "triggers[0].odd.pickled"),
        ({"min_slot": 1}, "min_slot"),
        ({"keep_ms": -1}, "keep_ms"),
    ],
)
def test_a_malformed_job_is_refused_before_it_is_sent(changes: dict[str, Any], field: str) -> None:
    """The error names the wrong part; HTTP does not accept functions as bytes."""

    @on_trio
    async def asked() -> None:
        async with world() as (service, client):
            check_problem(await client.post("/v1/jobs", json={**JOB, **changes}), 400, code="bad_request", field=field)
            assert not service.calls

    asked()


@on_trio
async def test_deep_json_is_refused(service: FakeService, client: httpx.AsyncClient) -> None:
    """It does not crash the server."""
    deep = '{"metadata":' * 300 + "1" + "}" * 300
    answer = await client.post("/v1/jobs", content=deep, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert not service.calls


@on_trio
async def test_another_job_under_the_id_is_a_conflict(client: httpx.AsyncClient) -> None:
    """It has a code of its own."""
    assert (await client.post("/v1/jobs", json=JOB)).status_code == 201
    other = await client.post("/v1/jobs", json={**JOB, "metadata": {"x": 1}})
    check_problem(other, 409, code=JobConflict.code, field="id")


@on_trio
async def test_one_job_is_looked_at_waited_for_sealed_and_killed(
    service: FakeService, client: httpx.AsyncClient
) -> None:
    """Each job is named by its id; bytes are shown in hexadecimal."""
    await client.post("/v1/jobs", json=JOB)
    got = await client.get("/v1/jobs/j")
    assert got.json()["state"] == "running" and len(got.json()["digest"]) == 32
    assert (await client.get("/v1/jobs/j/outcome?wait_ms=5")).json()["id"] == "j"
    assert (await client.post("/v1/jobs/j/seal", json={"input": "in"})).status_code == 200
    assert (await client.delete("/v1/jobs/j")).json()["state"] == "killed"
    assert service.asked("job.wait") == [{"id": "j", "wait_ms": 5}]
    assert service.asked("job.seal") == [{"id": "j", "input": "in"}]
    assert service.asked("job.kill") == [{"id": "j"}]


@on_trio
async def test_a_job_is_replayed(service: FakeService, client: httpx.AsyncClient) -> None:
    """The request has the places of the outputs; a wrong type is refused before it is sent."""
    await client.post("/v1/jobs", json=JOB)
    said = {"from_ms": 5_000, "outputs": {"out": "again"}}
    answer = await client.post("/v1/jobs/j/replay", json=said)
    assert (answer.status_code, answer.json()["id"]) == (201, "j-replay")
    check_problem(await client.post("/v1/jobs/j/replay", json={"outputs": ["out"]}), 400, code="bad_request",
                  field="outputs")  # fmt: skip
    assert service.asked("job.replay") == [{"id": "j", **said}]


@on_trio
async def test_savepoints_are_made_listed_and_deleted(service: FakeService, client: httpx.AsyncClient) -> None:
    """A savepoint belongs to a job, and its name to the cluster."""
    await client.post("/v1/jobs", json=JOB)
    answer = await client.post("/v1/jobs/j/savepoints", json={"name": "before", "wait_ms": 5})
    assert (answer.status_code, answer.json()["batch"]) == (201, 4)
    assert service.asked("job.savepoint") == [{"id": "j", "name": "before", "wait_ms": 5}]
    check_problem(await client.post("/v1/jobs/j/savepoints", json={}), 400, code="bad_request", field="name")
    check_problem(await client.post("/v1/jobs/gone/savepoints", json={"name": "x"}), 404, code="not_found",
                  field="id")  # fmt: skip
    assert [one["name"] for one in (await client.get("/v1/savepoints?id=j")).json()["savepoints"]] == ["before"]
    assert (await client.get("/v1/savepoints?id=other")).json()["savepoints"] == []
    assert (await client.delete("/v1/savepoints/before")).status_code == 204
    check_problem(await client.delete("/v1/savepoints/before"), 404, code="not_found", field="name")


@on_trio
async def test_dead_letters_are_listed_and_sent_again(service: FakeService, client: httpx.AsyncClient) -> None:
    """Filters are in the query or in the body; a wrong one is refused before it is sent."""
    await client.post("/v1/jobs", json=JOB)
    answer = await client.get("/v1/jobs/j/letters?task=work&count=true")
    assert answer.json() == {"letters": [], "counts": [], "after": None}
    assert service.asked("job.letters") == [{"id": "j", "task": "work", "count": True}]
    answer = await client.post("/v1/jobs/j/requeue", json={"error": "KeyError"})
    assert (answer.status_code, answer.json()["id"]) == (200, "j-requeue")
    assert service.asked("job.requeue") == [{"id": "j", "error": "KeyError"}]
    check_problem(await client.post("/v1/jobs/j/requeue", json={"limit": 0}), 400, code="bad_request",
                  field="limit")  # fmt: skip


@on_trio
async def test_jobs_are_listed_by_state(service: FakeService, client: httpx.AsyncClient) -> None:
    """An unknown state is named."""
    await client.post("/v1/jobs", json=JOB)
    assert [one["id"] for one in (await client.get("/v1/jobs?state=running")).json()["jobs"]] == ["j"]
    assert service.asked("job.list") == [{"state": "running"}]
    check_problem(await client.get("/v1/jobs?state=done"), 400, code="bad_request", field="state")


@on_trio
async def test_unknown_jobs_and_bad_bodies_are_named(service: FakeService, client: httpx.AsyncClient) -> None:
    """This is so for every endpoint."""
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/outcome")):
        check_problem(await client.request(method, f"/v1/jobs/gone{path}"), 404, code="not_found", field="id")
    sealed = await client.post("/v1/jobs/gone/seal", json={"input": "in"})
    check_problem(sealed, 404, code="not_found", field="id")
    check_problem(await client.post("/v1/jobs/j/seal", json={}), 400, code="bad_request", field="input")
    check_problem(await client.post("/v1/jobs/j/seal", json={"input": 5}), 400, code="bad_request", field="input")
    check_problem(await client.get("/v1/jobs/j/outcome?wait_ms=x"), 400, code="bad_request", field="wait_ms")
    check_problem(await client.get(f"/v1/jobs/{'i' * 121}"), 400, code="bad_request", field="id")
    service.broken["job.submit"] = LogUnavailable("no log")
    away = await client.post("/v1/jobs", content=json.dumps(JOB), headers={"content-type": "application/json"})
    check_problem(away, 503, code="log_unavailable")
    assert away.headers["retry-after"]


def test_every_field_of_a_job_can_be_given() -> None:
    """A job in JSON has the fields of a job in Python."""
    assert {field.name for field in attrs.fields(Job)} == set(NewJob.__struct_fields__) - {"keep_ms", "replace"}
