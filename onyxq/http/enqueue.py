"""From the tasks of a request to runs: grouped, given ids, packed.

Consecutive tasks of a kind become one run.  A task with an id of its own keeps it; the
due time is part of an id, so ids made here carry the delay that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
from attrs import define, field

from onyxq.errors import BadRequest
from onyxq.facts import RUN_BYTES_MAX, pack_task
from onyxq.http.shapes import MS_MAX, Invalid
from onyxq.http.values import JSON, encode_value, payload_of
from onyxq.ids import RUN_TASKS_MAX, Run, TaskId, counter_of, ids_of, ms_of, offset_of, partition_of

PAST_MAX_MS = 10_000
"""A due time this far in the past is taken for a slip of the clock, not for a mistake."""
TASKS_AT_ONCE = 500
"""Tasks handled before others get their turn."""
RETRIES_DEFAULT = 25
BACKOFF_MS_DEFAULT = 1_000

_NULL = encode_value(None)


@define
class Group:
    """Tasks that will be one run: alike, and consecutive if they have ids already."""

    start: int
    """Index of the first task in the request."""
    header: dict[str, Any]
    due_ms: int
    """Due time of tasks without ids; 0: now."""
    first: TaskId | None
    payloads: list[bytes] = field(factory=list)
    size: int = 0

    def takes(self, header: dict[str, Any], due_ms: int, task_id: TaskId | None, size: int) -> bool:
        """Whether one more task fits in."""
        count = len(self.payloads)
        if header != self.header or count >= RUN_TASKS_MAX or self.size + size > RUN_BYTES_MAX:
            return False
        if self.first is None or task_id is None:
            return self.first is None and task_id is None and due_ms == self.due_ms
        same_maker = task_id[:16] == self.first[:16]
        return same_maker and counter_of(task_id) == counter_of(self.first) + count and offset_of(task_id) > 0


async def group_tasks(tasks: Sequence[Mapping[str, Any]], *, partitions: int, now_ms: int) -> list[Group]:
    """The groups that the checked tasks of a request fall into; raises `BadRequest`."""
    groups: list[Group] = []
    seen: dict[TaskId, int] = {}
    for index, task in enumerate(tasks):
        if index % TASKS_AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
        try:
            task_id = _own_id(task, index, seen, partitions)
            due_ms = _due_ms(task, now_ms)
            form, payload = payload_of(task, "data") or (JSON, _NULL)
        except Invalid as error:
            error.within(index)
            error.within("tasks")
            raise error.to_error("the body") from None
        header = _header(task, form)
        if not groups or not groups[-1].takes(header, due_ms, task_id, len(payload)):
            groups.append(Group(index, header, due_ms, task_id))
        groups[-1].payloads.append(payload)
        groups[-1].size += len(payload)
    return groups


def _own_id(task: Mapping[str, Any], index: int, seen: dict[TaskId, int], partitions: int) -> TaskId | None:
    task_id: TaskId | None = task.get("id")
    if task_id is None:
        return None
    if partition_of(task_id) >= partitions:
        hint = "Ids come from GET /v1/ids of the same cluster."
        raise _at("id", Invalid(f"names partition {partition_of(task_id)}; the cluster has {partitions}", hint=hint))
    if seen.setdefault(task_id, index) != index:
        raise _at("id", Invalid(f"is the same as tasks[{seen[task_id]}].id"))
    return task_id


def _due_ms(task: Mapping[str, Any], now_ms: int) -> int:
    """Due time of a task; 0 for at once. Raises `Invalid`."""
    delay_ms, at_ms, task_id = task.get("delay_ms"), task.get("at_ms"), task.get("id")
    if delay_ms is not None and at_ms is not None:
        raise _at("delay_ms", Invalid("and at_ms exclude each other"))
    if at_ms is not None and at_ms < now_ms - PAST_MAX_MS and task_id is None:
        raise _at("at_ms", Invalid(f"is {now_ms - at_ms} ms in the past", hint="Leave it out to run the task now."))
    due_ms = _due(delay_ms, at_ms, now_ms)
    if due_ms > MS_MAX:
        raise _at("delay_ms", Invalid("leads beyond the latest time there is"))
    if task_id is None or not due_ms or due_ms == ms_of(task_id) or due_ms <= now_ms >= ms_of(task_id):
        return 0 if task_id else due_ms
    hint = "Get the ids with GET /v1/ids?count=N&at_ms=T: they carry the due time."
    raise _at("delay_ms" if delay_ms else "at_ms", Invalid("differs from the due time in the task's id", hint=hint))


def _due(delay_ms: int | None, at_ms: int | None, now_ms: int) -> int:
    if delay_ms:
        return now_ms + delay_ms
    return at_ms if at_ms is not None and at_ms > now_ms else 0


def due_ms_of(query: Mapping[str, Any], now_ms: int) -> int:
    """Due time that the parameters of a request for ids ask for; 0: now. Raises `BadRequest`."""
    try:
        return _due_ms(query, now_ms)
    except Invalid as error:
        raise error.to_error("the query") from None


def _at(name: str, error: Invalid) -> Invalid:
    error.within(name)
    return error


def _header(task: Mapping[str, Any], form: str) -> dict[str, Any]:
    """The run's header: members that differ from their defaults, in order of name."""
    header: dict[str, Any] = {}
    if task["backoff_ms"] != BACKOFF_MS_DEFAULT:
        header["backoff_ms"] = task["backoff_ms"]
    if form == JSON:
        header["format"] = form
    if task["priority"]:
        header["priority"] = task["priority"]
    header["queue"] = task["queue"]
    if task["retries"] != RETRIES_DEFAULT:
        header["retries"] = task["retries"]
    return header


def runs_of_groups(groups: Sequence[Group], make: Callable[[int, int, int], Run]) -> list[Run]:
    """The run of each group; ``make(index, count, due_ms)`` gives a fresh one."""
    runs, index = [], 0
    for group in groups:
        if group.first is not None:
            runs.append(Run(group.first, len(group.payloads)))
            continue
        runs.append(make(index, len(group.payloads), group.due_ms))
        index += 1
    return runs


def enqueue_args(groups: Sequence[Group], runs: Sequence[Run]) -> list[list[bytes]]:
    """The argument ``runs`` of the method ``enqueue``."""
    return [[run.first, pack_task(group.header, group.payloads)] for group, run in zip(groups, runs, strict=True)]


def ids_of_runs(runs: Sequence[Run]) -> list[str]:
    """Every id in request order, as hex."""
    return [task_id.hex() for run in runs for task_id in ids_of(*run)]


def check_header(field_name: str, value: str) -> None:
    """Raise `BadRequest` unless a header's value is 1 to 255 visible ASCII characters."""
    if not 1 <= len(value) <= 255 or not (value.isascii() and value.isprintable()):
        raise BadRequest(f"{field_name} must have 1 to 255 visible ASCII characters", field=field_name)
