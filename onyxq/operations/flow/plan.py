"""What is stored for a new flow: the runs of its tasks and its record (design: dependencies).

The record is a task in the queue `FLOWS_QUEUE`. Its id is the flow's id, and its data lists the tasks. It is a join:
no worker runs it, and its leader ends it once all tasks of the flow have ended. So the flow's state survives whatever
tasks survive: another leader, a restart, a backup.

All ids follow from the flow's id and the request. So a repeated request makes the same tasks, and another request
under the same id makes none of them. A record is valid only if the ids of its tasks follow from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from onyxq.core.errors import BadRequest, TooLarge
from onyxq.core.facts import TASK_BYTES_MAX, pack_task, partition_of_keys
from onyxq.core.ids import ID_BYTES, RUN_TASKS_MAX, STRETCH_TASKS, Run, TaskId, ids_of, make_id, ms_of, offset_of
from onyxq.core.limits import DEPENDS_MAX, FLOW_JOINS_QUEUE, FLOWS_QUEUE, RUN_BYTES_MAX
from onyxq.core.queue_settings import check_writable
from onyxq.core.task_headers import CALLBACK, FLOW, JOINS
from onyxq.operations.table.enqueue import NewRun
from onyxq.operations.table.flow import FLOW_TASKS_MAX, FlowTask, MakeFlow
from onyxq.operations.table.operation import plain

JOINED_MAX = DEPENDS_MAX - 1
"""Most tasks or joins on which a record depends: it also depends on the task of ``on_done``."""
_AS_THEY_ARE = ("backoff_ms", "expires_ms", "ordering_key", "trace")


class RecordedRun(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Tasks of a flow with consecutive ids, one queue and the same tasks before them."""

    first: str
    count: int
    queue: str
    after: list[int]

    @property
    def run(self) -> Run:
        """First id and count; raises `ValueError`."""
        return Run(TaskId(bytes.fromhex(self.first)), self.count)


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """The data of a flow's record."""

    digest: str
    """Names the request."""
    runs: list[RecordedRun]
    """All tasks, in the order of the request; the task of ``on_done`` is the last one."""
    name: str | None = None
    on_done: str | None = None

    @property
    def queues(self) -> list[str]:
        """Names of the queues of all tasks."""
        return sorted({one.queue for one in self.runs})


class FlowPlan(NamedTuple):
    """The rows of a new flow."""

    record: Record
    ids: list[TaskId]
    """Ids of its tasks, without that of ``on_done``."""
    runs: list[NewRun]
    """Tasks, joins and the record, each after what it depends on."""


def digest_of(asked: MakeFlow) -> str:
    """Return the digest of a request, 32 hex digits, which the record keeps."""
    return blake2b(msgspec.msgpack.encode(msgspec.structs.replace(asked, id=None)), digest_size=16).hexdigest()


def maker_of(flow_id: TaskId, digest: str) -> int:
    """Return the maker in the ids of a flow's tasks."""
    return int.from_bytes(blake2b(flow_id + digest.encode(), digest_size=8).digest(), "big")


def check(asked: MakeFlow) -> None:
    """Raise `BadRequest` naming the field unless each task follows earlier ones only."""
    if asked.on_done is not None and (asked.on_done.after or asked.on_done.depends):
        raise BadRequest("on_done follows all tasks: leave out after and depends", field="on_done.after")
    for place, (where, task) in enumerate(placed(asked)):
        _check_task(task, place, where)


def placed(asked: MakeFlow) -> list[tuple[str, FlowTask]]:
    """Return all tasks of a request, each with the place that the field of an error names."""
    found = [(f"tasks[{place}]", task) for place, task in enumerate(asked.tasks)]
    return found if asked.on_done is None else [*found, ("on_done", asked.on_done)]


def _check_task(task: FlowTask, place: int, where: str) -> None:
    check_writable(task.queue, f"{where}.queue")
    if len(set(task.after)) != len(task.after) or any(one >= place for one in task.after):
        raise BadRequest(f"{where}.after must be the places of different tasks before this one", field=f"{where}.after")
    if len(task.after) + len(set(task.depends)) > DEPENDS_MAX or len(set(task.depends)) != len(task.depends):
        raise BadRequest(f"{where} may name at most {DEPENDS_MAX} different tasks", field=f"{where}.depends")
    if task.delay_ms is not None and task.at_ms is not None:
        raise BadRequest(f"{where}.delay_ms and at_ms exclude each other", field=f"{where}.delay_ms")
    if len(task.data) > TASK_BYTES_MAX:
        raise TooLarge(f"{where}.data has {len(task.data)} bytes; at most {TASK_BYTES_MAX}", field=f"{where}.data")


def planned(asked: MakeFlow, flow_id: TaskId, partitions: int) -> FlowPlan:
    """Return the rows of a checked request."""
    maker = _Maker(flow_id, digest_of(asked), partitions)
    ids: list[TaskId] = []
    start = 0
    while start < len(asked.tasks):
        end = _end_of_run(asked.tasks, start, maker.left)
        depends = [*(ids[one] for one in asked.tasks[start].after), *asked.tasks[start].depends]
        ids += maker.add(asked.tasks[start:end], depends, asked.tasks[start].after)
        start = end
    joined = ids
    while len(joined) > JOINED_MAX:
        joined = [maker.join(joined[at : at + DEPENDS_MAX]) for at in range(0, len(joined), DEPENDS_MAX)]
    last: list[TaskId] = []
    if asked.on_done is not None:
        after_all = msgspec.structs.replace(asked.on_done, on_dependency_failed="run")
        last = maker.add([after_all], joined, [])
    record = Record(maker.digest, maker.recorded, asked.name, last[0].hex() if last else None)
    header = {"depends": [*joined, *last], "format": "json", JOINS: True, "queue": FLOWS_QUEUE}
    maker.runs.append(NewRun(flow_id, pack_task(header, [msgspec.json.encode(record)])))
    return FlowPlan(record, ids, maker.runs)


def record_of(flow_id: TaskId, data: bytes) -> Record | None:
    """Return the record that a task's data holds, or None if it is not the record of a flow with this id."""
    try:
        record = msgspec.json.decode(data, type=Record)
        maker = maker_of(flow_id, record.digest).to_bytes(8, "big")
        ours = all(_is_of(one.run, maker) for one in record.runs)
        last = record.on_done is None or record.on_done == record.runs[-1].first
    except (ValueError, IndexError):
        return None
    return record if ours and last and record.runs and _is_in_order(record.runs) else None


def _is_in_order(runs: Sequence[RecordedRun]) -> bool:
    """Return whether runs follow earlier ones only, and have no more tasks than a flow may have."""
    count = 0
    for one in runs:
        if not all(0 <= place < count for place in one.after):
            return False
        count += one.count
    return count <= FLOW_TASKS_MAX + 1


def _is_of(run: Run, maker: bytes) -> bool:
    first, count = run
    return len(first) == ID_BYTES and first[8:16] == maker and 0 < count <= RUN_TASKS_MAX - offset_of(first)


class _Maker:
    """Maker of the ids and runs of one flow."""

    def __init__(self, flow_id: TaskId, digest: str, partitions: int) -> None:
        self.digest = digest
        self.runs: list[NewRun] = []
        self.recorded: list[RecordedRun] = []
        self._flow = flow_id
        self._flow_ms = ms_of(flow_id)
        self._maker = maker_of(flow_id, digest)
        self._partitions = partitions
        self._counter = 0

    @property
    def left(self) -> int:
        """Number of tasks that fit into the stretch of the next id."""
        return RUN_TASKS_MAX - self._counter % RUN_TASKS_MAX

    def add(self, tasks: Sequence[FlowTask], depends: Sequence[TaskId], after: list[int]) -> list[TaskId]:
        """Add tasks that are alike as a run, and return their ids."""
        header = _header_of(tasks[0], depends, self._flow)
        at_ms, key = tasks[0].at_ms, tasks[0].ordering_key
        due_ms = self._flow_ms + (tasks[0].delay_ms or 0) if at_ms is None else max(at_ms, self._flow_ms)
        there = None if key is None else partition_of_keys(tasks[0].queue, key, self._partitions)
        first = self._next_id(due_ms, len(tasks), there)
        body = pack_task(header, [one.data for one in tasks])
        # Tasks of a key are ordered by the due time that the user named. For other tasks the id has it.
        self.runs.append(NewRun(first, body, at_ms if key is not None else None))
        self.recorded.append(RecordedRun(first.hex(), len(tasks), tasks[0].queue, after))
        return ids_of(first, len(tasks))

    def join(self, depends: Sequence[TaskId]) -> TaskId:
        """Add a join of tasks and return its id."""
        first = self._next_id(self._flow_ms, 1, None)
        header = {"depends": list(depends), JOINS: True, "queue": FLOW_JOINS_QUEUE}
        self.runs.append(NewRun(first, pack_task(header, [b""])))
        return first

    def _next_id(self, due_ms: int, count: int, partition: int | None) -> TaskId:
        """Return the next id. Tasks of one stretch share a partition: they are then read and cancelled together."""
        if partition is None:
            partition = (self._maker + self._counter // STRETCH_TASKS) % self._partitions
        first = make_id(due_ms, partition, self._maker, self._counter)
        self._counter += count
        return first


def _header_of(task: FlowTask, depends: Sequence[TaskId], flow: TaskId) -> dict[str, Any]:
    """Return the header of a task's run: the flow, and options that differ from the defaults, sorted by name."""
    header: dict[str, Any] = {name: value for name in _AS_THEY_ARE if (value := getattr(task, name)) is not None}
    if task.format != "bytes":
        header["format"] = task.format
    if task.priority:
        header["priority"] = task.priority
    if task.retries is not UNSET:
        header["retries"] = task.retries
    if task.on_dependency_failed != "fail":
        header["on_dependency_failed"] = task.on_dependency_failed
    if task.callback is not None:
        header[CALLBACK] = plain(task.callback)
    if depends:
        header["depends"] = list(depends)
    header |= {FLOW: flow, "queue": task.queue}
    return dict(sorted(header.items()))


def _end_of_run(tasks: Sequence[FlowTask], start: int, room: int) -> int:
    """Return the end of the run that starts at a task: the tasks after it that differ only in their data."""
    if tasks[start].ordering_key is not None or tasks[start].callback is not None:
        return start + 1
    end, size, alike = start + 1, len(tasks[start].data), msgspec.structs.replace(tasks[start], data=b"")
    while end < min(len(tasks), start + room):
        size += len(tasks[end].data)
        if size > RUN_BYTES_MAX or msgspec.structs.replace(tasks[end], data=b"") != alike:
            break
        end += 1
    return end
