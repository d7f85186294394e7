"""Bad input against a real node, by frames and over HTTP: a clear error, nothing stored, nothing broken."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from onyxq.facts import pack_task
from onyxq.ids import make_id
from tests.interfaces.live_world import Live, Wire, claim_of, complete_error, frame, fresh_id, names, running

pytestmark = pytest.mark.slow

QUEUE = "fine"
RUN = pack_task({"queue": QUEUE}, [b"x"])
ID = fresh_id()
UNKNOWN_PARTITION = make_id(1_700_000_000_000, 64, 1, 0)
EDGE = make_id(1_700_000_000_000, 1, 1, 1023)
NAN = float("nan")
HUGE = (1 << 64) - 1


def of(header: Any, *payloads: bytes) -> dict[str, Any]:
    """An enqueue of one run under this header."""
    return {"runs": [[ID, pack_task(header, payloads or (b"x",))]], "w": None}


def run(body: Any, first: Any = ID) -> dict[str, Any]:
    """An enqueue of one run that may be anything."""
    return {"runs": [[first, body]], "w": None}


def damaged(body: bytes) -> bytes:
    """The body with one payload byte flipped."""
    return body[:-1] + bytes([body[-1] ^ 1])


BAD_ENQUEUES: list[tuple[str, Any, str, str | None]] = [
    ("enqueue", {}, "bad_request", "runs"),
    ("enqueue", {"runs": None}, "bad_request", "runs"),
    ("enqueue", {"runs": {}}, "bad_request", "runs"),
    ("enqueue", {"runs": "text"}, "bad_request", "runs"),
    ("enqueue", {"runs": [[ID, RUN]] * 20_001}, "bad_request", "runs"),
    ("enqueue", {"runs": [[ID, RUN], 5]}, "bad_request", "runs[1]"),
    ("enqueue", {"runs": [[ID, RUN], [ID]]}, "bad_request", "runs[1]"),
    ("enqueue", {"runs": [[ID, RUN, 1]]}, "bad_request", "runs[0]"),
    ("enqueue", {"runs": [[ID, RUN]], "w": 0}, "bad_request", "w"),
    ("enqueue", {"runs": [[ID, RUN]], "w": True}, "bad_request", "w"),
    ("enqueue", {"runs": [[ID, RUN]], "w": HUGE}, "bad_request", "w"),
    ("enqueue", {"runs": [[ID, RUN]], "extra": 1}, "bad_request", "extra"),
    ("enqueue", {"runs": [[ID, RUN]], 5: 1}, "bad_request", "5"),
    ("enqueue", run(RUN, 5), "bad_request", "runs[0].id"),
    ("enqueue", run(RUN, None), "bad_request", "runs[0].id"),
    ("enqueue", run(RUN, ID[:-1]), "bad_request", "runs[0].id"),
    ("enqueue", run(RUN, ID + b"x"), "bad_request", "runs[0].id"),
    ("enqueue", run(RUN, ID.hex()), "bad_request", "runs[0].id"),
    ("enqueue", run(RUN, UNKNOWN_PARTITION), "bad_request", "runs[0].id"),
    ("enqueue", run(None), "bad_request", "runs[0]"),
    ("enqueue", run("text"), "bad_request", "runs[0]"),
    ("enqueue", run(b""), "bad_request", "runs[0]"),
    ("enqueue", run(RUN[:-1]), "bad_request", "runs[0]"),
    ("enqueue", run(RUN + b"x"), "bad_request", "runs[0]"),
    ("enqueue", run(RUN[:10]), "bad_request", "runs[0]"),
    ("enqueue", run(b"\xff" * 64), "bad_request", "runs[0]"),
    ("enqueue", run(damaged(RUN)), "bad_request", "runs[0]"),
    ("enqueue", run(pack_task({"queue": QUEUE}, [])), "bad_request", "runs[0]"),
    ("enqueue", run(pack_task({"queue": QUEUE}, [b""] * 1025)), "bad_request", "runs[0]"),
    ("enqueue", run(pack_task({"queue": QUEUE}, [b"", b""]), EDGE), "bad_request", "runs[0].count"),
    ("enqueue", of({"queue": QUEUE}, b"x" * 200_000, b"x" * 200_000), "too_large", "runs[0].data"),
    ("enqueue", of([1, 2]), "bad_request", "runs[0]"),
    ("enqueue", of({}), "bad_request", "runs[0].queue"),
    ("enqueue", of({"queue": ""}), "bad_request", "runs[0].queue"),
    ("enqueue", of({"queue": "q" * 201}), "bad_request", "runs[0].queue"),
    ("enqueue", of({"queue": "a\0b"}), "bad_request", "runs[0].queue"),
    ("enqueue", of({"queue": "a\nb"}), "bad_request", "runs[0].queue"),
    ("enqueue", of({"queue": b"bytes"}), "bad_request", "runs[0].queue"),
    ("enqueue", of({"queue": 7}), "bad_request", "runs[0].queue"),
    ("enqueue", of({"queue": QUEUE, "colour": 1}), "bad_request", "runs[0].colour"),
    ("enqueue", of({"queue": QUEUE, "priority": True}), "bad_request", "runs[0].priority"),
    ("enqueue", of({"queue": QUEUE, "priority": 1.0}), "bad_request", "runs[0].priority"),
    ("enqueue", of({"queue": QUEUE, "priority": NAN}), "bad_request", "runs[0].priority"),
    ("enqueue", of({"queue": QUEUE, "priority": 1 << 31}), "bad_request", "runs[0].priority"),
    ("enqueue", of({"queue": QUEUE, "priority": -(1 << 63)}), "bad_request", "runs[0].priority"),
    ("enqueue", of({"queue": QUEUE, "retries": -1}), "bad_request", "runs[0].retries"),
    ("enqueue", of({"queue": QUEUE, "retries": HUGE}), "bad_request", "runs[0].retries"),
    ("enqueue", of({"queue": QUEUE, "backoff_ms": "5"}), "bad_request", "runs[0].backoff_ms"),
    ("enqueue", of({"queue": QUEUE, "format": ["json"]}), "bad_request", "runs[0].format"),
]
BAD_CLAIMS: list[tuple[str, Any, str, str | None]] = [
    ("claim", {}, "bad_request", "queues"),
    ("claim", claim_of() | {"queues": "a"}, "bad_request", "queues"),
    ("claim", claim_of(), "bad_request", "queues"),
    ("claim", claim_of(*["a"] * 101), "bad_request", "queues"),
    ("claim", claim_of("a", ""), "bad_request", "queues[1]"),
    ("claim", claim_of("a\0"), "bad_request", "queues[0]"),
    ("claim", claim_of("q" * 201), "bad_request", "queues[0]"),
    ("claim", claim_of("a", max=True), "bad_request", "max"),
    ("claim", claim_of("a", max="1"), "bad_request", "max"),
    ("claim", claim_of("a", max=0), "bad_request", "max"),
    ("claim", claim_of("a", max=1_001), "bad_request", "max"),
    ("claim", claim_of("a", max=NAN), "bad_request", "max"),
    ("claim", claim_of("a", lease_ms=999), "bad_request", "lease_ms"),
    ("claim", claim_of("a", lease_ms=1 << 63), "bad_request", "lease_ms"),
    ("claim", claim_of("a", wait_ms=-1), "bad_request", "wait_ms"),
    ("claim", claim_of("a", wait_ms=1.5), "bad_request", "wait_ms"),
    ("claim", claim_of("a", worker=5), "bad_request", "worker"),
    ("claim", claim_of("a", worker=0), "bad_request", "worker"),
    ("claim", claim_of("a", worker=[]), "bad_request", "worker"),
    ("claim", claim_of("a", worker="w" * 201), "bad_request", "worker"),
    ("claim", claim_of("a", worker="w\0"), "bad_request", "worker"),
    ("claim", claim_of("a", colour=1), "bad_request", "colour"),
]


def one(method: str, *item: Any) -> tuple[str, dict[str, Any]]:
    """A call with one item."""
    return method, {"items": [list(item)]}


BAD_ITEMS: list[tuple[str, Any, str, str | None]] = [
    ("complete", {}, "bad_request", "items"),
    ("complete", {"items": {}}, "bad_request", "items"),
    ("complete", {"items": [], "more": 1}, "bad_request", "more"),
    ("complete", {"items": [[ID, 1, 1]]}, "bad_request", "items[0]"),
    (*one("complete", "text", 1, 1, None, None), "bad_request", "items[0].id"),
    (*one("complete", UNKNOWN_PARTITION, 1, 1, None, None), "bad_request", "items[0].id"),
    (*one("complete", ID, 0, 1, None, None), "bad_request", "items[0].count"),
    (*one("complete", ID, True, 1, None, None), "bad_request", "items[0].count"),
    (*one("complete", ID, 1025, 1, None, None), "bad_request", "items[0].count"),
    (*one("complete", EDGE, 2, 1, None, None), "bad_request", "items[0].count"),
    (*one("complete", ID, 1, -1, None, None), "bad_request", "items[0].token"),
    (*one("complete", ID, 1, 1 << 63, None, None), "bad_request", "items[0].token"),
    (*one("complete", ID, 1, "1", None, None), "bad_request", "items[0].token"),
    (*one("complete", ID, 1, 1, True, None), "bad_request", "items[0].seq"),
    (*one("complete", ID, 1, 1, -1, None), "bad_request", "items[0].seq"),
    (*one("complete", ID, 1, 1, None, b"x"), "bad_request", "items[0].result"),
    (*one("complete", ID, 1, 1, None, [b"x", b"y"]), "bad_request", "items[0].result"),
    (*one("complete", ID, 1, 1, None, ["text"]), "bad_request", "items[0].result"),
    (*one("complete", ID, 1, 1, None, [b"x" * (16 * 1024 * 1024 + 1)]), "too_large", "items[0].result"),
    (*one("fail", ID, 1, 1, None, None), "bad_request", "items[0].error"),
    (*one("fail", ID, 1, 1, b"bytes", None), "bad_request", "items[0].error"),
    (*one("fail", ID, 1, 1, "x" * 65_537, None), "bad_request", "items[0].error"),
    (*one("fail", ID, 1, 1, "e", -1), "bad_request", "items[0].retry_in_ms"),
    (*one("fail", ID, 1, 1, "e", NAN), "bad_request", "items[0].retry_in_ms"),
    (*one("fail", ID, 1, 1, "e", HUGE), "bad_request", "items[0].retry_in_ms"),
    (*one("renew", ID, 1, 1, 999), "bad_request", "items[0].lease_ms"),
    (*one("renew", ID, 1, 1, None), "bad_request", "items[0].lease_ms"),
    (*one("renew", ID, 1, 1, 1 << 63), "bad_request", "items[0].lease_ms"),
    (*one("release", ID, 1, None), "bad_request", "items[0].token"),
    (*one("release", ID, 1, 1.0), "bad_request", "items[0].token"),
    (*one("update", ID[:19], 1, 0, b"x"), "bad_request", "items[0].id"),
    (*one("update", ID, True, 0, b"x"), "bad_request", "items[0].token"),
    (*one("update", ID, 1, -1, b"x"), "bad_request", "items[0].seq"),
    (*one("update", ID, 1, 0, "text"), "bad_request", "items[0].data"),
    (*one("update", ID, 1, 0, b"x" * 300_000), "bad_request", "items[0].data"),
    ("cancel", {"ids": "text"}, "bad_request", "ids"),
    ("cancel", {"ids": [ID, 5]}, "bad_request", "ids[1]"),
    ("cancel", {"ids": [UNKNOWN_PARTITION]}, "bad_request", "ids[0]"),
    ("cancel", {"ids": [], "id": ID}, "bad_request", "id"),
]
BAD_READS: list[tuple[str, Any, str, str | None]] = [
    ("get", {}, "bad_request", "id"),
    ("get", {"id": ID[:5]}, "bad_request", "id"),
    ("get", {"id": UNKNOWN_PARTITION}, "bad_request", "id"),
    ("get", {"id": ID}, "not_found", "id"),
    ("get", {"id": ID, "seen_token": True}, "bad_request", "seen_token"),
    ("get", {"id": ID, "seen_token": -1}, "bad_request", "seen_token"),
    ("get", {"id": ID, "seen_seq": "0"}, "bad_request", "seen_seq"),
    ("get", {"id": ID, "token": 1}, "bad_request", "token"),
    ("task_log", {"id": None}, "bad_request", "id"),
    ("task_log", {"id": ID}, "not_found", "id"),
    ("list", {"limit": 0}, "bad_request", "limit"),
    ("list", {"limit": 1_001}, "bad_request", "limit"),
    ("list", {"limit": True}, "bad_request", "limit"),
    ("list", {"queue": 5}, "bad_request", "queue"),
    ("list", {"state": "lost"}, "bad_request", "state"),
    ("list", {"state": ["ready"]}, "bad_request", "state"),
    ("list", {"after": b"x"}, "bad_request", "after"),
    ("list", {"colour": 1}, "bad_request", "colour"),
    ("count", {"queue": ["a"]}, "bad_request", "queue"),
    ("count", {"queue": ""}, "bad_request", "queue"),
    ("count", {"queues": "a"}, "bad_request", "queues"),
    ("queues", {"queue": "a"}, "bad_request", "queue"),
    ("ids", {"count": 0}, "bad_request", "count"),
    ("ids", {"count": 1 << 63}, "bad_request", "count"),
    ("ids", {"count": NAN}, "bad_request", "count"),
    ("routes", {"x": 1}, "bad_request", "x"),
    ("cluster", {"x": 1}, "bad_request", "x"),
    ("ring", {"x": 1}, "bad_request", "x"),
    ("health", {"x": 1}, "bad_request", "x"),
    ("metrics", {"x": 1}, "bad_request", "x"),
    ("partition", {"partition": 64}, "not_found", "partition"),
    ("partition", {"partition": -1}, "bad_request", "partition"),
    ("partition", {}, "bad_request", "partition"),
    ("log", {"from": -1}, "bad_request", "from"),
    ("log", {"from": HUGE}, "bad_request", "from"),
    ("log", {"limit": "9"}, "bad_request", "limit"),
    ("gc", {"x": 1}, "bad_request", "x"),
    ("leave", {}, "bad_request", "peer"),
    ("leave", {"peer": 5}, "bad_request", "peer"),
    ("leave", {"peer": "nobody"}, "not_found", "peer"),
    ("nothing", {}, "not_found", "method"),
    ("", {}, "not_found", "method"),
    ("m" * 5_000, {}, "not_found", "method"),
    ("$nothing", {}, "not_found", "method"),
]
BAD_CALLS = BAD_ENQUEUES + BAD_CLAIMS + BAD_ITEMS + BAD_READS


def http_task(**members: Any) -> dict[str, Any]:
    """A request for one task with these members."""
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
    ("/v1/tasks", http_task(priority=True), "tasks[0].priority"),
    ("/v1/tasks", http_task(priority="5"), "tasks[0].priority"),
    ("/v1/tasks", http_task(priority=1.0), "tasks[0].priority"),
    ("/v1/tasks", http_task(priority=1 << 63), "tasks[0].priority"),
    ("/v1/tasks", http_task(retries=-1), "tasks[0].retries"),
    ("/v1/tasks", http_task(delay_ms=1 << 64), "tasks[0].delay_ms"),
    ("/v1/tasks", http_task(id=UNKNOWN_PARTITION.hex()), "tasks[0].id"),
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
    """One node for all tests that must not harm it."""
    with running(http=True) as cluster:
        live = Live(cluster)
        yield live
        live.check_serves()
        live.close()


@pytest.fixture(autouse=True)
def unharmed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test of this module leaves the number of tasks alone, and the node serving."""
    if "live" not in request.fixturenames:
        yield
        return
    live: Live = request.getfixturevalue("live")
    before = live.total()
    yield
    assert live.total() == before
    assert live.http.get("/livez").status_code == 200
PEER_METHODS = (
    "cohort.covering", "cohort.hours", "cohort.keys", "cohort.leaves", "cohort.position", "cohort.push", "cohort.reach",
    "cohort.rows", "cohort.write", "lead.cancel", "lead.claim", "lead.complete", "lead.counts", "lead.enqueue",
    "lead.fail", "lead.head", "lead.list", "lead.offer", "lead.release", "lead.renew", "lead.update", "lead.view",
    "peer.leave",
)  # fmt: skip


class TestByFrames:
    """What a client of the wire protocol may send."""

    @pytest.mark.parametrize(("method", "args", "code", "field"), BAD_CALLS, ids=names(BAD_CALLS))
    def test_a_bad_call_is_answered_with_code_and_field(
        self, live: Live, method: str, args: Any, code: str, field: str | None
    ) -> None:
        """And the connection goes on."""
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
        """With the reason as the last frame."""
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
            b"\x93\x01\xa3get\x81\x91\x01\x01",
            msgpack.packb([1, "get", {}]) * 2,
        ],
    )
    def test_a_frame_that_is_no_message_ends_its_connection(self, live: Live, body: bytes) -> None:
        """Deep nesting and lengths beyond the frame among them."""
        with Wire(live.address) as wire:
            wire.send_bytes(frame(body))
            ((_, _, error),) = wire.goodbye()
            assert complete_error(error)["code"] == "protocol_error"

    @pytest.mark.parametrize("depth", [20, 400])
    def test_deeply_nested_arguments_are_refused(self, live: Live, depth: int) -> None:
        """As far as msgpack goes, and beyond."""
        value: Any = 1
        for _ in range(depth):
            value = [value]
        error = live.wire.error("get", {"id": value})
        assert (error["code"], error["field"]) == ("bad_request", "id")

    def test_a_frame_over_the_limit_is_refused_before_it_is_read(self, live: Live) -> None:
        """Its length alone says it."""
        with Wire(live.address) as wire:
            wire.send_bytes((20 * 1024 * 1024 + 1).to_bytes(4, "little") + b"x" * 100)
            ((_, _, error),) = wire.goodbye()
            assert complete_error(error)["code"] == "protocol_error" and "20971521" in error["message"]

    def test_a_request_of_nearly_twenty_mebibytes_is_judged_like_any_other(self, live: Live) -> None:
        """A task of its size is too large; its connection goes on."""
        body = pack_task({"queue": QUEUE}, [b"x" * (20 * 1024 * 1024 - 1000)])
        error = live.wire.error("enqueue", run(body))
        assert (error["code"], error["field"]) == ("too_large", "runs[0].data")

    def test_a_frame_that_never_ends_harms_nobody(self, live: Live) -> None:
        """Others are served meanwhile, and its end is quiet."""
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
    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=False)
    @given(data=st.binary(min_size=1, max_size=200), greeted=st.booleans(), framed=st.booleans())
    def test_random_bytes_are_answered_or_end_the_connection(
        self, live: Live, data: bytes, greeted: bool, framed: bool
    ) -> None:
        """Before and after the hello, as frames and as they are."""
        with Wire(live.address, hello={"role": "client"} if greeted else None) as wire:
            wire.send_bytes(frame(data) if framed else data)
            wire.end()
            for _, status, body in wire.goodbye():
                assert status == 0 or complete_error(body)

    def test_the_same_request_number_twice_in_flight_ends_the_connection(self, live: Live) -> None:
        """Its answers could not be told apart."""
        with Wire(live.address) as wire:
            wire.send([9, "claim", claim_of("never", wait_ms=5_000)])
            wire.send([9, "health", {}])
            ((_, _, error),) = wire.goodbye()
            assert complete_error(error)["code"] == "protocol_error"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), HUGE) | st.floats() | st.text(max_size=20)
    | st.binary(max_size=24) | st.sampled_from([ID, RUN, UNKNOWN_PARTITION, QUEUE]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip
ARGUMENTS = (
    "runs", "w", "items", "ids", "id", "queues", "queue", "max", "lease_ms", "wait_ms", "worker", "limit", "after",
    "state", "count", "partition", "from", "seen_token", "seen_seq", "peer",
)  # fmt: skip
CLIENT_METHODS = (
    "enqueue", "claim", "complete", "fail", "renew", "release", "update", "cancel", "ids", "routes", "get", "task_log",
    "list", "count", "queues", "log", "cluster", "ring", "partitions", "peers", "partition", "health", "metrics",
)  # fmt: skip


class TestGeneratedCalls:
    """Arguments that nobody thought of."""

    @seed(20_261)
    @settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        """The connection closes behind it."""
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
        """Also a request without a hello, or another version."""
        with Wire(live.address, hello=None) as wire:
            wire.send(message)
            ((_, _, error),) = wire.goodbye()
            assert complete_error(error)["code"] == "protocol_error"

    @pytest.mark.parametrize("said", [b"", b"\x10\x00", frame(b"\x93\xa5onyxq")[:-3]])
    def test_a_hello_that_does_not_come_ends_the_connection(
        self, live: Live, said: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In bounded time, with the reason."""
        monkeypatch.setattr("onyxq.wire.server.HELLO_TIMEOUT_S", 0.1)
        with Wire(live.address, hello=None) as wire:
            wire.send_bytes(said)
            ((_, _, error),) = wire.goodbye()
            assert complete_error(error)["code"] == "timed_out"


@pytest.fixture(scope="module")
def finished(live: Live) -> tuple[bytes, int]:
    """A task that was claimed, given back and claimed again, and its first token."""
    first = fresh_id(5)
    body = pack_task({"queue": "twice"}, [b"x"])
    live.wire.call("enqueue", run(body, first))
    ((token, *_),) = live.wire.call("claim", claim_of("twice", wait_ms=2_000, worker="first"))["claims"]
    assert live.wire.call("release", {"items": [[first, 1, token]]}) == {"results": [[]]}
    ((newer, *_),) = live.wire.call("claim", claim_of("twice", wait_ms=2_000, worker="second"))["claims"]
    assert newer > token
    return first, token


class TestTokens:
    """Claims that do not stand, by frames and over HTTP."""

    @pytest.mark.parametrize(("method", "rest"), [("complete", (None, None)), ("fail", ("e", None)), ("release", ()), ("renew", (5_000,))])  # fmt: skip
    @pytest.mark.parametrize("which", ["stale", "never granted", "zero"])
    def test_a_token_that_does_not_stand_is_refused(
        self, live: Live, finished: tuple[bytes, int], method: str, rest: tuple[Any, ...], which: str
    ) -> None:
        """Both ways say the same, and the newer claim goes on."""
        first, stale = finished
        token = {"stale": stale, "never granted": (1 << 63) - 1, "zero": 0}[which]
        ((refused,),) = live.wire.call(method, {"items": [[first, 1, token, *rest]]})["results"]
        assert refused[:2] == [first, 1] and complete_error(refused[2])["code"] == "stale_token"
        claim = {"id": first.hex(), "token": token} | ({"error": "e"} if method == "fail" else {})
        answer = live.http.post(f"/v1/claims/{method}", json={"claims": [claim]})
        assert answer.status_code == 200
        (result,) = answer.json()["results"]
        assert (result["ok"], result["code"]) == (False, "stale_token")
        assert live.wire.call("get", {"id": first})["state"] == "claimed"

    def test_an_update_under_a_stale_token_is_refused(self, live: Live, finished: tuple[bytes, int]) -> None:
        """Both ways."""
        first, stale = finished
        (error,) = live.wire.call("update", {"items": [[first, stale, 0, b"x"]]})["results"]
        assert complete_error(error)["code"] == "stale_token"
        answer = live.http.post("/v1/claims/update", json={"id": first.hex(), "token": stale, "seq": 0, "data": 1})
        assert (answer.status_code, answer.json()["code"]) == (409, "stale_token")
        assert live.wire.call("task_log", {"id": first}) == {"updates": []}

    @pytest.mark.parametrize(("method", "rest"), [("complete", (None, None)), ("fail", ("e", None)), ("release", ()), ("renew", (5_000,))])  # fmt: skip
    def test_a_task_that_does_not_exist_is_refused(self, live: Live, method: str, rest: tuple[Any, ...]) -> None:
        """Its partition does exist."""
        ((refused,),) = live.wire.call(method, {"items": [[ID, 1, 7, *rest]]})["results"]
        assert complete_error(refused[2])["code"] == "not_found"

    def test_one_bad_claim_does_not_spoil_the_others(self, live: Live, finished: tuple[bytes, int]) -> None:
        """Over HTTP each has its own result."""
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
    """What a client of the HTTP interface may send."""

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
        """Deep nesting and endless numbers among them."""
        problem(live.http.post("/v1/tasks", content=body, headers={"content-type": "application/json"}), 400)

    def test_a_body_of_twenty_mebibytes_is_too_large(self, live: Live) -> None:
        """Status 413."""
        body = json.dumps(http_task(data="x" * (20 * 1024 * 1024))).encode()
        answer = live.http.post("/v1/tasks", content=body, headers={"content-type": "application/json"})
        assert problem(answer, 413)["code"] == "too_large"


def a_row(first: bytes, header: Any) -> list[bytes]:
    """A task row with a right checksum, whatever its header says."""
    key = first[6:8] + b"T" + first
    body = pack_task(header, [b"x"])
    return [key, body + zlib.crc32(body, zlib.crc32(key)).to_bytes(4, "little")]


@pytest.fixture(scope="module")
def harmed() -> Iterator[Live]:
    """A node of its own for peers that are broken."""
    with running(http=True) as cluster:
        live = Live(cluster)
        yield live
        live.check_serves()
        live.close()


@pytest.fixture
def peer(harmed: Live) -> Iterator[Wire]:
    """A connection in the role of a peer."""
    hello = harmed.wire.greeting[2] | {"role": "peer", "node": "ghost", "peer": "ghost-1"}
    with Wire(harmed.address, hello=hello) as wire:
        assert wire.greeting[0] == "onyxq"
        yield wire
    harmed.check_serves()


class TestPeersThatSayNonsense:
    """Methods of peers, called by one that is in the cluster and broken."""

    @pytest.mark.parametrize(
        ("method", "args"),
        [
            ("lead.claim", {"requests": [[[QUEUE], "5", 30_000, "w"]]}),
            ("lead.claim", {"requests": [[[QUEUE], 1, "x", "w"]]}),
            ("lead.claim", {"requests": [[[QUEUE], 1, 30_000, 5]]}),
            ("lead.claim", {"requests": [[5, 1, 30_000, "w"]]}),
            ("lead.claim", {"requests": [[[[]], 1, 30_000, "w"]]}),
            ("lead.claim", {"requests": [5]}),
            ("lead.head", {"queue": QUEUE, "known": "xx", "timeout_ms": 10}),
            ("lead.head", {"queue": [], "known": None, "timeout_ms": 10}),
            ("lead.head", {"queue": QUEUE, "known": None, "timeout_ms": "x"}),
            ("lead.head", {"queue": QUEUE, "known": None, "timeout_ms": -5}),
            ("lead.enqueue", {"runs": [[ID, b""]], "w": None}),
            ("lead.enqueue", {"runs": [[ID, pack_task({}, [b"x"])]], "w": None}),
            ("lead.enqueue", {"runs": [[b"", RUN]], "w": None}),
            ("lead.enqueue", {"runs": [[ID, RUN]], "w": "x"}),
            ("lead.enqueue", {"runs": [[ID, pack_task({"queue": 5}, [b"x"])]], "w": None}),
            ("lead.complete", {"items": [[b"", 1, 1, None, []]]}),
            ("lead.complete", {"items": [[ID, 5_000, 1, None, []]]}),
            ("lead.complete", {"items": [[ID, -5, 1, None, []]]}),
            ("lead.complete", {"items": [[ID, 1, "x", None, 5]]}),
            ("lead.fail", {"items": [[ID, 1, 1, 5, "x"]]}),
            ("lead.renew", {"items": [[ID, 1, 1, NAN]]}),
            ("lead.update", {"items": [[ID, 1, 0, 5]]}),
            ("lead.cancel", {"ids": [5]}),
            ("lead.view", {"id": b""}),
            ("lead.view", {"id": 5}),
            ("lead.list", {"queue": None, "state": None, "after": b"short", "limit": 5}),
            ("lead.list", {"queue": None, "state": None, "after": None, "limit": "x"}),
            ("lead.counts", {"queue": 5}),
            ("lead.offer", {"partition": 1, "rows": [[b"", b""]]}),
            ("lead.offer", {"partition": 1, "rows": [a_row(ID, {"queue": 5})]}),
            ("lead.offer", {"partition": 1, "rows": [a_row(ID, {})]}),
            ("lead.offer", {"partition": "1", "rows": []}),
            ("cohort.write", {"writes": [5]}),
            ("cohort.write", {"writes": [[1, "x", []]]}),
            ("cohort.write", {"writes": [[1, 1, [a_row(ID, {"queue": 5})]]]}),
            ("cohort.write", {"writes": [[1, 1, [a_row(ID, [])]]]}),
            ("cohort.write", {"writes": [[1, 1, [[b"x" * 23, b"y" * 9]]]]}),
            ("cohort.push", {"partition": 1, "epoch": 1, "rows": [a_row(ID, {"queue": QUEUE, "priority": "x"})]}),
            ("cohort.push", {"partition": 1, "epoch": NAN, "rows": []}),
            ("cohort.push", {"partition": 2, "epoch": 1, "rows": [a_row(ID, {"queue": QUEUE})]}),
            ("cohort.reach", {"partition": 1, "epoch": "x"}),
            ("cohort.reach", {"partition": 1, "epoch": NAN}),
            ("cohort.reach", {"partition": 1, "epoch": -1}),
            ("cohort.reach", {"partition": 1, "epoch": True}),
            ("cohort.reach", {"partition": 1, "epoch": HUGE}),
            ("cohort.reach", {"partition": -1, "epoch": 1}),
            ("cohort.reach", {"partition": 1 << 16, "epoch": 1}),
            ("cohort.reach", {"partition": "x", "epoch": 1}),
            ("cohort.reach", {"partition": [], "epoch": 1}),
            ("cohort.hours", {"partition": -1}),
            ("cohort.hours", {"partition": 1 << 40}),
            ("cohort.leaves", {"partition": 1, "hour": -1}),
            ("cohort.leaves", {"partition": 1, "hour": "x"}),
            ("cohort.keys", {"partition": 1, "hour": 1, "leaves": [256]}),
            ("cohort.keys", {"partition": 1, "hour": 1, "leaves": 5}),
            ("cohort.rows", {"keys": [b"", 5]}),
            ("cohort.rows", {"keys": [b"x" * 5_000]}),
            ("cohort.covering", {"id": b""}),
            ("cohort.covering", {"id": "x"}),
        ],
    )  # fmt: skip
    def test_nonsense_is_an_error_and_harms_nobody(self, peer: Wire, method: str, args: dict[str, Any]) -> None:
        """The node goes on, and so does the connection."""
        result, error = peer.answer(method, args)
        refusals = [error] if error else refusals_in(result)
        assert refusals and all(map(complete_error, refusals)), result
        assert peer.call("health", {})["ready"]

    @seed(20_262)
    @settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        method=st.sampled_from(sorted(set(PEER_METHODS) - {"cohort.reach", "peer.leave"})),
        args=st.fixed_dictionaries(
            {},
            optional={
                name: VALUES | st.lists(st.lists(VALUES, max_size=5), max_size=2)
                for name in ("runs", "w", "items", "ids", "requests", "queue", "known", "id", "after", "state", "limit")
            }
            | {"partition": st.integers(0, 70) | VALUES, "epoch": st.integers(0, 3) | VALUES, "timeout_ms": st.just(1)}
            | {name: VALUES for name in ("rows", "writes", "hour", "leaves", "keys", "peer")},
        ),
    )
    def test_generated_nonsense_harms_nobody(self, harmed: Live, method: str, args: dict[str, Any]) -> None:
        """Every call is answered."""
        said = harmed.wire.greeting[2]
        with Wire(harmed.address, hello=said | {"role": "peer", "node": "ghost"}) as wire:
            _, error = wire.answer(method, args)
            assert error is None or complete_error(error)


def refusals_in(result: Any) -> list[Any]:
    """The error maps somewhere in a result."""
    if isinstance(result, dict):
        return [result] if "code" in result else [found for one in result.values() for found in refusals_in(one)]
    return [found for one in result for found in refusals_in(one)] if isinstance(result, list) else []
