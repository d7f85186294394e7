"""Every attempt of a task is kept and shown: by clients, HTTP, the command line and the dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from onyxq import App, Client
from onyxq.client.values import Task
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.local_cluster import LocalCluster
from tests.interfaces.live_world import ANSWER_S_MAX, PATIENCE_MS, running

CLAIMS_MAX = 50
TRACEBACK_BYTES_MAX = 4_096


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One node for all tests of this module."""
    with running(http=True) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of the node."""
    with Client(cluster.addresses) as client:
        yield client


@pytest.fixture(scope="module")
def flaky(cluster: LocalCluster) -> Task:
    """A task that failed twice and was completed then, by a worker."""
    app = App(cluster.addresses[0])

    @app.task(queue="flaky", name="ship", retries=5, backoff=(0.2,))
    def ship(order: str) -> str:
        left.pop()
        if left:
            raise ConnectionError(f"the depot is closed to {order}")
        return order

    left = ["first", "second", "third"]
    with app.background_worker(concurrency=1, name="anna"):
        task = ship.enqueue("order 8")
        task.result(timeout=60)
    with Client(cluster.addresses) as client:
        return client.get(task)


def http_of(cluster: LocalCluster) -> httpx.Client:
    """Return an HTTP client of the node."""
    return httpx.Client(base_url=f"http://{cluster.http_addresses[0]}", timeout=ANSWER_S_MAX, trust_env=False)


def shown(cluster: LocalCluster, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command prints."""
    assert run([*arguments, "--connect", cluster.addresses[0]]) == 0
    return capsys.readouterr().out


def told(claims: Any) -> list[tuple[Any, ...]]:
    """Return what a JSON answer says about each attempt."""
    return [(one["attempt"], one["worker"], one["outcome"], one["retry_ms"] is not None) for one in claims]


def attempt(client: Client, queue: str, end: Callable[[Any], None]) -> None:
    """Claim a task of a queue and end the claim."""
    (claim,) = client.claim([queue], wait_ms=PATIENCE_MS, worker="bert")
    end(claim)


ENDS = [(1, "anna", "failed", True), (2, "anna", "failed", True), (3, "anna", "completed", False)]


def test_a_client_gets_every_attempt_with_its_times_and_traceback(flaky: Task) -> None:
    """Numbers begin at 1, and the whole task has times too."""
    assert (flaky.state, flaky.attempts, flaky.attempts_max) == ("completed", 2, 6)
    assert told([one._asdict() for one in flaky.claims]) == ENDS
    for one in flaky.claims:
        assert one.end_ms is not None and one.duration_ms == one.end_ms - one.start_ms >= 0
    for one in flaky.claims[:2]:
        assert one.error == "ConnectionError: the depot is closed to order 8"
        assert one.traceback is not None and one.traceback.startswith("Traceback")
        assert 'raise ConnectionError(f"the depot is closed to {order}")' in one.traceback
    assert flaky.claims[2].traceback is None and flaky.claims[2].error is None
    assert flaky.started_ms == flaky.claims[0].start_ms and flaky.finished_ms == flaky.claims[2].end_ms
    assert flaky.created_ms is not None and flaky.started_ms is not None and flaky.finished_ms is not None
    assert flaky.created_ms <= flaky.started_ms and flaky.duration_ms == flaky.finished_ms - flaky.started_ms


def test_http_and_the_command_line_show_the_same_attempts(
    cluster: LocalCluster, flaky: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON; the text counts from 1 and does not repeat an equal traceback."""
    with http_of(cluster) as http:
        over_http = http.get(f"/v1/tasks/{flaky.id.hex()}").json()
    printed = json.loads(shown(cluster, capsys, "task", "get", flaky.id.hex(), "--json"))
    for found in (over_http, printed):
        assert told(found["claims"]) == ENDS
        assert [one["traceback"] for one in found["claims"]] == [one.traceback for one in flaky.claims]
        assert [found[name] for name in ("started_ms", "finished_ms")] == [flaky.started_ms, flaky.finished_ms]
    text = shown(cluster, capsys, "task", "get", flaky.id.hex())
    assert re.search(r"\nattempt +3 of 6\n", text) and "failed, retried" in text
    assert re.search(r"^finished  ", text, re.M) and not re.search(r"^due", text, re.M)
    assert text.count("raise ConnectionError") == 1 and "traceback of attempt 2 is the same" in text


def test_an_explanation_begins_with_a_sentence(
    cluster: LocalCluster, flaky: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the attempt, the worker and the duration."""
    lines = shown(cluster, capsys, "task", "explain", flaky.id.hex()).splitlines()
    assert lines[1].startswith("The task was completed in attempt 3 of 6 by worker anna, ")
    said = json.loads(shown(cluster, capsys, "task", "explain", flaky.id.hex(), "--json"))
    assert said["summary"] == lines[1]


def test_the_page_of_a_task_has_a_row_for_each_attempt(cluster: LocalCluster, flaky: Task) -> None:
    """With tracebacks that open."""
    with http_of(cluster) as http:
        text = http.get(f"/ui/tasks/{flaky.id.hex()}").text
    assert re.search(r"<dd>3 of 6\s*</dd>", text) and text.count("<strong>Attempt ") == 3
    assert text.count('<details id="attempt-') == 2 and text.count("raise ConnectionError") == 2


def test_an_expired_lease_and_a_snooze_are_attempts_too(
    cluster: LocalCluster, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """A snooze does not count, so the next attempt has the same number."""
    task_id = client.enqueue("slow", b"1", retries=5)
    client.claim(["slow"], wait_ms=PATIENCE_MS, lease_ms=1_000, worker="carl")
    attempt(client, "slow", lambda claim: client.postpone(claim, 100, "not open"))
    attempt(client, "slow", lambda claim: client.release(claim))
    attempt(client, "slow", lambda claim: client.fail(claim, "no luck", 3_600_000))
    found = client.get(task_id)
    assert told([one._asdict() for one in found.claims]) == [
        (1, "carl", "expired", False),
        (2, "bert", "released", True),
        (2, "bert", "released", False),
        (2, "bert", "failed", True),
    ]
    assert [one.error for one in found.claims] == [None, "not open", None, "no luck"]
    text = shown(cluster, capsys, "task", "get", task_id.hex())
    assert "lease expired" in text and "snoozed" in text and re.search(r"\nattempt +2 of 6\n", text)
    assert re.search(r"^due  ", text, re.M) and not re.search(
        r"^(result|unique key|finished|priority|updates)", text, re.M
    )
    assert "The task is scheduled" in shown(cluster, capsys, "task", "explain", task_id.hex())


def test_dead_letters_are_found_by_their_traceback(
    cluster: LocalCluster, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list has the last traceback of each task. A requeued task continues to count its attempts."""
    task_id = client.enqueue("dead", b"1", retries=3)
    attempt(client, "dead", lambda claim: client.fail(claim, "refused", 0, traceback="at line 4 of depot.py"))
    attempt(client, "dead", lambda claim: client.give_up(claim, "550", traceback="at line 7 of depot.py"))
    assert not client.dead(queue="dead", where="line 9").tasks
    for text in ("line 4", "line 7", "550"):
        (found,) = client.dead(queue="dead", where=text).tasks
        assert [one.traceback for one in found.claims] == [None, "at line 7 of depot.py"]
        assert [one.given_up for one in found.claims] == [False, True]
    assert "given up" in shown(cluster, capsys, "dead", "show", task_id.hex())
    with http_of(cluster) as http:
        assert "550" in http.get("/ui/dead?queue=dead", follow_redirects=True).text
        assert "at line 7 of depot.py" in http.get(f"/ui/tasks/{task_id.hex()}").text
    client.requeue_dead([task_id])
    lines = shown(cluster, capsys, "task", "explain", task_id.hex()).splitlines()
    assert lines[1].endswith("after attempt 2 of 6 by worker bert (given up): 550.")
    assert sum(": 550 (from store)" in line for line in lines) == 1, lines
    # The log may record the end of the claim after the requeue, as an entry that changes nothing.
    assert any("requeues it, due at" in line for line in lines[-2:]), lines
    attempt(client, "dead", client.complete)
    found = client.get(task_id)
    assert (found.attempts_max, [one.attempt for one in found.claims]) == (6, [1, 2, 3])
    assert [one.traceback for one in found.claims[:2]] == ["at line 4 of depot.py", "at line 7 of depot.py"]


def test_the_first_and_the_last_of_many_attempts_are_kept(client: Client) -> None:
    """Long tracebacks lose their middle; updates of the task are not affected."""
    task_id = client.enqueue("many", b"1", retries=None)

    def end(claim: Any) -> None:
        client.update(claim, b"half")
        client.fail(claim, "no", 0, traceback=f"attempt {claim.attempts + 1}" + "ü" * 10_000 + "end")

    for _ in range(CLAIMS_MAX + 5):
        attempt(client, "many", end)
    attempt(client, "many", lambda claim: client.complete(claim, b"done"))
    found = client.get(task_id)
    assert (found.claims_left_out, found.attempts_max, found.updates) == (6, None, CLAIMS_MAX + 5)
    assert [one.attempt for one in found.claims] == [*range(1, 11), *range(17, 57)]
    full = {one.attempt: one.traceback for one in found.claims if one.traceback}
    assert list(full) == [1, 2, 50, 51, 52, 53, 54, 55]
    for number, text in full.items():
        assert text.startswith(f"attempt {number}") and text.endswith("end")
        assert len(text.encode()) <= TRACEBACK_BYTES_MAX and "the middle of 20" in text
    assert len(client.task_log(task_id)) == CLAIMS_MAX + 5
