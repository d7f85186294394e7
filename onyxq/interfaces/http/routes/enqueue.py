"""From the tasks of a request to runs: grouped, given ids, packed.

Consecutive tasks with the same options become one run. A task with a key is a run of its own.  A task with
an id of its own keeps it. The due time is part of an id, so ids that are made here carry the requested delay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import anyio
from attrs import define, field
from msgspec import UNSET, Meta, UnsetType

from onyxq.core.errors import BadRequest
from onyxq.core.facts import pack_task, partition_of_keys
from onyxq.core.ids import RUN_TASKS_MAX, Run, TaskId, counter_of, ids_of, ms_of, offset_of, partition_of
from onyxq.core.limits import (
    DATA,
    DEPENDS_MAX,
    RUN_BYTES_MAX,
    TIME_MS_MAX,
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
from onyxq.core.queue_settings import DEFAULTS
from onyxq.core.task_headers import CALLBACK
from onyxq.operations.table.enqueue import Copies, NewRun, TimerCallback
from onyxq.operations.table.operation import Args, plain

TASKS_MAX = 100_000
HEADER_CHARACTERS_MAX = 255
HeaderText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=HEADER_CHARACTERS_MAX)]
TASKS_AT_ONCE = 500
"""Tasks handled before others get their turn."""
KEYS = ("ordering_key", "unique_key")
"""The first of these that a task has decides about its partition."""
HEADER = (
    "backoff_ms",
    "expires_ms",
    "ordering_key",
    "queue",
    "trace",
    "unique_key",
    "unique_until",
    "unique_period_ms",
    "on_conflict",
)
"""Members of a task that go into the header of its run as they are, unless they are null."""
Delay: TypeAlias = Annotated[
    Annotated[int, Meta(ge=0, le=100 * 366 * 86_400_000)] | None,
    Meta(description="Milliseconds from now until the task is due."),
]
At: TypeAlias = Annotated[
    TimeMs | None, Meta(description="When the task is due; in the past at most by the queue's grace_ms.")
]
Became: TypeAlias = Literal["new", "replaced", "extended", "exists"]
"""Outcome of an enqueue with a unique key: the task is new, or it changed the task that holds the key, or did not."""


class NewTask(Args):
    """A task to enqueue."""

    queue: Name
    id: Annotated[
        TaskIdBytes | None,
        Meta(description="An id from GET /v1/ids: a repeat is then the same task. It holds the due time."),
    ] = None
    data: Annotated[bytes, Meta(description="Any JSON value.", extra=DATA)] = b"null"
    format: Format = "json"
    priority: Annotated[Priority, Meta(description="Tasks with a higher one are claimed first.")] = 0
    delay_ms: Delay = None
    at_ms: At = None
    expires_ms: Annotated[ExpiresMs | None, Meta(description="A task that has not started by then fails.")] = None
    retries: Annotated[
        RetryCount | UnsetType | None,
        Meta(description="Failed attempts allowed beyond the first; null: no limit. Default: the queue's setting."),
    ] = UNSET
    backoff_ms: Annotated[
        BackoffMs | None, Meta(description="Pause before the first retry; it doubles. Default: the queue's setting.")
    ] = None
    ordering_key: Annotated[
        Name | None, Meta(description="Tasks of a queue with the same key run one after the other, in order.")
    ] = None
    unique_key: Annotated[
        Name | None,
        Meta(
            description="One task of a queue holds the key at a time. Another enqueue with the key makes no second "
            "task, but does what on_conflict says. The answer has the id of the task that holds the key."
        ),
    ] = None
    unique_until: Annotated[
        UniqueUntil | None,
        Meta(
            description="When the key is free again: once an attempt of its task began, once the task ended, or once "
            "it is purged. Default: finished; with unique_period_ms, purged."
        ),
    ] = None
    unique_period_ms: Annotated[
        UniquePeriodMs | None,
        Meta(description="One task per key and period of this length, counted from the epoch; by its due time."),
    ] = None
    on_conflict: Annotated[
        OnConflict | None,
        Meta(
            description="What happens if another task holds the key. keep: nothing. replace (the default): that task "
            "gets the new data, priority and due time; extend: it gets the new due time; both only before its first "
            "attempt. refuse: the error key_taken."
        ),
    ] = None
    depends: Annotated[
        Annotated[list[TaskIdBytes], Meta(max_length=DEPENDS_MAX)] | None,
        Meta(description="Ids of tasks that must be done before; they may be in this request."),
    ] = None
    on_dependency_failed: Annotated[
        Fate, Meta(description="What happens to the task if one that it depends on fails or is cancelled.")
    ] = "fail"
    callback: Annotated[
        TimerCallback | None,
        Meta(description="Where the end of the task is reported, once: its id, queue, state and result or error."),
    ] = None
    trace: Annotated[
        Trace | None, Meta(description="W3C traceparent of the span that enqueues it; attempts follow it.")
    ] = None


class NewTasks(Args):
    """Tasks to enqueue."""

    tasks: Annotated[list[NewTask], Meta(min_length=1, max_length=TASKS_MAX)]
    w: Copies = None


class Due(NamedTuple):
    """Members of a request for ids that decide about their due time."""

    delay_ms: int | None
    at_ms: int | None
    id: None = None


@define
class Group:
    """Tasks that will be one run: alike, and consecutive if they have ids already."""

    start: int
    """Index of the first task in the request."""
    header: dict[str, Any]
    due_ms: int
    """Due time of tasks without ids; 0: now."""
    first: TaskId | None
    at_ms: int | None = None
    """The time that was asked for, where the leader is to know it: it orders tasks of a key."""
    payloads: list[bytes] = field(factory=list)
    size: int = 0

    @property
    def key(self) -> str | None:
        """The key that decides about the partition."""
        return next((str(self.header[name]) for name in KEYS if name in self.header), None)

    def partition(self, partitions: int) -> int | None:
        """The partition that its tasks must lie in; None: any."""
        key = self.key
        return None if key is None else partition_of_keys(self.header["queue"], key, partitions)

    def takes(self, header: dict[str, Any], due_ms: int, task_id: TaskId | None, size: int) -> bool:
        """Whether one more task fits in."""
        count = len(self.payloads)
        if (
            self.key is not None
            or CALLBACK in header
            or header != self.header
            or count >= RUN_TASKS_MAX
            or self.size + size > RUN_BYTES_MAX
        ):
            return False
        if self.first is None or task_id is None:
            return self.first is None and task_id is None and due_ms == self.due_ms
        same_maker = task_id[:16] == self.first[:16]
        return same_maker and counter_of(task_id) == counter_of(self.first) + count and offset_of(task_id) > 0


async def group_tasks(
    tasks: Sequence[NewTask],
    *,
    partitions: int,
    now_ms: int,
    graces: Mapping[str, int] = MappingProxyType({}),
    member: str = "tasks",
) -> list[Group]:
    """Return the groups of the tasks of a request, which are its ``member``; raises `BadRequest`.

    ``graces``: how far back a due time may be in ms, by queue; for others the default.
    """
    groups: list[Group] = []
    seen: dict[TaskId, int] = {}
    for index, task in enumerate(tasks):
        if index % TASKS_AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
        where = f"{member}[{index}]"
        if task.id is not None:
            _check_id(task.id, index, seen, partitions, member)
        due_ms = _due_ms(task, now_ms, graces.get(task.queue, DEFAULTS.grace_ms), f"{where}.")
        if task.depends:
            _check_dependencies(task, where)
        _check_unique(task, where)
        header = _header(task)
        if not groups or not groups[-1].takes(header, due_ms, task.id, len(task.data)):
            keyed = any(name in header for name in KEYS)
            groups.append(Group(index, header, due_ms, task.id, task.at_ms if keyed else None))
        groups[-1].payloads.append(task.data)
        groups[-1].size += len(task.data)
    return groups


def _check_id(task_id: TaskId, index: int, seen: dict[TaskId, int], partitions: int, member: str) -> None:
    field = f"{member}[{index}].id"
    if partition_of(task_id) >= partitions:
        hint = "Ids come from GET /v1/ids of the same cluster."
        there = f"{field} names partition {partition_of(task_id)}; the cluster has partitions 0 to {partitions - 1}"
        raise BadRequest(there, field=field, hint=hint)
    if seen.setdefault(task_id, index) != index:
        raise BadRequest(f"{field} is the same as {member}[{seen[task_id]}].id", field=field)


def _check_dependencies(task: NewTask, where: str) -> None:
    depends, field = task.depends or [], f"{where}.depends"
    if len(set(depends)) != len(depends):
        raise BadRequest(f"{field} names a task twice", field=field)
    if task.id is not None and task.id in depends:
        raise BadRequest(f"{field} names the task itself", field=field)


def _check_unique(task: NewTask, where: str) -> None:
    for name in ("unique_until", "unique_period_ms", "on_conflict"):
        if task.unique_key is None and getattr(task, name) is not None:
            raise BadRequest(f"{where}.{name} needs a unique_key", field=f"{where}.{name}")


def past_queues(tasks: Sequence[NewTask], now_ms: int) -> set[str]:
    """Return the queues of tasks whose due time has passed."""
    return {task.queue for task in tasks if (task.at_ms or now_ms) < now_ms and task.id is None}


def _due_ms(task: NewTask | Due, now_ms: int, grace_ms: int, where: str) -> int:
    """Return the due time of a task, 0 for at once; raises `BadRequest`."""
    delay_ms, at_ms, task_id = task.delay_ms, task.at_ms, task.id
    if delay_ms is not None and at_ms is not None:
        raise BadRequest(f"{where}delay_ms and at_ms exclude each other", field=f"{where}delay_ms")
    if at_ms is not None and at_ms < now_ms - grace_ms and task_id is None:
        reason = f"{where}at_ms is {now_ms - at_ms} ms in the past; the queue allows {grace_ms}"
        raise BadRequest(reason, field=f"{where}at_ms", hint="Leave it out to run the task now.")
    due_ms = _due(delay_ms, at_ms, now_ms)
    if due_ms > TIME_MS_MAX:
        raise BadRequest(f"{where}delay_ms leads beyond the latest possible time", field=f"{where}delay_ms")
    if task_id is None or not due_ms or due_ms == ms_of(task_id) or due_ms <= now_ms >= ms_of(task_id):
        return 0 if task_id else due_ms
    field = where + ("delay_ms" if delay_ms else "at_ms")
    hint = "Get the ids with GET /v1/ids?count=N&at_ms=T: they carry the due time."
    raise BadRequest(f"{field} differs from the due time in the task's id", field=field, hint=hint)


def _due(delay_ms: int | None, at_ms: int | None, now_ms: int) -> int:
    if delay_ms:
        return now_ms + delay_ms
    return at_ms if at_ms is not None and at_ms > now_ms else 0


def due_ms_of(asked: Due, now_ms: int) -> int:
    """Return the due time of a request for ids; 0: now. Raises `BadRequest`."""
    return _due_ms(asked, now_ms, DEFAULTS.grace_ms, "")


def _header(task: NewTask) -> dict[str, Any]:
    """Return the header of a task's run: members that differ from their defaults, in order of name."""
    header = {name: value for name in HEADER if (value := getattr(task, name)) is not None}
    if task.priority:
        header["priority"] = task.priority
    if task.retries is not UNSET:
        header["retries"] = task.retries
    if task.depends:
        header["depends"] = task.depends
    if task.on_dependency_failed != "fail":
        header["on_dependency_failed"] = task.on_dependency_failed
    if task.format != "bytes":
        header["format"] = task.format
    if task.callback is not None:
        header[CALLBACK] = plain(task.callback)
    return dict(sorted(header.items()))


def runs_of_groups(groups: Sequence[Group], make: Callable[[int, int, int], Run]) -> list[Run]:
    """Return the run of each group; ``make(index, count, due_ms)`` makes a fresh one."""
    runs, index = [], 0
    for group in groups:
        if group.first is not None:
            runs.append(Run(group.first, len(group.payloads)))
            continue
        runs.append(make(index, len(group.payloads), group.due_ms))
        index += 1
    return runs


def new_runs(groups: Sequence[Group], runs: Sequence[Run]) -> list[NewRun]:
    """Return the runs as the operation ``enqueue`` takes them."""
    return [
        NewRun(run.first, pack_task(group.header, group.payloads), group.at_ms)
        for group, run in zip(groups, runs, strict=True)
    ]


def ids_of_runs(runs: Sequence[Run], acks: Sequence[Any] = ()) -> list[TaskId]:
    """Return every id in request order; of a unique key that of the task that holds it."""
    ids: list[TaskId] = []
    for place, run in enumerate(runs):
        ack = acks[place] if acks else None
        ids += [TaskId(ack[1])] if isinstance(ack, list) else ids_of(*run)
    return ids


def standing_of(runs: Sequence[Run], acks: Sequence[Any]) -> list[Became | None]:
    """Return ``new``, ``replaced``, ``extended`` or ``exists`` for each task with a unique key, else None."""
    found = ((ack[2] if isinstance(ack, list) else None, run.count) for run, ack in zip(runs, acks, strict=True))
    return [what for what, count in found for _ in range(count)]


def check_header(field_name: str, value: str) -> None:
    """Raise `BadRequest` unless a header's value is 1 to 255 visible ASCII characters."""
    if not 1 <= len(value) <= HEADER_CHARACTERS_MAX or not (value.isascii() and value.isprintable()):
        raise BadRequest(f"{field_name} must have 1 to 255 visible ASCII characters", field=field_name)
