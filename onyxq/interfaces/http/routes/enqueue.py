"""From the tasks of a request to runs: grouped, given ids, packed.

Consecutive tasks of a kind become one run; one with a key is a run of its own.  A task with
an id of its own keeps it; the due time is part of an id, so ids made here carry the delay that
was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import anyio
from attrs import define, field

from onyxq.core.errors import BadRequest
from onyxq.core.facts import pack_task, partition_of_keys
from onyxq.core.ids import RUN_TASKS_MAX, Run, TaskId, counter_of, ids_of, ms_of, offset_of, partition_of
from onyxq.core.limits import RUN_BYTES_MAX, TIME_MS_MAX
from onyxq.core.queue_settings import DEFAULTS
from onyxq.interfaces.http.shapes import Invalid
from onyxq.interfaces.http.values import encode_value, payload_of
from onyxq.operations.table.json_form import JSON

TASKS_AT_ONCE = 500
"""Tasks handled before others get their turn."""
KEYS = ("ordering_key", "unique_key")
"""The first of these that a task has decides about its partition."""
HEADER = (
    "backoff_ms",
    "depends",
    "expires_ms",
    "on_dependency_failed",
    "ordering_key",
    "priority",
    "queue",
    "retries",
    "trace",
    "unique_key",
)
"""Members of a task that go into the header of its run as they are."""

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
        if self.key is not None or header != self.header or count >= RUN_TASKS_MAX or self.size + size > RUN_BYTES_MAX:
            return False
        if self.first is None or task_id is None:
            return self.first is None and task_id is None and due_ms == self.due_ms
        same_maker = task_id[:16] == self.first[:16]
        return same_maker and counter_of(task_id) == counter_of(self.first) + count and offset_of(task_id) > 0


async def group_tasks(
    tasks: Sequence[Mapping[str, Any]],
    *,
    partitions: int,
    now_ms: int,
    graces: Mapping[str, int] = MappingProxyType({}),
) -> list[Group]:
    """The groups that the checked tasks of a request fall into; raises `BadRequest`.

    ``graces``: how far back a due time may lie in ms, by queue; for others the default.
    """
    groups: list[Group] = []
    seen: dict[TaskId, int] = {}
    for index, task in enumerate(tasks):
        if index % TASKS_AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
        try:
            task_id = _own_id(task, index, seen, partitions)
            due_ms = _due_ms(task, now_ms, graces.get(task["queue"], DEFAULTS.grace_ms))
            _check_dependencies(task, task_id)
            form, payload = payload_of(task, "data") or (JSON, _NULL)
        except Invalid as error:
            error.within(index)
            error.within("tasks")
            raise error.to_error("the body") from None
        header = _header(task, form)
        if not groups or not groups[-1].takes(header, due_ms, task_id, len(payload)):
            keyed = any(name in header for name in KEYS)
            groups.append(Group(index, header, due_ms, task_id, task.get("at_ms") if keyed else None))
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


def _check_dependencies(task: Mapping[str, Any], task_id: TaskId | None) -> None:
    depends = task.get("depends") or []
    if len(set(depends)) != len(depends):
        raise _at("depends", Invalid("names a task twice"))
    if task_id is not None and task_id in depends:
        raise _at("depends", Invalid("names the task itself"))


def past_queues(tasks: Sequence[Mapping[str, Any]], now_ms: int) -> set[str]:
    """Queues of tasks that are to be due at a time that has passed."""
    return {task["queue"] for task in tasks if (task.get("at_ms") or now_ms) < now_ms and task.get("id") is None}


def _due_ms(task: Mapping[str, Any], now_ms: int, grace_ms: int) -> int:
    """Due time of a task; 0 for at once. Raises `Invalid`."""
    delay_ms, at_ms, task_id = task.get("delay_ms"), task.get("at_ms"), task.get("id")
    if delay_ms is not None and at_ms is not None:
        raise _at("delay_ms", Invalid("and at_ms exclude each other"))
    if at_ms is not None and at_ms < now_ms - grace_ms and task_id is None:
        reason = f"is {now_ms - at_ms} ms in the past; the queue allows {grace_ms}"
        raise _at("at_ms", Invalid(reason, hint="Leave it out to run the task now."))
    due_ms = _due(delay_ms, at_ms, now_ms)
    if due_ms > TIME_MS_MAX:
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
        return _due_ms(query, now_ms, DEFAULTS.grace_ms)
    except Invalid as error:
        raise error.to_error("the query") from None


def _at(name: str, error: Invalid) -> Invalid:
    error.within(name)
    return error


def _header(task: Mapping[str, Any], form: str) -> dict[str, Any]:
    """The run's header: members that differ from their defaults, in order of name."""
    header = {name: task[name] for name in HEADER if name in task}
    if not task["priority"]:
        del header["priority"]
    if not header.get("depends"):
        header.pop("depends", None)
    if header.get("on_dependency_failed") == "fail":
        del header["on_dependency_failed"]
    if form == JSON:
        header["format"] = form
    return dict(sorted(header.items()))


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


def enqueue_args(groups: Sequence[Group], runs: Sequence[Run]) -> list[list[Any]]:
    """The argument ``runs`` of the method ``enqueue``."""
    out: list[list[Any]] = []
    for group, run in zip(groups, runs, strict=True):
        args = [run.first, pack_task(group.header, group.payloads)]
        out.append(args if group.at_ms is None else [*args, group.at_ms])
    return out


def ids_of_runs(runs: Sequence[Run], acks: Sequence[Any] = ()) -> list[str]:
    """Every id in request order, as hex; of a unique key the one that stands."""
    ids: list[str] = []
    for place, run in enumerate(runs):
        ack = acks[place] if acks else None
        ids += [ack[1].hex()] if isinstance(ack, list) else [task_id.hex() for task_id in ids_of(*run)]
    return ids


def standing_of(runs: Sequence[Run], acks: Sequence[Any]) -> list[str | None]:
    """Per task of a unique key ``new``, ``replaced`` or ``exists``, else null."""
    found = ((ack[2] if isinstance(ack, list) else None, run.count) for run, ack in zip(runs, acks, strict=True))
    return [what for what, count in found for _ in range(count)]


def check_header(field_name: str, value: str) -> None:
    """Raise `BadRequest` unless a header's value is 1 to 255 visible ASCII characters."""
    if not 1 <= len(value) <= 255 or not (value.isascii() and value.isprintable()):
        raise BadRequest(f"{field_name} must have 1 to 255 visible ASCII characters", field=field_name)
