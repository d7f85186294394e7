"""Skyring's HTTP interface and OnyxQ's additions to it, on a real cluster with real receivers."""

from __future__ import annotations

import json
import ssl
import time
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import trio
import trustme
from attrs import evolve

from onyxq import AsyncClient, Client
from onyxq.core.limits import TIMERS_QUEUE as QUEUE
from onyxq.errors import Conflict
from onyxq.interfaces.callbacks import http_callback
from onyxq.interfaces.callbacks.lanes import AHEAD_MAX, QUICK
from onyxq.interfaces.local_cluster import LOCAL, LocalCluster
from tests.interfaces.live_world import running
from tests.timers.receivers import Receiver, http_receiver, tcp_receiver, wall_ms

LATER_MS = 3_600_000
BACKOFF_MS = 20
RETRIES = 3
NOWHERE = {"transport": "http", "uri": "http://127.0.0.1:9/", "method": "post"}
"""A callback for timers that are not due during a test."""
_serial = count(1)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """Return an HTTP client of the first of two peers, whose timers are retried soon and only a few times."""
    with running(peers=2, http=True) as cluster:
        with httpx.Client(base_url=f"http://{cluster.http_addresses[0]}", timeout=30, trust_env=False) as client:
            set_queue(client, backoff_ms=BACKOFF_MS, retries=RETRIES)
            client.headers["x-peer"] = cluster.addresses[0]
            yield client


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Run a receiver that accepts everything."""
    with http_receiver() as found:
        yield found


def set_queue(http: httpx.Client, **settings: int) -> None:
    """Set the queue of timers up, as soon as all partitions are served."""
    deadline = wall_ms() + 60_000
    while not (answer := http.put(f"/v1/queues/{QUEUE}", json=settings)).is_success:
        assert wall_ms() < deadline and answer.status_code == 503, answer.text


def fresh() -> str:
    """Return an id that no other test uses."""
    return f"timer-{next(_serial)}"


def to(receiver: Receiver, method: str = "post") -> dict[str, str]:
    """Return a callback to a receiver."""
    return {"transport": receiver.uri.partition(":")[0], "uri": receiver.uri, "method": method}


def set_timer(http: httpx.Client, timer: str, timeout: int, callback: dict[str, str], data: Any = None) -> None:
    """Set a timer, and check that it was set."""
    body = {"timeout": timeout, "data": data, "callback": callback}
    answer = http.post("/timer", json=body, headers={"x-timer-id": timer})
    assert (answer.status_code, answer.content) == (201, b""), answer.text
    assert answer.headers["location"] == f"/timer/{timer}"


def state_of(http: httpx.Client, timer: str) -> str:
    """Return a timer's state."""
    return str(http.get(f"/timer/{timer}").json()["state"])


def until_state(http: httpx.Client, timer: str, state: str) -> dict[str, Any]:
    """Return the timer once it is in a state; the time limit of the test ends the wait."""
    deadline = wall_ms() + 60_000
    while (found := http.get(f"/timer/{timer}").json())["state"] != state:
        assert wall_ms() < deadline, found
    return dict(found)


def check_reason(answer: httpx.Response, status: int, word: str) -> None:
    """Check that an error is in the problem document and in Skyring's header."""
    assert answer.status_code == status, answer.text
    assert answer.json()["status"] == status
    reason = answer.headers["x-skyring-reason"]
    assert word in reason and reason.count(answer.json()["field"] or reason) == 1, "the field is named once"


# --- setting


def test_an_id_is_made_where_none_is_given(http: httpx.Client) -> None:
    """The new id is in the location header."""
    body = {"timeout": LATER_MS, "callback": NOWHERE}
    answer = http.post("/timer", json=body)
    made = answer.headers["location"].removeprefix("/timer/")
    assert (answer.status_code, answer.content, uuid.UUID(made).version) == (201, b"", 4)
    found = http.get(answer.headers["location"]).json()
    expected = {"id": made, "data": None, "state": "scheduled", "attempts": 0, **body}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("body", [b"{", b"{}", json.dumps({"timeout": LATER_MS, "callback": {}}).encode()])
def test_an_id_is_made_for_a_request_that_is_refused_too(http: httpx.Client, body: bytes) -> None:
    """As in Skyring, the location header names it; the timer does not exist."""
    answer = http.post("/timer", content=body, headers={"content-type": "application/json"})
    check_reason(answer, 400, "")
    made = answer.headers["location"]
    assert uuid.UUID(made.removeprefix("/timer/")).version == 4
    assert http.get(made).status_code == 404


def test_ping_is_answered_without_a_body(http: httpx.Client) -> None:
    """Skyring's clients do this to check whether a node is up."""
    answer = http.get("/ping")
    assert (answer.status_code, answer.content) == (200, b"")
    assert http.post("/ping").status_code == 405


@pytest.mark.parametrize("timer", ["a b", "grüße/☕", "x" * 200, "50%", "a?b#c"])
def test_ids_may_be_any_text(http: httpx.Client, timer: str) -> None:
    """The location is escaped."""
    body = {"timeout": LATER_MS, "callback": NOWHERE}
    answer = http.post("/timer", json=body, headers={"x-timer-id": timer.encode()})
    assert answer.status_code == 201, answer.text
    assert http.get(answer.headers["location"]).json()["id"] == timer
    assert http.delete(answer.headers["location"]).status_code == 202


@pytest.mark.parametrize("timer", ["R\x0c\x1b\x7f", "a\r\nx-made-up: 1", "grüße/☕", "50%", "\x00"])
def test_an_error_names_any_id_escaped(http: httpx.Client, timer: str) -> None:
    """No id ends a header, or the connection."""
    path = f"/timer/{quote(timer, safe='')}"
    for answer in (http.delete(path), http.put(path, json={"timeout": LATER_MS, "callback": NOWHERE})):
        check_reason(answer, 404 if timer.isprintable() else 400, "id" if not timer.isprintable() else "")
        assert answer.headers["location"] == path
        assert "x-made-up" not in answer.headers


BAD_BODIES: list[tuple[str, Any]] = [
    ("timeout", {"callback": NOWHERE}),
    *(("timeout", {"timeout": bad, "callback": NOWHERE}) for bad in (0, -1, True, "1000", [5], 1.5, 2**48, None)),
    *(("data", {"timeout": 1, "data": bad, "callback": NOWHERE}) for bad in (True, 7, [1], 1.5)),
    ("callback", {"timeout": 1}),
    *(("callback", {"timeout": 1, "callback": bad}) for bad in ("http", [], 7)),
    *(("callback.transport", {"timeout": 1, "callback": {**NOWHERE, "transport": bad}}) for bad in (7, "", "zmq")),
    *(("callback.method", {"timeout": 1, "callback": {**NOWHERE, "method": bad}}) for bad in (None, 7, "BREW")),
    *(
        ("callback.uri", {"timeout": 1, "callback": {**NOWHERE, "uri": bad}})
        for bad in (
            None,
            7,
            "",
            "a",
            "ftp://a",
            "http://",
            "http://a:b@127.0.0.1/",
            "http://127.0.0.1:0/",
            "http://a b/",
        )
    ),
    ("callback.uri", {"timeout": 1, "callback": {"transport": "tcp", "uri": "tcp://127.0.0.1", "method": "-"}}),
    ("callback.uri", {"timeout": 1, "callback": {**NOWHERE, "uri": "http://10.1.2.3/"}}),
    ("callback.uri", {"timeout": 1, "callback": {**NOWHERE, "uri": "http://169.254.169.254/latest"}}),
    ("callback.more", {"timeout": 1, "callback": {**NOWHERE, "more": 1}}),
    ("retry", {"timeout": 1, "callback": NOWHERE, "retry": 1}),
]


@pytest.mark.parametrize(("field", "body"), BAD_BODIES)
def test_a_body_that_is_wrong_is_refused(http: httpx.Client, field: str, body: Any) -> None:
    """POST and PUT name the wrong field; nothing is set and an existing timer stays unchanged."""
    timer, there = fresh(), fresh()
    answer = http.post("/timer", json=body, headers={"x-timer-id": timer})
    check_reason(answer, 400, field)
    assert (answer.json()["field"], answer.headers["location"]) == (field, f"/timer/{timer}")
    assert http.get(f"/timer/{timer}").status_code == 404
    set_timer(http, there, LATER_MS, NOWHERE, "old")
    before = http.get(f"/timer/{there}").json()
    answer = http.put(f"/timer/{there}", json=body)
    check_reason(answer, 400, field)
    assert answer.headers["location"] == f"/timer/{there}"
    assert http.get(f"/timer/{there}").json() == before


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff"])
def test_what_is_no_json_object_is_refused(http: httpx.Client, body: bytes) -> None:
    """The answer has a reason."""
    check_reason(http.post("/timer", content=body), 400, "")
    check_reason(http.put("/timer/x", content=body), 400, "")


@pytest.mark.parametrize("data", [b'{"a": 36893488147419103232}', b'"\\ud800"', b'{"\\udc00": 1}'])
def test_data_that_cannot_be_told_everywhere_is_refused(http: httpx.Client, data: bytes) -> None:
    """Beyond 64 bits, or half a surrogate pair."""
    body = b'{"timeout": 3600000, "callback": %s, "data": %s}' % (json.dumps(NOWHERE).encode(), data)
    check_reason(http.post("/timer", content=body), 400, "data")


def test_data_has_a_bound(http: httpx.Client) -> None:
    """The limit is a mebibyte, which the error names."""
    body = {"timeout": 1, "data": "x" * (1 << 20), "callback": NOWHERE}
    check_reason(http.post("/timer", json=body), 413, "data")


@pytest.mark.parametrize("timer", ["x" * 201, "a\x7f"])
def test_an_id_that_is_none_is_refused(http: httpx.Client, timer: str) -> None:
    """Too long, or with control characters."""
    body = {"timeout": 1, "callback": NOWHERE}
    check_reason(http.post("/timer", json=body, headers={"x-timer-id": timer.encode()}), 400, "id")


def test_an_id_that_is_taken_is_a_conflict(http: httpx.Client) -> None:
    """The existing timer stays."""
    timer = fresh()
    set_timer(http, timer, LATER_MS, NOWHERE, "first")
    body = {"timeout": 1, "data": "second", "callback": NOWHERE}
    check_reason(http.post("/timer", json=body, headers={"x-timer-id": timer}), 409, timer)
    assert http.get(f"/timer/{timer}").json()["data"] == "first"


def test_a_named_request_may_be_repeated(http: httpx.Client) -> None:
    """By POST and by PUT; under another name it is another request."""
    timer = fresh()
    body = {"timeout": LATER_MS, "data": "first", "callback": NOWHERE}
    headers = {"x-timer-id": timer, "idempotency-key": "one"}
    answers = [http.post("/timer", json=body, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    check_reason(http.post("/timer", json=body, headers={**headers, "idempotency-key": "two"}), 409, timer)
    tasks = []
    for name in ("three", "three", "four"):
        answer = http.put(f"/timer/{timer}", json={**body, "data": "second"}, headers={"idempotency-key": name})
        assert answer.status_code == 200
        tasks.append(http.get(f"/timer/{timer}").json()["task"])
    assert tasks[0] == tasks[1] != tasks[2]


def test_a_named_request_without_an_id_sets_one_timer(http: httpx.Client) -> None:
    """A repeat gets the first answer, with the same id; another name, or none, is another timer."""
    body = {"timeout": LATER_MS, "callback": NOWHERE}
    name = fresh()
    answers = [http.post("/timer", json=body, headers={"idempotency-key": name}) for _ in range(2)]
    answers.append(http.post("/timer", json=body, headers={"idempotency-key": fresh()}))
    answers += [http.post("/timer", json=body) for _ in range(2)]
    assert {answer.status_code for answer in answers} == {201}
    first, again, *others = [answer.headers["location"] for answer in answers]
    assert first == again and len({first, *others}) == 4
    assert http.get(first).json()["state"] == "scheduled"


def test_what_is_unknown_is_not_found(http: httpx.Client) -> None:
    """By any method."""
    timer = fresh()
    body = {"timeout": 1, "callback": NOWHERE}
    check_reason(http.put(f"/timer/{timer}", json=body), 404, timer)
    check_reason(http.delete(f"/timer/{timer}"), 404, timer)
    check_reason(http.get(f"/timer/{timer}"), 404, timer)
    check_reason(http.patch(f"/timer/{timer}", json=body), 405, "PATCH")
    assert http.get(f"/timer/{timer}").status_code == 404


# --- delivering


@pytest.mark.parametrize(
    ("data", "kind", "body"),
    [
        ({"a": [1, "ü"]}, "application/json", '{"a":[1,"ü"]}'.encode()),
        ({}, "application/json", b"{}"),
        ("a=1&b=2", "application/x-www-form-urlencoded", b"a=1&b=2"),
        (None, None, b""),
    ],
)
def test_data_is_sent_as_skyring_sends_it(
    http: httpx.Client, receiver: Receiver, data: Any, kind: str | None, body: bytes
) -> None:
    """An object is sent as JSON, a string as form data, and nothing as nothing; never early, with key and attempt."""
    timer, set_at_ms = fresh(), wall_ms()
    callback = to(receiver, "put")
    set_timer(http, timer, 50, {**callback, "uri": callback["uri"] + "?q=%20x"}, data)
    (request,) = receiver.until(1)
    assert (request.method, request.path, request.body) == ("PUT", "/hook?q=%20x", body)
    assert request.headers.get("content-type") == kind
    assert request.at_ms >= set_at_ms + 50
    task = http.get(f"/timer/{timer}").json()["task"]
    told = [request.headers[name] for name in ("x-timer-id", "x-timer-attempt", "idempotency-key")]
    assert told == [timer, "1", task]
    assert until_state(http, timer, "fired")["attempts"] == 0


def test_tcp_sends_a_line(http: httpx.Client) -> None:
    """The line is JSON with the key and the attempt, or the data alone."""
    with tcp_receiver() as receiver:
        told, plain = fresh(), fresh()
        set_timer(http, told, 1, to(receiver, "any"), {"a": 1})
        (request,) = receiver.until(1)
        task = until_state(http, told, "fired")["task"]
        assert request.body.endswith(b"\n")
        assert json.loads(request.body) == {
            "timer": told, "idempotency_key": task, "attempt": 1, "data": {"a": 1}
        }  # fmt: skip
        set_timer(http, plain, 1, to(receiver, "plain"), "hello")
        assert receiver.until(2)[1].body == b"hello\n"


def test_a_failed_attempt_is_repeated_with_the_same_key(http: httpx.Client) -> None:
    """An error and a redirect are failures; the attempt is counted."""
    answers = iter((500, 302, 204))
    with http_receiver(lambda request: next(answers)) as receiver:
        timer = fresh()
        set_timer(http, timer, 1, to(receiver))
        requests = receiver.until(3)
        assert [request.headers["x-timer-attempt"] for request in requests] == ["1", "2", "3"]
        assert [request.headers.get("x-timer-repeats") for request in requests] == [
            None,
            "attempt 1: the answer was 500",
            "attempt 2: the answer was 302",
        ]
        assert len({request.headers["idempotency-key"] for request in requests}) == 1
        assert until_state(http, timer, "fired")["attempts"] == 2


def test_a_timer_that_nobody_takes_becomes_a_dead_letter(http: httpx.Client) -> None:
    """All attempts were made; it is delivered again under the same key after a requeue."""
    answers = iter((*(503,) * (RETRIES + 1), 200))
    with http_receiver(lambda request: next(answers)) as receiver:
        timer = fresh()
        set_timer(http, timer, 1, to(receiver))
        found = until_state(http, timer, "failed")
        assert "503" in found["error"]
        check_reason(http.put(f"/timer/{timer}", json={"timeout": 1, "callback": NOWHERE}), 404, "")
        check_reason(http.delete(f"/timer/{timer}"), 404, "failed")
        dead = http.get("/v1/dead", params={"queue": QUEUE}).json()["tasks"]
        assert found["task"] in [one["id"] for one in dead]
        assert http.post("/v1/dead/requeue", json={"ids": [found["task"]]}).json()["count"] == 1
        requests = receiver.until(RETRIES + 2)
        assert {request.headers["idempotency-key"] for request in requests} == {found["task"]}
        until_state(http, timer, "fired")


def test_a_receiver_that_is_not_there_fails_the_attempt(http: httpx.Client) -> None:
    """The error says so."""
    with http_receiver() as receiver:
        gone = to(receiver)
    timer = fresh()
    set_timer(http, timer, 1, gone)
    assert "cannot be reached" in until_state(http, timer, "failed")["error"]


def test_https_asks_for_a_certificate_that_is_trusted(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate must be for the name of the host."""
    authority = trustme.CA()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(served)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with http_receiver(tls=served) as receiver:
        callback, unknown, known = {**NOWHERE, "uri": receiver.uri}, fresh(), fresh()
        set_timer(http, unknown, 1, callback)
        assert "certificate" in until_state(http, unknown, "failed")["error"]
        monkeypatch.setattr(http_callback, "_context", lambda: trusting)
        set_timer(http, known, 1, callback, {"a": 1})
        assert [request.body for request in receiver.until(1)] == [b'{"a":1}']


# --- replacing and cancelling


@pytest.mark.long
def test_put_replaces_the_time_the_data_and_the_callback(http: httpx.Client, receiver: Receiver) -> None:
    """Earlier or later than before; the old one is never delivered."""
    with http_receiver() as other:
        sooner, later, last = fresh(), fresh(), fresh()
        set_timer(http, sooner, LATER_MS, to(other), "old")
        set_timer(http, later, 2_000, to(other), "old")
        body = {"timeout": 1, "data": {"new": True}, "callback": to(receiver)}
        answer = http.put(f"/timer/{sooner}", json=body)
        assert (answer.status_code, answer.content, answer.headers["location"]) == (200, b"", f"/timer/{sooner}")
        answer = http.put(f"/timer/{later}", json={**body, "timeout": LATER_MS})
        assert answer.status_code == 200
        assert receiver.until(1)[0].body == b'{"new":true}'
        set_timer(http, last, 2_500, to(receiver))
        receiver.until(2)
        assert other.requests == []
        assert [state_of(http, one) for one in (sooner, later)] == ["fired", "scheduled"]


def test_put_while_an_attempt_is_under_way_ends_the_old_one(http: httpx.Client, receiver: Receiver) -> None:
    """That attempt is the last of the old timer, whose failure is not repeated; the new one has a key of its own."""
    timer = fresh()
    with http_receiver(lambda request: None) as hanging:
        set_timer(http, timer, 1, to(hanging), "old")
        (old,) = hanging.until(1)
        answer = http.put(f"/timer/{timer}", json={"timeout": 1, "data": "new", "callback": to(receiver)})
        assert answer.status_code == 200
        (new,) = receiver.until(1)
        assert (new.body, new.headers["x-timer-attempt"]) == (b"new", "1")
        assert new.headers["idempotency-key"] != old.headers["idempotency-key"]
        until_state(http, timer, "fired")
    last = fresh()
    set_timer(http, last, 500, to(receiver))
    receiver.until(2)
    assert len(hanging.requests) == 1


@pytest.mark.long
def test_what_was_cancelled_is_not_delivered(http: httpx.Client, receiver: Receiver) -> None:
    """The timer no longer exists and its id is free."""
    timer, last = fresh(), fresh()
    set_timer(http, timer, 1_500, to(receiver), "old")
    answer = http.delete(f"/timer/{timer}")
    assert (answer.status_code, answer.content, answer.headers["location"]) == (202, b"", f"/timer/{timer}")
    assert state_of(http, timer) == "cancelled"
    check_reason(http.delete(f"/timer/{timer}"), 404, "cancelled")
    check_reason(http.put(f"/timer/{timer}", json={"timeout": 1, "callback": to(receiver)}), 404, "")
    set_timer(http, last, 2_000, to(receiver), "last")
    assert [request.body for request in receiver.until(1)] == [b"last"]
    set_timer(http, timer, 1, to(receiver), "anew")
    assert receiver.until(2)[1].body == b"anew"


def test_a_timer_that_has_fired_is_over(http: httpx.Client, receiver: Receiver) -> None:
    """It can be read but not changed, and its id can be used again."""
    timer = fresh()
    set_timer(http, timer, 1, to(receiver))
    until_state(http, timer, "fired")
    check_reason(http.delete(f"/timer/{timer}"), 404, "fired")
    check_reason(http.put(f"/timer/{timer}", json={"timeout": 1, "callback": to(receiver)}), 404, "")
    set_timer(http, timer, 1, to(receiver))
    keys = {request.headers["idempotency-key"] for request in receiver.until(2)}
    assert len(keys) == 2


def test_a_cancel_during_an_attempt_is_the_last_of_it(http: httpx.Client, receiver: Receiver) -> None:
    """The running attempt ends normally, and is not repeated."""
    timer, last = fresh(), fresh()
    with http_receiver(lambda request: None) as hanging:
        set_timer(http, timer, 1, to(hanging))
        hanging.until(1)
        assert http.delete(f"/timer/{timer}").status_code == 202
        assert state_of(http, timer) == "cancelled"
    set_timer(http, last, 500, to(receiver))
    receiver.until(1)
    assert (len(hanging.requests), state_of(http, timer)) == (1, "cancelled")


# --- looking


def test_pages_are_in_the_order_of_due_times() -> None:
    """A page can be limited to a state; a replaced timer is at its new place, once."""
    with running(http=True) as cluster, httpx.Client(base_url=f"http://{cluster.http_addresses[0]}") as http:
        for number in (3, 1, 2, 0):
            set_timer(http, f"t{number}", LATER_MS + 1_000 * number, NOWHERE)
        body = {"timeout": LATER_MS + 9_000, "callback": NOWHERE}
        assert http.put("/timer/t1", json=body).status_code == 200
        assert http.delete("/timer/t2").status_code == 202
        found, after = [], None
        while True:
            params = {"limit": 2} | ({"after": after} if after else {})
            page = http.get("/timer", params=params).json()
            found += [timer["id"] for timer in page["timers"]]
            after = page["after"]
            if after is None:
                break
        assert found == ["t0", "t2", "t3", "t1"]
        states = {state: http.get("/timer", params={"state": state}).json() for state in ("scheduled", "cancelled")}
        assert [timer["id"] for timer in states["scheduled"]["timers"]] == ["t0", "t3", "t1"]
        assert [timer["id"] for timer in states["cancelled"]["timers"]] == ["t2"]
        for bad in ({"state": "completed"}, {"limit": 0}, {"limit": 1_001}, {"after": "x"}, {"more": 1}):
            check_reason(http.get("/timer", params=bad), 400, next(iter(bad)))


# --- many, and targets


@pytest.mark.long
def test_a_receiver_that_never_answers_delays_no_other(receiver: Receiver) -> None:
    """Few of its timers wait for an answer at a time, and other timers are delivered meanwhile."""
    many = QUICK.lane + AHEAD_MAX + 20  # more than a node claims at a time
    with running(http=True, timers={"timer_timeout_ms": 120_000}) as cluster:
        with httpx.Client(base_url=f"http://{cluster.http_addresses[0]}", timeout=30) as http:
            with http_receiver(lambda request: None) as hanging:
                for number in range(many):
                    set_timer(http, f"hanging-{number}", 1, to(hanging))
                hanging.until(1)
                set_timer(http, "quick", 1, to(receiver))
                began = time.monotonic()
                receiver.until(1)
                assert time.monotonic() - began < 20
                assert len(hanging.requests) <= QUICK.lane


@pytest.mark.long
def test_what_is_left_of_its_time_survives_a_restart(tmp_path: Path, receiver: Receiver) -> None:
    """It fires neither early nor after a full new delay; a timer that became due meanwhile fires at once."""

    async def main() -> int:
        async with LocalCluster(peers=1, data=str(tmp_path)) as cluster, AsyncClient(cluster.addresses[0]) as client:
            set_at_ms = wall_ms()
            await client.set_timer("soon", 1, receiver.uri, transport="http")
            await trio.to_thread.run_sync(receiver.until, 1)
            await client.set_timer("later", 4_000, receiver.uri)
            await client.set_timer("never", LATER_MS, receiver.uri)
        async with LocalCluster(peers=1, data=str(tmp_path)) as cluster, AsyncClient(cluster.addresses[0]) as client:
            await trio.to_thread.run_sync(receiver.until, 2)
            assert (await client.timer("never"))["state"] == "scheduled"
        return set_at_ms

    set_at_ms = trio.run(main)
    _, later = receiver.requests
    assert later.headers["x-timer-id"] == "later"
    assert later.at_ms >= set_at_ms + 4_000


def test_targets_are_judged_when_set(receiver: Receiver) -> None:
    """By any name of the same address."""
    with running(http=True, timers={"timer_targets": "10.0.0.0/8"}) as cluster:
        with httpx.Client(base_url=f"http://{cluster.http_addresses[0]}", timeout=30) as http:
            port = receiver.uri.split(":")[2]
            for uri in (receiver.uri, f"http://localhost:{port}", f"http://[::ffff:127.0.0.1]:{port}"):
                body = {"timeout": 1, "callback": {**NOWHERE, "uri": uri}}
                check_reason(http.post("/timer", json=body), 400, "callback.uri")


@pytest.mark.long
def test_targets_are_judged_again_when_connected(tmp_path: Path, receiver: Receiver) -> None:
    """A target that was allowed when the timer was set fails if it is not allowed any more."""

    async def main() -> dict[str, Any]:
        async with LocalCluster(peers=1, data=str(tmp_path)) as cluster, AsyncClient(cluster.addresses[0]) as client:
            await client.set_queue(QUEUE, retries=0)
            await client.set_timer("around", 2_000, receiver.uri)
        config = evolve(LOCAL, timer_targets="10.0.0.0/8")
        async with LocalCluster(peers=1, data=str(tmp_path), config=config) as cluster:
            async with AsyncClient(cluster.addresses[0]) as client:
                await client.wait((await client.timer("around"))["task"])
                return await client.timer("around")

    assert "callbacks to 127.0.0.1 are not allowed" in trio.run(main)["error"]
    assert receiver.requests == []


def test_clients_set_timers_too(http: httpx.Client, receiver: Receiver) -> None:
    """Clients of OnyxQ set the same timers."""
    timer = fresh()
    with Client(http.headers["x-peer"]) as client:
        client.set_timer(timer, LATER_MS, receiver.uri, {"a": 1})
        client.set_timer(timer, 1, receiver.uri, "b", method="PUT", replace=True)
        (request,) = receiver.until(1)
        assert (request.method, request.body) == ("PUT", b"b")
        with pytest.raises(Conflict):
            client.set_timer(other := fresh(), LATER_MS, receiver.uri)
            client.set_timer(other, LATER_MS, receiver.uri)
        client.cancel_timer(other)
        assert client.timer(other)["state"] == "cancelled"
        timers, after = client.timers(limit=1)
        assert len(timers) == 1 and after is not None
