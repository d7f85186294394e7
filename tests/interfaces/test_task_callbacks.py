"""Callbacks of tasks at a real node: what a receiver on loopback gets, and what is refused."""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from onyxq import App
from onyxq.access.grants import Access, Token
from onyxq.client import Client, Step
from onyxq.core.ids import callback_of
from onyxq.core.limits import FLOWS_QUEUE, TIMERS_QUEUE
from onyxq.core.queue_settings import DEFAULTS
from onyxq.errors import BadRequest, Forbidden, NotFound
from onyxq.interfaces.cli.main import run
from tests.interfaces.live_world import Live, running

WAIT_S = 20.0
PRODUCER, BOTH = "a token for one queue", "a token for one queue and timers"
ACCESS = Access(
    (
        Token.of(PRODUCER, "producer", ["produce:mail", f"produce:{FLOWS_QUEUE}"]),
        Token.of(BOTH, "both", ["produce:mail", f"produce:{TIMERS_QUEUE}"]),
    ),
    "what the peers share",
)


class Receiver:
    """An HTTP server that keeps the bodies and keys of what it gets."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.refuse = 0
        """Number of further requests that are answered with 503."""
        self.came: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()

    def next(self) -> dict[str, Any]:
        """Return the body of the next callback."""
        return self.came.get(timeout=WAIT_S)[1]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            refused = receiver.refuse > 0
            receiver.refuse -= refused
            self.send_response(503 if refused else 200)
            self.end_headers()
            if not refused:
                receiver.came.put((self.headers["idempotency-key"], body))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}/ended")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def post(live: Live, receiver: Receiver, name: str, **task: Any) -> str:
    """Store a task with a callback over HTTP; return its id."""
    callback = {"transport": "http", "uri": receiver.uri, "method": "post"}
    answer = live.http.post("/v1/tasks", json={"tasks": [{"queue": name, "callback": callback, **task}]})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["ids"][0])


@pytest.mark.long
@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (b'{"sum": 3}', {"result": {"sum": 3}}),
        (b"\xff", {"result_base64": "/w=="}),
        (None, {"result": None}),
        (b"9" * 2_000_000, {"result": None, "result_bytes": 2_000_000}),
    ],
)
def test_the_result_of_a_completed_task_is_posted(
    live: Live, client: Client, result: bytes | None, shown: dict[str, Any]
) -> None:
    """It is sent as JSON if it is JSON, and of a long one only the number of bytes."""
    with receiving() as receiver:
        task_id = post(live, receiver, "sums", data=3)
        (claim,) = client.claim("sums", wait_ms=10_000)
        assert receiver.came.empty()
        client.complete(claim, result)
        said = receiver.next()
        assert said.pop("finished_ms") == client.get(task_id).finished_ms
        assert said == {"id": task_id, "queue": "sums", "state": "completed", "error": None, **shown}


def test_every_other_end_is_posted(live: Live, client: Client) -> None:
    """A task failed for good, expired, or was cancelled, even long before it was due."""
    with receiving() as receiver:
        failed = post(live, receiver, "ends", retries=0)
        (claim,) = client.claim("ends", wait_ms=10_000)
        client.fail(claim, "the printer is on fire")
        cancelled = post(live, receiver, "ends", delay_ms=86_400_000)
        client.cancel(cancelled)
        expired = post(live, receiver, "ends", expires_ms=client.now_ms() + 100)
        said = {one["id"]: (one["state"], one["error"]) for one in (receiver.next(), receiver.next(), receiver.next())}
        assert said[failed] == ("failed", "the printer is on fire")
        assert said[cancelled] == ("cancelled", None)
        assert said[expired][0] == "failed" and said[expired][1].startswith("expired: ")


def test_a_callback_that_fails_is_made_again_under_its_key(live: Live, client: Client) -> None:
    """It is a task of the timers' queue, with the retries of that queue."""
    with receiving() as receiver:
        receiver.refuse = 1
        task_id = post(live, receiver, "again")
        client.complete(client.claim("again", wait_ms=10_000))
        key, said = receiver.came.get(timeout=WAIT_S)
        assert said["id"] == task_id
        callback = client.get(key)
        assert (callback.queue, next(one.error for one in callback.claims)) == (TIMERS_QUEUE, "the answer was 503")


def test_a_task_shows_its_callback_and_the_state_of_its_delivery(
    live: Live, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits, fails, and is delivered: over the client, HTTP, the command line and on the dashboard's page."""
    with receiving() as receiver:
        task_id = client.enqueue("shown", b"x", callback=receiver.uri)
        client.enqueue("shown", b"y")
        seen = client.get(task_id).callback
        assert seen is not None and (seen.state, seen.uri, seen.attempts) == ("waiting", receiver.uri, 0)
        assert client.get(seen.task).queue == TIMERS_QUEUE
        receiver.refuse = 1
        client.complete(client.claim("shown", max=2, wait_ms=10_000))
        assert receiver.next()["id"] == task_id.hex()
        client.wait(seen.task)
        seen = client.get(task_id).callback
        assert seen is not None and (seen.state, seen.attempts, seen.at_ms) == ("delivered", 1, None)
        assert seen.error == "the answer was 503"
        assert seen.delivered_ms == client.get(seen.task).finished_ms
    over_http = live.http.get(f"/v1/tasks/{task_id.hex()}").json()["callback"]
    assert over_http == {**seen._asdict(), "task": seen.task.hex()}
    listed = live.http.get("/v1/tasks?queue=shown").json()["tasks"]
    assert [one["callback"] for one in listed] == [over_http, None]
    assert run(["task", "get", task_id.hex(), "--connect", live.address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["callback"] == over_http
    assert run(["task", "get", task_id.hex(), "--connect", live.address]) == 0
    words = f"POST {seen.uri}: delivered at "
    assert words in capsys.readouterr().out
    assert words in live.http.get(f"/ui/tasks/{task_id.hex()}").text


def test_a_callback_is_shown_without_the_secrets_of_its_address(
    live: Live, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """A caller that may read tasks need not learn what the receiver asks for."""
    uri = "http://127.0.0.1:9/ended?token=hunter2#hunter2"
    task_id = client.enqueue("secrets", b"x", callback=uri).hex()
    client.cancel(task_id)
    assert run(["task", "get", task_id, "--connect", live.address]) == 0
    pages = (f"/v1/tasks/{task_id}", f"/v1/tasks/{task_id}/history", "/v1/tasks?queue=secrets", f"/ui/tasks/{task_id}")
    for text in (capsys.readouterr().out, *(live.http.get(page).text for page in pages)):
        assert "http://127.0.0.1:9/ended?" in text and "hunter2" not in text


def test_a_callback_with_a_hostile_address_is_shown_as_text(
    live: Live, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page shows it as text, and the command shows its beginning."""
    hostile = "http://127.0.0.1:9/<script>alert(1)</script>" + "x" * 7_000
    task_id = client.enqueue("hostile", b"x", callback=hostile).hex()
    page = live.http.get(f"/ui/tasks/{task_id}").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "<script>alert(1)" not in page
    assert run(["task", "get", task_id, "--connect", live.address]) == 0
    assert len(max(capsys.readouterr().out.splitlines(), key=len)) < 400


def test_a_callback_does_not_take_the_id_of_another_task(client: Client) -> None:
    """Otherwise the end of one task would make a task of another caller due."""
    (task_id,) = client.make_ids(1)
    other = client.enqueue("others", b"theirs", id=callback_of(task_id))
    with pytest.raises(BadRequest) as refused:
        client.enqueue("mine", b"x", id=task_id, callback="http://127.0.0.1:9/")
    assert refused.value.field == "callback"
    assert (client.get(other).state, client.get(other).data) == ("ready", b"theirs")
    with pytest.raises(NotFound):
        client.get(task_id)


def test_a_callback_that_was_withdrawn_or_given_up_is_shown_so(live: Live, client: Client) -> None:
    """A caller sees why no report comes."""
    withdrawn = client.enqueue("ends", b"x", callback="http://127.0.0.1:9/")
    seen = client.get(withdrawn).callback
    assert seen is not None
    client.cancel(seen.task)
    assert (client.get(withdrawn).callback or seen).state == "cancelled"
    given_up = client.enqueue("ends", b"x", callback="http://127.0.0.1:9/")
    client.set_queue(TIMERS_QUEUE, retries=0)
    try:
        client.cancel(given_up)
        client.wait(callback_of(given_up))
        seen = client.get(given_up).callback
        assert seen is not None and (seen.state, seen.attempts) == ("failed", 0)
        assert seen.error is not None and seen.error.startswith("127.0.0.1:9 cannot be reached")
    finally:
        client.set_queue(TIMERS_QUEUE, retries=DEFAULTS.retries)


def test_a_repeated_request_makes_one_callback(live: Live, client: Client) -> None:
    """Its task is the same, and so is the callback."""
    with receiving() as receiver:
        (task_id,) = client.make_ids(1)
        for _ in range(3):
            client.enqueue("repeats", b"x", id=task_id, callback=receiver.uri)
        client.complete(client.claim("repeats", wait_ms=10_000))
        client.enqueue("repeats", b"x", id=task_id, callback=receiver.uri)
        key, said = receiver.came.get(timeout=WAIT_S)
        assert said["id"] == task_id.hex()
        # A second callback would be of a later task, which is claimed after the first.
        post(live, receiver, "last")
        client.complete(client.claim("last", wait_ms=10_000))
        assert receiver.next()["queue"] == "last"
        assert client.get(key).id != task_id


def test_tasks_of_one_call_and_of_a_transaction_have_a_callback_each(live: Live, client: Client) -> None:
    """Tasks with a callback are runs of their own, which clients make."""
    with receiving() as receiver:
        ids = client.enqueue_many("many", [b"1", b"2", b"3"], callback=receiver.uri)
        with client.transaction() as transaction:
            transaction.enqueue_many("many", [b"4", b"5"], callback=receiver.uri)
        ids += transaction.committed.ids if transaction.committed else []
        claims = [claim for _ in ids for claim in client.claim("many", max=1, wait_ms=10_000)]
        client.complete(claims)
        assert sorted(receiver.next()["id"] for _ in ids) == sorted(one.hex() for one in ids)


def test_the_command_line_enqueues_with_a_callback(
    live: Live, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """A URL is checked as over HTTP, and the option is named."""
    typed = ["task", "enqueue", "typed", "--connect", live.address, "--callback"]
    with receiving() as receiver:
        assert run([*typed, receiver.uri]) == 0
        task_id = capsys.readouterr().out.strip()
        client.complete(client.claim("typed", wait_ms=10_000))
        assert receiver.next()["id"] == task_id
    for bad in ("", "10.0.0.1", "http://10.0.0.1/", "ftp://127.0.0.1/", "http://ann:secret@127.0.0.1/"):
        assert run([*typed, bad]) == BadRequest.exit_code
        assert "callback" in capsys.readouterr().err.splitlines()[0]
    assert client.count("typed")["typed"]["total"] == 1


def test_steps_of_chains_groups_and_flows_have_a_callback_each(live: Live, client: Client) -> None:
    """Steps that are functions of an application have that of the function."""
    with receiving() as receiver, closing(App(live.address)) as app:

        @app.task(queue="steps", callback=receiver.uri)
        def add(one: int, other: int) -> int:
            return one + other

        parts = app.chain(add.s(1, 2), app.group(add.s(3, 4), Step("steps", b"[]", callback=receiver.uri)))
        ids = [*parts.enqueue().ids]
        made = client.make_flow(
            client.chain(add.s(1, 2), client.group(add.s(3, 4), add.s(5, 6))), on_done=add.s(7, 8), name="reported"
        )
        last = client.flow(made.id)["on_done"]
        ids += [*made.ids, last]
        for _ in ids:
            client.complete(client.claim("steps", wait_ms=10_000), b"3")
        assert sorted(receiver.next()["id"] for _ in ids) == sorted(one.hex() for one in ids)
    assert client.wait_flow(made.id, 10_000)["state"] == "completed"


def test_a_cancelled_flow_reports_each_task(live: Live, client: Client) -> None:
    """They end with it."""
    with receiving() as receiver:
        callback = {"transport": "http", "uri": receiver.uri, "method": "POST"}
        tasks = [{"queue": "cancelled", "callback": callback}, {"queue": "cancelled", "after": [0]}]
        on_done = {"queue": "cancelled", "callback": callback}
        answer = live.http.post("/v1/flows", json={"tasks": tasks, "on_done": on_done})
        assert answer.status_code == 201, answer.text
        client.cancel_flow(answer.json()["id"])
        said = {one["id"]: one["state"] for one in (receiver.next(), receiver.next())}
        assert said == {answer.json()["ids"][0]: "cancelled", answer.json()["on_done"]: "cancelled"}


@pytest.mark.parametrize(
    ("callback", "field"),
    [
        ({"transport": "pigeon", "uri": "http://a.example/", "method": "post"}, "callback.transport"),
        ({"transport": "http", "uri": "http://10.0.0.1/", "method": "post"}, "callback.uri"),
        ({"transport": "http", "uri": "ftp://a.example/", "method": "post"}, "callback.uri"),
        ({"transport": "http", "uri": "http://127.0.0.1/", "method": "brew"}, "callback.method"),
        ({"transport": "http", "uri": "http://127.0.0.1/"}, "callback.method"),
    ],
)
def test_a_callback_that_cannot_be_made_is_refused_by_field(
    live: Live, client: Client, callback: dict[str, str], field: str
) -> None:
    """This is checked as for timers, by every way to enqueue; nothing is stored."""
    before = live.total()
    tasks = [{"queue": "bad"}, {"queue": "bad", "callback": callback}]
    answer = live.http.post("/v1/tasks", json={"tasks": tasks})
    assert (answer.status_code, answer.json()["field"]) == (400, f"tasks[1].{field}")
    with pytest.raises(BadRequest) as refused:
        client.enqueue("bad", b"", callback=callback)
    assert refused.value.field == field
    with pytest.raises(BadRequest) as refused, client.transaction() as transaction:
        transaction.enqueue_many("bad", [b""], callback=callback)
    assert refused.value.field == f"enqueue[0].{field}"
    for flow, place in (({"tasks": tasks}, "tasks[1]"), ({"tasks": tasks[:1], "on_done": tasks[1]}, "on_done")):
        answer = live.http.post("/v1/flows", json=flow)
        assert (answer.status_code, answer.json()["field"]) == (400, f"{place}.{field}")
    assert live.total() == before


@pytest.mark.long
def test_receivers_that_hang_delay_no_other_receiver() -> None:
    """They are many hosts, with more callbacks than a node makes at a time."""
    with running(timers={"timer_timeout_ms": 3_600_000}) as cluster, ExitStack() as stack:
        client = stack.enter_context(Client(cluster.addresses[0], timeout_ms=60_000))
        receiver = stack.enter_context(receiving())

        def report(queue: str, uri: str, count: int = 1) -> None:
            client.enqueue_many(queue, [b""] * count, callback=uri)
            while count:
                claims = client.claim(queue, max=count, wait_ms=10_000)
                client.complete(claims)
                count -= len(claims)

        report("quick", receiver.uri)
        assert receiver.next()["queue"] == "quick"
        for number in range(1, 81):
            server = stack.enter_context(socket.create_server((f"127.0.1.{number}", 0), backlog=64))
            report("slow", f"http://127.0.1.{number}:{server.getsockname()[1]}/", 7)
        until = time.monotonic() + 3 * WAIT_S
        while client.count(TIMERS_QUEUE)[TIMERS_QUEUE]["ready"]:
            assert time.monotonic() < until, "some callbacks are neither made nor postponed"
        for _ in range(3):
            report("quick", receiver.uri)
            assert receiver.next()["queue"] == "quick"


def test_a_callback_needs_the_role_that_a_timer_needs() -> None:
    """A token that may only enqueue must not make peers open connections."""
    with running(access=ACCESS, timers={"timer_targets": "loopback"}) as cluster:
        with Client(cluster.addresses[0], token=PRODUCER) as client:
            client.enqueue("mail", b"x")
            with pytest.raises(Forbidden):
                client.enqueue("mail", b"x", callback="http://127.0.0.1:9/")
            with pytest.raises(Forbidden, match=TIMERS_QUEUE):
                client.make_flow(client.chain(Step("mail", callback="http://127.0.0.1:9/")))
        with Client(cluster.addresses[0], token=BOTH) as client:
            client.enqueue("mail", b"x", callback="http://127.0.0.1:9/")
