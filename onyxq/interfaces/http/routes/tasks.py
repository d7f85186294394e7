"""Endpoints for ids and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, structs
from starlette.responses import Response

from onyxq.core.errors import BadRequest, KeyTaken, OnyxqError, TimedOut, Unavailable, Unknown, from_map
from onyxq.core.facts import partition_of_keys
from onyxq.core.ids import RUN_TASKS_MAX, Run, ids_of
from onyxq.core.limits import Name, TaskIdBytes
from onyxq.core.queue_settings import DEFAULTS
from onyxq.interfaces.http import keys
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.keys import Keyed
from onyxq.interfaces.http.problems import problem, renamed
from onyxq.interfaces.http.routes.enqueue import (
    At,
    Became,
    Delay,
    Due,
    Group,
    HeaderText,
    NewTask,
    NewTasks,
    due_ms_of,
    group_tasks,
    ids_of_runs,
    new_runs,
    past_queues,
    runs_of_groups,
    standing_of,
)
from onyxq.interfaces.http.values import answer, answer_text
from onyxq.operations.table.enqueue import ENQUEUE, Enqueue
from onyxq.operations.table.json_form import json_text
from onyxq.operations.table.operation import Args, Result
from onyxq.operations.table.queue import GET_QUEUE, GetQueue
from onyxq.operations.table.task import CANCEL_TASKS, MAKE_IDS, CancelTasks, Ids, MakeIds
from onyxq.system import tracing

_KEY_NAME = keys.HEADER.lower()
MAY_BE_STORED = (Unknown, TimedOut)
"""Errors after which a task may be stored."""
RUNS_AT_ONCE = 5_000
"""Most runs of one call of the method ``enqueue``, which may depend on each other in any order."""
AVOID_MS = 5_000
"""Time for which new tasks avoid a partition that was unavailable, in milliseconds."""


class NewIds(MakeIds):
    """Fresh ids."""

    delay_ms: Delay = None
    at_ms: At = None
    queue: Annotated[Name | None, Meta(description="With key: the queue of the tasks.")] = None
    key: Annotated[
        Name | None,
        Meta(description="The tasks' ordering key, else their unique key: the ids are in its partition."),
    ] = None


class CancelTask(Args):
    """Cancel a task."""

    id: Annotated[TaskIdBytes, Meta(description="Id of the task.")]
    claimed: Annotated[bool, Meta(description="Cancel the task even if it is claimed; its worker learns it.")] = False


class EnqueuedTasks(Result):
    """Tasks that are stored."""

    ids: list[TaskIdBytes]
    acks: Annotated[int, Meta(description="Fewest copies stored of any task.")]
    unique: Annotated[
        list[Became | None] | UnsetType,
        Meta(description="If tasks have a unique key: what each is."),
    ] = UNSET
    guarantee: Annotated[str | UnsetType, Meta(description="What is not promised of the stored tasks.")] = UNSET


_KEY = Annotated[
    HeaderText,
    Meta(
        description="A repeat with the same key and body returns the same ids and stores no task twice, at any peer. "
        "A key is kept for the retention_ms of the queue onyxq.requests, 7 days by default."
    ),
]


async def get_ids(call: Call) -> Response:
    """Answer with fresh ids, which are made here if they carry a due time."""
    count: int = call.args.count
    kit = call.kit
    due_ms = due_ms_of(Due(call.args.delay_ms, call.args.at_ms), kit.now_ms())
    there = await _keys_partition(call)
    if not due_ms and there is None:
        return answer({"ids": (await call.do(MAKE_IDS, MakeIds(count=count))).ids})
    ids: list[bytes] = []
    open_partitions = await _open_partitions(call) if there is None else [there]
    while len(ids) < count:
        part = min(RUN_TASKS_MAX, count - len(ids))
        ids += ids_of(*kit.maker.run(_turn(call, open_partitions), part, due_ms=due_ms))
    return answer({"ids": ids})


async def _keys_partition(call: Call) -> int | None:
    queue, key = call.args.queue, call.args.key
    if key is None:
        return None
    if queue is None:
        raise BadRequest("the partition of a key depends on its queue", field="queue")
    return partition_of_keys(queue, key, await call.partitions())


async def _open_partitions(call: Call) -> list[int]:
    """Return the partitions that probably take new tasks now; at least one."""
    routes = await call.ask("routes")
    kit, now_ms = call.kit, call.kit.now_ms()
    for partition in [partition for partition, until in kit.avoided.items() if until <= now_ms]:
        del kit.avoided[partition]
    led = sorted(int(partition) for partition in routes["leaders"])
    return [partition for partition in led if partition not in kit.avoided] or led or list(range(routes["partitions"]))


def _turn(call: Call, partitions: list[int]) -> int:
    call.kit.turn += 1
    return partitions[call.kit.turn % len(partitions)]


async def post_tasks(call: Call) -> Response:
    """Store tasks; answer 201 once enough copies of each are durable."""
    groups, keyed = await _first_grouped(call)
    runs = await _runs(call, groups, keyed)
    acks, guarantee = await _enqueue(call, groups, runs)
    if any(isinstance(ack, Mapping) for ack in acks):
        return _partly(call, groups=groups, runs=runs, acks=acks)
    stored = EnqueuedTasks(ids=ids_of_runs(runs, acks), acks=min(map(_copies, acks)))
    if any("unique_key" in group.header for group in groups):
        stored.unique = standing_of(runs, acks)
    if guarantee:
        stored.guarantee = guarantee
    return answer_text(json_text(stored), status=201)


def _copies(ack: Any) -> int:
    return int(ack[0] if isinstance(ack, list) else ack)


async def _enqueue(call: Call, groups: list[Group], runs: list[Run]) -> tuple[list[Any], str]:
    """Return the acks of each run or its error map, and what is not promised; raises only if nothing was stored."""
    acks: list[Any] = []
    lacking: list[str] = []
    while len(acks) < len(runs):
        part = slice(len(acks), len(acks) + RUNS_AT_ONCE)
        starts = [group.start for group in groups[part]]
        try:
            found = await call.do(ENQUEUE, Enqueue(runs=new_runs(groups[part], runs[part]), w=call.args.w))
        except OnyxqError as error:
            error.field = renamed(error.field, starts, "tasks")
            if not acks and not isinstance(error, MAY_BE_STORED):
                raise
            return acks + [error.to_map()] * (len(runs) - len(acks)), ""
        acks += [_renamed_ack(ack, starts) for ack in found.acks]
        if found.guarantee:
            lacking.append(found.guarantee)
    return acks, "; ".join(dict.fromkeys(lacking))


def _renamed_ack(ack: Any, starts: list[int]) -> Any:
    if not isinstance(ack, Mapping):
        return ack
    return {**ack, "field": renamed(ack.get("field"), starts, "tasks")}


async def _first_grouped(call: Call) -> tuple[list[Group], Keyed | None]:
    """Return the groups of a request as they were at its first arrival, and its key; raises `BadRequest`."""
    now_ms = call.kit.now_ms()
    try:
        groups = await _grouped(call, now_ms)
    except BadRequest:
        keyed = await keys.found(call)  # a repeat may name a time that was valid at the first arrival
        if keyed is None:
            raise
        return await _grouped(call, keyed.first.at_ms), keyed
    if _KEY_NAME not in call.headers:
        return groups, None
    turns = await _open_partitions(call)
    partitions = [_turn(call, turns) for _ in turns[: len(groups)]]
    keyed = await keys.stored(call, at_ms=now_ms, partitions=partitions)
    if keyed is None or keyed.first.at_ms == now_ms:
        return groups, keyed
    return await _grouped(call, keyed.first.at_ms), keyed


async def _grouped(call: Call, now_ms: int) -> list[Group]:
    tasks = _traced(call)
    graces = {queue: await grace_ms(call, queue) for queue in sorted(past_queues(tasks, now_ms))}
    return await group_tasks(tasks, partitions=await call.partitions(), now_ms=now_ms, graces=graces)


def _traced(call: Call) -> list[NewTask]:
    """Return the tasks of a request; they belong to the request's trace unless they name another."""
    tasks: list[NewTask] = call.args.tasks
    trace = call.headers.get("traceparent")
    if not tracing.is_traceparent(trace) or not tracing.sampled(trace):
        return tasks
    return [task if task.trace is not None else structs.replace(task, trace=trace) for task in tasks]


async def grace_ms(call: Call, queue: str) -> int:
    """Return how far back a due time may be; the default if it is unknown now, because the leader decides."""
    try:
        return int((await call.do(GET_QUEUE, GetQueue(queue=queue))).settings.grace_ms)
    except Unavailable:
        return DEFAULTS.grace_ms


async def _runs(call: Call, groups: list[Group], keyed: Keyed | None) -> list[Run]:
    """Return the run of each group, with ids that follow from the key if there is one."""
    homes = [group.partition(call.kit.partitions) for group in groups if group.first is None]
    if keyed is not None:
        return runs_of_groups(
            groups, lambda index, count, due_ms: keyed.run(index, count, home=homes[index], due_ms=due_ms)
        )
    turns, maker = await _open_partitions(call), call.kit.maker
    chosen = [_turn(call, turns) if home is None else home for home in homes]
    return runs_of_groups(groups, lambda index, count, due_ms: maker.run(chosen[index], count, due_ms=due_ms))


def _partly(call: Call, *, groups: list[Group], runs: list[Run], acks: list[Any]) -> Response:
    """Return the answer if runs were refused: the first error, all ids, and which tasks are stored."""
    until = call.kit.now_ms() + AVOID_MS
    first: OnyxqError | None = None
    stored: list[bool | None] = []
    copies: list[int] = []
    for group, run, ack in zip(groups, runs, acks, strict=True):
        if not isinstance(ack, Mapping):
            stored += [True] * run.count
            continue
        error = from_map(dict(ack))
        stored += [None if isinstance(error, MAY_BE_STORED) else False] * run.count
        if isinstance(error, Unknown) and error.copies is not None:
            copies.append(error.copies)
        if error.status == 503:
            call.kit.avoided[int.from_bytes(run.first[6:8], "big")] = until
        if isinstance(error, (BadRequest, KeyTaken)) and not (error.field or "").startswith("tasks["):
            error.field = f"tasks[{group.start}]" + (f".{error.field}" if error.field else "")
        first = first or error
    assert first is not None
    said: dict[str, Any] = {"ids": [one.hex() for one in ids_of_runs(runs)], "stored": stored}
    return problem(first, {**said, "copies": min(copies)} if copies else said)


async def delete_task(call: Call) -> Response:
    """Cancel one task; a cancelled one stays cancelled."""
    asked = CancelTasks(ids=[call.args.id], claimed=call.args.claimed)
    (refused,) = (await call.do(CANCEL_TASKS, asked)).results
    if refused is not None:
        raise from_map(refused)
    return Response(status_code=204)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/ids",
        name="get_ids",
        role="produce",
        tag="tasks",
        summary="Fresh ids to enqueue under, so that a retry is the same task",
        doc="With delay_ms or at_ms the ids carry that due time; those of tasks with a key must name it here.",
        handle=get_ids,
        args=NewIds,
        result=Ids,
    ),
    Endpoint(
        method="POST",
        path="/v1/tasks",
        name="enqueue",
        tag="tasks",
        summary="Enqueue tasks",
        doc="If the queue already has a task with the `unique_key`, `ids` has the id of that task. `unique` is `new`, "
        "`replaced` (its data) or `exists` for each task, in the order of the request. `guarantee` names what is not "
        "promised of the stored tasks: with a small `w`, or in an opportunistic queue. If only a part could be stored, "
        "the members `ids` and `stored` of the problem name every task (null: it may be stored). Then repeat the "
        "request under these ids, or with the same Idempotency-Key. All peers know a key as long as `retention_ms` of "
        "the queue `onyxq.requests` says. To be safe beyond that, send ids from GET /v1/ids.",
        handle=post_tasks,
        role="produce",
        args=NewTasks,
        large=True,
        status=201,
        result=EnqueuedTasks,
        headers={"Idempotency-Key": _KEY},
        errors=(409,),
    ),
    Endpoint(
        method="DELETE",
        path="/v1/tasks/{id}",
        name="cancel_task",
        tag="tasks",
        summary="Cancel a task that is not finished, and not claimed either unless that is asked for",
        doc="For a task that is already cancelled the answer is the same, so you can repeat the request. A task "
        "that is completed or failed is a conflict.",
        handle=delete_task,
        args=CancelTask,
        role=("produce", "operate"),
        status=204,
        errors=(404, 409),
    ),
)
