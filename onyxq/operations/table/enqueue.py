"""The operation that stores new tasks, and the options of a run of tasks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from onyxq.core.errors import BadRequest
from onyxq.core.ids import PARTITIONS_MAX
from onyxq.core.limits import (
    DEPENDS_MAX,
    ITEMS_MAX,
    MOMENT,
    TIMER_URI_CHARS_MAX,
    TIMERS_QUEUE,
    BackoffMs,
    ExpiresMs,
    Fate,
    Format,
    Name,
    OnConflict,
    Priority,
    RetryCount,
    TaskIdBytes,
    TimeMs,
    Trace,
    UniquePeriodMs,
    UniqueUntil,
)
from onyxq.operations.table.access import Access, Need, anywhere
from onyxq.operations.table.operation import Args, Items, Operation, Place, Result, converted

W_MAX = 9
WriteLevel: TypeAlias = Annotated[int, Meta(ge=1, le=W_MAX)]
Copies: TypeAlias = Annotated[
    WriteLevel | None,
    Meta(
        description="Nodes that must have it before the answer, at most the cluster's copies; default: a majority. If "
        "fewer have it in time, the error is `unknown` with the number of copies, and what is stored stays."
    ),
]


class TimerCallback(Args):
    """Where a callback goes."""

    transport: Annotated[Name, Meta(description="http, tcp, or one that the peers have installed.")]
    uri: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=TIMER_URI_CHARS_MAX,
            description="A URL of http or https; for tcp, tcp://HOST:PORT.",
        ),
    ]
    method: Annotated[Name, Meta(description="HTTP method; for tcp, `plain` sends the data alone.")]


DeliveryState: TypeAlias = Literal[
    "waiting", "scheduled", "ready", "claimed", "delivered", "failed", "cancelled", "purged"
]
"""State of a task's callback. ``waiting``: its task has not ended. ``failed``: all attempts failed."""


class CallbackView(Result):
    """The callback of a task and the state of its delivery."""

    transport: str
    uri: Annotated[str, Meta(description="Without user, password, query and fragment, which may be secrets.")]
    method: str
    task: Annotated[TaskIdBytes, Meta(description="The task in the queue ``onyxq.timers`` that delivers it.")]
    state: DeliveryState
    attempts: Annotated[int, Meta(description="Number of attempts that failed or whose lease expired.")] = 0
    at_ms: Annotated[
        int | None, Meta(description="When the next attempt is due; null if there is none.", extra=MOMENT)
    ] = None
    delivered_ms: Annotated[int | None, Meta(description="When it was delivered.", extra=MOMENT)] = None
    error: Annotated[str | None, Meta(description="Error of the last attempt that failed.")] = None


class TaskHeader(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the tasks of a run, as its body has them."""

    queue: Name
    backoff_ms: BackoffMs | UnsetType = UNSET
    callback: TimerCallback | UnsetType = UNSET
    depends: Annotated[list[TaskIdBytes], Meta(min_length=1, max_length=DEPENDS_MAX)] | UnsetType = UNSET
    expires_ms: ExpiresMs | UnsetType = UNSET
    format: Format | UnsetType = UNSET
    on_dependency_failed: Fate | UnsetType = UNSET
    ordering_key: Name | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    retries: RetryCount | UnsetType | None = UNSET
    trace: Trace | UnsetType = UNSET
    unique_key: Name | UnsetType = UNSET
    unique_until: UniqueUntil | UnsetType = UNSET
    unique_period_ms: UniquePeriodMs | UnsetType = UNSET
    on_conflict: OnConflict | UnsetType = UNSET


_DECODER = msgspec.msgpack.Decoder(TaskHeader)


class NewRun(NamedTuple):
    """A run of new tasks: its first id, its body, and the due time if the user named one."""

    id: TaskIdBytes
    body: bytes
    at_ms: TimeMs | None = None


class Enqueue(Args):
    """Store runs of new tasks.

    A run that is sent again is the same run. If fewer nodes have a run than ``w`` asks for, its error is
    ``unknown``, with ``details`` ``[[first id, count, nodes that have it]]``, and the run stays stored.
    """

    runs: Annotated[
        list[NewRun], Meta(max_length=ITEMS_MAX, description="[first id, body] or [first id, body, due time].")
    ]
    w: Copies = None


class Enqueued(Result):
    """For each run the number of nodes that have it, or its error.

    With a unique key it is [nodes, id of the task that holds the key, new or replaced or extended or exists].
    """

    acks: list[Any]
    now_ms: int
    guarantee: Annotated[str | UnsetType, Meta(description="What is not promised of the stored tasks.")] = UNSET


class FirstRequest(Result):
    """What is remembered of the first request under a key."""

    body: Annotated[bytes, Meta(min_length=16, max_length=16, description="Digest of its body.")]
    at_ms: Annotated[TimeMs, Meta(description="When it arrived.", extra=MOMENT)]
    partitions: Annotated[
        list[Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]],
        Meta(min_length=1, max_length=PARTITIONS_MAX, description="Partitions that its new tasks use in turn."),
    ]


class RememberRequest(Args):
    """Remember a request under a key, unless another one is remembered under it.

    HTTP does this for ``Idempotency-Key``. A request is remembered for the ``retention_ms`` of the queue
    ``onyxq.requests``.
    """

    key: Annotated[bytes, Meta(min_length=16, max_length=16, description="Digest of the key and of its owner.")]
    request: Annotated[FirstRequest | None, Meta(description="Null: only look.")] = None


class RememberedRequest(Result):
    """The request that is remembered under the key; null: there is none."""

    first: FirstRequest | None


def header_of(packed: bytes, where: str) -> TaskHeader:
    """Return the options in a packed header; raises `BadRequest` naming the field, which is within ``where``."""
    try:
        return _DECODER.decode(packed)
    except ValueError:
        return converted(TaskHeader, _unpacked(packed, where), within=where)


def _unpacked(packed: bytes, where: str) -> Any:
    try:
        return msgspec.msgpack.decode(packed)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{where}: the header is malformed: {error}", field=where) from None


def _queues_of(run: NewRun, where: str) -> tuple[str, ...]:
    header = header_of(run.body[8 : 8 + int.from_bytes(run.body[:4], "little")], where)
    return (header.queue,) if header.callback is UNSET else (header.queue, TIMERS_QUEUE)


def on_new(name: str, runs: list[NewRun]) -> Need:
    """Return the need of a call that stores runs under the argument ``name``; a callback is a timer."""
    queues = (queue for place, run in enumerate(runs) for queue in _queues_of(run, f"{name}[{place}]"))
    return Need(("produce",), queues=tuple(queues))


REMEMBER_REQUEST = Operation(
    name="request.remember",
    args=RememberRequest,
    result=RememberedRequest,
    access=anywhere("produce"),
    place=Place.LEADER,
    bounded=True,
    example={"key": b"sixteen of bytes"},
)
SOME_BODY = b"\x0c\0\0\0\x01\0\0\0\x81\xa5queue\xa4mail\x01\0\0\0\x83\x16\xdc\x8cx"
"""Body of a run of one task in the queue ``mail`` with the data ``x``."""
_SOME_ID = bytes.fromhex("0196f0c5a1b20007d4c3b2a19080706000000000")
ENQUEUE = Operation(
    name="enqueue",
    args=Enqueue,
    result=Enqueued,
    access=Access(("produce",), lambda args: (on_new("runs", args.runs),)),
    place=Place.LEADER,
    items=Items(argument="runs"),
    bounded=True,
    large=True,
    example={"runs": [[bytes.fromhex("0196f0c5a1b20007d4c3b2a19080706000000000"), SOME_BODY]]},
)
