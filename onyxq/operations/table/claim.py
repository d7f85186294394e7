"""Operations on claimed tasks. Their items are lists without names, because there may be thousands of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from onyxq.core.ids import RUN_TASKS_MAX
from onyxq.core.limits import AHEAD_MS_MAX, INT_MAX, ITEMS_MAX, RUN_BYTES_MAX, LeaseMs, Name, TaskIdBytes
from onyxq.operations.table.access import Access, Need, Run
from onyxq.operations.table.enqueue import Copies
from onyxq.operations.table.operation import Args, Items, Operation, Place, Result

ERROR_CHARS_MAX = 64 * 1024
QUEUES_MAX = 100
CLAIM_TASKS_MAX = 1_000
WAIT_MS_MAX = 600_000
Count: TypeAlias = Annotated[int, Meta(ge=1, le=RUN_TASKS_MAX)]
Token: TypeAlias = Annotated[int, Meta(ge=0, le=INT_MAX)]
Sequenced: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 31)]

ErrorText: TypeAlias = Annotated[str, Meta(max_length=ERROR_CHARS_MAX)]
Traceback: TypeAlias = Annotated[
    str,
    Meta(
        max_length=ERROR_CHARS_MAX, description="Where the attempt failed. The middle of more than 4 KiB is left out."
    ),
]
RetryInMs: TypeAlias = Annotated[int, Meta(ge=0, le=366 * 86_400_000)]


class Completion(NamedTuple):
    """A run of claimed tasks that are done, with the number of updates sent before and a result of each."""

    id: TaskIdBytes
    count: Count  # type: ignore[assignment]  # not the method of tuples
    token: Token
    seq: Sequenced | None
    result: list[bytes | None] | None


class Failure(NamedTuple):
    """A run of claimed tasks that failed."""

    id: TaskIdBytes
    count: Count  # type: ignore[assignment]  # not the method of tuples
    token: Token
    error: ErrorText
    retry_in_ms: RetryInMs | None
    traceback: Traceback = ""


class Postponement(NamedTuple):
    """A run of claimed tasks to give back, with the reason and the pause before the next claim."""

    id: TaskIdBytes
    count: Count  # type: ignore[assignment]  # not the method of tuples
    token: Token
    reason: ErrorText
    retry_in_ms: RetryInMs


class GivenUp(NamedTuple):
    """A run of claimed tasks that failed for good."""

    id: TaskIdBytes
    count: Count  # type: ignore[assignment]  # not the method of tuples
    token: Token
    error: ErrorText
    traceback: Traceback = ""


class Renewal(NamedTuple):
    """A run of claimed tasks with their new lease from now."""

    id: TaskIdBytes
    count: Count  # type: ignore[assignment]  # not the method of tuples
    token: Token
    lease_ms: Annotated[LeaseMs | None, Meta(description="Null: that of the queue.")]


class Held(NamedTuple):
    """A run of claimed tasks."""

    id: TaskIdBytes
    count: Count  # type: ignore[assignment]  # not the method of tuples
    token: Token


class NewUpdate(NamedTuple):
    """An update of a claimed task."""

    id: TaskIdBytes
    token: Token
    seq: Sequenced
    data: Annotated[bytes, Meta(max_length=RUN_BYTES_MAX)]


class GrantedTasks(Result):
    """Claims: for each run of tasks its token, end of the lease, failed attempts, first id and body.

    Count a lease from the time when you sent the request, by a clock that does not jump.
    """

    claims: list[Any]
    due_in_ms: Annotated[
        list[int] | UnsetType,
        Meta(
            description="If tasks were claimed ahead: start none of a claim before this time has passed since the "
            "answer. Its first lease is longer by the same time, until it is renewed."
        ),
    ] = UNSET
    leases: Annotated[list[int] | UnsetType, Meta(description="Lease of each claim, if none was asked for.")] = UNSET


class Settled(Result):
    """For each item a list of the tasks that were refused: first id, count and error."""

    results: list[Any]


class Updated(Result, omit_defaults=True):
    """For each item null or its error; with ``w`` the number of copies, and what is not promised."""

    results: list[dict[str, Any] | None]
    acks: list[int] | None = None
    guarantee: str | None = None


class ClaimTasks(Args):
    """Claim tasks of some queues.

    The answer comes with the first tasks, or is empty after ``wait_ms``. Withdraw the request (``$cancel``) if you
    do not need its answer any more.
    """

    queues: Annotated[list[Name], Meta(min_length=1, max_length=QUEUES_MAX, description="Names of the queues.")]
    max: Annotated[int, Meta(ge=1, le=CLAIM_TASKS_MAX, description="Most tasks to claim.")] = 1
    lease_ms: Annotated[
        LeaseMs | None, Meta(description="How long the claims are valid; default: as each queue says.")
    ] = None
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX, description="How long to wait for a first task.")] = 0
    worker: Annotated[Name | None, Meta(description="A name to be shown with the claims.")] = None
    ahead_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=AHEAD_MS_MAX,
            description="If nothing is ready, also claim tasks that are due within this time: at most half of max, or "
            "one.",
        ),
    ] = 0


class Complete(Args):
    """Complete claimed tasks.

    A refused item does not affect the others.
    """

    items: Annotated[list[Completion], Meta(max_length=ITEMS_MAX)]


class Fail(Args):
    """Report that claimed tasks failed; they are retried as their policy says.

    A refused item does not affect the others.
    """

    items: Annotated[list[Failure], Meta(max_length=ITEMS_MAX)]


class Renew(Args):
    """Extend the leases of claimed tasks.

    A refused item does not affect the others.
    """

    items: Annotated[list[Renewal], Meta(max_length=ITEMS_MAX)]


class Release(Args):
    """Give claimed tasks back; the attempt does not count.

    A refused item does not affect the others.
    """

    items: Annotated[list[Held], Meta(max_length=ITEMS_MAX)]


class Postpone(Args):
    """Give claimed tasks back that are due again after a pause; the attempt does not count.

    A refused item does not affect the others.
    """

    items: Annotated[list[Postponement], Meta(max_length=ITEMS_MAX)]


class GiveUp(Args):
    """Report that claimed tasks failed for good, whatever retries they have left.

    A refused item does not affect the others.
    """

    items: Annotated[list[GivenUp], Meta(max_length=ITEMS_MAX)]


class UpdateTasks(Args):
    """Store updates of claimed tasks."""

    items: Annotated[list[NewUpdate], Meta(max_length=ITEMS_MAX)]
    w: Copies = None


def _on_items(runs: Callable[[Any], Sequence[Run]]) -> Access:
    return Access(("consume",), lambda args: (Need(("consume",), tasks=tuple(runs(args))),))


def _held(name: str, args: type[Any], item: list[Any]) -> Operation[Any, Settled]:
    """Return an operation on runs of claimed tasks."""
    return Operation(
        name=name,
        args=args,
        result=Settled,
        access=_on_items(lambda args: [(item.id, item.count) for item in args.items]),
        place=Place.LEADER,
        items=Items(argument="items", runs=True),
        bounded=True,
        large=True,
        example={"items": [item]},
    )


_ID = bytes.fromhex("0196f0c5a1b20007d4c3b2a19080706000000000")
CLAIM = Operation(
    name="claim",
    args=ClaimTasks,
    result=GrantedTasks,
    access=Access(("consume",), lambda args: (Need(("consume",), queues=tuple(args.queues)),)),
    place=Place.ALL_LEADERS,
    python="claim",
    example={"queues": ["mail"], "max": 10, "wait_ms": 20_000, "worker": "mailer-1"},
)
COMPLETE: Operation[Complete, Settled] = _held("complete", Complete, [_ID, 1, 4711, None, [b"done"]])
FAIL: Operation[Fail, Settled] = _held("fail", Fail, [_ID, 1, 4711, "no such host", 60_000])
RENEW: Operation[Renew, Settled] = _held("renew", Renew, [_ID, 1, 4711, 30_000])
RELEASE: Operation[Release, Settled] = _held("release", Release, [_ID, 1, 4711])
GIVE_UP: Operation[GiveUp, Settled] = _held("give_up", GiveUp, [_ID, 1, 4711, "550 no such user"])
POSTPONE: Operation[Postpone, Settled] = _held("postpone", Postpone, [_ID, 1, 4711, "the relay is down", 60_000])
UPDATE = Operation(
    name="update",
    args=UpdateTasks,
    result=Updated,
    access=_on_items(lambda args: [(item.id, 1) for item in args.items]),
    place=Place.LEADER,
    items=Items(argument="items"),
    bounded=True,
    large=True,
    example={"items": [[_ID, 4711, 0, b"half way"]]},
)
CLAIMS = (CLAIM, COMPLETE, FAIL, RENEW, RELEASE, POSTPONE, GIVE_UP, UPDATE)
