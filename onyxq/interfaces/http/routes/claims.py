"""Endpoints for claims: taking, renewing, finishing and giving back.

A bad claim does not spoil the others of its request: each gets its own result.
Claims of consecutive ids that say the same travel as one run.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
from attrs import define, field
from starlette.responses import Response

from onyxq.core.errors import Corrupt, NotFound, OnyxqError, from_map
from onyxq.core.facts import unpack_task
from onyxq.core.ids import RUN_TASKS_MAX, TaskId, counter_of, ids_of, ms_of, offset_of, partition_of
from onyxq.core.limits import RUN_BYTES_MAX
from onyxq.interfaces.http.bodies import Disconnected
from onyxq.interfaces.http.endpoint import Call, Endpoint, W
from onyxq.interfaces.http.problems import Stopping, renamed
from onyxq.interfaces.http.schemas import ref
from onyxq.interfaces.http.shapes import AnyValue, Array, Base64, Field, HexId, Integer, Invalid, Object, Text
from onyxq.interfaces.http.values import answer, answer_text, dumps, payload_of, task_json
from onyxq.operations.table.claim import ERROR_CHARS_MAX

LEASE_MIN_MS, LEASE_MAX_MS, LEASE_DEFAULT_MS = 1_000, 86_400_000, 30_000
WAIT_MAX_MS = 600_000
CLAIMS_MAX = 1_000
QUEUES_MAX = 100
SEQ_MAX = 1 << 31
CLAIMS_ANSWERED_MAX = 10_000
RELEASE_TIME_MAX_S = 5.0

_log = logging.getLogger("onyxq.http")

_ID = Field(HexId(), required=True)
_TOKEN = Field(Integer(), required=True, doc="The claim's fencing token.")
_LEASE = Field(Integer(LEASE_MIN_MS, LEASE_MAX_MS), default=LEASE_DEFAULT_MS)

CLAIM = Object(
    "ClaimRequest",
    {
        "queues": Field(Array(Text(), minimum=1, maximum=QUEUES_MAX), required=True),
        "max": Field(Integer(1, CLAIMS_MAX), default=1),
        "lease_ms": Field(Integer(LEASE_MIN_MS, LEASE_MAX_MS), doc="Default: as the task's queue says (30000)."),
        "wait_ms": Field(Integer(0, WAIT_MAX_MS), default=0, doc="How long to wait for a first task."),
        "worker": Field(Text(), default="http", doc="A name to be shown with the claim."),
    },
)


def _many(name: str, members: Mapping[str, Field]) -> Object:
    item = Object(f"{name}Item", {"id": _ID, "token": _TOKEN, **members})
    return Object(name, {"claims": Field(Array(item, minimum=1, maximum=CLAIMS_ANSWERED_MAX), required=True)})


RENEW = _many("Renew", {"lease_ms": _LEASE})
RELEASE = _many("Release", {})
FAIL = _many(
    "Fail",
    {
        "error": Field(Text(0, ERROR_CHARS_MAX, name=False), default=""),
        "retry_in_ms": Field(Integer(0, 365 * 24 * 3_600_000), doc="Default: the task's back-off."),
    },
)
COMPLETE = _many(
    "Complete",
    {
        "seq": Field(Integer(0, SEQ_MAX), doc="Number of updates that must have been stored."),
        "result": Field(AnyValue(), keeps_null=True, doc="Any JSON value."),
        "result_base64": Field(Base64(), doc="Bytes, instead of result."),
    },
)
UPDATE = Object(
    "Update",
    {
        "id": _ID,
        "token": _TOKEN,
        "seq": Field(Integer(0, SEQ_MAX), required=True, doc="Counts from 0 per claim."),
        "data": Field(AnyValue(), keeps_null=True, doc="Any JSON value."),
        "data_base64": Field(Base64(), doc="Bytes, instead of data."),
        "w": W,
    },
)


async def while_connected(call: Call, work: Callable[[], Awaitable[Any]]) -> tuple[Any, bool]:
    """What ``work`` returns (None if it was cancelled), and whether the client is gone.

    The work is cancelled when the client goes away or the server stops.
    """
    result: Any = None
    gone = False
    failure: OnyxqError | None = None
    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()

        async def watch_client() -> None:
            nonlocal gone
            while (await call.receive())["type"] != "http.disconnect":
                await anyio.lowlevel.checkpoint()
            gone = True
            scope.cancel()

        async def watch_server() -> None:
            await call.closing.wait()
            scope.cancel()

        group.start_soon(watch_client)
        group.start_soon(watch_server)
        with scope:
            try:
                result = await work()
            except OnyxqError as error:
                failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result, gone


async def post_claims(call: Call) -> Response:
    """Claim tasks, waiting for them if asked to."""
    if call.kit.closing.is_set():
        raise Stopping("this peer is about to stop")
    wanted = {name: call.body.get(name) for name in ("queues", "max", "lease_ms", "wait_ms", "worker")}
    result, gone = await while_connected(call, lambda: call.ask("claim", **wanted))
    claims = result["claims"] if result else []
    if not gone:
        return answer_text('{"claims":[' + ",".join(_granted(claims)) + "]}")
    await _give_back(call, claims)
    raise Disconnected


async def _give_back(call: Call, claims: Sequence[Any]) -> None:
    """Release claims that nobody is left to work on."""
    items = [[first, unpack_task(body).count, token] for token, _, _, first, body in claims]
    if not items:
        return
    with anyio.move_on_after(RELEASE_TIME_MAX_S, shield=True):
        try:
            await call.ask("release", items=items)
        except OnyxqError as error:
            _log.warning("claims of a client that is gone stay until their lease ends: %s", error)


def _granted(claims: Sequence[Any]) -> list[str]:
    """Each claimed task as JSON; raises `Corrupt` if no run of several is whole."""
    out: list[str] = []
    damaged: Corrupt | None = None
    for token, expires_ms, attempts, first, body in claims:
        try:
            out += _granted_run(token, expires_ms, attempts=attempts, first=first, body=body)
        except Corrupt as error:
            # Its lease runs out and counts as an attempt; the other runs are still good.
            _log.error("a claimed run at task %s is damaged: %s", first.hex(), error)
            damaged = error
    if damaged and not out:
        raise damaged
    return out


def _granted_run(token: int, expires_ms: int, *, attempts: int, first: bytes, body: bytes) -> list[str]:
    run = unpack_task(body)
    task: dict[str, Any] = {
        "id": first,
        "queue": run.header["queue"],
        "priority": run.header.get("priority", 0),
        "state": "claimed",
        "at_ms": ms_of(first),
        "ordering_key": run.header.get("ordering_key"),
        "unique_key": run.header.get("unique_key"),
        "depends": run.header.get("depends", []),
        "attempts": attempts,
        "format": run.header.get("format", "bytes"),
    }
    out = []
    for task_id, payload in zip(ids_of(first, run.count), run.all_payloads(), strict=True):
        text = task_json({**task, "id": task_id, "data": payload, "result": None})
        out.append(f'{{"token":{token},"expires_ms":{expires_ms},"task":{text}}}')
    return out


@define
class Item:
    """Claims of consecutive ids that say the same: one item of a method's arguments."""

    start: int
    """Index of the first claim in the request."""
    first: TaskId
    rest: tuple[Any, ...]
    """The arguments behind first and count."""
    payloads: list[bytes | None] = field(factory=list)
    size: int = 0

    @property
    def count(self) -> int:
        """How many claims."""
        return len(self.payloads)

    @property
    def results(self) -> list[bytes | None] | None:
        """A payload for each claim, or None if there is none at all."""
        return self.payloads if any(data is not None for data in self.payloads) else None

    def takes(self, task_id: TaskId, rest: tuple[Any, ...], size: int) -> bool:
        """Whether one more claim fits in."""
        if rest != self.rest or self.count >= RUN_TASKS_MAX or self.size + size > RUN_BYTES_MAX:
            return False
        follows = counter_of(task_id) == counter_of(self.first) + self.count and offset_of(task_id) > 0
        return follows and task_id[:16] == self.first[:16]


def group_claims(
    claims: Sequence[Mapping[str, Any]], members: tuple[str, ...], payload: str | None = None
) -> list[Item]:
    """Items for the claims, in their order; raises `BadRequest`."""
    items: list[Item] = []
    for index, claim in enumerate(claims):
        try:
            data = (payload_of(claim, payload) or (None, None))[1] if payload else None
        except Invalid as error:
            error.within(index)
            error.within("claims")
            raise error.to_error("the body") from None
        rest = tuple(claim.get(name) for name in members)
        size = len(data or b"")
        # A sequence number speaks of one task's updates.
        alone = claim.get("seq") is not None
        if alone or not items or not items[-1].takes(claim["id"], rest, size):
            items.append(Item(index, claim["id"], rest))
        items[-1].payloads.append(data)
        items[-1].size += size
    return items


async def _each(call: Call, method: str, items: Sequence[Item], args: list[list[Any]]) -> Response:
    """Call a method on the items and answer with a result for every claim."""
    partitions = await call.partitions()
    good = [index for index, item in enumerate(items) if partition_of(item.first) < partitions]
    refused: list[Any] = [[[item.first, item.count, _foreign(item, partitions).to_map()]] for item in items]
    try:
        answers = (await call.ask(method, items=[args[index] for index in good]))["results"] if good else []
    except OnyxqError as error:
        error.field = renamed(error.field, [items[index].start for index in good], "claims")
        raise
    for index, parts in zip(good, answers, strict=True):
        refused[index] = parts
    return answer({"results": _results(call.body["claims"], items, refused)})


def _foreign(item: Item, partitions: int) -> NotFound:
    there = f"the id names partition {partition_of(item.first)}; the cluster has {partitions}"
    return NotFound(there, field=f"claims[{item.start}].id")


def _results(
    claims: Sequence[Mapping[str, Any]], items: Sequence[Item], refused: Sequence[Any]
) -> list[dict[str, Any]]:
    """A result for each claim, from the refused parts of each item."""
    results: list[dict[str, Any]] = [{"id": claim["id"], "ok": True} for claim in claims]
    for item, parts in zip(items, refused, strict=True):
        for first, count, why in parts:
            error = from_map(dict(why))
            start = item.start + counter_of(first) - counter_of(item.first)
            for index in range(start, start + count):
                results[index] |= {"ok": False, "code": error.code, "detail": error.message, "hint": error.advice}
    return results


async def post_renew(call: Call) -> Response:
    """Extend leases."""
    items = group_claims(call.body["claims"], ("token", "lease_ms"))
    return await _each(call, "renew", items, [[item.first, item.count, *item.rest] for item in items])


async def post_release(call: Call) -> Response:
    """Give claims back uncounted."""
    items = group_claims(call.body["claims"], ("token",))
    return await _each(call, "release", items, [[item.first, item.count, *item.rest] for item in items])


async def post_fail(call: Call) -> Response:
    """Report failures."""
    items = group_claims(call.body["claims"], ("token", "error", "retry_in_ms"))
    return await _each(call, "fail", items, [[item.first, item.count, *item.rest] for item in items])


async def post_complete(call: Call) -> Response:
    """Complete tasks."""
    items = group_claims(call.body["claims"], ("token", "seq"), "result")
    args = [[item.first, item.count, *item.rest, item.results] for item in items]
    return await _each(call, "complete", items, args)


async def post_update(call: Call) -> Response:
    """Store one update of a claimed task."""
    body = call.body
    try:
        data = payload_of(body, "data")
        if data is None:
            missing = Invalid("is missing", hint="Give data, or bytes as data_base64.")
            missing.within("data")
            raise missing
    except Invalid as error:
        raise error.to_error("the body") from None
    try:
        items = [[body["id"], body["token"], body["seq"], data[1]]]
        result = await call.ask("update", items=items, **({"w": body["w"]} if body.get("w") is not None else {}))
    except OnyxqError as error:
        error.field = renamed(error.field, [0], "")
        raise
    if result["results"][0] is not None:
        raise from_map(result["results"][0])
    said = {"acks": result["acks"][0]} if "acks" in result else {}
    said |= {"guarantee": result["guarantee"]} if "guarantee" in result else {}
    return answer_text(dumps({"id": body["id"], "ok": True, **said}))


def _of_claims(name: str, summary: str, handle: Callable[[Call], Awaitable[Response]], body: Object) -> Endpoint:
    return Endpoint(
        method="POST",
        path=f"/v1/claims/{name}",
        name=f"{name}_claims",
        tag="claims",
        summary=summary,
        doc="One bad claim does not spoil the others: each has its own result, in request order.",
        handle=handle,
        role="consume",
        body=body,
        large=True,
        answer=ref("ClaimResults"),
    )


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/claims",
        name="claim",
        tag="claims",
        summary="Claim tasks of some queues",
        doc="An empty list if there is none within wait_ms. A client that goes away while it waits claims nothing.",
        handle=post_claims,
        role="consume",
        body=CLAIM,
        answer=ref("Claims"),
        waits=True,
    ),
    _of_claims("renew", "Extend leases", post_renew, RENEW),
    _of_claims("complete", "Complete claimed tasks", post_complete, COMPLETE),
    _of_claims("fail", "Report that claimed tasks failed", post_fail, FAIL),
    _of_claims("release", "Give claimed tasks back, uncounted", post_release, RELEASE),
    Endpoint(
        method="POST",
        path="/v1/claims/update",
        name="update_claim",
        tag="claims",
        summary="Store an update of a claimed task",
        handle=post_update,
        role="consume",
        body=UPDATE,
        large=True,
        answer=ref("UpdateResult"),
        errors=(404, 409),
    ),
)
