"""The endpoint for transactions: complete, update and enqueue together, or nothing.

The header ``Idempotency-Key`` is the transaction's name: a repeat of the request, sent to any
peer, is answered like the first.  The ids of new tasks follow from the name, from the body and
from the time of the request that was committed, which the cluster keeps with the name.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Any

from msgspec import Meta, field
from starlette.responses import Response

from onyxq.core.errors import BadRequest, OnyxqError
from onyxq.core.ids import Run, make_id, partition_of
from onyxq.core.limits import NAME_CHARACTERS_MAX, TIME_MS_MAX, Name, TaskIdBytes
from onyxq.core.texts import whole
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.problems import problem
from onyxq.interfaces.http.routes.claims import ClaimNamed, FinishedClaim, UpdatedClaim
from onyxq.interfaces.http.routes.enqueue import (
    Group,
    NewTask,
    check_header,
    group_tasks,
    ids_of_runs,
    new_runs,
    past_queues,
)
from onyxq.interfaces.http.routes.tasks import grace_ms
from onyxq.interfaces.http.values import answer_text
from onyxq.operations.table.claim import Held, NewUpdate
from onyxq.operations.table.json_form import json_text
from onyxq.operations.table.operation import Args, Result
from onyxq.operations.table.transaction import MANY, TRANSACT, CompletedRun, Transact

KEY = "Idempotency-Key"
_KEY = Annotated[Name, Meta(description="The transaction's name: a repeat gets the first answer.")]


class NewTransaction(Args):
    """Changes that are made together."""

    complete: Annotated[list[FinishedClaim], MANY, Meta(description="Claimed tasks that are finished.")] = field(
        default_factory=list
    )
    update: Annotated[list[UpdatedClaim], MANY, Meta(description="Updates of claimed tasks.")] = field(
        default_factory=list
    )
    enqueue: Annotated[list[NewTask], MANY, Meta(description="New tasks.")] = field(default_factory=list)
    require: Annotated[list[ClaimNamed], MANY, Meta(description="Claims that must be valid.")] = field(
        default_factory=list
    )


class Transacted(Result):
    """A transaction that is committed."""

    ids: Annotated[list[TaskIdBytes], Meta(description="Ids of the new tasks.")]
    token: Annotated[int, Meta(description="Position of its commit in the log.")]
    settled: Annotated[bool, Meta(description="Whether all of it can be read; if not, it will be soon.")]


async def post_transaction(call: Call) -> Response:
    """All of it, or nothing."""
    asked: NewTransaction = call.args
    name = _name(call)
    made_ms = call.kit.now_ms()
    groups, refusal = await _first_grouped(call, made_ms)
    digest = blake2b(call.owner.encode() + b"\n" + call.raw, digest_size=16).digest()
    transaction = Transact(
        name=name,
        complete=[CompletedRun(one.id, 1, one.token, _results(one)) for one in asked.complete],
        update=[NewUpdate(one.id, one.token, one.seq, one.data) for one in asked.update],
        enqueue=new_runs(groups, _runs(call, name, groups, made_ms)),
        require=[Held(one.id, 1, one.token) for one in asked.require],
        digest=digest,
        made_ms=made_ms,
    )
    try:
        committed = await call.do(TRANSACT, transaction)
    except OnyxqError as error:
        if refusal is not None and isinstance(error, BadRequest):
            raise refusal from None
        error.field = _renamed(error.field, groups)
        if not error.details:
            raise
        return problem(error, {"claims": [_stale(*one) for one in error.details]})
    if committed.made_ms != made_ms:
        # A repeat: its ids are those of the first request, whose due times were valid.
        groups = await _groups(call, committed.made_ms, valid=True)
    ids = ids_of_runs(_runs(call, name, groups, committed.made_ms))
    return answer_text(json_text(Transacted(ids=ids, token=committed.token, settled=committed.settled)))


def _results(one: FinishedClaim) -> list[bytes | None] | None:
    return None if one.result is None else [one.result]


def _name(call: Call) -> str:
    name = call.headers.get(KEY.lower())
    if name is None:
        return f"http {call.kit.maker.run(0, 1).first.hex()}"
    check_header(KEY, name)
    if len(name) > NAME_CHARACTERS_MAX:
        raise BadRequest(f"{KEY} must have 1 to {NAME_CHARACTERS_MAX} characters", field=KEY)
    return name


async def _first_grouped(call: Call, made_ms: int) -> tuple[list[Group], BadRequest | None]:
    """Return the groups of a request; also why it is refused unless it repeats a committed one.

    A repeat may name a due time that was valid when the first request came.
    """
    try:
        return await _groups(call, made_ms), None
    except BadRequest as error:
        if KEY.lower() not in call.headers:
            raise
        refusal = error
    groups = await _groups(call, made_ms, valid=True)
    for group in groups:
        tasks = call.args.enqueue[group.start : group.start + len(group.payloads)]
        # The coordinator checks the time unless the name is known.
        group.at_ms = min((task.at_ms for task in tasks if task.at_ms is not None), default=None)
    return groups, refusal


async def _groups(call: Call, now_ms: int, *, valid: bool = False) -> list[Group]:
    """Return the groups of a request that comes at ``now_ms``; ``valid``: its due times are not checked."""
    tasks: Sequence[NewTask] = call.args.enqueue
    past = sorted(past_queues(tasks, now_ms))
    graces = {queue: TIME_MS_MAX if valid else await grace_ms(call, queue) for queue in past}
    partitions = await call.partitions()
    return await group_tasks(tasks, partitions=partitions, now_ms=now_ms, graces=graces, member="enqueue")


def _runs(call: Call, name: str, groups: Sequence[Group], made_ms: int) -> list[Run]:
    """Return the ids of new tasks, which follow from the name, the body and ``made_ms``.

    No more tasks than it completes stay in the partition of these; others go to one chosen by the name.
    """
    completed: Sequence[FinishedClaim] = call.args.complete
    fresh = sum(len(group.payloads) for group in groups if group.first is None)
    chosen = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % max(1, call.kit.partitions)
    usual = partition_of(completed[0].id) if completed and fresh <= len(completed) else chosen
    runs = []
    for index, group in enumerate(groups):
        first = group.first
        if first is None:
            there = group.partition(call.kit.partitions)
            maker = int.from_bytes(blake2b(f"{index} {name}".encode(), digest_size=8).digest(), "big")
            first = make_id(max(group.due_ms, made_ms), usual if there is None else there, maker, 0)
        runs.append(Run(first, len(group.payloads)))
    return runs


def _renamed(place: str | None, groups: Sequence[Group]) -> str | None:
    """Return a field of the operation's arguments as the request calls it."""
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
        args=NewTransaction,
        large=True,
        result=Transacted,
        headers={KEY: _KEY},
        errors=(404, 409),
    ),
)
