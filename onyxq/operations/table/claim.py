"""Operations on claimed tasks. Their items are lists without names, because there may be thousands of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

from msgspec import Meta

from onyxq.core.ids import RUN_TASKS_MAX
from onyxq.core.limits import INT_MAX, ITEMS_MAX, RUN_BYTES_MAX, TaskIdBytes
from onyxq.operations.table.access import Access, Need, Run
from onyxq.operations.table.operation import Args, Operation, Place, Result

ERROR_CHARS_MAX = 64 * 1024
W_MAX = 9
Count: TypeAlias = Annotated[int, Meta(ge=1, le=RUN_TASKS_MAX)]
Token: TypeAlias = Annotated[int, Meta(ge=0, le=INT_MAX)]
Sequenced: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 31)]
LeaseMs: TypeAlias = Annotated[int, Meta(ge=1_000, le=86_400_000)]


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
    error: Annotated[str, Meta(max_length=ERROR_CHARS_MAX)]
    retry_in_ms: Annotated[int, Meta(ge=0, le=366 * 86_400_000)] | None


class Renewal(NamedTuple):
    """A run of claimed tasks with their new lease from now."""

    id: TaskIdBytes
    count: Count  # type: ignore[assignment]  # not the method of tuples
    token: Token
    lease_ms: LeaseMs


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


class Settled(Result):
    """For each item a list of the tasks that were refused: first id, count and error."""

    results: list[Any]


class Updated(Result, omit_defaults=True):
    """For each item null or its error; with ``w`` the number of copies, and what is not promised."""

    results: list[dict[str, Any] | None]
    acks: list[int] | None = None
    guarantee: str | None = None


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


class UpdateTasks(Args):
    """Store updates of claimed tasks."""

    items: Annotated[list[NewUpdate], Meta(max_length=ITEMS_MAX)]
    w: Annotated[
        Annotated[int, Meta(ge=1, le=W_MAX)] | None,
        Meta(description="Nodes that must have the updates before the answer; default: a majority."),
    ] = None


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
        bounded=True,
        large=True,
        example={"items": [item]},
    )


_ID = bytes.fromhex("0196f0c5a1b20007d4c3b2a19080706000000000")
COMPLETE: Operation[Complete, Settled] = _held("complete", Complete, [_ID, 1, 4711, None, [b"done"]])
FAIL: Operation[Fail, Settled] = _held("fail", Fail, [_ID, 1, 4711, "no such host", 60_000])
RENEW: Operation[Renew, Settled] = _held("renew", Renew, [_ID, 1, 4711, 30_000])
RELEASE: Operation[Release, Settled] = _held("release", Release, [_ID, 1, 4711])
UPDATE = Operation(
    name="update",
    args=UpdateTasks,
    result=Updated,
    access=_on_items(lambda args: [(item.id, 1) for item in args.items]),
    place=Place.LEADER,
    bounded=True,
    large=True,
    example={"items": [[_ID, 4711, 0, b"half way"]]},
)
CLAIMS = (COMPLETE, FAIL, RENEW, RELEASE, UPDATE)
