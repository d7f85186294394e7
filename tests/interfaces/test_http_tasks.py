"""Ids and tasks over HTTP: stored tasks of a request, and answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import anyio
import httpx

from onyxq.core.facts import unpack_task
from onyxq.core.ids import make_id, ms_of, offset_of, partition_of, with_counter
from onyxq.core.limits import RUN_BYTES_MAX
from onyxq.errors import Overloaded, Unavailable, Unknown
from onyxq.interfaces.http.app import create_app
from onyxq.operations.admission import Admission
from tests.interfaces.http_world import NOW_MS, FakeService, check_problem, client_of, on_trio

NDJSON = {"accept": "application/x-ndjson"}


async def enqueue(client: httpx.AsyncClient, *tasks: object, **extra: object) -> list[str]:
    """Enqueue tasks and return their ids."""
    answer = await client.post("/v1/tasks", json={"tasks": tasks, **extra})
    assert answer.status_code == 201, answer.text
    ids: list[str] = answer.json()["ids"]
    return ids


@on_trio
async def test_a_task_comes_back_as_it_was_put_in(client: httpx.AsyncClient) -> None:
    """JSON data, priority and queue are unchanged after they were stored."""
    data = {"to": "ä@example.org", "n": [1, -2.5, None, True, 10**30], "half": "\ud800"}
    body = json.dumps({"tasks": [{"queue": "mail", "data": data, "priority": -3}]})
    answer = await client.post("/v1/tasks", content=body)
    assert answer.status_code == 201
    assert answer.json()["acks"] == 2
    task = (await client.get(f"/v1/tasks/{answer.json()['ids'][0]}")).json()
    assert (task["queue"], task["priority"], task["state"]) == ("mail", -3, "ready")
    assert task["data"] == data
    assert task["depends"] == []
    assert task["at_ms"] == NOW_MS


@on_trio
async def test_data_is_stored_as_compact_utf8_json(service: FakeService, client: httpx.AsyncClient) -> None:
    """The payload's bytes are what a worker in any language can decode."""
    await enqueue(client, {"queue": "q", "data": {"b": [1, "ü"], "a": None}})
    (run,) = service.asked("enqueue")[0]["runs"]
    decoded = unpack_task(run[1])
    assert decoded.payload(0) == '{"b":[1,"ü"],"a":null}'.encode()
    assert decoded.header == {"format": "json", "queue": "q"}


@on_trio
async def test_bytes_travel_as_base64(service: FakeService, client: httpx.AsyncClient) -> None:
    """data_base64 is stored as bytes and comes back as data_base64."""
    (task_id,) = await enqueue(client, {"queue": "q", "data_base64": base64.b64encode(b"\x00\xff5").decode()})
    assert service.tasks[bytes.fromhex(task_id)].data == b"\x00\xff5"
    assert service.tasks[bytes.fromhex(task_id)].header == {"queue": "q"}
    task = (await client.get(f"/v1/tasks/{task_id}")).json()
    assert base64.b64decode(task["data_base64"]) == b"\x00\xff5"
    assert "data" not in task


@on_trio
async def test_bytes_that_look_like_json_stay_bytes(client: httpx.AsyncClient) -> None:
    """The stored format decides, not the contents."""
    (task_id,) = await enqueue(client, {"queue": "q", "data_base64": base64.b64encode(b"5").decode()})
    assert (await client.get(f"/v1/tasks/{task_id}")).json()["data_base64"] == "NQ=="


@on_trio
async def test_stored_json_that_is_none_is_shown_as_base64(service: FakeService, client: httpx.AsyncClient) -> None:
    """A row with a wrong format must not break an answer's JSON."""
    (task_id,) = await enqueue(client, {"queue": "q", "data": 1})
    for bad in (b"NaN", b"{", b"\xff", b"[" * 100_000):
        service.tasks[bytes.fromhex(task_id)].data = bad
        task = (await client.get(f"/v1/tasks/{task_id}")).json()
        assert base64.b64decode(task["data_base64"]) == bad


@on_trio
async def test_consecutive_tasks_of_a_kind_are_one_run(service: FakeService, client: httpx.AsyncClient) -> None:
    """Equal tasks are sent together; a change of priority or delay starts another run."""
    tasks = [{"queue": "a", "data": n} for n in range(3)]
    tasks += [{"queue": "a", "data": 3, "priority": 1}, {"queue": "a", "data": 4, "priority": 1, "delay_ms": 5}]
    ids = await enqueue(client, *tasks)
    runs = service.asked("enqueue")[0]["runs"]
    assert [unpack_task(body).count for _, body in runs] == [3, 1, 1]
    assert [service.tasks[bytes.fromhex(task_id)].data for task_id in ids] == [b"0", b"1", b"2", b"3", b"4"]


@on_trio
async def test_runs_stay_within_their_limits(service: FakeService, client: httpx.AsyncClient) -> None:
    """At most 1,024 tasks and 256 KiB a run, unless one task alone is larger."""
    await enqueue(client, *[{"queue": "a"} for _ in range(2_500)])
    big = "x" * (RUN_BYTES_MAX // 2)
    await enqueue(client, *[{"queue": "a", "data": big} for _ in range(2)], {"queue": "a", "data": big * 3})
    first, second = service.asked("enqueue")
    assert [unpack_task(body).count for _, body in first["runs"]] == [1024, 1024, 452]
    assert all(offset_of(run) == 0 for run, _ in first["runs"][:2])
    assert [unpack_task(body).count for _, body in second["runs"]] == [1, 1, 1]


@on_trio
async def test_ids_of_the_client_are_kept_and_grouped(service: FakeService, client: httpx.AsyncClient) -> None:
    """Consecutive ids in order form one run, cut where a stretch ends."""
    start = make_id(NOW_MS, 5, 77, 1_022)
    ids = [with_counter(start, 1_022 + n) for n in (0, 1, 2, 3)] + [with_counter(start, 5_000)]
    answered = await enqueue(client, *[{"id": one.hex().upper(), "queue": "a"} for one in ids])
    assert answered == [one.hex() for one in ids]
    runs = service.asked("enqueue")[0]["runs"]
    assert [(first, unpack_task(body).count) for first, body in runs] == [(ids[0], 2), (ids[2], 2), (ids[4], 1)]


@on_trio
async def test_a_delay_becomes_part_of_the_id(client: httpx.AsyncClient) -> None:
    """delay_ms and at_ms make ids that are due then."""
    ids = await enqueue(client, {"queue": "a", "delay_ms": 60_000}, {"queue": "a", "at_ms": NOW_MS + 5}, {"queue": "a"})
    assert [ms_of(bytes.fromhex(one)) - NOW_MS for one in ids] == [60_000, 5, 0]
    assert (await client.get(f"/v1/tasks/{ids[0]}")).json()["state"] == "scheduled"


@on_trio
async def test_a_due_time_just_past_means_now(client: httpx.AsyncClient) -> None:
    """Ten seconds in the past are accepted, more is refused by name."""
    (task_id,) = await enqueue(client, {"queue": "a", "at_ms": NOW_MS - 10_000})
    assert ms_of(bytes.fromhex(task_id)) == NOW_MS
    answer = await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}, {"queue": "a", "at_ms": NOW_MS - 10_001}]})
    check_problem(answer, 400, code="bad_request", field="tasks[1].at_ms")


@on_trio
async def test_an_id_and_a_due_time_must_agree(client: httpx.AsyncClient) -> None:
    """An id holds its due time; ids for later come from /v1/ids with at_ms."""
    later = NOW_MS + 60_000
    made = (await client.get(f"/v1/ids?count=1&at_ms={later}")).json()["ids"][0]
    assert await enqueue(client, {"id": made, "queue": "a", "at_ms": later}) == [made]
    now = (await client.get("/v1/ids")).json()["ids"][0]
    answer = await client.post("/v1/tasks", json={"tasks": [{"id": now, "queue": "a", "delay_ms": 5_000}]})
    check_problem(answer, 400, code="bad_request", field="tasks[0].delay_ms")


@on_trio
async def test_the_header_holds_only_what_is_not_default(service: FakeService, client: httpx.AsyncClient) -> None:
    """retries null means no limit; defaults and settings left to the queue are not stored."""
    await enqueue(client, {"queue": "a", "priority": 0, "depends": [], "on_dependency_failed": "fail"})
    await enqueue(client, {"queue": "a", "retries": None, "backoff_ms": 5, "unique_key": None})
    headers = [unpack_task(args["runs"][0][1]).header for args in service.asked("enqueue")]
    assert headers[0] == {"format": "json", "queue": "a"}
    assert headers[1] == {"backoff_ms": 5, "format": "json", "queue": "a", "retries": None}


@on_trio
async def test_w_is_passed_on(service: FakeService, client: httpx.AsyncClient) -> None:
    """The answer has the lowest number of copies of any task."""
    answer = await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}], "w": 3})
    assert answer.json()["acks"] == 3
    assert service.asked("enqueue")[0]["w"] == 3


@on_trio
async def test_too_few_copies_are_a_problem_that_counts_them(service: FakeService, client: httpx.AsyncClient) -> None:
    """The answer is 503 `unknown` with every id and the lowest number of copies: the tasks may be stored."""
    ids = [make_id(NOW_MS, partition, 1, 0).hex() for partition in (1, 2, 3)]
    for partition, copies in ((2, 2), (3, 1)):
        details = [[make_id(NOW_MS, partition, 1, 0), 1, copies]]
        service.refused_partitions[partition] = Unknown("too few of the 3 nodes have it", details=details)
    body = {"tasks": [{"id": one, "queue": "a"} for one in ids], "w": 3}
    problem = check_problem(await client.post("/v1/tasks", json=body), 503, code="unknown")
    assert (problem["ids"], problem["stored"], problem["copies"]) == (ids, [True, None, None], 1)


@on_trio
async def test_new_tasks_go_to_partitions_with_a_leader(service: FakeService, client: httpx.AsyncClient) -> None:
    """A partition without leader, or one that just failed, gets no new tasks for a while."""
    service.led = [4, 9]
    ids = [await enqueue(client, {"queue": "a"}) for _ in range(4)]
    assert {partition_of(bytes.fromhex(one)) for (one,) in ids} == {4, 9}
    service.refused_partitions = {4: Unavailable("no quorum")}
    answers = [await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}]}) for _ in range(5)]
    assert sorted(answer.status_code for answer in answers) == [201, 201, 201, 201, 503]


@on_trio
async def test_many_runs_are_sent_in_parts(service: FakeService, client: httpx.AsyncClient) -> None:
    """A failure in the middle still reports what is stored."""
    tasks = [{"queue": "a", "priority": n % 2} for n in range(5_500)]
    enqueue_all = service._enqueue

    def once(args: dict[str, Any]) -> dict[str, Any]:
        if len(service.asked("enqueue")) > 1:
            raise Unavailable("no quorum any more")
        return enqueue_all(args)

    service._enqueue = once  # type: ignore[method-assign]
    problem = check_problem(await client.post("/v1/tasks", json={"tasks": tasks}), 503, code="unavailable")
    assert problem["stored"] == [True] * 5_000 + [False] * 500
    assert [bytes.fromhex(one) in service.tasks for one in problem["ids"]] == problem["stored"]


@on_trio
async def test_a_failed_run_names_every_task(service: FakeService, client: httpx.AsyncClient) -> None:
    """After a partial failure the error has the ids and what is stored, so a repeat is safe."""
    ids = [make_id(NOW_MS, partition, 1, 0).hex() for partition in (1, 2)]
    service.refused_partitions = {2: Unavailable("partition 2 has no leader")}
    body = {"tasks": [{"id": one, "queue": "a"} for one in ids]}
    answer = await client.post("/v1/tasks", json=body)
    problem = check_problem(answer, 503, code="unavailable")
    assert answer.headers["retry-after"] == "1"
    assert (problem["ids"], problem["stored"]) == (ids, [True, False])
    service.refused_partitions = {}
    assert (await client.post("/v1/tasks", json=body)).json()["ids"] == ids


@on_trio
async def test_overload_says_when_to_try_again(service: FakeService, client: httpx.AsyncClient) -> None:
    """429 comes with Retry-After."""
    service.broken["enqueue"] = Overloaded("the queue of writes is full")
    answer = await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}]})
    check_problem(answer, 429, code="overloaded")
    assert int(answer.headers["retry-after"]) >= 1


@on_trio
async def test_a_full_queue_of_writes_is_told_before_the_body_is_looked_at() -> None:
    """The answer is 429 with the queue's pause; reads and small writes are answered, and nothing was stored."""
    service = FakeService()
    admission = Admission(lambda: 0.0)
    app = create_app(service, admission=admission, now_ms=lambda: NOW_MS, random_64=lambda: 42)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        with admission.admitted("flood", 1 << 26):
            for content in (json.dumps({"tasks": [{"queue": "a", "data": "x" * 100_000}]}), "{" * 100_000):
                answer = await client.post("/v1/tasks", content=content)
                check_problem(answer, 429, code="overloaded")
                assert int(answer.headers["retry-after"]) >= 4
            assert not service.tasks
            assert (await client.get("/v1/queues")).status_code == 200
        assert (await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}]})).status_code == 201
    assert admission.bytes == 0


# --- idempotency --------------------------------------------------------------


@on_trio
async def test_a_repeat_with_the_same_key_is_the_same_tasks(service: FakeService, client: httpx.AsyncClient) -> None:
    """This holds later too, and for delayed tasks: nothing is stored twice."""
    body = {"tasks": [{"queue": "a"}, {"queue": "a", "delay_ms": 1_000}, {"queue": "b"}]}
    headers = {"idempotency-key": "order-77"}
    first = (await client.post("/v1/tasks", json=body, headers=headers)).json()["ids"]
    service.now_ms += 3_600_000
    second = (await client.post("/v1/tasks", json=body, headers=headers)).json()["ids"]
    assert first == second
    assert len(service.tasks) == len(set(first)) == 3
    other = (await client.post("/v1/tasks", json=body, headers={"idempotency-key": "order-78"})).json()["ids"]
    assert not set(first) & set(other)


@on_trio
async def test_the_same_request_twice_at_a_time_is_the_same_tasks(
    service: FakeService, client: httpx.AsyncClient
) -> None:
    """A client that repeats after its timeout does not race with itself."""
    body = {"tasks": [{"queue": "a", "priority": n % 2, "delay_ms": 5} for n in range(1_200)]}
    ids: list[list[str]] = []

    async def send() -> None:
        answer = await client.post("/v1/tasks", json=body, headers={"idempotency-key": "k"})
        ids.append(answer.json()["ids"])
        service.now_ms += 1

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(send)
    assert ids == [ids[0]] * 4
    assert len(service.tasks) == 1_200


@on_trio
async def test_a_repeat_after_a_failure_uses_the_same_ids(service: FakeService, client: httpx.AsyncClient) -> None:
    """The partitions of the first request are kept, whatever happened to their leaders."""
    body, headers = {"tasks": [{"queue": "a"}]}, {"idempotency-key": "k"}
    service.broken["enqueue"] = Unavailable("the outcome is not known")
    check_problem(await client.post("/v1/tasks", json=body, headers=headers), 503, code="unavailable")
    service.broken.clear()
    service.led = [0]
    await client.post("/v1/tasks", json=body, headers=headers)
    tried, stored = service.asked("enqueue")
    assert tried == stored


@on_trio
async def test_a_key_with_another_body_is_a_conflict(service: FakeService, client: httpx.AsyncClient) -> None:
    """Nothing is stored; a refused request does not use up its key."""
    headers = {"idempotency-key": "k"}
    bad = await client.post("/v1/tasks", json={"tasks": [{"queue": "a", "at_ms": 1}]}, headers=headers)
    check_problem(bad, 400, code="bad_request", field="tasks[0].at_ms")
    assert (await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}]}, headers=headers)).status_code == 201
    again = await client.post("/v1/tasks", json={"tasks": [{"queue": "b"}]}, headers=headers)
    check_problem(again, 409, code="conflict", field="Idempotency-Key")
    assert len(service.tasks) == 1


@on_trio
async def test_an_unusable_key_is_refused(client: httpx.AsyncClient) -> None:
    """Empty or overlong keys are named."""
    for key in ("", "k" * 256):
        answer = await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}]}, headers={"idempotency-key": key})
        check_problem(answer, 400, code="bad_request", field="Idempotency-Key")


@on_trio
async def test_a_repeat_of_tasks_whose_time_has_passed_is_the_same_tasks(
    service: FakeService, client: httpx.AsyncClient
) -> None:
    """A request is judged by the time of its first arrival."""
    body, headers = {"tasks": [{"queue": "a", "at_ms": NOW_MS - 1}]}, {"idempotency-key": "k"}
    first = (await client.post("/v1/tasks", json=body, headers=headers)).json()
    service.now_ms += 3_600_000
    assert (await client.post("/v1/tasks", json=body, headers=headers)).json() == first


# --- reading ------------------------------------------------------------------


@on_trio
async def test_ids_are_fresh(client: httpx.AsyncClient) -> None:
    """They are as many as requested, all different."""
    ids = (await client.get("/v1/ids?count=2000")).json()["ids"]
    later = (await client.get("/v1/ids?count=2000&delay_ms=7")).json()["ids"]
    assert len(set(ids) | set(later)) == 4_000
    assert {ms_of(bytes.fromhex(one)) for one in later} == {NOW_MS + 7}


@on_trio
async def test_what_was_seen_is_passed_to_the_read(service: FakeService, client: httpx.AsyncClient) -> None:
    """seen_token and seen_seq go to the node."""
    (task_id,) = await enqueue(client, {"queue": "a"})
    await client.get(f"/v1/tasks/{task_id}?seen_token=5&seen_seq=2")
    (args,) = service.asked("get")
    assert (args["seen_token"], args["seen_seq"]) == (5, 2)


@on_trio
async def test_an_unknown_task_is_not_found(client: httpx.AsyncClient) -> None:
    """404 as a problem, for the task, its log and its cancellation."""
    missing = make_id(NOW_MS, 1, 1, 1).hex()
    check_problem(await client.get(f"/v1/tasks/{missing}"), 404, code="not_found", field="id")
    check_problem(await client.get(f"/v1/tasks/{missing}/log"), 404, code="not_found", field="id")
    check_problem(await client.delete(f"/v1/tasks/{missing}"), 404, code="not_found")


@on_trio
async def test_a_task_can_be_cancelled_and_cancelled_again(service: FakeService, client: httpx.AsyncClient) -> None:
    """The answer is 204 without a body each time; for a task that finished otherwise it is 409."""
    (task_id,) = await enqueue(client, {"queue": "a"})
    for _ in range(2):
        answer = await client.delete(f"/v1/tasks/{task_id}")
        assert (answer.status_code, answer.content) == (204, b"")
        assert (await client.get(f"/v1/tasks/{task_id}")).json()["state"] == "cancelled"
    (done,) = await enqueue(client, {"queue": "a"})
    service.tasks[bytes.fromhex(done)].state = "completed"
    check_problem(await client.delete(f"/v1/tasks/{done}"), 409, code="conflict")


@on_trio
async def test_a_list_is_paged_in_the_order_of_ids(client: httpx.AsyncClient) -> None:
    """after and limit page through all tasks; filters apply."""
    ids = await enqueue(client, *[{"queue": "a"} for _ in range(5)])
    await enqueue(client, {"queue": "b"})
    first = (await client.get("/v1/tasks?queue=a&limit=3")).json()
    rest = (await client.get(f"/v1/tasks?queue=a&limit=3&after={first['after']}")).json()
    assert [task["id"] for task in first["tasks"] + rest["tasks"]] == sorted(ids)
    assert rest["after"] is None
    assert (await client.get("/v1/tasks?state=completed")).json() == {"tasks": [], "after": None}


@on_trio
async def test_a_stream_has_one_task_a_line(service: FakeService, client: httpx.AsyncClient) -> None:
    """All pages follow each other; data with line breaks stays in its line."""
    ids = await enqueue(client, *[{"queue": "a"} for _ in range(2_300)])
    service.tasks[bytes.fromhex(ids[0])].data = b'{\n "a":\r\n 1}'
    answer = await client.get("/v1/tasks?queue=a", headers=NDJSON)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["id"] for line in lines] == sorted(ids)
    assert lines[0]["data"] == {"a": 1}
    assert len(service.asked("list")) == 3


@on_trio
async def test_a_stream_can_be_limited(client: httpx.AsyncClient) -> None:
    """The limit is the number of lines, whether a page could have them or not."""
    await enqueue(client, *[{"queue": "a"} for _ in range(1_500)])
    for limit in (5, 1_000, 1_200):
        answer = await client.get(f"/v1/tasks?limit={limit}", headers=NDJSON)
        assert len(answer.text.splitlines()) == limit
    check_problem(await client.get("/v1/tasks?limit=0", headers=NDJSON), 400, code="bad_request", field="limit")


@on_trio
async def test_a_stream_that_fails_at_once_is_a_problem(service: FakeService, client: httpx.AsyncClient) -> None:
    """The first page is read before the answer begins."""
    service.broken["list"] = Unavailable("no leader")
    check_problem(await client.get("/v1/tasks", headers=NDJSON), 503, code="unavailable")


@on_trio
async def test_keys_of_different_tokens_do_not_meet() -> None:
    """Two users may use the same Idempotency-Key."""
    service = FakeService()
    tokens = {"one": "write", "two": "write"}
    async with client_of(service, tokens=tokens) as client:
        ids = []
        for token in tokens:
            headers = {"idempotency-key": "k", "authorization": f"Bearer {token}"}
            answer = await client.post("/v1/tasks", json={"tasks": [{"queue": token}]}, headers=headers)
            ids += answer.json()["ids"]
        assert len(set(ids)) == 2
