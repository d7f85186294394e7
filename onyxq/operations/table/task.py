"""Operations that read tasks and cancel them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from msgspec import Meta

from onyxq.core.ids import TaskId
from onyxq.core.limits import (
    DATA,
    INT_MAX,
    ITEMS_MAX,
    MOMENT,
    Name,
    OnConflict,
    TaskIdBytes,
    TimeMs,
    UniqueUntil,
)
from onyxq.core.texts import attempt_of
from onyxq.operations.table.access import Access, Need, on_all_of_queue, on_queue
from onyxq.operations.table.calls import call_of
from onyxq.operations.table.claim import Count
from onyxq.operations.table.enqueue import CallbackView
from onyxq.operations.table.operation import Args, Http, Items, Operation, Place, Result, Verb

State: TypeAlias = Literal["scheduled", "waiting", "ready", "claimed", "completed", "failed", "cancelled"]
FRESH_IDS_MAX = 10_000
CHANGED_MAX = 100_000
"""Dead letters that one request requeues or discards."""
Where: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=1_000, description="Only with this text in the error or a traceback.")
]
OfQueue: TypeAlias = Annotated[Name | None, Meta(description="Only of this queue.")]
After: TypeAlias = Annotated[TaskIdBytes | None, Meta(description="Continue after this id.")]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=1_000, description="Most tasks of a page.")]
Text: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1_000,
        description="Only with this text in the data (with the function's name), a key, an error or a traceback.",
    ),
]
Since: TypeAlias = Annotated[TimeMs | None, Meta(description="Only tasks created from this time on.", extra=MOMENT)]
Until: TypeAlias = Annotated[TimeMs | None, Meta(description="Only tasks created until this time.", extra=MOMENT)]
NewestFirst: TypeAlias = Annotated[bool, Meta(description="In the reverse order: the newest first.")]


class ClaimOfTask(Result):
    """A claim in a task's history: one attempt."""

    token: int
    attempt: Annotated[
        int, Meta(description="Number from 1. If a claim does not count as an attempt, the next one has its number.")
    ]
    worker: str
    start_ms: Annotated[int | None, Meta(extra=MOMENT)]
    end_ms: Annotated[int | None, Meta(extra=MOMENT)]
    duration_ms: Annotated[int | None, Meta(description="From its grant to its end.")]
    outcome: Annotated[
        str | None,
        Meta(description="completed, failed, released, expired or cancelled; null: it is held."),
    ]
    retry_ms: Annotated[
        int | None, Meta(description="When the task was due again after a failure or a snooze.", extra=MOMENT)
    ]
    given_up: Annotated[bool, Meta(description="Whether the worker failed the task for good with retries left.")]
    error: str | None
    traceback: Annotated[
        str | None, Meta(description="Of the first 2 and last 6 failures of a task; in a list, only of the last one.")
    ]


class TaskView(Result):
    """A task."""

    id: TaskIdBytes
    queue: str
    data: Annotated[bytes, Meta(extra=DATA)]
    format: str
    priority: int
    ordering_key: str | None
    unique_key: str | None
    state: State
    at_ms: Annotated[int, Meta(description="When it is due.", extra=MOMENT)]
    expires_ms: Annotated[int | None, Meta(extra=MOMENT)]
    retries: Annotated[
        int | None,
        Meta(description="Retries that the task or its queue allows; null: no limit.", extra={"null": "no limit"}),
    ]
    depends: list[TaskIdBytes]
    created_ms: Annotated[
        int, Meta(description="When its id was made. If it was enqueued for later: when it was due.", extra=MOMENT)
    ]
    started_ms: Annotated[int | None, Meta(description="When it was claimed first.", extra=MOMENT)]
    finished_ms: Annotated[int | None, Meta(extra=MOMENT)]
    duration_ms: Annotated[int | None, Meta(description="First start to end, with pauses.", extra={"duration": True})]
    attempts: Annotated[int, Meta(description="Number of attempts that failed or whose lease expired.")]
    attempts_max: Annotated[
        int | None, Meta(description="Attempts until it fails for good.", extra={"null": "no limit"})
    ]
    claims: Annotated[list[ClaimOfTask], Meta(description="At most the first 10 and the last 40.")]
    claims_left_out: Annotated[int, Meta(description="Number of claims between these.")]
    updates: int
    result: Annotated[bytes | None, Meta(extra={"data": True, "any": True})]
    error: str | None
    unique_until: Annotated[
        UniqueUntil | None, Meta(description="When its unique key is free again; null: it has none.")
    ] = None
    unique_period_ms: Annotated[int | None, Meta(description="Its unique key has one task in each such period.")] = None
    on_conflict: Annotated[
        OnConflict | None, Meta(description="What its enqueue was to do to another task of its unique key.")
    ] = None
    callback: Annotated[CallbackView | None, Meta(description="Its callback, and the state of the delivery.")] = None
    flow: Annotated[TaskIdBytes | None, Meta(description="Id of its flow; null: it is not a task of a flow.")] = None

    @property
    def attempt(self) -> str:
        """The number of the last attempt and of all that it may have, such as ``2 of 6``."""
        return attempt_of(self.claims[-1].attempt if self.claims else 0, self.attempts_max)

    @property
    def function(self) -> str:
        """The function that it calls; empty if its data is not a call."""
        call = call_of(self.data)
        return "" if call is None else call.function

    @property
    def last_error(self) -> str | None:
        """Its error if it failed for good, else that of its last attempt."""
        return self.error or (self.claims[-1].error if self.claims else None)


class TaskPage(Result):
    """A page of tasks in the order of their ids, or in the reverse order if that was asked for."""

    tasks: list[TaskView]
    after: Annotated[
        TaskIdBytes | None,
        Meta(description="Id after which the next page begins; null: no more pages. A short page may have a next one."),
    ]


class Update(Result):
    """An update of a task."""

    token: int
    seq: int
    at_ms: Annotated[int, Meta(extra=MOMENT)]
    data: Annotated[bytes, Meta(extra={"data": True, "any": True})]


class TaskLog(Result):
    """Updates of a task."""

    updates: list[Update]


class TaskHistory(Result):
    """All that the store has of a task."""

    task: TaskView
    history: list[dict[str, Any]]
    completion: dict[str, Any] | None
    updates: list[Update]
    void_below: int


class Counts(Result):
    """Number of tasks by queue and state."""

    counts: dict[str, dict[str, int]]


class Ids(Result):
    """Fresh ids."""

    ids: list[TaskIdBytes]


class ItemResults(Result):
    """For each id null, or the error with which it was refused."""

    results: list[dict[str, Any] | None]


class Bodies(Result):
    """Bodies of tasks. An answer holds about 4 MiB, and at least one body."""

    bodies: Annotated[list[tuple[bytes, bytes]], Meta(description="First id and body of each run.")]
    missing: Annotated[list[tuple[bytes, int]], Meta(description="Runs that do not exist.")]
    rest: Annotated[list[tuple[bytes, int]], Meta(description="Runs that did not fit into the answer.")]


class TaskResult(Result, omit_defaults=True):
    """The outcome for one task of a request; a refused one does not affect the others."""

    id: TaskIdBytes
    ok: bool
    code: str | None = None
    detail: str | None = None
    hint: str | None = None


def task_result(task_id: TaskId, error: dict[str, Any] | None) -> TaskResult:
    """Return the outcome for a task from the map of its error."""
    if error is None:
        return TaskResult(id=task_id, ok=True)
    return TaskResult(id=task_id, ok=False, code=error["code"], detail=error["message"], hint=error["hint"] or None)


class GetTask(Args):
    """Return one task."""

    id: Annotated[TaskIdBytes, Meta(description="Id of the task.")]
    seen_token: Annotated[
        Annotated[int, Meta(ge=0, le=INT_MAX)] | None,
        Meta(description="The answer is not older than this claim."),
    ] = None
    seen_seq: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 31)] | None,
        Meta(description="The answer is not older than this update of seen_token."),
    ] = None
    wait_ms: Annotated[
        int, Meta(ge=0, le=60_000, description="Longest wait for the end of the task, in milliseconds.")
    ] = 0


class GetTaskLog(Args):
    """Return the updates of a task, without gaps."""

    id: Annotated[TaskIdBytes, Meta(description="Id of the task.")]


class GetTaskHistory(Args):
    """Return the log's entries about a task's claims, its completion and its updates."""

    id: TaskIdBytes


class ListTasks(Args):
    """Return tasks in the order of their ids, which begin with the time."""

    queue: OfQueue = None
    state: Annotated[State | None, Meta(description="Only in this state.")] = None
    after: After = None
    limit: Limit = 100
    newest_first: NewestFirst = False
    where: Text | None = None
    since_ms: Since = None
    until_ms: Until = None


class NextPage(Result):
    """The next tasks of a queue."""

    ready: Annotated[list[TaskView], Meta(description="Ready tasks, in the order in which they are granted.")]
    later: Annotated[list[TaskView], Meta(description="Tasks that are due later, by due time.")]
    after_ms: Annotated[int | None, Meta(description="Due time at which the next page begins; null: no more.")]
    after: Annotated[TaskIdBytes | None, Meta(description="Id after which the next page begins at that time.")]


class ListNext(Args, kw_only=True):
    """Return the next tasks of a queue: ready tasks, and tasks that are due later, by due time.

    With ``after_ms`` and ``after``, the answer is a further page of tasks that are due later, without ready tasks.
    """

    queue: Name
    where: Text | None = None
    after_ms: Annotated[TimeMs | None, Meta(description="Continue at this due time.")] = None
    after: After = None
    limit: Limit = 100


class CountTasks(Args):
    """Return the number of tasks by queue and state."""

    queue: OfQueue = None


class MakeIds(Args):
    """Return fresh ids to enqueue under, so that a repeat is the same task."""

    count: Annotated[int, Meta(ge=1, le=FRESH_IDS_MAX)] = 1


class TaskRun(NamedTuple):
    """Consecutive tasks."""

    id: TaskIdBytes
    count: Count  # type: ignore[assignment]  # not the method of tuples


class ReadBodies(Args):
    """Return the stored bodies of tasks by their runs, in any state."""

    runs: Annotated[list[TaskRun], Meta(min_length=1, max_length=ITEMS_MAX, description="First id and count of each.")]


class CancelTasks(Args):
    """Cancel tasks that are not finished.

    Claimed tasks are cancelled only if that is asked for. A repeat is answered like the first.
    """

    ids: Annotated[list[TaskIdBytes], Meta(max_length=ITEMS_MAX)]
    claimed: Annotated[
        bool, Meta(description="Cancel claimed tasks too. Workers learn this when they next renew or use the claim.")
    ] = False


class PurgeQueue(Args):
    """Cancel the unfinished tasks of a queue that no worker has claimed.

    Tasks that are enqueued meanwhile may be cancelled, too.
    """

    queue: Annotated[Name, Meta(description="Name of the queue.")]
    limit: Annotated[int, Meta(ge=1, le=CHANGED_MAX, description="Most tasks to cancel in one request.")] = 10_000


class PurgedQueue(Result):
    """The number of cancelled tasks."""

    count: int
    more: Annotated[bool, Meta(description="Whether tasks may be left, because the limit was reached.")]


def _on_task(*roles: str) -> Access:
    return Access(roles, lambda args: (Need(roles, tasks=((args.id, 1),)),))


def on_ids(*roles: str) -> Access:
    """Return the access to tasks that are named by their ids."""
    return Access(roles, lambda args: (Need(roles, tasks=tuple((one, 1) for one in args.ids)),))


_TASKS = "onyxq.interfaces.cli.tasks"
_SOME_ID = "0196f0c5a1b20007d4c3b2a19080706000000000"
_SOME = {"id": bytes.fromhex(_SOME_ID)}

GET_TASK = Operation(
    name="get",
    args=GetTask,
    result=TaskView,
    access=_on_task("read", "consume"),
    place=Place.LEADER,
    reads=True,
    http=Http(verb="GET", path="/v1/tasks/{id}", id="get_task", tag="tasks", errors=(404,), waits=True),
    python="get",
    python_left_out=("wait_ms",),
    example=_SOME,
)
GET_TASK_LOG = Operation(
    name="task_log",
    args=GetTaskLog,
    result=TaskLog,
    access=_on_task("read", "consume"),
    place=Place.LEADER,
    reads=True,
    http=Http(verb="GET", path="/v1/tasks/{id}/log", id="get_task_log", tag="tasks", errors=(404,)),
    python="task_log",
    example=_SOME,
)
GET_TASK_HISTORY = Operation(
    name="task_history",
    args=GetTaskHistory,
    result=TaskHistory,
    access=_on_task("read"),
    place=Place.LEADER,
    reads=True,
    http=Http(verb="GET", path="/v1/tasks/{id}/history", id="get_task_history", tag="tasks", errors=(404,)),
    example=_SOME,
)
LIST_TASKS = Operation(
    name="list",
    args=ListTasks,
    result=TaskPage,
    access=on_all_of_queue("read"),
    place=Place.ALL_LEADERS,
    reads=True,
    http=Http(verb="GET", path="/v1/tasks", id="list_tasks", tag="tasks", pages="tasks"),
    verbs=(
        Verb(
            name="task list",
            about="list tasks, the newest first",
            example="--queue mail --state failed --since 2026-10-25T14:00:00Z --where 'no such host'",
            columns=("id", "queue", "state", "attempt", "created", "at", "duration", "data"),
            terminal=("id", "function", "queue", "state", "created", "attempt", "last_error"),
            empty="no tasks",
            pages=True,
        ),
    ),
    python="list",
    python_left_out=("since_ms", "until_ms"),
    example={"queue": "mail", "state": "ready"},
)
LIST_NEXT = Operation(
    name="list.next",
    args=ListNext,
    result=NextPage,
    access=on_all_of_queue("read"),
    place=Place.ALL_LEADERS,
    reads=True,
    example={"queue": "mail"},
)
COUNT_TASKS = Operation(
    name="count",
    args=CountTasks,
    result=Counts,
    access=on_queue("read"),
    place=Place.ALL_LEADERS,
    reads=True,
    verbs=(
        Verb(
            name="task count",
            about="count tasks by queue and state",
            example="--queue mail",
            run=f"{_TASKS}:task_count",
        ),
    ),
    python="count",
    example={"queue": "mail"},
)
MAKE_IDS = Operation(
    name="ids",
    args=MakeIds,
    result=Ids,
    access=Access(("produce",), lambda args: (Need(("produce",)),)),
    reads=True,
    example={"count": 2},
)
READ_BODIES = Operation(
    name="tasks.bodies",
    args=ReadBodies,
    result=Bodies,
    access=Access(("read", "consume"), lambda args: (Need(("read", "consume"), tasks=tuple(args.runs)),)),
    place=Place.LEADER,
    reads=True,
    large=True,
    python="read_bodies",
    example={"runs": [[_SOME["id"], 1]]},
)
CANCEL_TASKS = Operation(
    name="cancel",
    args=CancelTasks,
    result=ItemResults,
    access=on_ids("produce", "operate"),
    place=Place.LEADER,
    items=Items(argument="ids"),
    bounded=True,
    large=True,
    http=Http(verb="POST", path="/v1/cancel", id="cancel_tasks", tag="tasks"),
    python="cancel",
    python_names={"ids": "id"},
    example={"ids": [_SOME["id"]]},
)
PURGE_QUEUE = Operation(
    name="queue.purge",
    args=PurgeQueue,
    result=PurgedQueue,
    access=on_all_of_queue("operate"),
    place=Place.ALL_LEADERS,
    bounded=True,
    http=Http(verb="POST", path="/v1/queues/{queue}/purge", id="purge_queue", tag="queues"),
    verbs=(
        Verb(
            name="queue purge",
            about="cancel all tasks of a queue that are not finished and not claimed; this cannot be undone",
            example="mail --yes",
            fields=("queue",),
            run="onyxq.interfaces.cli.cluster_changes:queue_purge",
            more=((("--yes",), {"action": "store_true", "help": "confirm; without --yes, only count the tasks"}),),
        ),
    ),
    python="purge_queue",
    python_left_out=("limit",),
    example={"queue": "mail"},
)
TASKS = (
    GET_TASK,
    GET_TASK_LOG,
    GET_TASK_HISTORY,
    LIST_TASKS,
    LIST_NEXT,
    COUNT_TASKS,
    MAKE_IDS,
    READ_BODIES,
    CANCEL_TASKS,
    PURGE_QUEUE,
)
