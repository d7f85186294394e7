"""Operations on periodic tasks, which the cluster enqueues on a schedule."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from onyxq.core.limits import (
    DATA,
    MOMENT,
    PERIODIC_DATA_BYTES_MAX,
    BackoffMs,
    ExpiresAfterMs,
    Format,
    Missed,
    Name,
    Priority,
    RetryCount,
)
from onyxq.operations.table.access import Access, Need, everywhere, on_periodic
from onyxq.operations.table.operation import Args, Done, Http, Operation, Result, Verb

Task: TypeAlias = Annotated[Name, Meta(description="Name of the periodic task.")]
Retries: TypeAlias = Annotated[
    RetryCount | UnsetType | None,
    Meta(
        description="Failed attempts allowed beyond the first; null: no limit. Default: the queue's setting.",
        extra={"null": "no limit"},
    ),
]
Backoff: TypeAlias = Annotated[
    BackoffMs | UnsetType, Meta(description="Pause before the first retry; it doubles. Default: the queue's setting.")
]
ExpiresAfter: TypeAlias = Annotated[
    ExpiresAfterMs | UnsetType,
    Meta(description="A task that has not started within this time after it is due fails."),
]


class PeriodicView(Result):
    """A periodic task."""

    name: str
    queue: str
    schedule: str
    zone: str
    priority: int
    missed: str
    paused: bool
    next_ms: Annotated[
        int | None, Meta(description="When it is due next, ms since the epoch; null: never.", extra=MOMENT)
    ]
    fired: Annotated[int, Meta(description="Number of runs so far.")]
    format: str
    data: Annotated[bytes, Meta(extra=DATA)]
    retries: Retries = UNSET
    backoff_ms: Backoff = UNSET
    expires_after_ms: ExpiresAfter = UNSET


class Periodics(Result):
    """All periodic tasks by name."""

    periodic: list[PeriodicView]


class GetPeriodic(Args):
    """Return one periodic task."""

    name: Task


class ListPeriodic(Args):
    """Return all periodic tasks by name."""


class SetPeriodic(Args):
    """Set a periodic task up, or change, pause or resume it.

    It becomes as the arguments say, and what is left out has its default. ``paused`` alone pauses or resumes a task
    that exists. Each time is due once for the whole cluster, whichever peers come and go.
    """

    name: Task
    queue: Annotated[Name | UnsetType, Meta(description="Queue of its tasks. Needed, except to pause or resume.")] = (
        UNSET
    )
    schedule: Annotated[
        Name | UnsetType,
        Meta(description="Five cron fields, or `every 90s`. Needed, except to pause or resume."),
    ] = UNSET
    zone: Annotated[Name, Meta(description="Time zone of the cron fields.")] = "UTC"
    data: Annotated[
        bytes, Meta(max_length=PERIODIC_DATA_BYTES_MAX, extra=DATA, description="The data of each task.")
    ] = b""
    format: Annotated[Format, Meta(description="What the data is.")] = "bytes"
    priority: Annotated[Priority, Meta(description="Priority of its tasks.")] = 0
    missed: Annotated[
        Missed, Meta(description="What to do about times at which no task could be enqueued; once: one for all.")
    ] = "once"
    paused: Annotated[bool | UnsetType, Meta(description="Enqueue nothing until it is resumed.")] = UNSET
    retries: Retries = UNSET
    backoff_ms: Backoff = UNSET
    expires_after_ms: ExpiresAfter = UNSET


class RemovePeriodic(Args):
    """Remove a periodic task.

    Tasks that it has already enqueued stay.
    """

    name: Task


def _sets(args: SetPeriodic) -> tuple[Need]:
    """Return the queue of its tasks, and that of the periodic task of the same name now."""
    return (Need(("operate",), queues=() if isinstance(args.queue, UnsetType) else (args.queue,), periodic=args.name),)


_COLUMNS = ("name", "queue", "schedule", "zone", "next", "paused", "missed", "fired", "data")
_FIELDS = (*_COLUMNS, "priority", "retries", "backoff_ms", "expires_after_ms")
_PATH = "/v1/periodic/{name}"
_TAG = "periodic tasks"

GET_PERIODIC = Operation(
    name="periodic.get",
    args=GetPeriodic,
    result=PeriodicView,
    access=on_periodic("read"),
    reads=True,
    http=Http(verb="GET", path=_PATH, id="get_periodic", tag=_TAG, errors=(404,)),
    verbs=(Verb(name="periodic show", about="show one periodic task", example="nightly", columns=_FIELDS),),
    python="periodic",
    example={"name": "nightly"},
)
LIST_PERIODIC = Operation(
    name="periodic.list",
    args=ListPeriodic,
    result=Periodics,
    access=everywhere("read"),
    reads=True,
    http=Http(verb="GET", path="/v1/periodic", id="list_periodic", tag=_TAG),
    verbs=(
        Verb(
            name="periodic list",
            about="list periodic tasks, and when each is due next",
            columns=_COLUMNS,
            empty="no periodic tasks",
        ),
    ),
    python="periodics",
)
SET_PERIODIC = Operation(
    name="periodic.set",
    args=SetPeriodic,
    result=PeriodicView,
    access=Access(("operate",), _sets),
    bounded=True,
    large=True,
    http=Http(verb="PUT", path=_PATH, id="set_periodic", tag=_TAG, errors=(404,)),
    verbs=(
        Verb(
            name="periodic add",
            about="enqueue a task on a schedule, or change the periodic task of that name",
            example="nightly reports '30 3 * * mon-fri' --zone Europe/Berlin",
            positional=("queue", "schedule"),
            columns=_FIELDS,
        ),
        Verb(
            name="periodic pause",
            about="pause a periodic task: enqueue none of its tasks until it is resumed",
            example="nightly",
            fixed={"paused": True},
            fields=("name",),
            columns=_FIELDS,
        ),
        Verb(
            name="periodic resume",
            about="resume a periodic task; runs that were due during the pause are skipped",
            example="nightly",
            fixed={"paused": False},
            fields=("name",),
            columns=_FIELDS,
        ),
    ),
    python="set_periodic",
    python_names={"data": "payload"},
    python_needed=("queue", "schedule"),
    example={"name": "nightly", "queue": "reports", "schedule": "30 3 * * mon-fri", "zone": "Europe/Berlin"},
)
REMOVE_PERIODIC = Operation(
    name="periodic.remove",
    args=RemovePeriodic,
    result=Done,
    access=on_periodic("operate"),
    http=Http(verb="DELETE", path=_PATH, id="remove_periodic", tag=_TAG, status=204, errors=(404,)),
    verbs=(
        Verb(
            name="periodic remove",
            about="remove a periodic task; tasks that it has already enqueued stay",
            example="nightly",
            done="removed",
        ),
    ),
    python="remove_periodic",
    example={"name": "nightly"},
)
