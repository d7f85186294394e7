"""Endpoints for ids and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.responses import Response

from onyxq.errors import BadRequest, OnyxqError, from_map
from onyxq.http.endpoint import Call, Endpoint
from onyxq.http.enqueue import (
    BACKOFF_MS_DEFAULT,
    RETRIES_DEFAULT,
    Group,
    check_header,
    due_ms_of,
    enqueue_args,
    group_tasks,
    ids_of_runs,
    runs_of_groups,
)
from onyxq.http.keys import Keyed
from onyxq.http.problems import problem, renamed
from onyxq.http.schemas import ref
from onyxq.http.shapes import (
    MS_MAX,
    AnyValue,
    Array,
    Base64,
    Choice,
    Field,
    HexId,
    Integer,
    Later,
    Object,
    Text,
)
from onyxq.http.streaming import NDJSON, LinesResponse, Page
from onyxq.http.values import answer, answer_text, dumps, task_json, update_json
from onyxq.ids import RUN_TASKS_MAX, Run, ids_of

STATES = ("scheduled", "waiting", "ready", "claimed", "completed", "failed", "cancelled")
IDS_MAX = 10_000
PAGE_DEFAULT, PAGE_MAX = 100, 1_000
DELAY_MAX_MS = 100 * 366 * 24 * 3_600_000
BACKOFF_MAX_MS = 24 * 3_600_000
RETRIES_MAX = 1_000_000
RUNS_AT_ONCE = 1_000
"""Runs of one call of the method ``enqueue``."""
AVOID_MS = 5_000
"""How long new tasks keep away from a partition that was unavailable."""

_DELAY = Field(Integer(0, DELAY_MAX_MS), doc="Milliseconds from now until the task is due.")
_AT = Field(Integer(0, MS_MAX), doc="When the task is due; at most 10 s in the past.")

NEW_TASK = Object(
    "NewTask",
    {
        "id": Field(HexId(), doc="An id from GET /v1/ids: a repeat is then the same task. It holds the due time."),
        "queue": Field(Text(), required=True),
        "data": Field(AnyValue(), keeps_null=True, doc="Any JSON value."),
        "data_base64": Field(Base64(), doc="Bytes, instead of data."),
        "priority": Field(Integer(-(1 << 31), (1 << 31) - 1), default=0, doc="Higher is claimed first."),
        "delay_ms": _DELAY,
        "at_ms": _AT,
        "retries": Field(Integer(0, RETRIES_MAX), default=RETRIES_DEFAULT, keeps_null=True, doc="null: for ever."),
        "backoff_ms": Field(Integer(0, BACKOFF_MAX_MS), default=BACKOFF_MS_DEFAULT),
        "ordering_key": Field(Later("string")),
        "unique_key": Field(Later("string")),
        "depends": Field(Later("array")),
        "callback": Field(Later("object")),
    },
)
NEW_TASKS = Object(
    "NewTasks",
    {
        "tasks": Field(Array(NEW_TASK, minimum=1), required=True),
        "w": Field(Integer(1, 9), doc="Copies that must be stored before the answer; default: a majority."),
    },
)
IDS_QUERY = Object("IdsQuery", {"count": Field(Integer(1, IDS_MAX), default=1), "delay_ms": _DELAY, "at_ms": _AT})
GET_QUERY = Object(
    "TaskQuery",
    {
        "seen_token": Field(Integer(), doc="Never answer with a state older than this token."),
        "seen_seq": Field(Integer(), doc="Never answer with a state older than this update of seen_token."),
    },
)
LIST_QUERY = Object(
    "TasksQuery",
    {
        "queue": Field(Text()),
        "state": Field(Choice(STATES)),
        "after": Field(HexId(), doc="Give tasks behind this id."),
        "limit": Field(Integer(1, (1 << 31) - 1), doc=f"Default {PAGE_DEFAULT}, at most {PAGE_MAX} in a page."),
    },
)
_KEY_DOC = "A repeat with the same key and body makes the same tasks: for 24 hours, at this peer."
_KEY = Field(Text(maximum=255), doc=_KEY_DOC)


async def get_ids(call: Call) -> Response:
    """Fresh ids; made here if they are to carry a due time."""
    count: int = call.query["count"]
    kit = call.kit
    due_ms = due_ms_of(call.query, kit.now_ms())
    if not due_ms:
        return answer(await call.ask("ids", count=count))
    ids: list[bytes] = []
    open_partitions = await _open_partitions(call)
    while len(ids) < count:
        part = min(RUN_TASKS_MAX, count - len(ids))
        ids += ids_of(*kit.maker.run(_turn(call, open_partitions), part, due_ms=due_ms))
    return answer({"ids": ids})


async def _open_partitions(call: Call) -> list[int]:
    """Partitions that take new tasks now, as far as is known; never none."""
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
    """Store tasks; 201 once enough copies of each are durable."""
    keyed = _keyed(call)
    groups = await _grouped(call, keyed)
    open_partitions = await _open_partitions(call)
    faster = _keyed(call)
    if faster is not None and faster is not keyed and faster.partitions:
        # The same request came twice at a time, and the other one was first to choose its ids.
        keyed, groups = faster, await _grouped(call, faster)
    runs = _runs(call, groups, keyed=keyed, open_partitions=open_partitions)
    acks = await _enqueue(call, groups, runs)
    failed = next((index for index, ack in enumerate(acks) if isinstance(ack, Mapping)), None)
    if failed is None:
        return answer({"ids": ids_of_runs(runs), "acks": min(acks)}, status=201)
    return _partly(call, groups=groups, runs=runs, acks=acks)


async def _enqueue(call: Call, groups: list[Group], runs: list[Run]) -> list[Any]:
    """The acks of each run, or its error as a map; raises only if nothing was stored."""
    acks: list[Any] = []
    while len(acks) < len(runs):
        part = slice(len(acks), len(acks) + RUNS_AT_ONCE)
        try:
            packed = enqueue_args(groups[part], runs[part])
            acks += (await call.ask("enqueue", runs=packed, w=call.body.get("w")))["acks"]
        except OnyxqError as error:
            error.field = renamed(error.field, [group.start for group in groups[len(acks) :]], "tasks")
            if not acks:
                raise
            acks += [error.to_map()] * (len(runs) - len(acks))
    return acks


def _keyed(call: Call) -> Keyed | None:
    key = call.headers.get("idempotency-key")
    if key is None:
        return None
    check_header("Idempotency-Key", key)
    return call.kit.keys.find(key, owner=call.owner, body=call.raw, now_ms=call.kit.now_ms())


async def _grouped(call: Call, keyed: Keyed | None) -> list[Group]:
    now_ms = keyed.at_ms if keyed else call.kit.now_ms()
    return await group_tasks(call.body["tasks"], partitions=await call.partitions(), now_ms=now_ms)


def _runs(call: Call, groups: list[Group], *, keyed: Keyed | None, open_partitions: list[int]) -> list[Run]:
    """The run of each group, with ids that follow from the key if there is one."""
    fresh = sum(group.first is None for group in groups)
    chosen = keyed.partitions if keyed else ()
    if not chosen:
        chosen = tuple(_turn(call, open_partitions) for _ in range(fresh))
    if keyed is None:
        maker = call.kit.maker
        return runs_of_groups(groups, lambda index, count, due_ms: maker.run(chosen[index], count, due_ms=due_ms))
    keyed.partitions = chosen
    call.kit.keys.store(keyed)
    return runs_of_groups(groups, lambda index, count, due_ms: keyed.run(index, count, due_ms=due_ms))


def _partly(call: Call, *, groups: list[Group], runs: list[Run], acks: list[Any]) -> Response:
    """The answer when runs were refused: the first reason, every id, and what is stored."""
    until = call.kit.now_ms() + AVOID_MS
    first: OnyxqError | None = None
    stored: list[bool] = []
    for group, run, ack in zip(groups, runs, acks, strict=True):
        stored += [not isinstance(ack, Mapping)] * run.count
        if not isinstance(ack, Mapping):
            continue
        error = from_map(dict(ack))
        if error.status == 503:
            call.kit.avoided[int.from_bytes(run.first[6:8], "big")] = until
        if isinstance(error, BadRequest):
            error.field = error.field if (error.field or "").startswith("tasks[") else f"tasks[{group.start}]"
        first = first or error
    assert first is not None
    return problem(first, {"ids": ids_of_runs(runs), "stored": stored})


async def get_task(call: Call) -> Response:
    """One task."""
    seen = {"seen_token": call.query.get("seen_token"), "seen_seq": call.query.get("seen_seq")}
    return answer_text(task_json(await call.ask("get", id=call.path["id"], **seen)))


async def get_task_log(call: Call) -> Response:
    """The updates of one task."""
    found = await call.ask("task_log", id=call.path["id"])
    return answer_text('{"updates":[' + ",".join(map(update_json, found["updates"])) + "]}")


async def delete_task(call: Call) -> Response:
    """Cancel one task."""
    result = await call.ask("cancel", ids=[call.path["id"]])
    if result["results"][0] is not None:
        raise from_map(result["results"][0])
    return Response(status_code=204)


async def list_tasks(call: Call) -> Response:
    """One page, or all of them as a stream of lines."""
    limit = call.query.get("limit")
    streamed = NDJSON in call.headers.get("accept", "")
    if not streamed and limit is not None and limit > PAGE_MAX:
        hint = f"Ask for pages, or stream with Accept: {NDJSON}."
        raise BadRequest(f"limit must be 1 to {PAGE_MAX}, not {limit}", field="limit", hint=hint)
    if streamed:
        first = await _page(call, call.query.get("after"), limit)
        return Response(media_type=NDJSON) if call.is_head else LinesResponse(first)
    page = await _list(call, call.query.get("after"), limit or PAGE_DEFAULT)
    tasks = ",".join(map(task_json, page["tasks"]))
    return answer_text(f'{{"tasks":[{tasks}],"after":{dumps(page["after"])}}}')


async def _list(call: Call, after: bytes | None, limit: int) -> dict[str, Any]:
    queue, state = call.query.get("queue"), call.query.get("state")
    page: dict[str, Any] = await call.ask("list", queue=queue, state=state, after=after, limit=limit)
    return page


async def _page(call: Call, after: bytes | None, limit: int | None) -> Page:
    """The page behind ``after`` of a stream that may have ``limit`` more lines."""
    page = await _list(call, after, min(limit or PAGE_MAX, PAGE_MAX))
    left = None if limit is None else limit - len(page["tasks"])
    lines = list(map(task_json, page["tasks"]))
    if page["after"] is None or left == 0:
        return Page(lines, None)
    return Page(lines, partial(_page, call, page["after"], left))


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/ids",
        name="get_ids",
        tag="tasks",
        summary="Fresh ids to enqueue under, so that a retry is the same task",
        doc="With delay_ms or at_ms the ids carry that due time.",
        handle=get_ids,
        query=IDS_QUERY,
        answer=ref("Ids"),
    ),
    Endpoint(
        method="POST",
        path="/v1/tasks",
        name="enqueue",
        tag="tasks",
        summary="Enqueue tasks",
        doc="If a part could not be stored, the problem's members `ids` and `stored` name every task: "
        "repeat the request under these ids, or with the same Idempotency-Key. Keys are remembered in memory "
        "by the peer that got them: 65,536 of them, for 24 hours, not across its restart. To be safe beyond "
        "that, send ids from GET /v1/ids.",
        handle=post_tasks,
        role="write",
        body=NEW_TASKS,
        status=201,
        answer=ref("Enqueued"),
        headers={"Idempotency-Key": _KEY},
        errors=(409,),
    ),
    Endpoint(
        method="GET",
        path="/v1/tasks",
        name="list_tasks",
        tag="tasks",
        summary="Tasks in the order of their ids",
        doc=f"With `Accept: {NDJSON}` all of them (at most limit), one task a line. "
        'If that fails midway, the last line is `{"problem": ...}` and the connection is cut.',
        handle=list_tasks,
        query=LIST_QUERY,
        answer=ref("TaskPage"),
    ),
    Endpoint(
        method="GET",
        path="/v1/tasks/{id}",
        name="get_task",
        tag="tasks",
        summary="One task",
        handle=get_task,
        query=GET_QUERY,
        answer=ref("Task"),
        errors=(404,),
    ),
    Endpoint(
        method="DELETE",
        path="/v1/tasks/{id}",
        name="cancel_task",
        tag="tasks",
        summary="Cancel a task that is neither claimed nor finished",
        handle=delete_task,
        role="write",
        status=204,
        errors=(404, 409),
    ),
    Endpoint(
        method="GET",
        path="/v1/tasks/{id}/log",
        name="get_task_log",
        tag="tasks",
        summary="The updates of a task, without gaps",
        handle=get_task_log,
        answer=ref("TaskLog"),
        errors=(404,),
    ),
)
