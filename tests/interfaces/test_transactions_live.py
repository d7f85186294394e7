"""Transactions from a user's view: over HTTP, with the blocking client, and from workers; on a live cluster."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest

from onyxq import AsyncClient, Client
from onyxq.client import Claim
from onyxq.errors import BadRequest, Conflict, StaleToken
from onyxq.interfaces.local_cluster import LocalCluster
from onyxq.worker import Worker, blocking_context, context
from tests.interfaces.live_world import running


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three nodes for all tests of this module."""
    with running(peers=3, http=True) as cluster:
        yield cluster


@pytest.fixture
def web(cluster: LocalCluster) -> Iterator[httpx.Client]:
    """An HTTP client of one of them."""
    with httpx.Client(base_url=f"http://{cluster.http_addresses[0]}", timeout=20) as client:
        yield client


def claimed(web: httpx.Client, queue: str, number: int) -> list[dict[str, Any]]:
    """Return claimed tasks in the form of requests."""
    tasks = [{"queue": queue, "data": n} for n in range(number)]
    assert web.post("/v1/tasks", json={"tasks": tasks}).status_code == 201
    found: list[dict[str, Any]] = []
    while len(found) < number:
        answer = web.post("/v1/claims", json={"queues": [queue], "max": number, "wait_ms": 5_000})
        found += [{"id": claim["task"]["id"], "token": claim["token"]} for claim in answer.json()["claims"]]
    return found


def total(web: httpx.Client, queue: str) -> int:
    """How many tasks a queue has."""
    found = [one for one in web.get("/v1/queues").json()["queues"] if one["queue"] == queue]
    return int(found[0]["depth"]["total"]) if found else 0


# --- HTTP -------------------------------------------------------------------------------------


def test_a_transaction_over_http_does_all_of_it(web: httpx.Client, queue: str) -> None:
    """Missing ids are made; JSON and bytes have their usual forms."""
    first, second, third = claimed(web, queue, 3)
    answer = web.post(
        "/v1/transactions",
        json={
            "complete": [
                {**first, "result": {"words": 3}},
                {**second, "result_base64": base64.b64encode(b"\0").decode()},
            ],
            "update": [{**third, "seq": 0, "data": "half"}],
            "enqueue": [{"queue": f"{queue}-out", "data": n, "priority": n} for n in range(2)],
            "require": [third],
        },
    )
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert said["settled"] is True and len(said["ids"]) == 2
    task = web.get(f"/v1/tasks/{first['id']}").json()
    assert (task["state"], task["result"]) == ("completed", {"words": 3})
    assert web.get(f"/v1/tasks/{second['id']}").json()["result_base64"] == base64.b64encode(b"\0").decode()
    assert [update["data"] for update in web.get(f"/v1/tasks/{third['id']}/log").json()["updates"]] == ["half"]
    made = [web.get(f"/v1/tasks/{task_id}").json() for task_id in said["ids"]]
    assert [(one["data"], one["priority"], one["state"]) for one in made] == [(0, 0, "ready"), (1, 1, "ready")]


def test_claims_that_do_not_stand_are_each_named(web: httpx.Client, queue: str) -> None:
    """The answer is 409 stale_token, and nothing changed."""
    first, second = claimed(web, queue, 2)
    assert web.post("/v1/claims/release", json={"claims": [second]}).json()["results"][0]["ok"]
    answer = web.post(
        "/v1/transactions",
        json={"complete": [first, second], "enqueue": [{"queue": f"{queue}-out", "data": 1}]},
    )
    assert answer.status_code == 409
    problem = answer.json()
    assert problem["code"] == "stale_token"
    assert [(one["id"], one["token"]) for one in problem["claims"]] == [(second["id"], second["token"])]
    assert web.get(f"/v1/tasks/{first['id']}").json()["state"] == "claimed"
    assert total(web, f"{queue}-out") == 0


def test_an_idempotency_key_gets_the_first_answer_from_any_peer(cluster: LocalCluster, queue: str) -> None:
    """Ids and token are the same; another body with it is refused."""
    body = {"enqueue": [{"queue": queue, "data": n, "delay_ms": 100 * n} for n in range(3)]}
    answers = []
    for address in cluster.http_addresses:
        with httpx.Client(base_url=f"http://{address}", timeout=20) as web:
            answers.append(web.post("/v1/transactions", json=body, headers={"Idempotency-Key": f"key {queue}"}).json())
            other = web.post(
                "/v1/transactions", json={"enqueue": body["enqueue"][:1]}, headers={"Idempotency-Key": f"key {queue}"}
            )
            assert (other.status_code, other.json()["field"]) == (409, "Idempotency-Key")
    assert answers[0] == answers[1] == answers[2] and len(answers[0]["ids"]) == 3
    with httpx.Client(base_url=f"http://{cluster.http_addresses[0]}", timeout=20) as web:
        assert total(web, queue) == 3


def test_a_repeat_gets_the_first_answer_although_its_due_time_is_too_late_by_now(web: httpx.Client, queue: str) -> None:
    """A new request that names the same time is refused."""
    assert web.put(f"/v1/queues/{queue}", json={"grace_ms": 3_600_000}).status_code == 200
    body = {"enqueue": [{"queue": queue, "data": 1, "at_ms": time.time_ns() // 1_000_000 - 60_000}]}
    first = web.post("/v1/transactions", json=body, headers={"Idempotency-Key": f"first {queue}"})
    assert first.status_code == 200, first.text
    assert web.put(f"/v1/queues/{queue}", json={"grace_ms": 0}).status_code == 200
    again = web.post("/v1/transactions", json=body, headers={"Idempotency-Key": f"first {queue}"})
    assert (again.status_code, again.json()) == (200, first.json())
    other = web.post("/v1/transactions", json=body, headers={"Idempotency-Key": f"other {queue}"})
    assert (other.status_code, other.json()["field"]) == (400, "enqueue[0].at_ms")
    assert total(web, queue) == 1


def test_without_a_key_each_request_is_another_transaction(web: httpx.Client, queue: str) -> None:
    """Two requests, two tasks."""
    body = {"enqueue": [{"queue": queue, "data": 1}]}
    assert (
        web.post("/v1/transactions", json=body).json()["ids"] != web.post("/v1/transactions", json=body).json()["ids"]
    )
    assert total(web, queue) == 2


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 400, "complete"),
        ({"complete": 1}, 400, "complete"),
        ({"complete": [{"id": "00"}]}, 400, "complete[0].id"),
        ({"complete": [{"id": "0" * 40, "token": "x"}]}, 400, "complete[0].token"),
        ({"update": [{"id": "0" * 40, "token": 1, "seq": 0}]}, 400, "update[0].data"),
        ({"enqueue": [{"data": 1}]}, 400, "enqueue[0].queue"),
        ({"enqueue": [{"queue": "a", "delay_ms": 1, "at_ms": 1}]}, 400, "enqueue[0].delay_ms"),
        ({"enqueue": [{"queue": "a", "depends": ["f" * 40]}]}, 400, "enqueue[0].depends"),
        ({"enqueue": [{"queue": "a", "data": 1}], "more": 1}, 400, "more"),
        ({"enqueue": [{"queue": "a", "data": 1}] * 1_001}, 400, "enqueue"),
    ],
)
def test_bad_input_over_http_names_the_field(web: httpx.Client, body: dict[str, Any], status: int, field: str) -> None:
    """The error has the name of the request."""
    answer = web.post("/v1/transactions", json=body)
    assert (answer.status_code, answer.json()["field"]) == (status, field), answer.text


def test_too_much_payload_over_http(web: httpx.Client, queue: str) -> None:
    """413, and nothing is stored."""
    tasks = [{"queue": queue, "data": "x" * 300_000} for _ in range(15)]
    answer = web.post("/v1/transactions", json={"enqueue": tasks})
    assert (answer.status_code, answer.json()["field"]) == (413, "enqueue")
    assert total(web, queue) == 0


def test_a_key_that_is_too_long(web: httpx.Client) -> None:
    """The header is named."""
    answer = web.post("/v1/transactions", json={"enqueue": [{"queue": "a"}]}, headers={"Idempotency-Key": "x" * 201})
    assert (answer.status_code, answer.json()["field"]) == (400, "Idempotency-Key")


# --- the blocking client ----------------------------------------------------------------------


def test_a_blocking_client_commits_at_the_end_of_the_block(cluster: LocalCluster, queue: str) -> None:
    """If the block raises, it does not commit."""
    with Client(cluster.addresses) as client:
        client.enqueue_many(queue, [b"a", b"b"])
        claims = list(client.claim([queue], max=2, wait_ms=5_000))
        with client.transaction() as tx:
            tx.complete(claims[0], b"done")
            tx.enqueue(f"{queue}-out", b"next", priority=3)
            assert tx.committed is None
        assert tx.committed is not None and tx.committed.settled
        assert client.get(claims[0].id).result == b"done"
        assert client.get(tx.committed.ids[0]).priority == 3
        with pytest.raises(KeyError), client.transaction() as dropped:
            dropped.complete(claims[1])
            raise KeyError
        assert client.get(claims[1].id).state == "claimed"
        with pytest.raises(StaleToken) as refused:
            client.transact(complete=[claims[0], claims[1]])
        assert [(id, token) for id, token, *_ in refused.value.details] == [(claims[0].id, claims[0].token)]
        done = client.transact(complete=[(claims[1], b"late")], enqueue=[{"queue": f"{queue}-out", "data": b"x"}])
        assert client.get(claims[1].id).result == b"late" and len(done.ids) == 1


def test_a_client_refuses_what_makes_no_sense(cluster: LocalCluster, queue: str) -> None:
    """Before anything is sent."""
    with Client(cluster.addresses) as client:
        tx = client.transaction()
        with pytest.raises(BadRequest, match="no option 'colour'"):
            tx.enqueue(queue, b"x", colour="red")
        with pytest.raises(BadRequest) as empty:
            tx.commit()
        assert empty.value.field == "complete"
        with pytest.raises(BadRequest, match=r"enqueue\[1\] has no data"):
            client.transact(enqueue=[{"queue": queue, "data": b"x"}, {"queue": queue}])
        with pytest.raises(BadRequest) as name:
            client.transaction("")
        assert name.value.field == "name"
        tx.enqueue(queue, b"x")
        first = tx.commit()
        assert tx.commit() == first
        with pytest.raises(Conflict):
            tx.enqueue(queue, b"y")


# --- workers ----------------------------------------------------------------------------------


def test_a_worker_completes_its_task_and_goes_on_in_one_step(cluster: LocalCluster, queue: str) -> None:
    """The worker does not report the task again; an error after the commit has no effect."""

    async def body(claim: Claim) -> bytes | None:
        async with context().transaction(b"mapped " + claim.data) as tx:
            tx.enqueue_many(f"{queue}-out", [claim.data + b"1", claim.data + b"2"])
        if claim.data == b"b":
            raise RuntimeError("behind the commit")
        return b"not this"

    async def main() -> None:
        async with AsyncClient(cluster.addresses) as client:
            ids = await client.enqueue_many(queue, [b"a", b"b", b"c"])
            await _work(client, Worker(body, queues=[queue], lease_ms=5_000), finished=3)
            assert [(await client.get(one)).result for one in ids] == [b"mapped a", b"mapped b", b"mapped c"]
            page = await client.list(f"{queue}-out")
            assert sorted(task.data for task in page.tasks) == [b"a1", b"a2", b"b1", b"b2", b"c1", b"c2"]

    anyio.run(main)


def test_a_function_in_a_thread_can_do_the_same(cluster: LocalCluster, queue: str) -> None:
    """It uses ``with``."""

    async def body(claim: Claim) -> bytes | None:
        def in_thread() -> None:
            with blocking_context().transaction(b"done") as tx:
                tx.enqueue(f"{queue}-out", claim.data)

        await anyio.to_thread.run_sync(in_thread)
        return None

    async def main() -> None:
        async with AsyncClient(cluster.addresses) as client:
            task_id = await client.enqueue(queue, b"a")
            await _work(client, Worker(body, queues=[queue], lease_ms=5_000), finished=1)
            assert (await client.get(task_id)).result == b"done"

    anyio.run(main)


async def _work(client: AsyncClient, worker: Worker, *, finished: int) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(worker.serve, client)
        with anyio.fail_after(20):
            while worker.finished < finished:
                await anyio.sleep(0.01)
        worker.stop()
    assert worker.failed == 0
