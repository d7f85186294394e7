"""OnyxQ's own queues: only the operations that own one write to it, whatever else a caller may do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onyxq.access.grants import Access, Token
from onyxq.client import Client, Step
from onyxq.core.facts import pack_task, unpack_task
from onyxq.core.limits import FLOW_JOINS_QUEUE, FLOWS_QUEUE, REQUESTS_QUEUE, TIMERS_QUEUE
from onyxq.errors import BadRequest, OnyxqError
from onyxq.interfaces.cli.main import run
from onyxq.operations.table.everything import BY_NAME
from tests.interfaces.live_world import Live, running

RESERVED = (TIMERS_QUEUE, FLOWS_QUEUE, FLOW_JOINS_QUEUE, REQUESTS_QUEUE, "onyxq.", "onyxq.later")
PRODUCER, ADMIN = "a token that may write to our queues", "a token that may do everything"
ACCESS = Access(
    (Token.of(PRODUCER, "producer", ["produce:onyxq.", "operate:onyxq."]), Token.of(ADMIN, "admin", ["admin"])),
    "what the peers share",
)
MAKE_NO_TASK = {"queue.set", "queue.purge", "claim", "dead.requeue", "dead.discard"}
"""Operations on a queue that is there, which add no task of the caller's to it."""


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A node that asks for credentials."""
    with running(http=True, access=ACCESS) as cluster:
        found = Live(cluster, ADMIN)
        yield found
        found.close()


@pytest.fixture(params=(PRODUCER, ADMIN), ids=("producer", "admin"))
def client(live: Live, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client that may write to these queues."""
    with Client(live.address, token=request.param) as found:
        yield found


def renamed(value: Any, queue: str) -> Any:
    """Return arguments with this queue in the place of each queue."""
    if isinstance(value, dict):
        return {name: queue if name == "queue" else renamed(one, queue) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [renamed(one, queue) for one in value]
    if isinstance(value, bytes) and len(value) > 20 and b"queue" in value:
        run = unpack_task(value)
        return pack_task({**run.header, "queue": queue}, run.all_payloads())
    return value


WRITES = sorted(
    name
    for name, one in BY_NAME.items()
    if not one.reads and name not in MAKE_NO_TASK and renamed(one.example, "x") != renamed(one.example, "y")
)


def test_operations_that_write_to_queues_are_those_that_are_known() -> None:
    """An operation that is new in the table is tested here too."""
    assert {"enqueue", "flow.make", "transact", "periodic.set", "jobs.prepare"} == {*WRITES}


@pytest.mark.parametrize("queue", RESERVED)
@pytest.mark.parametrize("operation", WRITES)
def test_each_operation_that_writes_refuses_them_by_name(client: Client, operation: str, queue: str) -> None:
    """Whatever the caller's roles. Nothing is stored."""
    args = renamed(BY_NAME[operation].example, queue)
    args.pop("complete", None)  # of tasks that do not exist
    with pytest.raises(OnyxqError) as refused:
        client.call(operation, args)
    if client.count(queue).get(queue, {}).get("total"):
        pytest.fail(f"{operation} stored a task")
    forbidden = operation == "jobs.prepare" and refused.value.code == "forbidden"
    assert forbidden or (refused.value.code == "bad_request" and str(refused.value.field).endswith("queue"))


def test_clients_refuse_them_before_they_send_anything(live: Live) -> None:
    """Single tasks, many, transactions, steps and the rows of an outbox."""
    with Client(live.address, token=ADMIN) as client:
        for call in (
            lambda: client.enqueue(FLOWS_QUEUE, b"x"),
            lambda: client.enqueue_many(TIMERS_QUEUE, [b"x"] * 3),
            lambda: client.transaction().__enter__().enqueue(TIMERS_QUEUE, b"x"),
            lambda: Step(TIMERS_QUEUE),
        ):
            with pytest.raises(BadRequest) as refused:
                call()
            assert refused.value.field == "queue"


def test_http_and_the_command_line_refuse_them(
    live: Live, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the place of the queue in the request."""
    (tmp_path / "flow.json").write_text(json.dumps({"tasks": [{"queue": FLOWS_QUEUE}]}))
    for body, path in (
        ({"tasks": [{"queue": "mail"}, {"queue": TIMERS_QUEUE}]}, "/v1/tasks"),
        ({"tasks": [{"queue": "mail"}, {"queue": TIMERS_QUEUE}]}, "/v1/flows"),
    ):
        answer = live.http.post(path, json=body)
        assert (answer.status_code, answer.json()["field"]) == (400, "tasks[1].queue")
    answer = live.http.post("/v1/flows", json={"tasks": [{"queue": "mail"}], "on_done": {"queue": FLOWS_QUEUE}})
    assert (answer.status_code, answer.json()["field"]) == (400, "on_done.queue")
    answer = live.http.post("/v1/transactions", json={"enqueue": [{"queue": TIMERS_QUEUE}]})
    assert (answer.status_code, answer.json()["field"]) == (400, "enqueue[0].queue")
    monkeypatch.setenv("ONYXQ_TOKEN", ADMIN)
    for typed in (["task", "enqueue", TIMERS_QUEUE], ["flow", "make", str(tmp_path / "flow.json")]):
        assert run([*typed, "--connect", live.address]) == 2
        assert "queue" in capsys.readouterr().err.splitlines()[0]
    assert live.http.get("/v1/tasks?queue=mail").json()["tasks"] == []


def test_the_operations_that_own_them_still_write_to_them(live: Live) -> None:
    """A timer that failed is retried too."""
    with Client(live.address, token=ADMIN) as client:
        client.set_timer("ours", 3_600_000, "http://8.8.8.8/")
        client.make_flow(client.chain(("mail", b"x")))
        assert client.count(TIMERS_QUEUE)[TIMERS_QUEUE]["total"] == 1
        assert client.count(FLOWS_QUEUE)[FLOWS_QUEUE]["total"] == 1
        assert client.requeue_dead(queue=TIMERS_QUEUE) == 0
