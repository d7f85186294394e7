"""Endpoints for claims: taking, renewing, finishing and giving back.

A bad claim does not affect the others of its request: each has its own result.
Claims of consecutive ids with the same members are sent as one run.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import anyio
from attrs import define, field
from msgspec import UNSET, Meta, UnsetType, structs
from starlette.responses import Response

from onyxq.core.errors import Corrupt, NotFound, OnyxqError, from_map
from onyxq.core.facts import unpack_task
from onyxq.core.ids import RUN_TASKS_MAX, TaskId, counter_of, ids_of, offset_of, partition_of
from onyxq.core.limits import DATA, MOMENT, RUN_BYTES_MAX, LeaseMs, TaskIdBytes
from onyxq.core.task_headers import due_of
from onyxq.interfaces.http.bodies import Disconnected
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.problems import Stopping, renamed
from onyxq.interfaces.http.values import answer_text
from onyxq.operations.table.claim import (
    CLAIM,
    COMPLETE,
    FAIL,
    GIVE_UP,
    POSTPONE,
    RELEASE,
    RENEW,
    UPDATE,
    ClaimTasks,
    Complete,
    Completion,
    ErrorText,
    Fail,
    Failure,
    GivenUp,
    GiveUp,
    Held,
    NewUpdate,
    Postpone,
    Postponement,
    Release,
    Renew,
    Renewal,
    RetryInMs,
    Sequenced,
    Settled,
    Token,
    Traceback,
    UpdateTasks,
)
from onyxq.operations.table.enqueue import Copies
from onyxq.operations.table.json_form import json_text
from onyxq.operations.table.operation import Args, Operation, Result
from onyxq.operations.table.task import State, TaskResult, task_result

CLAIMS_MAX = 10_000
RELEASE_TIME_MAX_S = 5.0
A = TypeVar("A", Complete, Fail, GiveUp, Postpone, Release, Renew)
VALUE = {**DATA, "any": True}
"""Marks bytes without a stored format."""

_log = logging.getLogger("onyxq.http")


class ClaimNamed(Args):
    """A claim."""

    id: Annotated[TaskIdBytes, Meta(description="Id of the task.")]
    token: Annotated[Token, Meta(description="The claim's fencing token.")]


class RenewedClaim(ClaimNamed):
    """A claim with its new lease from now."""

    lease_ms: Annotated[LeaseMs | None, Meta(description="Default: that of the task's queue.")] = None


class FailedClaim(ClaimNamed):
    """A claim of a task that failed."""

    error: ErrorText = ""
    retry_in_ms: Annotated[RetryInMs | None, Meta(description="Default: the task's back-off.")] = None
    traceback: Traceback = ""


class PostponedClaim(ClaimNamed):
    """A claim to give back for a time."""

    retry_in_ms: Annotated[RetryInMs, Meta(description="Pause before the task is due again.")]
    reason: Annotated[ErrorText, Meta(description="Text that is shown with the claim.")] = ""


class GivenUpClaim(ClaimNamed):
    """A claim of a task that failed for good."""

    error: ErrorText = ""
    traceback: Traceback = ""


class FinishedClaim(ClaimNamed):
    """A claim of a task that is done."""

    result: Annotated[bytes | None, Meta(description="Any JSON value.", extra=VALUE)] = None


class CompletedClaim(FinishedClaim):
    """A claim of a task that is done, and the number of its updates."""

    seq: Annotated[Sequenced | None, Meta(description="Number of updates that must have been stored.")] = None


class UpdatedClaim(ClaimNamed):
    """An update of a claimed task."""

    seq: Annotated[Sequenced, Meta(description="Counts from 0 per claim.")]
    data: Annotated[bytes, Meta(description="Any JSON value.", extra=VALUE)]


class RenewClaims(Args):
    """Claims to renew."""

    claims: Annotated[list[RenewedClaim], Meta(min_length=1, max_length=CLAIMS_MAX)]


class ReleaseClaims(Args):
    """Claims to give back."""

    claims: Annotated[list[ClaimNamed], Meta(min_length=1, max_length=CLAIMS_MAX)]


class PostponeClaims(Args):
    """Claims to give back for a time."""

    claims: Annotated[list[PostponedClaim], Meta(min_length=1, max_length=CLAIMS_MAX)]


class GiveUpClaims(Args):
    """Claims of tasks that failed for good."""

    claims: Annotated[list[GivenUpClaim], Meta(min_length=1, max_length=CLAIMS_MAX)]


class FailClaims(Args):
    """Claims of tasks that failed."""

    claims: Annotated[list[FailedClaim], Meta(min_length=1, max_length=CLAIMS_MAX)]


class CompleteClaims(Args):
    """Claims of tasks that are done."""

    claims: Annotated[list[CompletedClaim], Meta(min_length=1, max_length=CLAIMS_MAX)]


class UpdateClaim(UpdatedClaim):
    """An update to store."""

    w: Copies = None


class ClaimedTask(Result):
    """A task that was claimed."""

    id: TaskIdBytes
    queue: str
    priority: int
    state: State
    at_ms: Annotated[int, Meta(description="When it is due.", extra=MOMENT)]
    ordering_key: str | None
    unique_key: str | None
    depends: list[TaskIdBytes]
    attempts: int
    data: Annotated[bytes, Meta(extra=DATA)]
    format: str
    result: None = None


class Claim(Result):
    """A claim and its task."""

    token: int
    expires_ms: Annotated[int, Meta(extra=MOMENT)]
    task: ClaimedTask


class Claims(Result):
    """Claims of one request."""

    claims: list[Claim]


class ClaimResults(Result):
    """A result for each claim, in the order of the request."""

    results: list[TaskResult]


class UpdateResult(Result):
    """A stored update."""

    id: TaskIdBytes
    ok: bool
    acks: Annotated[int | UnsetType, Meta(description="Copies stored, if w was given.")] = UNSET
    guarantee: Annotated[str | UnsetType, Meta(description="What is not promised of it.")] = UNSET


NamedClaims: TypeAlias = Sequence[ClaimNamed]


async def post_claims(call: Call) -> Response:
    """Claim tasks, waiting for them if asked to."""
    if call.kit.closing.is_set():
        raise Stopping("this peer is about to stop")
    asked: ClaimTasks = call.args
    if asked.worker is None:
        asked = structs.replace(asked, worker="http")
    result, gone = await call.while_connected(lambda: call.do(CLAIM, asked))
    claims = result.claims if result else []
    if not gone:
        return answer_text(json_text(Claims(claims=_granted(claims))))
    await _give_back(call, claims)
    raise Disconnected


async def _give_back(call: Call, claims: Sequence[Any]) -> None:
    """Release claims of a client that is gone."""
    items = [Held(first, unpack_task(body).count, token) for token, _, _, first, body in claims]
    if not items:
        return
    with anyio.move_on_after(RELEASE_TIME_MAX_S, shield=True):
        try:
            await call.do(RELEASE, Release(items=items))
        except OnyxqError as error:
            _log.warning("claims of a client that is gone stay until their lease ends: %s", error)


def _granted(claims: Sequence[Any]) -> list[Claim]:
    """Return each claimed task; raises `Corrupt` if every run is damaged."""
    out: list[Claim] = []
    damaged: Corrupt | None = None
    for token, expires_ms, attempts, first, body in claims:
        try:
            out += [Claim(token, expires_ms, task) for task in _tasks(attempts, first, body)]
        except Corrupt as error:
            # Its lease runs out and counts as an attempt; the other runs are still good.
            _log.error("a claimed run at task %s is damaged: %s", first.hex(), error)
            damaged = error
    if damaged and not out:
        raise damaged
    return out


def _tasks(attempts: int, first: bytes, body: bytes) -> list[ClaimedTask]:
    run = unpack_task(body)
    header = run.header
    return [
        ClaimedTask(
            id=task_id,
            queue=header["queue"],
            priority=header.get("priority", 0),
            state="claimed",
            at_ms=due_of(header, first),
            ordering_key=header.get("ordering_key"),
            unique_key=header.get("unique_key"),
            depends=header.get("depends", []),
            attempts=attempts,
            data=payload,
            format=header.get("format", "bytes"),
        )
        for task_id, payload in zip(ids_of(first, run.count), run.all_payloads(), strict=True)
    ]


@define
class Item:
    """Claims of consecutive ids with the same members: one item of an operation."""

    start: int
    """Index of the first claim in the request."""
    first: TaskId
    rest: tuple[Any, ...]
    """The members that the claims share."""
    payloads: list[bytes | None] = field(factory=list)
    size: int = 0

    @property
    def count(self) -> int:
        """The number of claims."""
        return len(self.payloads)

    @property
    def results(self) -> list[bytes | None] | None:
        """A payload for each claim, or None if there is none at all."""
        return self.payloads if any(data is not None for data in self.payloads) else None

    def takes(self, task_id: TaskId, rest: tuple[Any, ...], size: int) -> bool:
        """Return whether one more claim fits in."""
        if rest != self.rest or self.count >= RUN_TASKS_MAX or self.size + size > RUN_BYTES_MAX:
            return False
        follows = counter_of(task_id) == counter_of(self.first) + self.count and offset_of(task_id) > 0
        return follows and task_id[:16] == self.first[:16]


def group_claims(claims: NamedClaims, members: tuple[str, ...], payload: str | None = None) -> list[Item]:
    """Return items for the claims, in their order."""
    items: list[Item] = []
    for index, claim in enumerate(claims):
        data: bytes | None = getattr(claim, payload) if payload else None
        rest = tuple(getattr(claim, name) for name in members)
        size = len(data or b"")
        # A sequence number is about the updates of one task.
        alone = getattr(claim, "seq", None) is not None
        if alone or not items or not items[-1].takes(claim.id, rest, size):
            items.append(Item(index, claim.id, rest))
        items[-1].payloads.append(data)
        items[-1].size += size
    return items


async def _each(call: Call, operation: Operation[A, Settled], items: Sequence[Item], args: list[Any]) -> Response:
    """Carry an operation out on the items and answer with a result for every claim."""
    partitions = await call.partitions()
    good = [index for index, item in enumerate(items) if partition_of(item.first) < partitions]
    refused: list[Any] = [[[item.first, item.count, _foreign(item, partitions).to_map()]] for item in items]
    try:
        asked = operation.args(items=[args[index] for index in good])
        answers = (await call.do(operation, asked)).results if good else []
    except OnyxqError as error:
        error.field = renamed(error.field, [items[index].start for index in good], "claims")
        raise
    for index, parts in zip(good, answers, strict=True):
        refused[index] = parts
    return answer_text(json_text(ClaimResults(results=_results(call.args.claims, items, refused))))


def _foreign(item: Item, partitions: int) -> NotFound:
    there = f"the id names partition {partition_of(item.first)}; the cluster has partitions 0 to {partitions - 1}"
    return NotFound(there, field=f"claims[{item.start}].id")


def _results(claims: NamedClaims, items: Sequence[Item], refused: Sequence[Any]) -> list[TaskResult]:
    """Return a result for each claim: the error if it is in a refused part of its item, otherwise success.

    ``refused``: for each item, its refused parts as ``(first id, count, error)``.
    """
    results = [task_result(claim.id, None) for claim in claims]
    for item, parts in zip(items, refused, strict=True):
        for first, count, why in parts:
            start = item.start + counter_of(first) - counter_of(item.first)
            for index in range(start, start + count):
                results[index] = task_result(claims[index].id, from_map(dict(why)).to_map())
    return results


async def post_renew(call: Call) -> Response:
    """Extend leases."""
    items = group_claims(call.args.claims, ("token", "lease_ms"))
    return await _each(call, RENEW, items, [Renewal(item.first, item.count, *item.rest) for item in items])


async def post_release(call: Call) -> Response:
    """Give claims back; the attempt does not count."""
    items = group_claims(call.args.claims, ("token",))
    return await _each(call, RELEASE, items, [Held(item.first, item.count, *item.rest) for item in items])


async def post_postpone(call: Call) -> Response:
    """Give claims back for a time; the attempt does not count."""
    items = group_claims(call.args.claims, ("token", "reason", "retry_in_ms"))
    return await _each(call, POSTPONE, items, [Postponement(item.first, item.count, *item.rest) for item in items])


async def post_give_up(call: Call) -> Response:
    """Report failures without a retry."""
    items = group_claims(call.args.claims, ("token", "error", "traceback"))
    return await _each(call, GIVE_UP, items, [GivenUp(item.first, item.count, *item.rest) for item in items])


async def post_fail(call: Call) -> Response:
    """Report failures."""
    items = group_claims(call.args.claims, ("token", "error", "retry_in_ms", "traceback"))
    return await _each(call, FAIL, items, [Failure(item.first, item.count, *item.rest) for item in items])


async def post_complete(call: Call) -> Response:
    """Complete tasks."""
    items = group_claims(call.args.claims, ("token", "seq"), "result")
    args = [Completion(item.first, item.count, item.rest[0], item.rest[1], item.results) for item in items]
    return await _each(call, COMPLETE, items, args)


async def post_update(call: Call) -> Response:
    """Store one update of a claimed task."""
    one: UpdateClaim = call.args
    try:
        update = NewUpdate(one.id, one.token, one.seq, one.data)
        found = await call.do(UPDATE, UpdateTasks(items=[update], w=one.w))
    except OnyxqError as error:
        error.field = renamed(error.field, [0], "")
        raise
    if found.results[0] is not None:
        raise from_map(found.results[0])
    stored = UpdateResult(id=one.id, ok=True)
    if found.acks is not None:
        stored.acks = found.acks[0]
    if found.guarantee is not None:
        stored.guarantee = found.guarantee
    return answer_text(json_text(stored))


def _of_claims(name: str, summary: str, handle: Callable[[Call], Awaitable[Response]], args: type[Args]) -> Endpoint:
    return Endpoint(
        method="POST",
        path=f"/v1/claims/{name}",
        name=f"{name}_claims",
        tag="claims",
        summary=summary,
        doc="A bad claim does not affect the others: each has its own result, in request order.",
        handle=handle,
        role="consume",
        args=args,
        large=True,
        result=ClaimResults,
    )


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/claims",
        name="claim",
        tag="claims",
        summary="Claim tasks of some queues",
        doc="The list is empty if there is none within wait_ms. A client that goes away while it waits claims nothing. "
        "The worker is `http` if none is named.",
        handle=post_claims,
        role="consume",
        args=ClaimTasks,
        fixed={"ahead_ms": 0},
        result=Claims,
        waits=True,
    ),
    _of_claims("renew", "Extend leases", post_renew, RenewClaims),
    _of_claims("complete", "Complete claimed tasks", post_complete, CompleteClaims),
    _of_claims("fail", "Report that claimed tasks failed", post_fail, FailClaims),
    _of_claims("give_up", "Report that claimed tasks failed for good", post_give_up, GiveUpClaims),
    _of_claims("release", "Give claimed tasks back, uncounted", post_release, ReleaseClaims),
    _of_claims("postpone", "Give claimed tasks back for a time, uncounted", post_postpone, PostponeClaims),
    Endpoint(
        method="POST",
        path="/v1/claims/update",
        name="update_claim",
        tag="claims",
        summary="Store an update of a claimed task",
        handle=post_update,
        role="consume",
        args=UpdateClaim,
        large=True,
        result=UpdateResult,
        errors=(404, 409),
    ),
)
