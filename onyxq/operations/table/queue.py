"""Operations on queues: their settings and their depth."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from onyxq.core.errors import BadRequest
from onyxq.core.limits import AGE, CALLER, Member, Name, Remark, members
from onyxq.core.queue_settings import NO_LIMIT, SETTINGS, Queue
from onyxq.operations.table.access import LOOKING, everywhere, on_queue
from onyxq.operations.table.operation import Args, Done, Http, Operation, Place, Result, Verb

K = TypeVar("K", bound=type)


def _given_as(member: Member, stored_as: Any) -> Any:
    """Return the type of a setting as users give and see it: rates are in tasks per second."""
    if "thousandths" in member.marks:
        high = int(getattr(member.node, "le", 0)) // 1_000
        return Annotated[float, Meta(ge=0, le=high, description=member.about)]
    return stored_as


def _with_settings(*, as_changes: bool) -> Callable[[K], K]:
    """Return a decorator that adds every setting to a struct.

    ``as_changes``: each setting may be left out, and null resets it.
    """
    stored_as = typing.get_type_hints(Queue, include_extras=True)
    fields: list[Any] = [(name, _given_as(member, stored_as[name])) for name, member in members(Queue).items()]
    if as_changes:
        fields = [(name, kind | None | UnsetType, UNSET) for name, kind in fields if name in SETTINGS]

    def decorate(kind: K) -> K:
        about = {"__doc__": kind.__doc__}
        made = msgspec.defstruct(
            kind.__name__, fields, bases=(kind,), namespace=about, module=__name__, kw_only=as_changes
        )
        return typing.cast(K, made)

    return decorate


@_with_settings(as_changes=False)
class QueueSettings(Result):
    """All settings of a queue, as users see them."""

    if typing.TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def shown_settings(queue: Queue) -> QueueSettings:
    """Return a queue's settings as users see them."""
    found = dict[str, Any]()
    for name, member in members(Queue).items():
        value = getattr(queue, name)
        if "thousandths" in member.marks:
            whole, rest = divmod(value, 1_000)
            value = value / 1_000 if rest else whole
        found[name] = value
    made: QueueSettings = typing.cast(Any, QueueSettings)(**found)
    return made


class Depth(Result):
    """Number of tasks by state."""

    total: int
    ready: int
    claimed: int
    scheduled: int
    waiting: int
    completed: int
    failed: int
    cancelled: int


STILL_AFTER_MS = 5_000
"""Age of a ready task after which a queue that runs none stands still, in milliseconds.

Clients over HTTP and jobs on Spark ask for tasks only now and then, and a worker does not ask between two claims.
"""


def stands_still(claimed: int, oldest_ready_ms: int | None, *, paused: bool) -> bool:
    """Return whether a queue has ready tasks that do not run, although it is not paused."""
    return not claimed and not paused and oldest_ready_ms is not None and oldest_ready_ms >= STILL_AFTER_MS


class QueueView(Result):
    """A queue with its depth and its settings."""

    queue: str
    depth: Depth
    oldest_ready_ms: Annotated[
        int | None, Meta(description="Age of the oldest ready task; null: there is none.", extra=AGE)
    ]
    settings: Annotated[QueueSettings, Meta(extra={"inlined": True})]
    """Its settings; in JSON they are beside the other members."""

    @property
    def stands_still(self) -> bool:
        """Whether it runs no task, is not paused, and a task of it has been ready for some seconds."""
        return stands_still(self.depth.claimed, self.oldest_ready_ms, paused=self.settings.paused)


class QueueNow(QueueView):
    """A queue, and how many of its tasks run."""

    running: Annotated[int, Meta(description="Claimed tasks, counted if the queue has a limit.")]
    position: Annotated[int, Meta(description="Position of the replica in the log.")]


class GetQueue(Args):
    """Return one queue.

    A queue needs no creation: it has the default settings until they are changed.
    """

    queue: Name
    known: Annotated[bool, Meta(description="Fail if the queue has neither tasks nor settings.")] = False


class ListQueues(Args):
    """Return all queues with their depth by state and their settings."""


class Queues(Result):
    """All queues by name."""

    queues: list[QueueView]


class PageQueues(Args):
    """Return a page of the queues in some order.

    The depths may be some seconds old. The answer is empty if nothing was counted within ``wait_ms``.
    """

    like: Annotated[str, Meta(max_length=1_000, description="A part of the name.")] = ""
    order: Annotated[
        Literal["name", "unfinished", "failed", "oldest"],
        Meta(description="By name, by number of unfinished or failed tasks, or by age of the oldest ready task."),
    ] = "name"
    skip: Annotated[int, Meta(ge=0, le=1 << 31, description="Number of queues to leave out.")] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    wait_ms: Annotated[int, Meta(ge=0, le=60_000, description="How long to wait for the first count.")] = 2_000


class QueueRow(Result):
    """A queue in a page."""

    queue: str
    depth: dict[str, int]
    unfinished: int
    oldest_ready_ms: int | None
    paused: bool

    @property
    def stands_still(self) -> bool:
        """Whether it runs no task, is not paused, and a task of it has been ready for some seconds."""
        return stands_still(self.depth["claimed"], self.oldest_ready_ms, paused=self.paused)


class QueuePage(Result):
    """A page of queues."""

    counted_ms_ago: Annotated[int | None, Meta(description="Age of the count; null: nothing was counted yet.")]
    queues: list[QueueRow]
    found: Annotated[int, Meta(description="Number of queues with the text in their name.")]
    all: int
    sums: Annotated[dict[str, int] | None, Meta(description="Depth of all queues together.")]


@_with_settings(as_changes=True)
class SetQueue(Args):
    """Change settings of a queue; pause and resume it.

    Settings that are not named stay as they are. Null resets a setting to its default, except `retries`, where it
    means no limit. Claimers that wait for the queue are woken if it is resumed or its limit rises.
    """

    queue: Name
    by: Annotated[Remark | None, Meta(description="Name of the caller; shown with a pause.", extra=CALLER)] = None
    why: Annotated[Remark | None, Meta(description="Reason for the change; shown with a pause.")] = None


def changes(args: SetQueue) -> tuple[dict[str, int | str | bool], list[str]]:
    """Return the settings that are to be set, as entries hold them, and those to reset; raises `BadRequest`."""
    given, cleared = dict[str, int | str | bool](), list[str]()
    for name, member in SETTINGS.items():
        value = getattr(args, name)
        if value is UNSET:
            continue
        if value is None and not member.nullable:
            cleared.append(name)
        elif value is None:
            given[name] = NO_LIMIT
        elif "thousandths" in member.marks:
            given[name] = _thousandths(name, value)
        else:
            given[name] = value
    if not given and not cleared:
        raise BadRequest("no setting is named", hint=f"Name one of {', '.join(SETTINGS)}.")
    return given, cleared


def _emptiness(queue: QueueNow) -> str:
    """Return a remark on a queue without tasks, whose name may be wrong."""
    return "" if queue.depth.total else f"the queue {queue.queue} has no tasks yet"


def _thousandths(name: str, value: float) -> int:
    rounded = round(value * 1_000)
    if value and not rounded:
        raise BadRequest(f"{name} must be 0 (no limit) or at least 0.001 per second, not {value}", field=name)
    return rounded


GET_QUEUE = Operation(
    name="queue.get",
    args=GetQueue,
    result=QueueNow,
    access=on_queue(*LOOKING),
    place=Place.ALL_LEADERS,
    reads=True,
    http=Http(
        verb="GET", path="/v1/queues/{queue}", id="get_queue", tag="queues", fixed={"known": True}, errors=(404,)
    ),
    verbs=(
        Verb(
            name="queue show",
            about="show the depth of a queue by state, and its settings",
            example="mail --json",
            fixed={"known": True},
            run="onyxq.interfaces.cli.views:queue_show",
        ),
    ),
    python="queue",
    python_left_out=("known",),
    example={"queue": "mail"},
)
LIST_QUEUES = Operation(
    name="queues",
    args=ListQueues,
    result=Queues,
    access=everywhere("read"),
    place=Place.ALL_LEADERS,
    reads=True,
    http=Http(verb="GET", path="/v1/queues", id="get_queues", tag="queues"),
    verbs=(
        Verb(
            name="queue list",
            about="list queues with their depth by state, and which are paused",
            columns=("queue", "paused", *Depth.__struct_fields__, "oldest_ready"),
            empty="no queues",
            run="onyxq.interfaces.cli.views:queue_list",
        ),
    ),
    python="queues",
)
PAGE_QUEUES = Operation(
    name="queues.page",
    args=PageQueues,
    result=QueuePage,
    access=everywhere("read"),
    place=Place.ALL_LEADERS,
    reads=True,
    example={"order": "failed", "limit": 10},
)
_SAID = ("by", "why")
SET_QUEUE = Operation(
    name="queue.set",
    args=SetQueue,
    result=Done,
    access=on_queue("operate"),
    bounded=True,
    http=Http(verb="PUT", path="/v1/queues/{queue}", id="set_queue", tag="queues", shows=GET_QUEUE),
    verbs=(
        Verb(
            name="queue pause",
            about="pause a queue: grant none of its tasks until it is resumed; existing claims continue",
            example="mail --why 'the relay is down'",
            fixed={"paused": True},
            fields=("queue", *_SAID),
            shows=GET_QUEUE,
            says="{queue} is paused",
            remark=_emptiness,
        ),
        Verb(
            name="queue resume",
            about="resume a paused queue",
            example="mail",
            fixed={"paused": False},
            fields=("queue", *_SAID),
            shows=GET_QUEUE,
            says="{queue} is resumed",
        ),
        Verb(
            name="queue set",
            about="change settings of a queue",
            example="mail rate=50 concurrency=8 retries=none on_dead=stops lease_ms=1m",
            pairs=True,
            fields=("queue", *_SAID),
            shows=GET_QUEUE,
            remark=_emptiness,
        ),
    ),
    defaults={name: member.default for name, member in SETTINGS.items() if member.nullable},
    python="set_queue",
    example={"queue": "mail", "rate": 50, "retries": None},
)
