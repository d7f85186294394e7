"""Bad input to a real node, by frames and over HTTP: a clear error, nothing stored, nothing broken."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from onyxq.core.facts import pack_task
from tests.interfaces.bad_calls import BAD_CALLS, ID, PEER_METHODS, QUEUE, RUN, UNKNOWN_PARTITION, VALUES, run
from tests.interfaces.live_world import (
    PATIENCE_MS,
    Live,
    Wire,
    claim_of,
    complete_error,
    frame,
    fresh_id,
    names,
    running,
)


def http_task(**members: Any) -> dict[str, Any]:
    """Return a request for one task with these members."""
    return {"tasks": [{"queue": QUEUE} | members]}


HTTP_CLAIM = {"id": ID.hex(), "token": 1}
BAD_POSTS: list[tuple[str, Any, str | None]] = [
    ("/v1/tasks", [], None),
    ("/v1/tasks", {}, "tasks"),
    ("/v1/tasks", {"tasks": {}}, "tasks"),
    ("/v1/tasks", {"tasks": [{"queue": QUEUE}], "extra": 1}, "extra"),
    ("/v1/tasks", {"tasks": [{"queue": QUEUE}, 5]}, "tasks[1]"),
    ("/v1/tasks", http_task(queue=""), "tasks[0].queue"),
    ("/v1/tasks", http_task(queue="a\0b"), "tasks[0].queue"),
    ("/v1/tasks", http_task(queue="q" * 201), "tasks[0].queue"),
    ("/v1/tasks", http_task(colour=1), "tasks[0].colour"),
    ("/v1/tasks", http_task(format="json"), "tasks[0].format"),
    ("/v1/tasks", http_task(data=1, data_base64="eA=="), "tasks[0].data"),
    ("/v1/tasks", http_task(id=ID.hex()) | {"w": 10}, "w"),
    ("/v1/transactions", {"enqueue": [{"queue": QUEUE}, {"queue": QUEUE, "depends": ["zz"]}]}, "enqueue[1].depends[0]"),
    ("/v1/transactions", {"enqueue": [{"queue": QUEUE, "at_ms": 5}]}, "enqueue[0].at_ms"),
    ("/v1/transactions", {"update": [{"id": ID.hex(), "token": 1, "seq": 0}]}, "update[0].data"),
    ("/v1/transactions", {"require": [{"id": ID.hex()}]}, "require[0].token"),
    ("/v1/transactions", {"complete": [{"id": ID.hex(), "token": 1, "seq": 0}]}, "complete[0].seq"),
    ("/v1/jobs", {"id": "fine", "keep_ms": -1}, "keep_ms"),
    ("/v1/jobs", {"id": "fine", "colour": 1}, "colour"),
    ("/v1/tasks", http_task(priority=True), "tasks[0].priority"),
    ("/v1/tasks", http_task(priority="5"), "tasks[0].priority"),
    ("/v1/tasks", http_task(priority=1.0), "tasks[0].priority"),
    ("/v1/tasks", http_task(priority=1 << 63), "tasks[0].priority"),
    ("/v1/tasks", http_task(retries=-1), "tasks[0].retries"),
    ("/v1/tasks", http_task(delay_ms=1 << 64), "tasks[0].delay_ms"),
    ("/v1/tasks", http_task(id=UNKNOWN_PARTITION.hex()), "tasks[0].id"),
    ("/v1/tasks", http_task(at_ms=5), "tasks[0].at_ms"),
    ("/v1/tasks", http_task(ordering_key=""), "tasks[0].ordering_key"),
    ("/v1/tasks", http_task(unique_key=5), "tasks[0].unique_key"),
    ("/v1/tasks", http_task(depends=["zz"]), "tasks[0].depends[0]"),
    ("/v1/tasks", http_task(depends=["00" * 20]), "tasks[0].depends"),
    ("/v1/tasks", http_task(depends=[UNKNOWN_PARTITION.hex()]), "tasks[0].depends"),
    ("/v1/tasks", http_task(id=ID.hex(), depends=[ID.hex()]), "tasks[0].depends"),
    ("/v1/tasks", http_task(expires_ms=-1), "tasks[0].expires_ms"),
    ("/v1/dead/requeue", {}, "ids"),
    ("/v1/dead/discard", {"ids": [5]}, "ids[0]"),
    ("/v1/tasks", http_task(id=ID.hex()[:-1]), "tasks[0].id"),
    ("/v1/tasks", http_task(data_base64="*"), "tasks[0].data_base64"),
    ("/v1/claims", {"queues": "a"}, "queues"),
    ("/v1/claims", {"queues": [QUEUE], "max": True}, "max"),
    ("/v1/claims", {"queues": [QUEUE], "lease_ms": -1}, "lease_ms"),
    ("/v1/claims", {"queues": [QUEUE], "wait_ms": 1 << 64}, "wait_ms"),
    ("/v1/claims", {"queues": [QUEUE], "colour": 1}, "colour"),
    ("/v1/claims/complete", {"claims": [HTTP_CLAIM | {"token": 1 << 63}]}, "claims[0].token"),
    ("/v1/claims/complete", {"claims": [HTTP_CLAIM | {"token": -1}]}, "claims[0].token"),
    ("/v1/claims/complete", {"claims": [HTTP_CLAIM | {"id": "zz"}]}, "claims[0].id"),
    ("/v1/claims/complete", {"claims": [HTTP_CLAIM | {"colour": 1}]}, "claims[0].colour"),
    ("/v1/claims/fail", {"claims": [HTTP_CLAIM | {"error": 5}]}, "claims[0].error"),
    ("/v1/claims/renew", {"claims": [HTTP_CLAIM | {"lease_ms": 0}]}, "claims[0].lease_ms"),
    ("/v1/claims/release", {"claims": {}}, "claims"),
    ("/v1/claims/update", HTTP_CLAIM | {"seq": -1, "data": 1}, "seq"),
    ("/v1/claims/update", HTTP_CLAIM | {"seq": 0}, "data"),
    ("/v1/claims/update", HTTP_CLAIM | {"id": UNKNOWN_PARTITION.hex(), "seq": 0, "data": 1}, "id"),
]
BAD_GETS = [
    ("/v1/ids?count=0", 400, "count"),
    ("/v1/ids?count=99999999999999999999", 400, "count"),
    ("/v1/tasks?limit=-1", 400, "limit"),
    ("/v1/tasks?state=lost", 400, "state"),
    ("/v1/tasks?colour=1", 400, "colour"),
    ("/v1/tasks/zz", 400, "id"),
    (f"/v1/tasks/{UNKNOWN_PARTITION.hex()}", 400, "id"),
    (f"/v1/tasks/{ID.hex()}", 404, "id"),
    (f"/v1/tasks/{ID.hex()}/log", 404, "id"),
    (f"/v1/tasks/{ID.hex()}?seen_token=x", 400, "seen_token"),
    ("/v1/log?from=-1", 400, "from"),
    ("/v1/nothing", 404, None),
]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """One node for all tests that must not affect it."""
    with running(http=True) as cluster:
        live = Live(cluster)
        yield live
        live.check_serves()
        live.close()


@pytest.fixture(autouse=True)
def unharmed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that each test leaves the number of tasks unchanged, and the node serving."""
    if "live" not in request.fixturenames:
        yield
        return
    live: Live = request.getfixturevalue("live")
    before = live.total()
    yield
    assert live.total() == before
    assert live.http.get("/livez").status_code == 200


class TestByFrames:
    """Requests of the wire protocol."""

    @pytest.mark.parametrize(("method", "args", "code", "field"), BAD_CALLS, ids=names(BAD_CALLS))
    def test_a_bad_call_is_answered_with_code_and_field(
        self, live: Live, method: str, args: Any, code: str, field: str | None
    ) -> None:
        """The connection continues."""
        error = live.wire.error(method, args)
        assert (error["code"], error["field"]) == (code, field), error
        assert live.wire.call("health", {})["ready"]

    def test_good_runs_beside_a_bad_one_are_not_stored(self, live: Live) -> None:
        """The request is refused as a whole."""
        good = fresh_id()
        assert live.wire.error("enqueue", {"runs": [[good, RUN], [ID, b""]], "w": None})["field"] == "runs[1]"
        assert live.wire.error("get", {"id": good})["code"] == "not_found"

    def test_every_method_of_peers_is_among_those_tried_here(self, live: Live) -> None:
        """A new one must be added to the list above."""
        service = live.cluster.nodes[0].service
        assert service is not None and set(service.peer_methods) == set(PEER_METHODS)

    @pytest.mark.parametrize("method", PEER_METHODS)
    def test_methods_of_peers_are_forbidden_to_clients(self, live: Live, method: str) -> None:
        """Whatever the arguments."""
        assert live.wire.error(method, {})["code"] == "forbidden"

    @pytest.mark.parametrize(
        "message",
        [
            None,
            [],
            {},
            5,
            [1],
            [1, "get"],
            [1, "get", {}, 5],
            [-1, "get", {}],
            ["1", "get", {}],
            [1.0, "get", {}],
            [1, b"get", {}],
            [1, 5, {}],
            [1, "get", []],
            [1, "get", None],
        ],
    )
    def test_a_frame_that_is_no_request_ends_its_connection(self, live: Live, message: Any) -> None:
        """The last frame has the reason."""
        with Wire(live.address) as wire:
            wire.send(message)
            ((number, status, error),) = wire.goodbye()
            assert (number, status, complete_error(error)["code"]) == (0, 1, "protocol_error")

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\xc1",
            b"\x93\x01\xa3get",
            b"\x91" * 5_000 + b"\xc0",
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\x93\x01\xa3\xff\xff\xff\x80",
            msgpack.packb([1, "get", {}]) * 2,
        ],
    )
    def test_a_frame_that_is_no_message_ends_its_connection(self, live: Live, body: bytes) -> None:
        """This includes deep nesting and lengths beyond the frame."""
        with Wire(live.address) as wire:
            wire.send_bytes(frame(body))
            ((_, _, error),) = wire.goodbye()
            assert complete_error(error)["code"] == "protocol_error"

    @pytest.mark.parametrize("args", [b"\x81\x91\x01\x01", b"\x81\xa2id\xa1\xff", b"\x81\xa2\xff\xffx"])
    @pytest.mark.parametrize("method", ["get", "no such method"])
    def test_arguments_that_have_no_form_are_refused(self, live: Live, method: str, args: bytes) -> None:
        """A list as a key, and text that is not UTF-8: the connection is still used, because the frame is sound."""
        with Wire(live.address) as wire:
            wire.send_bytes(frame(b"\x93\x07" + msgpack.packb(method) + args))
            number, status, error = wire.receive()
            assert (number, status) == (7, 1) and complete_error(error)["code"] in ("bad_request", "not_found")
            wire.send([8, "$ping", {}])
            assert wire.receive()[:2] == [8, 0]

    def test_a_withdrawal_that_has_no_form_ends_its_connection(self, live: Live) -> None:
        """It has no answer that could name the fault."""
        with Wire(live.address) as wire:
            wire.send_bytes(frame(b"\x93\x00\xa7$cancel\x81\xa2id\xa1\xff"))
            ((_, _, error),) = wire.goodbye()
            assert complete_error(error)["code"] == "protocol_error"

    @pytest.mark.parametrize("depth", [20, 400])
    def test_deeply_nested_arguments_are_refused(self, live: Live, depth: int) -> None:
        """This holds up to msgpack's limit and beyond."""
        value: Any = 1
        for _ in range(depth):
            value = [value]
        error = live.wire.error("get", {"id": value})
        assert (error["code"], error["field"]) == ("bad_request", "id")

    def test_a_frame_over_the_limit_is_refused_before_it_is_read(self, live: Live) -> None:
        """Its length is enough for the refusal."""
        with Wire(live.address) as wire:
            wire.send_bytes((20 * 1024 * 1024 + 1).to_bytes(4, "little") + b"x" * 100)
            ((_, _, error),) = wire.goodbye()
            assert complete_error(error)["code"] == "protocol_error" and "20971521" in error["message"]

    def test_a_request_of_nearly_twenty_mebibytes_is_judged_like_any_other(self, live: Live) -> None:
        """A task of that size is too large; its connection continues."""
        body = pack_task({"queue": QUEUE}, [b"x" * (20 * 1024 * 1024 - 1000)])
        error = live.wire.error("enqueue", run(body))
        assert (error["code"], error["field"]) == ("too_large", "runs[0].data")

    def test_a_frame_that_never_ends_harms_nobody(self, live: Live) -> None:
        """Others are served meanwhile, and its end has no effect."""
        with Wire(live.address) as wire:
            whole = frame(msgpack.packb([1, "enqueue", run(RUN)]))
            for size in (1, 3, 4, 5, len(whole) - 1):
                with Wire(live.address) as other:
                    other.send_bytes(whole[:size])
                    other.end()
                    assert other.goodbye() == []
            wire.send_bytes(whole[:-1])
            assert live.wire.call("health", {})["ready"]

    @seed(20_260)
    @settings(
        max_examples=60,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        derandomize=False,
    )
    @given(data=st.binary(min_size=1, max_size=200), greeted=st.booleans(), framed=st.booleans())
    def test_random_bytes_are_answered_or_end_the_connection(
        self, live: Live, data: bytes, greeted: bool, framed: bool
    ) -> None:
        """This holds before and after the hello, with and without frames."""
        with Wire(live.address, hello={"role": "client"} if greeted else None) as wire:
            wire.send_bytes(frame(data) if framed else data)
            wire.end()
            for _, status, body in wire.goodbye():
                assert status == 0 or complete_error(body)

    def test_the_same_request_number_twice_in_flight_ends_the_connection(self, live: Live) -> None:
        """Otherwise its answers would be ambiguous."""
        with Wire(live.address) as wire:
            wire.send([9, "claim", claim_of("never", wait_ms=5_000)])
            wire.send([9, "health", {}])
            ((_, _, error),) = wire.goodbye()
            assert complete_error(error)["code"] == "protocol_error"


ARGUMENTS = (
    "runs", "w", "items", "ids", "id", "queues", "queue", "max", "lease_ms", "wait_ms", "worker", "limit", "after",
    "state", "count", "partition", "from", "seen_token", "seen_seq", "peer",
)  # fmt: skip
CLIENT_METHODS = (
    "enqueue", "claim", "complete", "fail", "renew", "release", "postpone", "update", "cancel", "ids", "routes", "get",
    "task_log", "list", "count", "queues", "log", "cluster", "ring", "partitions", "peers", "partition", "health",
    "metrics",
)  # fmt: skip


class TestGeneratedCalls:
    """Generated arguments."""

    @pytest.mark.long
    @seed(20_261)
    @settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
    @given(
        method=st.sampled_from(CLIENT_METHODS),
        args=st.dictionaries(st.sampled_from(ARGUMENTS), VALUES, max_size=4)
        | st.fixed_dictionaries({"items": st.lists(st.lists(VALUES, min_size=3, max_size=5), max_size=3)}),
    )
    def test_no_argument_is_answered_as_a_fault_of_the_program(
        self, live: Live, method: str, args: dict[str, Any]
    ) -> None:
        """Result or error, but never ``internal``."""
        with Wire(live.address) as wire:
            _, error = wire.answer(method, args)
            assert error is None or complete_error(error)


class TestMadeUpNames:
    """Names of queues that never had a task."""

    @pytest.mark.long
    def test_claims_from_queues_that_do_not_exist_leave_nothing_behind(
        self, live: Live, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This holds at the asked node and at the leader."""
        monkeypatch.setattr("onyxq.operations.claims.LINGER_S", 0.1)
        node = live.cluster.nodes[0]
        assert node.service is not None and node.node is not None
        claiming, granter = node.service.claiming, node.node.granter
        before = granter.heads.known_queues
        for turn in range(5):
            _, error = live.wire.answer("claim", claim_of(*(f"made-up-{turn}-{i}" for i in range(100))))
            assert error is None or error["code"] == "unavailable", "a busy machine may not ask all nodes in time"
        assert claiming.watched >= 500
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while (claiming.watched >= 500 or granter.heads.known_queues > before) and time.monotonic() < deadline:
            live.wire.call("health", {})
            time.sleep(0.02)
        assert claiming.watched < 500 and granter.heads.known_queues <= before


class TestHello:
    """The first message of a connection."""

    @pytest.mark.parametrize(
        ("hello", "code"),
        [
            ({"role": "client", "cluster": "other"}, "cluster_mismatch"),
            ({"role": "client", "cluster_id": "0" * 16}, "cluster_mismatch"),
            ({"role": "client", "cluster": 5}, "protocol_error"),
            ({"role": "client", "cluster": ["main"]}, "protocol_error"),
            ({"role": "king"}, "bad_request"),
            ({"role": "peer"}, "forbidden"),
            ({"role": "peer", "cluster": "main"}, "forbidden"),
            ({"role": "peer", "cluster": "main", "node": "n1", "peer": "p1"}, "forbidden"),
            ({"role": "peer", "cluster_id": "0" * 16, "node": "n1"}, "cluster_mismatch"),
        ],
    )
    def test_a_wrong_hello_is_refused_with_the_reason(self, live: Live, hello: dict[str, Any], code: str) -> None:
        """The connection closes after it."""
        with Wire(live.address, hello=hello) as wire:
            assert wire.greeting[:2] == [0, 1] and complete_error(wire.greeting[2])["code"] == code
            assert wire.goodbye() == []

    def test_a_peer_must_name_its_node_too(self, live: Live) -> None:
        """The right cluster id is not enough."""
        with Wire(live.address) as wire:
            cluster_id = wire.greeting[2]["cluster_id"]
        with Wire(live.address, hello={"role": "peer", "cluster_id": cluster_id}) as wire:
            assert complete_error(wire.greeting[2])["code"] == "forbidden"

    @pytest.mark.parametrize("message", [None, [], ["onyxq"], ["onyxq", 2, {}], ["redis", 1, {}], [1, "health", {}]])
    def test_what_is_no_hello_is_refused(self, live: Live, message: Any) -> None:
        """This includes a request without a hello, and another version."""
        with Wire(live.address, hello=None) as wire:
            wire.send(message)
            ((_, _, error),) = wire.goodbye()
            assert complete_error(error)["code"] == "protocol_error"

    @pytest.mark.parametrize("said", [b"", b"\x10\x00", frame(b"\x93\xa5onyxq")[:-3]])
    def test_a_hello_that_does_not_come_ends_the_connection(
        self, live: Live, said: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It ends in bounded time, with the reason."""
        monkeypatch.setattr("onyxq.wire.server.HELLO_TIMEOUT_S", 0.1)
        with Wire(live.address, hello=None) as wire:
            wire.send_bytes(said)
            ((_, _, error),) = wire.goodbye()
            assert complete_error(error)["code"] == "timed_out"


@pytest.fixture(scope="module")
def finished(live: Live) -> tuple[bytes, int]:
    """A task that was claimed, released and claimed again, and its first token."""
    first = fresh_id(5)
    body = pack_task({"queue": "twice"}, [b"x"])
    live.wire.call("enqueue", run(body, first))
    ((token, *_),) = live.wire.call("claim", claim_of("twice", wait_ms=PATIENCE_MS, worker="first"))["claims"]
    assert live.wire.call("release", {"items": [[first, 1, token]]}) == {"results": [[]]}
    ((newer, *_),) = live.wire.call("claim", claim_of("twice", wait_ms=PATIENCE_MS, worker="second"))["claims"]
    assert newer > token
    return first, token


ENDS: list[tuple[str, tuple[Any, ...]]] = [
    ("complete", (None, None)),
    ("fail", ("e", None)),
    ("release", ()),
    ("postpone", ("later", 0)),
    ("give_up", ("e",)),
    ("renew", (5_000,)),
]


REFUSED = [
    (which, method, rest)
    for which in ("stale", "never granted", "zero")
    for method, rest in ENDS
    if (which, method) != ("stale", "release")
]
"""The claim of the stale token was released, and another release succeeds."""


class TestTokens:
    """Claims that are not valid, by frames and over HTTP."""

    def test_giving_back_once_more_is_done(self, live: Live, finished: tuple[bytes, int]) -> None:
        """The claim ended that way; a newer claim does not matter for a repeat."""
        first, stale = finished
        assert live.wire.call("release", {"items": [[first, 1, stale]]})["results"] == [[]]
        assert live.wire.call("get", {"id": first})["state"] == "claimed"

    @pytest.mark.parametrize(("which", "method", "rest"), REFUSED)
    def test_a_token_that_does_not_stand_is_refused(
        self, live: Live, finished: tuple[bytes, int], method: str, rest: tuple[Any, ...], which: str
    ) -> None:
        """Both interfaces give the same answer, and the newer claim continues."""
        first, stale = finished
        token = {"stale": stale, "never granted": (1 << 63) - 1, "zero": 0}[which]
        ((refused,),) = live.wire.call(method, {"items": [[first, 1, token, *rest]]})["results"]
        assert refused[:2] == [first, 1] and complete_error(refused[2])["code"] == "stale_token"
        claim = {"id": first.hex(), "token": token} | {"fail": {"error": "e"}, "postpone": {"retry_in_ms": 0}}.get(
            method, {}
        )
        answer = live.http.post(f"/v1/claims/{method}", json={"claims": [claim]})
        assert answer.status_code == 200
        (result,) = answer.json()["results"]
        assert (result["ok"], result["code"]) == (False, "stale_token")
        assert live.wire.call("get", {"id": first})["state"] == "claimed"

    def test_an_update_under_a_stale_token_is_refused(self, live: Live, finished: tuple[bytes, int]) -> None:
        """This holds for both interfaces."""
        first, stale = finished
        (error,) = live.wire.call("update", {"items": [[first, stale, 0, b"x"]]})["results"]
        assert complete_error(error)["code"] == "stale_token"
        answer = live.http.post("/v1/claims/update", json={"id": first.hex(), "token": stale, "seq": 0, "data": 1})
        assert (answer.status_code, answer.json()["code"]) == (409, "stale_token")
        assert live.wire.call("task_log", {"id": first}) == {"updates": []}

    @pytest.mark.parametrize(("method", "rest"), ENDS)
    def test_a_task_that_does_not_exist_is_refused(self, live: Live, method: str, rest: tuple[Any, ...]) -> None:
        """Its partition does exist."""
        ((refused,),) = live.wire.call(method, {"items": [[ID, 1, 7, *rest]]})["results"]
        assert complete_error(refused[2])["code"] == "not_found"

    def test_one_bad_claim_does_not_spoil_the_others(self, live: Live, finished: tuple[bytes, int]) -> None:
        """Over HTTP each claim has its own result."""
        first, stale = finished
        claims = [{"id": UNKNOWN_PARTITION.hex(), "token": 1}, {"id": first.hex(), "token": stale}, HTTP_CLAIM]
        answer = live.http.post("/v1/claims/complete", json={"claims": claims})
        assert [result["code"] for result in answer.json()["results"]] == ["not_found", "stale_token", "not_found"]


def problem(answer: Any, status: int) -> dict[str, Any]:
    """The problem document of an answer."""
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["detail"] and found["hint"] and found["code"] != "internal", found
    return found


class TestOverHttp:
    """Requests of the HTTP interface."""

    @pytest.mark.parametrize(("path", "body", "field"), BAD_POSTS, ids=names(BAD_POSTS))
    def test_a_bad_body_is_a_problem_naming_the_field(
        self, live: Live, path: str, body: Any, field: str | None
    ) -> None:
        """Status 400."""
        assert problem(live.http.post(path, json=body), 400)["field"] == field

    @pytest.mark.parametrize(("path", "status", "field"), BAD_GETS, ids=names(BAD_GETS))
    def test_a_bad_query_or_path_is_a_problem_naming_the_field(
        self, live: Live, path: str, status: int, field: str | None
    ) -> None:
        """Status 400 or 404."""
        assert problem(live.http.get(path), status)["field"] == field

    def test_cancelling_a_task_that_does_not_exist_is_not_found(self, live: Live) -> None:
        """Status 404, or 400 for an id of no partition."""
        assert problem(live.http.delete(f"/v1/tasks/{ID.hex()}"), 404)["code"] == "not_found"
        problem(live.http.delete(f"/v1/tasks/{UNKNOWN_PARTITION.hex()}"), 400)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b'{"tasks":[{"queue":"\xff"}]}',
            b'{"tasks":[{"queue":"fine","priority":NaN}]}',
            b'{"tasks":[{"queue":"fine","priority":1e999}]}',
            b'{"tasks":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"tasks":[{"queue":"fine","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
            b'{"tasks":[{"queue":"fine","priority":' + b"9" * 5_000 + b"}]}",
        ],
    )
    def test_a_body_that_is_no_sound_json_is_a_bad_request(self, live: Live, body: bytes) -> None:
        """This includes deep nesting and endless numbers."""
        problem(live.http.post("/v1/tasks", content=body, headers={"content-type": "application/json"}), 400)

    def test_a_body_of_twenty_mebibytes_is_too_large(self, live: Live) -> None:
        """Status 413."""
        body = json.dumps(http_task(data="x" * (20 * 1024 * 1024))).encode()
        answer = live.http.post("/v1/tasks", content=body, headers={"content-type": "application/json"})
        assert problem(answer, 413)["code"] == "too_large"
