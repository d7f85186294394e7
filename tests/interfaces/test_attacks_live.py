"""Attacks on real nodes, with and without tokens: each was tried by hand once and is a test if that is cheap."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from onyxq.access.grants import Access, Token
from onyxq.core.facts import pack_task
from onyxq.node import task_ends
from onyxq.operations import claims
from tests.interfaces.live_world import PATIENCE_MS, Live, Wire, claim_of, fresh_id, running

ADMIN, TIMERS, OURS = "a token of everything", "a token for timers alone", "a token for ours only"
FLOWS = "a token for flows of ours"
SECRET = "what the peers share"
ACCESS = Access(
    (
        Token.of(ADMIN, "all", ["admin"]),
        Token.of(TIMERS, "timers", ["produce:onyxq.timers"]),
        Token.of(OURS, "ours", ["admin:ours."]),
        Token.of(FLOWS, "flows", ["produce:ours.", "produce:onyxq.flows"]),
    ),
    SECRET,
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    """A node that requires tokens, reached on loopback as through a proxy."""
    with running(http=True, access=ACCESS) as cluster:
        live = Live(cluster)
        yield live
        live.close()


@pytest.fixture(scope="module")
def unguarded() -> Iterator[Live]:
    """A node that requires no credential."""
    with running(http=True) as cluster:
        live = Live(cluster)
        yield live
        live.close()


@contextmanager
def listener() -> Iterator[socket.socket]:
    """A service on loopback that only this machine may reach."""
    with socket.create_server(("127.0.0.1", 0)) as serving:
        serving.setblocking(False)
        yield serving


# --- callbacks

LOOPBACK = (
    "127.0.0.1",
    "127.1",
    "127.000.000.001",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "017700000001",
    "localhost",
    "LOCALHOST",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[2002:7f00:1::]",
)
ELSEWHERE = (
    "0",
    "0.0.0.0",
    "[::]",
    "10.0.0.1",
    "10.1",
    "0xa000001",
    "192.168.1.1",
    "172.16.0.1",
    "169.254.169.254",
    "2852039166",
    "[::ffff:169.254.169.254]",
    "[fe80::1%25lo]",
    "[fd00::1]",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
)


def set_timer(live: Live, uri: str, *, token: str = "", transport: str = "http", method: str = "post") -> Any:
    """Set a timer that is due at once; return the refused field, or None."""
    callback = {"transport": transport, "method": method, "uri": uri}
    headers = {"authorization": f"Bearer {token}"} if token else {}
    answer = live.http.post("/timer", json={"timeout": 1, "data": "x", "callback": callback}, headers=headers)
    return None if answer.status_code == 201 else answer.json()["field"]


@pytest.mark.parametrize("host", [*LOOPBACK, *ELSEWHERE])
def test_a_token_for_timers_reaches_no_private_address_however_it_is_spelled(guarded: Live, host: str) -> None:
    """This holds over HTTP and TCP; nothing is sent before the refusal."""
    with listener() as serving:
        port = serving.getsockname()[1]
        assert set_timer(guarded, f"http://{host}:{port}/x", token=TIMERS) == "callback.uri"
        assert (
            set_timer(guarded, f"tcp://{host}:{port}", token=TIMERS, transport="tcp", method="plain") == "callback.uri"
        )
        with pytest.raises(BlockingIOError):
            serving.accept()


@pytest.mark.parametrize("host", ELSEWHERE)
def test_without_tokens_no_other_private_address_than_loopback_is_reached(unguarded: Live, host: str) -> None:
    """Loopback is allowed, because every client is on the machine already."""
    assert set_timer(unguarded, f"http://{host}:9/x") == "callback.uri"


@pytest.mark.parametrize("host", LOOPBACK[:13])
def test_without_tokens_loopback_is_reached_however_it_is_spelled(unguarded: Live, host: str) -> None:
    """So the attempts above are refused because of the address only."""
    assert set_timer(unguarded, f"http://{host}:9/x") is None


@pytest.fixture(scope="module")
def selective() -> Iterator[Live]:
    """A node whose callbacks may go to 127.0.0.2, as a public address, and not to 127.0.0.1."""
    with running(http=True, access=ACCESS, timers={"timer_targets": "127.0.0.2"}) as cluster:
        live = Live(cluster)
        yield live
        live.close()


@contextmanager
def answering(status: int, location: str) -> Iterator[tuple[str, list[str]]]:
    """Run a receiver at 127.0.0.2 that answers with a redirect; return its address and its requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("location", location)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.2", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.2:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def error_of_first_attempt(live: Live, uri: str) -> str:
    """Set a timer that is due at once; return why its first attempt failed."""
    callback = {"transport": "http", "method": "post", "uri": uri}
    with Wire(live.address, hello={"role": "client", "credential": ADMIN}) as wire:
        name = fresh_id().hex()
        wire.call("timer.set", {"id": name, "timeout": 1, "data": "x", "callback": callback})
        deadline = time.monotonic() + PATIENCE_MS / 1_000
        while time.monotonic() < deadline:
            found = wire.call("timer.get", {"id": name})
            if found["attempts"]:
                wire.call("timer.cancel", {"id": name})
                task = wire.call("task_history", {"id": found["task"]})
                return str(task["history"][-1]["note"] or task["history"])
            time.sleep(0.02)
    raise AssertionError("no attempt was made in time")


@pytest.mark.long
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_leads_to_no_address_that_is_not_allowed(selective: Live, status: int) -> None:
    """Redirects are not followed: the attempt fails, and the private service gets no request."""
    with listener() as private:
        with answering(status, f"http://127.0.0.1:{private.getsockname()[1]}/admin") as (place, asked):
            assert str(status) in error_of_first_attempt(selective, f"http://{place}/hook")
        assert set(asked) == {"/hook"}  # a second attempt may come before the timer is cancelled
        with pytest.raises(BlockingIOError):
            private.accept()


def test_a_name_that_changes_its_address_reaches_no_private_service(
    selective: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is allowed when the timer is set and private when it is due, or both at once: nothing is sent."""
    answers: dict[str, list[list[str]]] = {
        "turning.example": [["127.0.0.2"], ["127.0.0.1"]],
        "both.example": [["127.0.0.2", "127.0.0.1"]],
    }
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        left = answers.get(host)
        if left is None:
            return real(host, port, *args, **more)
        found = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with listener() as private:
        port = private.getsockname()[1]
        assert "callbacks to 127.0.0.1 are not allowed" in error_of_first_attempt(
            selective, f"http://turning.example:{port}/"
        )
        assert set_timer(selective, f"http://both.example:{port}/", token=TIMERS) == "callback.uri"
        with pytest.raises(BlockingIOError):
            private.accept()


# --- pages of other sites, where nobody is asked for a credential


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "http://localhost.evil.example",
        "http://localhost@evil.example",
        "https://localhost:1",
        "file://",
    ],
)
def test_a_page_of_another_site_changes_nothing(unguarded: Live, origin: str) -> None:
    """This holds for any origin that resembles the peer's own name."""
    asked = {"tasks": [{"queue": "attacked", "data": 1}]}
    headers = {"host": "localhost", "origin": origin}
    assert unguarded.http.post("/v1/tasks", json=asked, headers=headers).status_code == 403
    assert unguarded.http.get("/v1/tasks?queue=attacked").json()["tasks"] == []


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example:7480",
        "localhost:80@evil.example",
        "evil.example#localhost",
        "localhost evil.example",
        "1.2.3.4.nip.io",
    ],
)
def test_a_name_that_is_pointed_at_the_peer_is_not_answered(unguarded: Live, host: str) -> None:
    """This holds for reads and writes (DNS rebinding); a page there has an origin of the same name."""
    headers = {"host": host, "origin": f"http://{host}"}
    assert unguarded.http.get("/v1/queues", headers=headers).status_code in (400, 421)
    asked = {"tasks": [{"queue": "attacked", "data": 1}]}
    assert unguarded.http.post("/v1/tasks", json=asked, headers=headers).status_code in (400, 421)


# --- what one credential takes from others


def test_one_credential_does_not_take_the_room_of_all_claims(guarded: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims beyond its share are refused, over TCP and HTTP together; another credential's claim may wait."""
    monkeypatch.setattr(claims, "CLAIMERS_MAX", 30)
    headers = {"authorization": f"Bearer {OURS}"}
    waiting, terms = claim_of("ours.none", wait_ms=PATIENCE_MS), {"queues": ["ours.none"], "wait_ms": 1}
    with Wire(guarded.address, hello={"role": "client", "credential": OURS}) as greedy:
        for number in range(1, 31):
            greedy.send([number, "claim", waiting])
        refused = [greedy.receive() for _ in range(15)]
        assert {answer[2]["code"] for answer in refused} == {"unavailable"}
        assert [answer[0] for answer in refused] == list(range(16, 31))
        assert guarded.http.post("/v1/claims", json=terms, headers=headers).status_code == 503
        with Wire(guarded.address, hello={"role": "client", "credential": ADMIN}) as other:
            task = [fresh_id(), pack_task({"queue": "theirs"}, [b"x"])]
            other.call("enqueue", {"runs": [task]})
            assert len(other.call("claim", claim_of("theirs", wait_ms=PATIENCE_MS))["claims"]) == 1


def test_one_credential_does_not_take_the_room_of_all_waits(guarded: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for the ends of tasks beyond its share are refused; another credential may wait, and all may read."""
    monkeypatch.setattr(task_ends, "WAITS_MAX", 30)
    first = fresh_id()
    with Wire(guarded.address, hello={"role": "client", "credential": OURS}) as greedy:
        greedy.call("enqueue", {"runs": [[first, pack_task({"queue": "ours.none"}, [b"x"])]]})
        for number in range(101, 131):
            greedy.send([number, "get", {"id": first, "wait_ms": PATIENCE_MS}])
        refused = [greedy.receive() for _ in range(15)]
        assert {answer[2]["code"] for answer in refused} == {"overloaded"}
        headers = {"authorization": f"Bearer {OURS}"}
        path = f"/v1/tasks/{first.hex()}"
        assert guarded.http.get(path, headers=headers).status_code == 200
        assert guarded.http.get(path, params={"wait_ms": 1}, headers=headers).status_code == 429
        with Wire(guarded.address, hello={"role": "client", "credential": ADMIN}) as other:
            assert other.call("get", {"id": first, "wait_ms": 1})["state"] == "ready"


@pytest.mark.parametrize("member", ["tasks", "on_done"])
def test_a_flow_gives_no_hold_on_tasks_of_other_queues(guarded: Live, member: str) -> None:
    """Who may cancel flows cancels those whose tasks are all in its queues."""
    theirs: dict[str, Any] = {"tasks": [{"queue": "ours.q"}]}
    theirs |= (
        {"tasks": [{"queue": "ours.q"}, {"queue": "theirs"}]} if member == "tasks" else {member: {"queue": "theirs"}}
    )
    for asked, status, state in (({"tasks": [{"queue": "ours.q"}]}, 200, "cancelled"), (theirs, 403, "waiting")):
        admin, ours = ({"authorization": f"Bearer {token}"} for token in (ADMIN, FLOWS))
        made = guarded.http.post("/v1/flows", json=asked, headers=admin)
        path = f"/v1/flows/{made.json()['id']}"
        assert guarded.http.delete(path, headers=ours).status_code == status
        assert guarded.http.get(path, headers=ours).status_code == status
        assert guarded.http.get(path, headers=admin).json()["state"] == state


# --- names and ids that somebody else has


def test_the_name_of_another_s_transaction_cannot_be_used_up_unseen(guarded: Live) -> None:
    """A second transaction under a name is refused, and never counts as a repeat of the first."""
    hello = {"role": "client", "credential": ADMIN}
    mine, theirs = ([fresh_id(), pack_task({"queue": queue}, [b"x"])] for queue in ("mine", "theirs"))
    with Wire(guarded.address, hello=hello) as wire:
        wire.call("transact", {"name": "a name to guess", "enqueue": [mine]})
        assert wire.error("transact", {"name": "a name to guess", "enqueue": [theirs]})["code"] == "conflict"


def test_a_task_under_an_id_that_is_taken_replaces_nothing(guarded: Live) -> None:
    """It is refused, not acknowledged as a repeat: a single task, and a run that begins or ends with the id."""
    hello = {"role": "client", "credential": ADMIN}
    first = fresh_id()
    second = (int.from_bytes(first, "big") + 1).to_bytes(len(first), "big")
    with Wire(guarded.address, hello=hello) as wire:
        wire.call("enqueue", {"runs": [[second, pack_task({"queue": "theirs"}, [b"theirs"])]]})
        for at, tasks in ((second, [b"mine"]), (second, [b"mine", b"more"]), (first, [b"mine", b"more"])):
            (ack,) = wire.call("enqueue", {"runs": [[at, pack_task({"queue": "mine"}, tasks)]]})["acks"]
            assert ack["code"] == "conflict" and "theirs" not in ack["message"]
            found = wire.call("get", {"id": second})
            assert (found["queue"], found["data"]) == ("theirs", b"theirs")
