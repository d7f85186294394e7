"""Operations on flows: tasks that depend on each other, with one id, one state and one end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from onyxq.core.limits import (
    DATA,
    DEPENDS_MAX,
    FLOWS_QUEUE,
    ITEMS_MAX,
    MOMENT,
    TIMERS_QUEUE,
    BackoffMs,
    ExpiresMs,
    Fate,
    Format,
    Name,
    Priority,
    RetryCount,
    TaskIdBytes,
    TimeMs,
    Trace,
)
from onyxq.operations.table.access import Access, Need
from onyxq.operations.table.enqueue import TimerCallback
from onyxq.operations.table.operation import Args, Http, Operation, Place, Result, Verb
from onyxq.operations.table.task import After, Limit, NewestFirst

FLOW_TASKS_MAX = 10_000
WAIT_MS_MAX = 60_000
FlowState: TypeAlias = Literal["waiting", "running", "completed", "failed", "cancelled"]
FlowId: TypeAlias = Annotated[TaskIdBytes, Meta(description="Id of the flow.")]
TaskPlace: TypeAlias = Annotated[int, Meta(ge=0, lt=FLOW_TASKS_MAX)]


class FlowTask(Args):
    """A task of a new flow."""

    queue: Name
    data: Annotated[bytes, Meta(description="Any JSON value.", extra=DATA)] = b"null"
    format: Format = "json"
    after: Annotated[
        list[TaskPlace],
        Meta(max_length=DEPENDS_MAX, description="Places, from 0, of the earlier tasks that this one follows."),
    ] = msgspec.field(default_factory=list)
    depends: Annotated[
        list[TaskIdBytes],
        Meta(max_length=DEPENDS_MAX, description="Ids of tasks outside the flow; this one follows them."),
    ] = msgspec.field(default_factory=list)
    on_dependency_failed: Annotated[
        Fate, Meta(description="What happens if a task before it fails or is cancelled: fail, cancel or run.")
    ] = "fail"
    priority: Priority = 0
    delay_ms: Annotated[
        Annotated[int, Meta(ge=0, le=100 * 366 * 86_400_000)] | None,
        Meta(description="Milliseconds from the time in the flow's id until the task is due."),
    ] = None
    at_ms: Annotated[TimeMs | None, Meta(description="When the task is due.")] = None
    expires_ms: Annotated[ExpiresMs | None, Meta(description="The task fails if it has not started by then.")] = None
    retries: Annotated[
        RetryCount | UnsetType | None,
        Meta(description="Failed attempts allowed beyond the first; null: no limit. Default: the queue's setting."),
    ] = UNSET
    backoff_ms: Annotated[BackoffMs | None, Meta(description="Pause before the first retry; it doubles.")] = None
    ordering_key: Name | None = None
    trace: Annotated[Trace | None, Meta(description="W3C traceparent.")] = None
    callback: Annotated[TimerCallback | None, Meta(description="Where the end of the task is reported.")] = None


class MakeFlow(Args):
    """Store the tasks of a flow and its record.

    The record is stored last. So a flow either does not exist, or has all its tasks. A repeat with the same id and
    the same tasks makes nothing twice. A repeat with other tasks is refused with ``conflict``.
    """

    tasks: Annotated[list[FlowTask], Meta(min_length=1, max_length=FLOW_TASKS_MAX, description="The tasks, in order.")]
    id: Annotated[TaskIdBytes | None, Meta(description="A fresh id, so that the request can be repeated.")] = None
    name: Annotated[Name | None, Meta(description="A name for people, shown in lists.")] = None
    on_done: Annotated[
        FlowTask | None,
        Meta(description="A task that starts once all others have ended, whatever their outcome. It is the last one."),
    ] = None


class FlowMade(Result):
    """The ids of a flow and its tasks."""

    id: TaskIdBytes
    ids: Annotated[list[TaskIdBytes], Meta(description="Ids of the tasks, in the order of the request.")]
    on_done: TaskIdBytes | None


class FlowView(Result, kw_only=True):
    """A flow."""

    id: TaskIdBytes
    name: str | None
    state: FlowState
    counts: Annotated[
        dict[str, int], Meta(description="Number of its tasks by state. ``purged``: they have ended and are gone.")
    ]
    queues: Annotated[list[str], Meta(description="Queues of its tasks.")]
    on_done: Annotated[TaskIdBytes | None, Meta(description="The task that starts once all others have ended.")]
    created_ms: Annotated[int, Meta(extra=MOMENT)]
    finished_ms: Annotated[int | None, Meta(extra=MOMENT)]


class TaskOfFlow(Result):
    """A task of a flow."""

    id: TaskIdBytes
    queue: str
    state: str
    after: Annotated[list[int], Meta(description="Places of the tasks of the flow on which it depends.")]


class FlowDetails(FlowView, kw_only=True):
    """A flow with its first tasks."""

    tasks: list[TaskOfFlow]


class FlowPage(Result):
    """A page of flows."""

    flows: list[FlowView]
    after: Annotated[TaskIdBytes | None, Meta(description="Where the next page begins; null: this is the last one.")]


class GetFlow(Args):
    """Return a flow with the states of its tasks."""

    id: FlowId
    limit: Annotated[int, Meta(ge=0, le=FLOW_TASKS_MAX, description="Most tasks to list.")] = 1_000


class ListFlows(Args):
    """Return flows in the order of their ids, which begin with the time.

    A caller with roles on some queues gets only flows whose tasks are all in these queues. A short page may not be the
    last one: ``after`` is null on the last page.
    """

    state: Annotated[FlowState | None, Meta(description="Only in this state.")] = None
    after: After = None
    limit: Limit = 100
    newest_first: NewestFirst = False
    prefixes: Annotated[
        Annotated[list[Name], Meta(max_length=ITEMS_MAX)] | None,
        Meta(description="Only if the names of all its queues begin with one of these."),
    ] = None


class WaitFlow(Args):
    """Return a flow once it has ended, or as it is after the longest wait."""

    id: FlowId
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX, description="Longest wait, in milliseconds.")] = 0


class CancelFlow(Args):
    """Cancel a flow and all its unfinished tasks, also the claimed ones.

    After the answer none of its tasks starts. If the request fails midway, repeat it. The role is needed on the
    queues of all its tasks too.
    """

    id: FlowId


class RequeueFlow(Args):
    """Run the failed tasks of a flow again, with all their retries.

    Completed tasks keep their results. A failed task of ``on_done`` waits for the others: repeat the request once they
    have ended. The role is needed on the queues of all its tasks too.
    """

    id: FlowId


def _on_flow(*roles: str) -> Access:
    """Return the access to one flow: a role on the queue of flows, and on the queues of all its tasks."""
    return Access(roles, lambda args: (Need(roles, queues=(FLOWS_QUEUE,), flow=args.id),))


def _on_flows(*roles: str) -> Access:
    need = (Need(roles, queues=(FLOWS_QUEUE,)),)
    return Access(roles, lambda args: need, by_arguments=False, prefixes="prefixes")


def _on_made(args: MakeFlow) -> Sequence[Need]:
    tasks = args.tasks if args.on_done is None else [*args.tasks, args.on_done]
    timers = (TIMERS_QUEUE,) if any(one.callback is not None for one in tasks) else ()
    return (Need(("produce",), queues=(FLOWS_QUEUE, *timers, *sorted({one.queue for one in tasks}))),)


_TAG, _PATH, _RUN = "flows", "/v1/flows/{id}", "onyxq.interfaces.cli.flows"
_SOME: dict[str, Any] = {"id": bytes.fromhex("0196f0c5a1b20007d4c3b2a19080706000000000")}
_LOOKS, _CHANGES = ("read", "produce"), ("produce", "operate")
_COLUMNS = ("id", "name", "state", "counts", "created", "finished")

MAKE_FLOW = Operation(
    name="flow.make",
    args=MakeFlow,
    result=FlowMade,
    access=Access(("produce",), _on_made),
    place=Place.LEADER,
    bounded=True,
    large=True,
    http=Http(verb="POST", path="/v1/flows", id="make_flow", tag=_TAG, status=201, errors=(409,)),
    verbs=(
        Verb(
            name="flow make",
            about="make a flow from a JSON file in the form of POST /v1/flows",
            example="nightly.json --name nightly",
            fields=("id", "name"),
            run=f"{_RUN}:flow_make",
            more=(
                (("file",), {"metavar": "FILE", "help": 'JSON {"tasks": [...], "on_done": {...}}; - for stdin'}),
                (
                    ("--on-done",),
                    {"metavar": "JSON", "help": "task, as JSON, that starts once all others have ended"},
                ),
            ),
        ),
    ),
    python="make_flow",
    python_names={"tasks": "flow"},
    example={"tasks": [{"queue": "fetch"}, {"queue": "publish", "after": [0]}]},
)
GET_FLOW = Operation(
    name="flow.get",
    args=GetFlow,
    result=FlowDetails,
    access=_on_flow(*_LOOKS),
    place=Place.LEADER,
    reads=True,
    http=Http(verb="GET", path=_PATH, id="get_flow", tag=_TAG, errors=(404,)),
    verbs=(
        Verb(
            name="flow get",
            about="show a flow and the states of its tasks",
            example=_SOME["id"].hex(),
            columns=(*_COLUMNS, "on_done", "tasks"),
        ),
    ),
    python="flow",
    example=_SOME,
)
LIST_FLOWS = Operation(
    name="flow.list",
    args=ListFlows,
    result=FlowPage,
    access=_on_flows(*_LOOKS),
    place=Place.ALL_LEADERS,
    reads=True,
    http=Http(verb="GET", path="/v1/flows", id="list_flows", tag=_TAG, pages="flows", fixed={"prefixes": None}),
    verbs=(
        Verb(
            name="flow list",
            about="list flows, the newest first",
            example="--state running",
            fields=("state", "after", "limit", "newest_first"),
            columns=_COLUMNS,
            empty="no flows",
            pages=True,
        ),
    ),
    python="flows",
    python_left_out=("prefixes",),
    example={"state": "running"},
)
WAIT_FLOW = Operation(
    name="flow.wait",
    args=WaitFlow,
    result=FlowView,
    access=_on_flow(*_LOOKS),
    place=Place.LEADER,
    reads=True,
    http=Http(verb="GET", path=f"{_PATH}/outcome", id="wait_for_flow", tag=_TAG, errors=(404,), waits=True),
    verbs=(
        Verb(
            name="flow wait",
            about="wait until a flow has ended and print it; exit code 1 unless it completed",
            example=f"{_SOME['id'].hex()} --timeout 10m",
            fields=("id",),
            run=f"{_RUN}:flow_wait",
            more=(
                (
                    ("--timeout",),
                    {"metavar": "TIME", "default": "24h", "help": "longest wait; then exit with code 6 (default 24h)"},
                ),
            ),
        ),
    ),
    example={**_SOME, "wait_ms": 10_000},
)
CANCEL_FLOW = Operation(
    name="flow.cancel",
    args=CancelFlow,
    result=FlowView,
    access=_on_flow(*_CHANGES),
    place=Place.LEADER,
    bounded=True,
    http=Http(verb="DELETE", path=_PATH, id="cancel_flow", tag=_TAG, errors=(404, 409)),
    verbs=(
        Verb(
            name="flow cancel",
            about="cancel a flow and all its unfinished tasks, also the claimed ones",
            example=_SOME["id"].hex(),
            columns=_COLUMNS,
        ),
    ),
    python="cancel_flow",
    example=_SOME,
)
REQUEUE_FLOW = Operation(
    name="flow.requeue",
    args=RequeueFlow,
    result=FlowView,
    access=_on_flow("operate"),
    place=Place.LEADER,
    bounded=True,
    http=Http(verb="POST", path=f"{_PATH}/requeue", id="requeue_flow", tag=_TAG, errors=(404, 409)),
    verbs=(
        Verb(
            name="flow requeue",
            about="run the failed tasks of a flow again, with all their retries",
            example=_SOME["id"].hex(),
            columns=_COLUMNS,
        ),
    ),
    python="requeue_flow",
    example=_SOME,
)
FLOWS = (MAKE_FLOW, GET_FLOW, LIST_FLOWS, WAIT_FLOW, CANCEL_FLOW, REQUEUE_FLOW)
