"""HTTP for queue settings, dead letters, periodic tasks, and tasks with keys, dependencies and times."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from onyxq.core.facts import partition_of_keys, unpack_task
from onyxq.core.ids import make_id, ms_of, partition_of
from onyxq.errors import BadRequest, Unavailable
from tests.interfaces.http_world import NOW_MS, PARTITIONS, FakeService, FakeTask, check_problem, on_trio, world

DEAD = [make_id(NOW_MS, partition, 1, 0) for partition in (1, 2, 3)]
ID = make_id(NOW_MS, 4, 1, 0)


def with_dead(service: FakeService) -> None:
    """Make three dead letters, two of queue a, and one other task."""
    for task_id, queue, error in zip(DEAD, "aab", ("no host", "no user", "no host"), strict=True):
        service.tasks[task_id] = FakeTask({"queue": queue}, b"x", state="failed", error=error)
    service.tasks[ID] = FakeTask({"queue": "a"}, b"x")


async def enqueued(client: httpx.AsyncClient, *tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the answer to an enqueue that succeeds."""
    answer = await client.post("/v1/tasks", json={"tasks": list(tasks), **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


# --- tasks


@on_trio
async def test_a_keyed_task_is_a_run_in_the_partition_of_its_key(
    service: FakeService, client: httpx.AsyncClient
) -> None:
    """This includes equal tasks."""
    task = {"queue": "a", "ordering_key": "k"}
    answer = await enqueued(client, task, task, {"queue": "a", "unique_key": "u"}, {"queue": "a"})
    runs = service.asked("enqueue")[0]["runs"]
    partitions = [partition_of(run[0]) for run in runs]
    of_key, of_unique = (partition_of_keys("a", key, PARTITIONS) for key in "ku")
    assert partitions[:3] == [of_key, of_key, of_unique]
    assert answer["ids"] == [run[0].hex() for run in runs]


@on_trio
async def test_the_header_holds_what_a_task_says(service: FakeService, client: httpx.AsyncClient) -> None:
    """Members have the names of the request."""
    said = {"expires_ms": NOW_MS + 5, "on_dependency_failed": "run", "retries": 25, "backoff_ms": 7}
    await enqueued(client, {"queue": "a", "depends": [ID.hex()], "ordering_key": "o", "unique_key": "u", **said})
    header = unpack_task(service.asked("enqueue")[0]["runs"][0][1]).header
    assert header == {
        **said,
        "depends": [ID],
        "format": "json",
        "ordering_key": "o",
        "queue": "a",
        "unique_key": "u",
    }
    assert list(header) == sorted(header)


@on_trio
async def test_the_id_that_stands_for_a_unique_key_is_answered(service: FakeService, client: httpx.AsyncClient) -> None:
    """It is answered with the outcome of the request."""
    store = service._enqueue

    def stands(args: dict[str, Any]) -> dict[str, Any]:
        return {"acks": [[2, ID, "replaced"], *store(args)["acks"][1:]]}

    service._enqueue = stands  # type: ignore[method-assign]
    answer = await enqueued(client, {"queue": "a", "unique_key": "u"}, {"queue": "a"}, {"queue": "a"})
    assert answer["ids"][0] == ID.hex() and ID.hex() not in answer["ids"][1:]
    assert (answer["unique"], answer["acks"]) == (["replaced", None, None], 2)


@on_trio
async def test_what_is_not_promised_is_answered(service: FakeService, client: httpx.AsyncClient) -> None:
    """The text is that of the node."""
    store = service._enqueue
    service._enqueue = lambda args: {**store(args), "guarantee": "on one node"}  # type: ignore[method-assign]
    assert (await enqueued(client, {"queue": "a"}, w=1))["guarantee"] == "on one node"


@on_trio
async def test_a_time_that_passed_is_judged_by_the_queue(service: FakeService, client: httpx.AsyncClient) -> None:
    """Its grace is requested only then; nothing of the request is stored if the time is too far in the past."""
    service.settings["patient"] = {"grace_ms": 60_000}
    late = {"at_ms": NOW_MS - 30_000}
    answer = await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}, {"queue": "a", **late}]})
    check_problem(answer, 400, code="bad_request", field="tasks[1].at_ms")
    assert service.tasks == {}
    ids = (await enqueued(client, {"queue": "patient", **late}))["ids"]
    assert ms_of(bytes.fromhex(ids[0])) == NOW_MS
    asked = len(service.asked("queue.get"))
    await enqueued(client, {"queue": "a", "at_ms": NOW_MS + 5})
    assert len(service.asked("queue.get")) == asked == 2


@on_trio
async def test_a_passing_fault_does_not_keep_a_time_from_being_judged(
    service: FakeService, client: httpx.AsyncClient
) -> None:
    """The default grace counts then."""
    service.broken["queue.get"] = Unavailable("nobody serves partition 3")
    await enqueued(client, {"queue": "a", "at_ms": NOW_MS - 10_000})


@on_trio
async def test_the_leader_is_told_the_time_of_a_keyed_task(service: FakeService, client: httpx.AsyncClient) -> None:
    """It determines the order of the key."""
    tasks = [{"queue": "a", "at_ms": NOW_MS + 500, **keys} for keys in ({}, {"ordering_key": "k"})]
    await enqueued(client, *tasks)
    assert [run[2:] for run in service.asked("enqueue")[0]["runs"]] == [[], [NOW_MS + 500]]


@on_trio
async def test_an_unknown_dependency_is_named(service: FakeService, client: httpx.AsyncClient) -> None:
    """It has the name of the request, and the error says what is stored."""
    store = service._enqueue

    def refuse(args: dict[str, Any]) -> dict[str, Any]:
        acks = store(args)["acks"]
        return {"acks": [acks[0], BadRequest("there is no such task", field="runs[1].depends").to_map()]}

    service._enqueue = refuse  # type: ignore[method-assign]
    tasks = [{"queue": "a"}, {"queue": "a"}, {"queue": "a", "depends": [ID.hex()]}]
    answer = await client.post("/v1/tasks", json={"tasks": tasks})
    problem = check_problem(answer, 400, code="bad_request", field="tasks[2].depends")
    assert problem["stored"] == [True, True, False]


@on_trio
async def test_ids_for_keyed_tasks_lie_in_the_partition_of_the_key(client: httpx.AsyncClient) -> None:
    """So a request with keys can be repeated safely."""
    ids = (await client.get("/v1/ids", params={"count": 2, "queue": "a", "key": "k"})).json()["ids"]
    assert {partition_of(bytes.fromhex(one)) for one in ids} == {partition_of_keys("a", "k", PARTITIONS)}


@on_trio
async def test_a_repeat_under_an_idempotency_key_has_the_same_ids_with_keys_too(client: httpx.AsyncClient) -> None:
    """The partition of the key is used both times."""
    body = {"tasks": [{"queue": "a", "ordering_key": "k"}, {"queue": "a"}]}
    said = [(await client.post("/v1/tasks", json=body, headers={"idempotency-key": "once"})).json() for _ in "ab"]
    assert said[0]["ids"] == said[1]["ids"]


@on_trio
async def test_a_claim_without_a_lease_leaves_it_to_the_queue(service: FakeService, client: httpx.AsyncClient) -> None:
    """The request to the node has no lease."""
    await client.post("/v1/claims", json={"queues": ["a"]})
    assert "lease_ms" not in service.asked("claim")[0]


# --- queues


@on_trio
async def test_settings_are_shown_beside_the_depth(client: httpx.AsyncClient) -> None:
    """All settings of the interface are shown."""
    await enqueued(client, {"queue": "a"})
    queue = (await client.get("/v1/queues/a")).json()
    named = {"paused", "lease_ms", "retries", "backoff_ms", "on_dead", "retention_ms", "grace_ms", "rate"}
    assert named | {"concurrency", "durability", "depth", "oldest_ready_ms", "queue"} <= queue.keys()
    assert (queue["paused"], queue["retries"], queue["on_dead"]) == (False, 25, "goes on")
    (listed,) = (await client.get("/v1/queues")).json()["queues"]
    assert listed.items() <= queue.items()


@on_trio
async def test_only_what_is_named_is_set(service: FakeService, client: httpx.AsyncClient) -> None:
    """null reaches the node as null: no limit for retries, the default for others."""
    answer = await client.put("/v1/queues/a", json={"rate": 2.5, "retries": None, "on_dead": "stops", "lease_ms": None})
    (asked,) = service.asked("queue.set")
    assert asked == {"queue": "a", "rate": 2.5, "retries": None, "on_dead": "stops", "lease_ms": None}
    assert (answer.status_code, answer.json()["rate"]) == (200, 2.5)


@on_trio
async def test_a_pause_tells_who_and_why(client: httpx.AsyncClient) -> None:
    """This is shown with the queue from then on."""
    answer = await client.put("/v1/queues/a", json={"paused": True, "by": "ann", "why": "relay down"})
    assert [answer.json()[name] for name in ("paused", "paused_by", "paused_why")] == [True, "ann", "relay down"]
    assert (await client.get("/v1/queues/a")).json()["paused"]
    assert not (await client.put("/v1/queues/a", json={"paused": False})).json()["paused"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, None),
        ({"by": "ann"}, None),
        ({"pausd": True}, "pausd"),
        ({"paused": "yes"}, "paused"),
        ({"lease_ms": 1}, "lease_ms"),
        ({"retries": -1}, "retries"),
        ({"rate": "5"}, "rate"),
        ({"rate": -0.5}, "rate"),
        ({"rate": True}, "rate"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"on_dead": "panics"}, "on_dead"),
        ({"durability": 5}, "durability"),
        ({"paused": True, "why": "w" * 1_001}, "why"),
    ],
)
def test_a_bad_setting_is_refused_by_name(body: dict[str, Any], field: str | None) -> None:
    """Nothing is set."""

    @on_trio
    async def asked() -> None:
        async with world() as (service, client):
            check_problem(await client.put("/v1/queues/a", json=body), 400, code="bad_request", field=field)
            assert service.settings == {}

    asked()


# --- dead letters


@on_trio
async def test_dead_letters_are_listed_by_queue_and_error(service: FakeService, client: httpx.AsyncClient) -> None:
    """They are listed in pages or as a stream."""
    with_dead(service)
    page = (await client.get("/v1/dead", params={"queue": "a", "limit": 1})).json()
    assert [task["id"] for task in page["tasks"]] == [DEAD[0].hex()] and page["after"] == DEAD[0].hex()
    rest = (await client.get("/v1/dead", params={"queue": "a", "after": page["after"]})).json()
    assert ([task["error"] for task in rest["tasks"]], rest["after"]) == (["no user"], None)
    host = (await client.get("/v1/dead", params={"where": "host"})).json()["tasks"]
    assert [task["queue"] for task in host] == ["a", "b"]
    lines = (await client.get("/v1/dead", headers={"accept": "application/x-ndjson"})).text.splitlines()
    assert len(lines) == 3


@on_trio
async def test_dead_letters_are_requeued_by_a_filter(service: FakeService, client: httpx.AsyncClient) -> None:
    """The answer has their number."""
    with_dead(service)
    answer = await client.post("/v1/dead/requeue", json={"queue": "a", "where": "host"})
    assert answer.json() == {"count": 1}
    assert [service.tasks[one].state for one in DEAD] == ["ready", "failed", "failed"]
    assert (await client.post("/v1/dead/requeue", json={"all": True})).json() == {"count": 2}


@on_trio
async def test_dead_letters_are_discarded_by_id(service: FakeService, client: httpx.AsyncClient) -> None:
    """An id of another task does not affect the others."""
    with_dead(service)
    answer = (await client.post("/v1/dead/discard", json={"ids": [DEAD[0].hex(), ID.hex()]})).json()
    assert (answer["count"], [one["ok"] for one in answer["results"]]) == (1, [True, False])
    assert answer["results"][1]["code"] == "conflict"
    assert service.tasks[DEAD[0]].state == "cancelled"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "ids"),
        ({"all": False}, "ids"),
        ({"ids": []}, "ids"),
        ({"ids": ["zz"]}, "ids[0]"),
        ({"ids": [ID.hex()], "queue": "a"}, "ids"),
        ({"where": ""}, "where"),
        ({"wher": "x"}, "wher"),
    ],
)
def test_it_must_be_clear_which_dead_letters_are_meant(body: dict[str, Any], field: str) -> None:
    """Otherwise nothing is done."""

    @on_trio
    async def asked() -> None:
        async with world() as (service, client):
            for verb in ("requeue", "discard"):
                check_problem(await client.post(f"/v1/dead/{verb}", json=body), 400, code="bad_request", field=field)
                assert service.asked(f"dead.{verb}") == []

    asked()


# --- periodic tasks


@on_trio
async def test_a_periodic_task_is_set_shown_paused_and_ended(service: FakeService, client: httpx.AsyncClient) -> None:
    """Its data may be any JSON, and no limit of retries is null."""
    said = {"queue": "a", "schedule": "*/5 * * * *", "zone": "Europe/Berlin", "data": [1], "missed": "all"}
    said |= {"retries": None, "backoff_ms": 5_000, "expires_after_ms": 60_000}
    made = (await client.put("/v1/periodic/p", json=said)).json()
    assert said.items() <= made.items()
    assert service.asked("periodic.set")[0]["data"] == b"[1]"
    assert service.asked("periodic.set")[0]["retries"] is None
    assert (await client.get("/v1/periodic/p")).json() == made
    assert (await client.get("/v1/periodic")).json() == {"periodic": [made]}
    assert (await client.put("/v1/periodic/p", json={"paused": True})).json() == {**made, "paused": True}
    assert service.asked("periodic.set")[1] == {"name": "p", "paused": True}
    assert (await client.delete("/v1/periodic/p")).status_code == 204
    check_problem(await client.get("/v1/periodic/p"), 404, code="not_found", field="name")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "queue"),
        ({"queue": "a"}, "schedule"),
        ({"schedule": "every 5s"}, "queue"),
        ({"queue": "a", "schedule": "every 5s", "missed": "some"}, "missed"),
        ({"queue": "a", "schedule": "every 5s", "retries": -1}, "retries"),
        ({"queue": "a", "schedule": "every 5s", "data": 1, "data_base64": ""}, "data"),
        ({"queue": "a", "schedule": "every 5s", "zome": "UTC"}, "zome"),
    ],
)
def test_a_bad_periodic_task_is_refused_by_field(body: dict[str, Any], field: str) -> None:
    """Nothing is set."""

    @on_trio
    async def asked() -> None:
        async with world() as (service, client):
            check_problem(await client.put("/v1/periodic/p", json=body), 400, code="bad_request", field=field)
            assert service.periodic == {}

    asked()
