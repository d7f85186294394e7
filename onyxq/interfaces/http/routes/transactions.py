"""The endpoint for transactions: complete, update and enqueue together, or nothing.

The header ``Idempotency-Key`` is the transaction's name: a repeat of the request, sent to any
peer, is answered as the first.  The ids of new tasks follow from the name, from the body and
from the time of the request that was committed, which the cluster keeps with the name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from starlette.responses import Response

from onyxq.core.errors import BadRequest, OnyxqError
from onyxq.core.ids import Run, make_id, partition_of
from onyxq.core.texts import whole
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.problems import problem
from onyxq.interfaces.http.routes.claims import UPDATE
from onyxq.interfaces.http.routes.enqueue import (
    Group,
    check_header,
    enqueue_args,
    group_tasks,
    ids_of_runs,
    past_queues,
)
from onyxq.interfaces.http.routes.tasks import NEW_TASK, grace_ms
from onyxq.interfaces.http.schemas import ref
from onyxq.interfaces.http.shapes import AnyValue, Array, Base64, Field, HexId, Integer, Invalid, Object, Text
from onyxq.interfaces.http.values import answer, payload_of

ITEMS_MAX = 1_000
NAME_CHARACTERS_MAX = 200
KEY = "Idempotency-Key"

_CLAIM = {"id": Field(HexId(), required=True), "token": Field(Integer(), required=True)}
_COMPLETED = Object(
    "CompletedTask",
    {
        **_CLAIM,
        "result": Field(AnyValue(), keeps_null=True, doc="Any JSON value."),
        "result_base64": Field(Base64(), doc="Bytes, instead of result."),
    },
)
TRANSACTION = Object(
    "NewTransaction",
    {
        "complete": Field(Array(_COMPLETED, maximum=ITEMS_MAX), default=(), doc="Claimed tasks that are finished."),
        "update": Field(Array(UPDATE, maximum=ITEMS_MAX), default=(), doc="Updates of claimed tasks."),
        "enqueue": Field(Array(NEW_TASK, maximum=ITEMS_MAX), default=(), doc="Tasks that are new."),
        "require": Field(
            Array(Object("RequiredClaim", _CLAIM), maximum=ITEMS_MAX), default=(), doc="Claims that must stand."
        ),
    },
)
_KEY = Field(Text(maximum=NAME_CHARACTERS_MAX), doc="The transaction's name: a repeat gets the first answer.")


async def post_transaction(call: Call) -> Response:
    """All of it, or nothing."""
    name = _name(call)
    made_ms = call.kit.now_ms()
    groups = await _groups(call, made_ms)
    args = {
        "name": name,
        "complete": [
            [one["id"], 1, one["token"], _result(one, place)] for place, one in enumerate(_all(call, "complete"))
        ],
        "update": [
            [one["id"], one["token"], one["seq"], _data(one, place)] for place, one in enumerate(_all(call, "update"))
        ],
        "enqueue": enqueue_args(groups, _runs(call, name, groups, made_ms)),
        "require": [[one["id"], 1, one["token"]] for one in _all(call, "require")],
    }
    digest = blake2b(call.owner.encode() + b"\n" + call.raw, digest_size=16).digest()
    try:
        said = await call.ask("transact", **args, digest=digest, made_ms=made_ms)
    except OnyxqError as error:
        error.field = _renamed(error.field, groups)
        if not error.details:
            raise
        return problem(error, {"claims": [_stale(*one) for one in error.details]})
    if said["made_ms"] != made_ms:
        groups = await _groups(call, said["made_ms"])  # a repeat: its ids are those of the first request
    ids = ids_of_runs(_runs(call, name, groups, said["made_ms"]))
    return answer({"ids": ids, "token": said["token"], "settled": said["settled"]})


def _all(call: Call, member: str) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = call.body[member]
    return found


def _name(call: Call) -> str:
    name = call.headers.get(KEY.lower())
    if name is None:
        return f"http {call.kit.maker.run(0, 1).first.hex()}"
    check_header(KEY, name)
    if len(name) > NAME_CHARACTERS_MAX:
        raise BadRequest(f"{KEY} must have 1 to {NAME_CHARACTERS_MAX} characters", field=KEY)
    return name


async def _groups(call: Call, now_ms: int) -> list[Group]:
    tasks = _all(call, "enqueue")
    graces = {queue: await grace_ms(call, queue) for queue in sorted(past_queues(tasks, now_ms))}
    try:
        return await group_tasks(tasks, partitions=await call.partitions(), now_ms=now_ms, graces=graces)
    except BadRequest as error:
        error.field = (error.field or "").replace("tasks", "enqueue", 1) or None
        error.message = error.message.replace("tasks[", "enqueue[")
        raise


def _runs(call: Call, name: str, groups: Sequence[Group], made_ms: int) -> list[Run]:
    """The ids of new tasks, which follow from the name, the body and ``made_ms``.

    No more tasks than it completes stay in the partition of these; others go to one chosen by the name.
    """
    completed = _all(call, "complete")
    fresh = sum(len(group.payloads) for group in groups if group.first is None)
    chosen = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % max(1, call.kit.partitions)
    usual = partition_of(completed[0]["id"]) if completed and fresh <= len(completed) else chosen
    runs = []
    for index, group in enumerate(groups):
        first = group.first
        if first is None:
            there = group.partition(call.kit.partitions)
            maker = int.from_bytes(blake2b(f"{index} {name}".encode(), digest_size=8).digest(), "big")
            first = make_id(max(group.due_ms, made_ms), usual if there is None else there, maker, 0)
        runs.append(Run(first, len(group.payloads)))
    return runs


def _result(completed: Mapping[str, Any], place: int) -> list[bytes | None] | None:
    found = _payload(completed, "result", f"complete[{place}]")
    return None if found is None else [found]


def _data(update: Mapping[str, Any], place: int) -> bytes:
    found = _payload(update, "data", f"update[{place}]")
    if found is None:
        raise BadRequest(f"update[{place}].data is missing", field=f"update[{place}].data")
    return found


def _payload(members: Mapping[str, Any], name: str, where: str) -> bytes | None:
    try:
        found = payload_of(members, name)
    except Invalid as error:
        raise BadRequest(f"{where}.{error.to_error('the body').message}", field=f"{where}.{name}") from None
    return None if found is None else found[1]


def _renamed(place: str | None, groups: Sequence[Group]) -> str | None:
    """A field of the method's arguments as the request calls it."""
    if place in ("name", None):
        return KEY if place == "name" else None
    head, bracket, rest = place.partition("[")
    digits, _, tail = rest.partition("]")
    number = whole(digits)
    if head != "enqueue" or not bracket or number is None or number >= len(groups):
        return place
    return f"enqueue[{groups[number].start}]{tail}"


def _stale(task_id: bytes, token: int, code: str, detail: str) -> dict[str, Any]:
    return {"id": bytes(task_id).hex(), "token": token, "code": code, "detail": detail}


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/transactions",
        name="transact",
        tag="transactions",
        summary="Complete, update and enqueue in one atomic step",
        doc="All of it happens, or, with an error, nothing: 409 `stale_token` names in `claims` each claim that no "
        "longer stands. At most 1,000 tasks and 4 MiB of payload. `settled` false: it is committed, and on its way "
        "to be seen. Without Idempotency-Key a repeated request is another transaction; then only the claims keep "
        "it from happening twice.",
        handle=post_transaction,
        role=("consume", "produce"),
        body=TRANSACTION,
        large=True,
        answer=ref("Transacted"),
        headers={KEY: _KEY},
        errors=(404, 409),
    ),
)
