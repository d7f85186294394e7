"""Flows with an id, from a user's view, on a real cluster: one state, one end, one cancel."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

import onyxq
from onyxq import AsyncClient, Client, Step
from onyxq.client import FlowHandle
from onyxq.core.facts import pack_task, unpack_task
from onyxq.core.task_headers import FLOW
from onyxq.errors import AlreadyFinished, BadRequest, Conflict, NotFound, TimedOut
from onyxq.interfaces.cli.main import run
from onyxq.operations.flow.plan import planned
from onyxq.operations.table.flow import MAKE_FLOW
from tests.interfaces.live_world import Live

WAIT_MS = 10_000


def work(client: Client, queue: str) -> bytes:
    """Complete the next task of a queue and return its data."""
    (claim,) = client.claim(queue, wait_ms=WAIT_MS)
    client.complete(claim, claim.data)
    return claim.data


def diamond(client: Client, queue: str, **options: Any) -> FlowHandle:
    """Make a flow of a task, two after it, and one after both."""
    parts = client.group((queue, b"b"), (queue, b"c"))
    return client.make_flow(client.chain((queue, b"a"), parts, (queue, b"d")), **options)


def test_a_flow_is_waiting_then_running_then_completed(client: Client, queue: str) -> None:
    """Its counts follow its tasks, and it ends once all of them have ended."""
    flow = diamond(client, queue, name="diamond")
    assert (flow.state(), len(flow.ids)) == ("waiting", 4)
    assert client.flow(flow.id)["counts"] == {"ready": 1, "waiting": 3}
    assert work(client, queue) == b"a"
    assert flow.state() == "running"
    assert {work(client, queue), work(client, queue)} == {b"b", b"c"}
    with pytest.raises(TimedOut):
        flow.wait(50)
    assert work(client, queue) == b"d"
    found = flow.wait(WAIT_MS)
    assert (found["state"], found["counts"], found["name"]) == ("completed", {"completed": 4}, "diamond")
    assert found["finished_ms"] >= found["created_ms"]
    with pytest.raises(AlreadyFinished):
        flow.cancel()


def test_a_repeat_makes_nothing_twice_and_another_flow_needs_another_id(client: Client, queue: str) -> None:
    """The id names one flow; a repeat is answered like the first."""
    flow = client.chain((queue, b"a"), (queue, b"b"))
    first = client.make_flow(flow)
    assert client.make_flow(flow).ids == first.ids
    with Client(client._client._addresses[0]) as other:
        assert other.make_flow(other.chain((queue, b"a"), (queue, b"b")), id=first.id).ids == first.ids
    assert client.count(queue)[queue]["waiting"] == 1
    with pytest.raises(Conflict) as refused:
        client.make_flow(client.chain((queue, b"a"), (queue, b"other")), id=first.id)
    assert refused.value.field == "id"
    assert sum(client.count(queue)[queue][state] for state in ("ready", "waiting")) == 2
    client.cancel_flow(first.id)


def test_the_id_of_a_task_is_refused_for_a_flow(client: Client, queue: str) -> None:
    """Nothing is stored: a flow without its record could neither be read nor cancelled."""
    task = client.enqueue(queue, b"x")
    with pytest.raises(Conflict) as caught:
        client.make_flow(client.chain((queue, b"y")), id=task)
    assert caught.value.field == "id"
    assert client.count(queue)[queue]["total"] == 1


def test_a_flow_that_was_stored_in_part_is_completed_by_a_repeat(live: Live, client: Client, queue: str) -> None:
    """Its first tasks exist, one is even completed, and there is no flow. A repeat adds what is missing."""
    tasks = [{"queue": queue, "data": b"a"}, {"queue": queue, "data": b"b", "after": [0]}]
    asked = MAKE_FLOW.decode({"id": client.make_ids(1)[0], "tasks": tasks})
    plan = planned(asked, asked.id, client.partition_count())
    first, run = plan.runs[0].id, unpack_task(plan.runs[0].body)
    body = pack_task({name: value for name, value in run.header.items() if name != FLOW}, run.all_payloads())
    assert live.wire.call("enqueue", {"runs": [[first, body]]})["acks"] == [1]
    assert work(client, queue) == b"a"
    with pytest.raises(NotFound):
        client.flow(asked.id)
    made = client.call("flow.make", {"id": asked.id, "tasks": tasks})
    assert made["ids"] == plan.ids
    assert client.flow(asked.id)["counts"] == {"completed": 1, "ready": 1}
    assert work(client, queue) == b"b"
    assert client.wait_flow(asked.id, WAIT_MS)["counts"] == {"completed": 2}


def test_a_flow_survives_a_restart(tmp_path: Path) -> None:
    """Its record and its tasks are on disk; it ends after the restart as it would have before."""
    with onyxq.open(tmp_path / "data") as client:
        flow = client.make_flow(client.chain(("q", b"a"), ("q", b"b")), name="kept")
        work(client, "q")
    with onyxq.open(tmp_path / "data") as client:
        again = client.flow_handle(flow.id)
        assert client.flow(flow.id)["name"] == "kept" and again.state() == "running"
        work(client, "q")
        assert again.wait(20_000)["counts"] == {"completed": 2}


def test_a_failed_step_fails_the_flow_after_all_others_have_ended(client: Client, queue: str) -> None:
    """The steps after it fail too, those beside it run, and the last task runs once after all."""
    parts = client.group(client.chain(Step(queue, b"bad", retries=0), (queue, b"never")), (queue, b"good"))
    flow = client.make_flow(parts, on_done=Step(queue, b"report"))
    claims = {claim.data: claim for claim in client.claim(queue, max=9, wait_ms=WAIT_MS)}
    assert claims.keys() == {b"bad", b"good"}
    client.fail(claims[b"bad"], "no")
    assert client.wait(flow.ids[1], WAIT_MS).state == "failed"
    assert flow.state() == "running"
    assert len(client.claim(queue, max=9, wait_ms=50)) == 0
    client.complete(claims[b"good"])
    assert work(client, queue) == b"report"
    found = flow.wait(WAIT_MS)
    assert (found["state"], found["counts"]) == ("failed", {"completed": 2, "failed": 2})
    assert len(client.claim(queue, max=9, wait_ms=50)) == 0


def test_a_flow_with_a_failed_and_a_cancelled_task_has_failed(client: Client, queue: str) -> None:
    """The failed task waits for a decision, so a failure counts more than a cancel."""
    flow = client.make_flow(client.group(Step(queue, b"bad", retries=0), (queue, b"unwanted")))
    client.cancel(flow.ids[1])
    (claim,) = client.claim(queue, wait_ms=WAIT_MS)
    client.fail(claim, "no")
    found = flow.wait(WAIT_MS)
    assert (found["state"], found["counts"]) == ("failed", {"cancelled": 1, "failed": 1})


@pytest.mark.long
def test_a_requeued_flow_runs_again_and_completes(client: Client, queue: str) -> None:
    """The failed task runs again, and so do the joins that wait for more tasks than one task may depend on."""
    flow = client.make_flow(client.group(*(Step(queue, b"%d" % number, retries=0) for number in range(101))))
    claims = client.claim(queue, max=101, wait_ms=WAIT_MS)
    client.fail(claims[:1], "no")
    client.complete(claims[1:])
    assert flow.wait(WAIT_MS)["counts"] == {"completed": 100, "failed": 1}
    assert flow.requeue()["counts"] == {"completed": 100, "ready": 1}
    assert flow.requeue()["state"] == "running", "a repeat changes nothing"
    work(client, queue)
    assert flow.wait(30_000)["state"] == "completed"
    with pytest.raises(Conflict, match="only failed flows"):
        flow.requeue()


def test_a_failed_last_task_is_requeued_after_the_others_have_ended(client: Client, queue: str) -> None:
    """Otherwise it would run before them. A flow that is cancelled is not requeued."""
    steps = client.group(Step(queue, b"bad", retries=0))
    flow = client.make_flow(steps, on_done=Step(queue, b"report", retries=0))
    for _ in range(2):
        (claim,) = client.claim(queue, wait_ms=WAIT_MS)
        client.fail(claim, "no")
    assert flow.wait(WAIT_MS)["counts"] == {"failed": 2}
    assert flow.requeue()["counts"] == {"failed": 1, "ready": 1}
    assert work(client, queue) == b"bad"
    assert flow.requeue()["counts"] == {"completed": 1, "ready": 1}
    assert work(client, queue) == b"report"
    cancelled = diamond(client, queue)
    cancelled.cancel()
    with pytest.raises(Conflict, match="is cancelled"):
        cancelled.requeue()


def test_a_cancelled_flow_starts_nothing_more(client: Client, queue: str) -> None:
    """Claimed tasks are cancelled too, and the last task does not run. A repeat is answered like the first."""
    flow = diamond(client, queue, on_done=(queue, b"report"))
    (claim,) = client.claim(queue, wait_ms=WAIT_MS)
    found = flow.cancel()
    assert (found["state"], found["counts"]) == ("cancelled", {"cancelled": 5})
    assert flow.cancel()["state"] == flow.wait(0)["state"] == "cancelled"
    with pytest.raises(Conflict):
        client.complete(claim)
    assert len(client.claim(queue, max=9, wait_ms=50)) == 0


def test_a_flow_of_thousands_of_tasks_ends_once(client: Client, queue: str) -> None:
    """It has more tasks than one task may depend on; joins between them are not among its tasks."""
    flow = client.make_flow(client.group(*((queue, b"%d" % one) for one in range(2_500))), on_done=(queue, b"report"))
    done = 0
    while done < 2_500:
        claims = client.claim(queue, max=1_000, wait_ms=WAIT_MS)
        assert b"report" not in [claim.data for claim in claims]
        client.complete(claims)
        done += len(claims)
    assert work(client, queue) == b"report"
    assert flow.wait(WAIT_MS)["counts"] == {"completed": 2_501}
    assert len(client.flow(flow.id, limit=3)["tasks"]) == 3


def test_flows_are_listed_by_state(client: Client, queue: str) -> None:
    """A page has the flows of one state; a task that is not the record of a flow is not found."""
    flow = diamond(client, queue, name="listed")
    task = client.enqueue(queue, json.dumps({"digest": "", "runs": [[flow.ids[0].hex(), 1, "q", []]]}).encode())
    assert flow.id in [one["id"] for one in client.flows("waiting")["flows"]]
    assert flow.id in [one["id"] for one in client.flows(newest_first=True)["flows"]]
    began_s = time.monotonic()
    for call in (client.flow, client.cancel_flow, client.wait_flow):
        with pytest.raises(NotFound):
            call(task)
    assert time.monotonic() - began_s < 10, "the wait is refused at once, not after its first 20 s"
    flow.cancel()
    assert flow.id in [one["id"] for one in client.flows("cancelled")["flows"]]
    assert flow.id not in [one["id"] for one in client.flows("waiting")["flows"]]


def test_an_asynchronous_client_has_the_same_handles(live: Live, queue: str) -> None:
    """On asyncio, and a handle of a flow that was made elsewhere."""

    async def play() -> None:
        async with AsyncClient(live.address) as client:
            flow = await client.make_flow(client.chain((queue, b"a")))
            (claim,) = await client.claim(queue, wait_ms=WAIT_MS)
            await client.complete(claim)
            again = client.flow_handle(flow.id)
            assert (await again.wait(timeout="10s"))["state"] == await again.state() == "completed"

    anyio.run(play)


@pytest.mark.parametrize(
    ("tasks", "field"),
    [
        ([], "tasks"),
        ([{"queue": ""}], "tasks[0].queue"),
        ([{"queue": "q", "after": [0]}], "tasks[0].after"),
        ([{"queue": "q"}, {"queue": "q", "after": [0, 0]}], "tasks[1].after"),
        ([{"queue": "q", "delay_ms": 1, "at_ms": 1}], "tasks[0].delay_ms"),
        ([{"queue": "q"}, {"queue": "q", "at_ms": 1}], "tasks[1].at_ms"),
        ([{"queue": "q", "unique_key": "u"}], "tasks[0].unique_key"),
    ],
)
def test_a_bad_flow_names_the_field(client: Client, tasks: list[dict[str, Any]], field: str) -> None:
    """Nothing of a flow is stored that a type refuses."""
    with pytest.raises(BadRequest) as refused:
        client.call("flow.make", {"tasks": tasks})
    assert refused.value.field == field


def test_http_makes_shows_waits_for_and_cancels_flows(live: Live, client: Client, queue: str) -> None:
    """With JSON data and places of earlier tasks."""
    body = {"name": "web", "tasks": [{"queue": queue, "data": {"page": 7}}, {"queue": queue, "after": [0]}]}
    answer = live.http.post("/v1/flows", json=body)
    assert answer.status_code == 201
    path = f"/v1/flows/{answer.json()['id']}"
    found = live.http.get(path).json()
    assert (found["state"], [one["after"] for one in found["tasks"]]) == ("waiting", [[], [0]])
    assert live.http.get(f"{path}/outcome?wait_ms=10").json()["state"] == "waiting"
    assert json.loads(work(client, queue)) == {"page": 7}
    assert live.http.delete(path).json()["counts"] == {"cancelled": 1, "completed": 1}
    listed = live.http.get("/v1/flows?state=cancelled").json()["flows"]
    assert found["id"] in [one["id"] for one in listed]


def test_the_command_line_makes_waits_for_and_lists_flows(
    live: Live, client: Client, queue: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code of ``wait`` says whether the flow is completed."""
    (tmp_path / "flow.json").write_text(json.dumps({"tasks": [{"queue": queue}]}))
    told = ["--connect", live.address, "--json"]
    assert run(["flow", "make", str(tmp_path / "flow.json"), "--name", "by hand", *told]) == 0
    made = json.loads(capsys.readouterr().out)
    assert run(["flow", "wait", made["id"], "--timeout", "10ms", *told]) == 6
    work(client, queue)
    assert run(["flow", "wait", made["id"], *told]) == 0
    capsys.readouterr()
    assert run(["flow", "list", "--state", "completed", *told]) == 0
    assert made["id"] in [one["id"] for one in json.loads(capsys.readouterr().out)["flows"]]
    assert run(["flow", "get", made["id"], *told]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"][0]["state"] == "completed"
    make = ["flow", "make", str(tmp_path / "flow.json"), *told]
    assert run([*make, "--on-done", json.dumps({"queue": queue, "priority": 3})]) == 0
    assert client.get(json.loads(capsys.readouterr().out)["on_done"]).priority == 3
    for bad in ("[]", "nightly", '{"queue": ""}'):
        assert run([*make, "--on-done", bad]) == 2
        assert "on_done" in capsys.readouterr().err.splitlines()[0].replace("-", "_")
    (tmp_path / "flow.json").write_text("[]")
    assert run(make) == 2
