"""Calls that no node may take: method, arguments, and the code and field of the answer."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import strategies as st

from onyxq.core.facts import pack_task
from onyxq.core.ids import make_id
from tests.interfaces.live_world import claim_of, fresh_id

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
    ("enqueue", {"runs": [[ID, RUN, 1, 1]]}, "bad_request", "runs[0]"),
    ("enqueue", {"runs": [[ID, RUN, -1]]}, "bad_request", "runs[0].at_ms"),
    ("enqueue", {"runs": [[ID, RUN, "soon"]]}, "bad_request", "runs[0].at_ms"),
    ("enqueue", {"runs": [[ID, RUN]], "w": 0}, "bad_request", "w"),
    ("enqueue", {"runs": [[ID, RUN]], "w": True}, "bad_request", "w"),
    ("enqueue", {"runs": [[ID, RUN]], "w": HUGE}, "bad_request", "w"),
    ("enqueue", {"runs": [[ID, RUN]], "extra": 1}, "bad_request", "extra"),
    ("enqueue", {"runs": [[ID, RUN]], 5: 1}, "bad_request", None),
    ("enqueue", run(RUN, 5), "bad_request", "runs[0].id"),
    ("enqueue", run(RUN, None), "bad_request", "runs[0].id"),
    ("enqueue", run(RUN, ID[:-1]), "bad_request", "runs[0].id"),
    ("enqueue", run(RUN, ID + b"x"), "bad_request", "runs[0].id"),
    ("enqueue", run(RUN, ID.hex()), "bad_request", "runs[0].id"),
    ("enqueue", run(RUN, UNKNOWN_PARTITION), "bad_request", "runs[0].id"),
    ("enqueue", run(None), "bad_request", "runs[0].body"),
    ("enqueue", run("text"), "bad_request", "runs[0].body"),
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
    ("enqueue", of({"queue": QUEUE, "ordering_key": ""}), "bad_request", "runs[0].ordering_key"),
    ("enqueue", of({"queue": QUEUE, "ordering_key": "k" * 201}), "bad_request", "runs[0].ordering_key"),
    ("enqueue", of({"queue": QUEUE, "unique_key": ["k"]}), "bad_request", "runs[0].unique_key"),
    ("enqueue", of({"queue": QUEUE, "unique_key": "k\0"}), "bad_request", "runs[0].unique_key"),
    ("enqueue", of({"queue": QUEUE, "depends": ID}), "bad_request", "runs[0].depends"),
    ("enqueue", of({"queue": QUEUE, "depends": []}), "bad_request", "runs[0].depends"),
    ("enqueue", of({"queue": QUEUE, "depends": [ID, ID]}), "bad_request", "runs[0].depends"),
    ("enqueue", of({"queue": QUEUE, "depends": [UNKNOWN_PARTITION]}), "bad_request", "runs[0].depends"),
    ("enqueue", of({"queue": QUEUE, "on_dependency_failed": "panic"}), "bad_request", "runs[0].on_dependency_failed"),
    ("enqueue", of({"queue": QUEUE, "expires_ms": 0}), "bad_request", "runs[0].expires_ms"),
    ("enqueue", of({"queue": QUEUE, "expires_ms": HUGE}), "bad_request", "runs[0].expires_ms"),
    ("enqueue", of({"queue": QUEUE, "order": [1, 1, 1]}), "bad_request", "runs[0].order"),
    ("enqueue", of({"queue": QUEUE, "scheduled": True}), "bad_request", "runs[0].scheduled"),
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
    (*one("complete", ID, 1, 1, None, ["text"]), "bad_request", "items[0].result[0]"),
    (*one("complete", ID, 1, 1, None, [b"x" * (16 * 1024 * 1024 + 1)]), "too_large", "items[0].result"),
    (*one("fail", ID, 1, 1, None, None), "bad_request", "items[0].error"),
    (*one("fail", ID, 1, 1, b"bytes", None), "bad_request", "items[0].error"),
    (*one("fail", ID, 1, 1, "x" * 65_537, None), "bad_request", "items[0].error"),
    (*one("fail", ID, 1, 1, "e", -1), "bad_request", "items[0].retry_in_ms"),
    (*one("fail", ID, 1, 1, "e", NAN), "bad_request", "items[0].retry_in_ms"),
    (*one("fail", ID, 1, 1, "e", HUGE), "bad_request", "items[0].retry_in_ms"),
    (*one("renew", ID, 1, 1, 999), "bad_request", "items[0].lease_ms"),
    (*one("renew", ID, 1, 1, "1s"), "bad_request", "items[0].lease_ms"),
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
    ("backup.hold", {"name": "", "for_ms": 1}, "bad_request", "name"),
    ("backup.hold", {"name": "b", "why": 1, "for_ms": 1}, "bad_request", "why"),
    ("backup.hold", {"name": "b", "for_ms": 600_001}, "bad_request", "for_ms"),
    ("backup.hold", {"name": "b"}, "bad_request", "for_ms"),
    ("backup.hold", {"name": "b", "for_ms": 1, "x": 1}, "bad_request", "x"),
    ("backup.rows", {"partition": 64, "position": 0}, "bad_request", "partition"),
    ("backup.rows", {"partition": 0}, "bad_request", "position"),
    ("backup.rows", {"partition": 0, "position": HUGE}, "bad_request", "position"),
    ("backup.rows", {"partition": 0, "position": 0, "after": b"abc"}, "conflict", "after"),
    ("backup.rows", {"partition": 0, "position": 0, "after": 5}, "bad_request", "after"),
    ("leave", {}, "bad_request", "peer"),
    ("leave", {"peer": 5}, "bad_request", "peer"),
    ("leave", {"peer": "nobody"}, "not_found", "peer"),
    ("nothing", {}, "not_found", "method"),
    ("", {}, "not_found", "method"),
    ("m" * 5_000, {}, "not_found", "method"),
    ("$nothing", {}, "not_found", "method"),
]


def setting(**settings: Any) -> tuple[str, dict[str, Any]]:
    """A call that sets a queue."""
    return "queue.set", {"queue": QUEUE, **settings}


def periodic(**members: Any) -> tuple[str, dict[str, Any]]:
    """A call that sets a periodic task."""
    return "periodic.set", {"name": "p", "queue": QUEUE, "schedule": "every 60s"} | members


BAD_MANAGING: list[tuple[str, Any, str, str | None]] = [
    ("queue.set", {}, "bad_request", "queue"),
    ("queue.set", {"queue": QUEUE}, "bad_request", None),
    (*setting(raet=1), "bad_request", "raet"),
    (*setting(paused_by="me"), "bad_request", "paused_by"),
    (*setting(paused=1), "bad_request", "paused"),
    (*setting(lease_ms=1), "bad_request", "lease_ms"),
    (*setting(lease_ms=True), "bad_request", "lease_ms"),
    (*setting(retries=-1), "bad_request", "retries"),
    (*setting(rate="5"), "bad_request", "rate"),
    (*setting(rate=NAN), "bad_request", "rate"),
    (*setting(rate=-1), "bad_request", "rate"),
    (*setting(rate=0.0001), "bad_request", "rate"),
    (*setting(concurrency=HUGE), "bad_request", "concurrency"),
    (*setting(on_dead=["stops"]), "bad_request", "on_dead"),
    (*setting(durability="none"), "bad_request", "durability"),
    ("queue.set", {"queue": QUEUE, "paused": True, "why": "w" * 1_001}, "bad_request", "why"),
    ("queue.set", {"queue": QUEUE, "paused": True, "by": 5}, "bad_request", "by"),
    ("queue.get", {"queue": ""}, "bad_request", "queue"),
    ("queue.get", {"queue": QUEUE, "x": 1}, "bad_request", "x"),
    (*periodic(name=""), "bad_request", "name"),
    (*periodic(queue=5), "bad_request", "queue"),
    (*periodic(schedule="61 * * * *"), "bad_request", "schedule"),
    (*periodic(schedule="0 0 30 2 *"), "bad_request", "schedule"),
    (*periodic(schedule=5), "bad_request", "schedule"),
    (*periodic(zone="Mars/Olympus"), "bad_request", "zone"),
    (*periodic(data="text"), "bad_request", "data"),
    (*periodic(data=b"x" * 65_537), "too_large", "data"),
    (*periodic(missed="some"), "bad_request", "missed"),
    (*periodic(priority=1 << 31), "bad_request", "priority"),
    (*periodic(paused=None), "bad_request", "paused"),
    (*periodic(retries=-1), "bad_request", "retries"),
    (*periodic(retries=1_000_001), "bad_request", "retries"),
    (*periodic(backoff_ms=86_400_001), "bad_request", "backoff_ms"),
    (*periodic(backoff_ms=None), "bad_request", "backoff_ms"),
    (*periodic(expires_after_ms=0), "bad_request", "expires_after_ms"),
    (*periodic(unique_key="k"), "bad_request", "unique_key"),
    (*periodic(colour=1), "bad_request", "colour"),
    ("periodic.get", {"name": "nobody"}, "not_found", "name"),
    ("periodic.remove", {"name": "nobody"}, "not_found", "name"),
    ("periodic.set", {"name": "nobody", "paused": True}, "not_found", "name"),
    ("periodic.list", {"x": 1}, "bad_request", "x"),
    ("dead", {"limit": 0}, "bad_request", "limit"),
    ("dead", {"queue": 5}, "bad_request", "queue"),
    ("dead", {"after": b"x"}, "bad_request", "after"),
    ("dead.requeue", {"ids": ID}, "bad_request", "ids"),
    ("dead.requeue", {"ids": [ID], "queue": "a"}, "bad_request", "ids"),
    ("dead.discard", {"ids": [UNKNOWN_PARTITION]}, "bad_request", "ids[0]"),
    ("dead.discard", {"where": 5}, "bad_request", "where"),
    ("dead.discard", {"queue": "a", "limit": True}, "bad_request", "limit"),
    ("dead.discard", {}, "bad_request", "ids"),
    ("dead.discard", {"ids": []}, "bad_request", "ids"),
    ("partition.force", {}, "bad_request", "partition"),
    ("partition.force", {"partition": 64}, "not_found", "partition"),
]


def job(**changes: Any) -> dict[str, Any]:
    """A submission whose body is that of a job but for some of its fields."""
    catalog = [{"type": "input", "name": "in", "queue": "a"}, {"type": "output", "name": "out", "queue": "b"}]
    said = {"id": "fine", "workflow": [["in", "out"]], "catalog": catalog}
    return {"body": msgpack.packb({name: value for name, value in (said | changes).items() if value is not ...})}


OF_ONE_JOB = ("get", "wait", "kill", "seal", "letters", "requeue")
BAD_JOBS: list[tuple[str, Any, str, str | None]] = [
    ("job.submit", {}, "bad_request", "body"),
    ("job.submit", {"body": "text"}, "bad_request", "body"),
    ("job.submit", {"body": b""}, "bad_request", "job"),
    ("job.submit", {"body": b"\xc1"}, "bad_request", "job"),
    ("job.submit", {"body": b"\x91" * 5_000}, "bad_request", "job"),
    ("job.submit", {"body": msgpack.packb([1, 2])}, "bad_request", "job"),
    ("job.submit", {"body": bytes(200_000)}, "too_large", "job"),
    ("job.submit", job(extra=1), "bad_request", "extra"),
    ("job.submit", job(id=5), "bad_request", "id"),
    ("job.submit", job(id=""), "bad_request", "id"),
    ("job.submit", job(id="a/b"), "bad_request", "id"),
    ("job.submit", job(id="i" * 121), "bad_request", "id"),
    ("job.submit", job(workflow=...), "bad_request", "workflow"),
    ("job.submit", job(workflow=5), "bad_request", "workflow"),
    ("job.submit", job(workflow=[["in", "gone"]]), "bad_request", "workflow[0]"),
    ("job.submit", job(catalog=[5]), "bad_request", "catalog[0]"),
    ("job.submit", job(catalog=[{"type": "inputs"}]), "bad_request", "catalog[0].type"),
    ("job.submit", job(scheduler="fair"), "bad_request", "scheduler"),
    ("job.submit", job(min_slots=0), "bad_request", "min_slots"),
    ("job.submit", job(min_slots=HUGE), "bad_request", "min_slots"),
    ("job.submit", job(beside="nobody"), "bad_request", "beside"),
    ("job.submit", job(resume="nobody"), "bad_request", "resume"),
    ("job.submit", job(resume="savepoint:nobody"), "bad_request", "resume"),
    ("job.submit", job(resume="savepoint:"), "bad_request", "resume"),
    ("job.submit", job(drop_state=["minute"]), "bad_request", "drop_state"),
    ("job.submit", job() | {"replace": True}, "bad_request", "replace"),
    ("job.submit", job() | {"replace": 5}, "bad_request", "replace"),
    ("job.submit", job() | {"keep_ms": -1}, "bad_request", "keep_ms"),
    ("job.submit", job() | {"keep_ms": HUGE}, "bad_request", "keep_ms"),
    ("job.submit", job() | {"extra": 1}, "bad_request", "extra"),
    *((f"job.{verb}", {}, "bad_request", "id") for verb in OF_ONE_JOB),
    *((f"job.{verb}", {"id": 5}, "bad_request", "id") for verb in OF_ONE_JOB),
    *((f"job.{verb}", {"id": "i" * 121}, "bad_request", "id") for verb in OF_ONE_JOB),
    *((f"job.{verb}", {"id": "nobody"}, "not_found", "id") for verb in OF_ONE_JOB if verb != "seal"),
    ("job.savepoint", {"id": "nobody", "name": "s"}, "not_found", "id"),
    ("job.savepoint", {"id": "nobody"}, "bad_request", "name"),
    ("job.savepoint", {"id": "nobody", "name": "a/b"}, "bad_request", "name"),
    ("job.savepoint", {"id": "nobody", "name": "n" * 121}, "bad_request", "name"),
    ("job.savepoint", {"id": "nobody", "name": "s", "request": 5}, "bad_request", "request"),
    ("job.savepoint", {"id": "nobody", "name": "s", "wait_ms": -1}, "bad_request", "wait_ms"),
    ("job.savepoints", {"id": 5}, "bad_request", "id"),
    ("job.savepoint_delete", {"name": "nobody"}, "not_found", "name"),
    ("job.savepoint_delete", {}, "bad_request", "name"),
    ("jobs.keep_savepoint", {"name": "nobody"}, "bad_request", "position"),
    ("jobs.drop_savepoint", {"name": "s", "position": 1, "version": 1, "why": "no"}, "conflict", "name"),
    ("job.seal", {"id": "nobody", "input": "in"}, "not_found", "id"),
    ("job.seal", {"id": "nobody"}, "bad_request", "input"),
    ("job.seal", {"id": "nobody", "input": b"in"}, "bad_request", "input"),
    ("job.wait", {"id": "nobody", "wait_ms": -1}, "bad_request", "wait_ms"),
    ("job.wait", {"id": "nobody", "wait_ms": 600_001}, "bad_request", "wait_ms"),
    ("job.get", {"id": "nobody", "extra": 1}, "bad_request", "extra"),
    ("job.host", {"id": "nobody"}, "bad_request", "host"),
    ("job.host", {"id": "nobody", "host": "h"}, "not_found", "id"),
    ("job.host", {"id": "nobody", "host": "h", "number": -1}, "bad_request", "number"),
    ("job.host", {"id": "nobody", "host": "h", "events": [7]}, "bad_request", "events[0]"),
    ("job.host", {"id": "nobody", "host": "h", "wait_ms": 5_001}, "bad_request", "wait_ms"),
    ("job.letters", {"id": "nobody", "letter": b"short"}, "bad_request", "letter"),
    ("job.letters", {"id": "nobody", "letter": bytes(20)}, "not_found", "letter"),
    ("job.letters", {"id": "nobody", "letter": bytes(6) + b"\xff" * 14}, "bad_request", "letter"),
    ("job.letters", {"id": "nobody", "task": ""}, "bad_request", "task"),
    ("job.letters", {"id": "nobody", "limit": 0}, "bad_request", "limit"),
    ("job.requeue", {"id": "nobody", "limit": 100_001}, "bad_request", "limit"),
    ("job.requeue", {"id": "nobody", "error": 5}, "bad_request", "error"),
    ("job.requeue", {"id": "nobody", "new_id": "a b\n"}, "bad_request", "new_id"),
    ("job.list", {"state": "done"}, "bad_request", "state"),
    ("job.list", {"extra": 1}, "bad_request", "extra"),
]
BAD_CALLS = BAD_ENQUEUES + BAD_CLAIMS + BAD_ITEMS + BAD_READS + BAD_MANAGING + BAD_JOBS

PEER_METHODS = (
    "cohort.covering", "cohort.hours", "cohort.keys", "cohort.leaves", "cohort.log", "cohort.pending",
    "cohort.position", "cohort.push", "cohort.reach", "cohort.rows", "cohort.write", "job.host.here", "job.told",
    "lead.bodies",
    "lead.cancel", "lead.rows", "lead.claim", "lead.complete", "lead.counts", "lead.dead", "lead.depended",
    "lead.dead.discard", "lead.enqueue", "lead.fail", "lead.finished", "lead.flow.states", "lead.give_up",
    "lead.head", "lead.list", "lead.list.next", "lead.offer", "lead.outcomes", "lead.postpone", "lead.prepare",
    "lead.queue.purge", "lead.rates", "lead.rates.history", "lead.release", "lead.renew", "lead.request.record",
    "lead.dead.requeue", "lead.timer.cancel", "lead.timer.find", "lead.timer.set", "lead.told", "lead.update",
    "lead.view", "lead.waiting", "peer.leave",
)  # fmt: skip

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), HUGE) | st.floats() | st.text(max_size=20)
    | st.binary(max_size=24) | st.sampled_from([ID, RUN, UNKNOWN_PARTITION, QUEUE]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip
