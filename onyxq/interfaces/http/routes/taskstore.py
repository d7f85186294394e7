"""Endpoints of the task store, as TaskStore's clients call them (see docs/taskstore.rst).

They are under ``/taskstore`` and at the root of a port of their own.  Keys may be written in any case.  What is
wrong with the tasks of a request is answered with status 200, in five lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, field, inspect
from starlette.responses import Response

from onyxq.core.errors import BadRequest, NotFound
from onyxq.core.limits import INT_MAX, Member, members
from onyxq.core.taskstore.state import UNITS
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.values import answer
from onyxq.operations.table.json_form import Schema
from onyxq.operations.table.operation import Args
from onyxq.operations.table.problems import clip, dotted
from onyxq.operations.table.store import Group, Ids, Number, Owner

PREFIX = "/taskstore"
DIGITS_MAX = 30
"""Most digits of an id, with leading zeros."""
_YES, _NO = ("1", "yes", "true"), ("0", "no", "false")
_SECOND_NAMES = {"duration": "timespec", "timespec": "duration", "changes": "updates"}

When: TypeAlias = Annotated[
    Number, Meta(description="When it is available; up to 0: counted from now. Also under the name `duration`.")
]
Ignored: TypeAlias = Annotated[Number | None, Meta(description="Ignored.")]


class StoreAdd(Args):
    """A new task."""

    group: Group = ""
    data: str = ""
    timespec: When = 0
    ownerid: Ignored = None
    id: Ignored = None


class StoreChange(Args):
    """A task that is changed, or added."""

    id: Annotated[Number, Meta(description="Of the task; up to 0: the task is added.")]
    data: str = ""
    timespec: When = 0
    ownerid: Ignored = None
    group: Annotated[Group, Meta(description="Of a task that is added.")] = ""


class StoreUpdate(Args):
    """Changes of the store, all or nothing."""

    clientid: Owner
    adds: list[StoreAdd] = field(default_factory=list)
    updates: Annotated[list[StoreChange], Meta(description="Also under the name `changes`.")] = field(
        default_factory=list
    )
    deletes: Ids = field(default_factory=list)
    depends: Annotated[Ids, Meta(description="Ids that must exist.")] = field(default_factory=list)


class StoreClaim(Args):
    """A claim."""

    clientid: Owner
    group: Annotated[Group, Meta(description="No task is in the group without a name.")] = ""
    duration: Annotated[
        Number, Meta(description="How long the task belongs to the client, from now. Also under the name `timespec`.")
    ] = 0
    depends: Annotated[Ids, Meta(description="Ids that must exist.")] = field(default_factory=list)


class StoreGroup(Args):
    """Tasks of a group."""

    group: Annotated[str, Meta(min_length=1, description="Name of the group; it may have slashes.")]
    limit: Annotated[Number, Meta(description="Most tasks; up to 0: all.")] = 0
    owned: Annotated[
        str, Meta(max_length=5, description="Whether to list also tasks that are not available now: yes or no.")
    ] = "no"


class StoreTask(Args):
    """One task."""

    number: Annotated[int, Meta(ge=0, le=INT_MAX, description="Id of the task.")]


class StoreTasks(Args):
    """Tasks by their ids."""

    numbers: Annotated[str, Meta(pattern=r"^([0-9]+(,[0-9]+)*)?$", description="Comma-separated ids.")]


def own_names(kind: Any, given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return the members of a body under their own names; raises `BadRequest` naming one as it was sent."""
    known, out = members(kind), dict[str, Any]()
    for key, item in given.items():
        name, field_name = _own_name(known, key), dotted(where, clip(key))
        if name not in known:
            raise BadRequest(f"{field_name} is not a known field", field=field_name, hint=_meant(known, key))
        if None not in (out.get(name), item) and out[name] != item:
            raise BadRequest(f"{field_name} is given twice, with another value", field=field_name)
        if item is not None or name not in out:
            out[name] = _own_names_within(known[name], item, dotted(where, name))
    return out


def _own_names_within(member: Member, value: Any, where: str) -> Any:
    item = getattr(member.node, "item_type", None)
    if not isinstance(item, inspect.StructType) or not isinstance(value, list):
        return value
    return [
        own_names(item.cls, one, f"{where}[{place}]") if isinstance(one, dict) else one
        for place, one in enumerate(value)
    ]


def _own_name(known: Mapping[str, Member], key: str) -> str:
    name = key.lower()
    return name if name in known else _SECOND_NAMES.get(name, name)


def _meant(known: Mapping[str, Member], key: str) -> str:
    names = sorted({*known, *(second for second, name in _SECOND_NAMES.items() if name in known)})
    near = get_close_matches(clip(key).lower(), names, 1)
    return f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(names)}."


_NUMBER: Schema = {"type": "integer", "format": "int64"}
_STORED: Schema = {
    "type": ["object", "null"],
    "required": ["id", "group", "data", "timespec", "duration", "ownerid"],
    "properties": {
        **dict.fromkeys(("id", "timespec", "duration", "ownerid"), _NUMBER),
        "group": {"type": "string"},
        "data": {"type": "string"},
    },
}
_STORED_LIST: Schema = {"type": "array", "items": _STORED}
_NUMBERS: Schema = {"type": "array", "items": _NUMBER}
_LISTS = ("Changes", "Deletes", "Depends", "Owned")
_DONE: Schema = {
    "type": "object",
    "required": ["Tasks", "Error"],
    "properties": {
        "Tasks": {**_STORED_LIST, "type": ["array", "null"]},
        "Error": {
            "type": ["object", "null"],
            "properties": {
                **dict.fromkeys(_LISTS, _NUMBERS),
                "Bugs": {"type": "array", "items": {"type": "null"}},
                "Messages": {"type": "array", "items": {"type": "string"}},
            },
        },
    },
}


# --- handlers; ``unit``: number of the port's units of time in a millisecond


def _to_ms(time: int, unit: int) -> int:
    """Return a time of a port in milliseconds, rounded away from 0."""
    return -(-time // unit) if time > 0 else time // unit


def _shown(task: list[Any] | None, unit: int) -> dict[str, Any] | None:
    if task is None:
        return None
    number, group, at_ms, owner, data = task
    time = at_ms * unit
    return {"id": number, "group": group, "data": data, "timespec": time, "duration": time, "ownerid": owner}


def _done(found: dict[str, Any], unit: int, *, nothing: Any) -> Response:
    """Return the answer to a change: tasks or what is wrong; ``nothing``: in place of no tasks."""
    refused = found.get("refused")
    if refused is None:
        tasks = [_shown(task, unit) for task in found["tasks"]]
        return answer({"Tasks": tasks or nothing, "Error": None})
    error = {name: refused[name.lower()] for name in _LISTS}
    bugs = refused["bugs"]
    # Clients of TaskStore can read a bug as null only; the words are for others.
    return answer({"Tasks": None, "Error": {**error, "Bugs": [None] * len(bugs), "Messages": bugs}})


async def get_groups(call: Call) -> Response:
    """Return the names of groups that have tasks."""
    return answer((await call.ask("taskstore.groups"))["groups"])


async def get_group(call: Call, *, unit: int) -> Response:
    """Return the tasks of a group."""
    args, word = call.args, call.args.owned.lower()
    if word not in (*_YES, *_NO):
        raise BadRequest(f"owned must be one of {', '.join((*_YES, *_NO))}, not {args.owned}", field="owned")
    found = await call.ask("taskstore.group", group=args.group, owned=word in _YES, limit=args.limit)
    return answer([_shown(task, unit) for task in found["tasks"]])


async def get_task(call: Call, *, unit: int) -> Response:
    """Return one task."""
    number = call.args.number
    (task,) = (await call.ask("taskstore.tasks", ids=[number]))["tasks"]
    if task is None:
        raise NotFound(f"there is no task {number}", field="id", hint="A task has another id after each change.")
    return answer(_shown(task, unit))


async def get_tasks(call: Call, *, unit: int) -> Response:
    """Return tasks by their ids."""
    numbers = [_number(one) for one in call.args.numbers.split(",") if one]
    found = (await call.ask("taskstore.tasks", ids=numbers))["tasks"]
    return answer([_shown(task, unit) for task in found])


def _number(digits: str) -> int:
    """Return the id of these digits; raises `BadRequest`. Python itself refuses to convert some thousands of digits."""
    if len(digits) > DIGITS_MAX or int(digits) > INT_MAX:
        raise BadRequest(f"an id must be 0 to {INT_MAX}, not {clip(digits)}", field="numbers")
    return int(digits)


async def post_update(call: Call, *, unit: int) -> Response:
    """Add, change and delete tasks."""
    args: StoreUpdate = call.args
    new = [one for one in args.updates if one.id <= 0]
    added: list[StoreAdd | StoreChange] = [*args.adds, *new]
    found = await call.ask(
        "taskstore.update",
        client=args.clientid,
        adds=[[one.group, one.data, _to_ms(one.timespec, unit)] for one in added],
        changes=[[one.id, one.data, _to_ms(one.timespec, unit)] for one in args.updates if one.id > 0],
        deletes=args.deletes,
        depends=args.depends,
    )
    if new and "tasks" in found:
        found = {"tasks": _in_order(found["tasks"], len(args.adds), [one.id <= 0 for one in args.updates])}
    return _done(found, unit, nothing=[])


def _in_order(tasks: list[Any], adds: int, is_new: list[bool]) -> list[Any]:
    """Return the tasks of an update in the order of the request; ``is_new``: which of its updates are additions."""
    added, changed = iter(tasks[adds : adds + sum(is_new)]), iter(tasks[adds + sum(is_new) :])
    return tasks[:adds] + [next(added if new else changed) for new in is_new]


async def post_claim(call: Call, *, unit: int) -> Response:
    """Claim a task."""
    args: StoreClaim = call.args
    asked = {"client": args.clientid, "group": args.group, "duration_ms": _to_ms(args.duration, unit)}
    return _done(await call.ask("taskstore.claim", **asked, depends=args.depends), unit, nothing=None)


def endpoints(prefix: str = PREFIX, *, unit: str = "ms") -> tuple[Endpoint, ...]:
    """Return the endpoints under a path, with times in ``ms`` or ``ns``."""
    per_ms = UNITS[unit]
    return (*_reads(prefix, per_ms), *_changes(prefix, per_ms))


_COMMON: dict[str, Any] = {"tag": "task store", "empty": True, "head": False}
"""What all endpoints of the task store have in common."""


def _reads(prefix: str, per_ms: int) -> tuple[Endpoint, ...]:
    return (
        Endpoint(
            method="GET",
            path=f"{prefix}/groups",
            name="taskstore_groups",
            summary="Groups that have tasks",
            handle=get_groups,
            answer={"type": "array", "items": {"type": "string"}},
            **_COMMON,
        ),
        Endpoint(
            method="GET",
            path=f"{prefix}/group",
            name="taskstore_group_names",
            summary="The same as /groups",
            handle=get_groups,
            answer={"type": "array", "items": {"type": "string"}},
            **_COMMON,
        ),
        Endpoint(
            method="GET",
            path=f"{prefix}/group/{{group}}",
            name="taskstore_group",
            role=("read", "consume"),
            summary="Tasks of a group, in the order of their times",
            handle=partial(get_group, unit=per_ms),
            has_tail=True,
            args=StoreGroup,
            answer=_STORED_LIST,
            **_COMMON,
        ),
        Endpoint(
            method="GET",
            path=f"{prefix}/task/{{number}}",
            name="taskstore_task",
            role=("read", "consume"),
            summary="One task",
            handle=partial(get_task, unit=per_ms),
            args=StoreTask,
            answer=_STORED,
            errors=(404,),
            **_COMMON,
        ),
        Endpoint(
            method="GET",
            path=f"{prefix}/tasks/{{numbers}}",
            name="taskstore_tasks",
            role=("read", "consume"),
            summary="Tasks by their ids; null for an id that does not exist",
            handle=partial(get_tasks, unit=per_ms),
            args=StoreTasks,
            answer=_STORED_LIST,
            **_COMMON,
        ),
    )


def _changes(prefix: str, per_ms: int) -> tuple[Endpoint, ...]:
    return (
        Endpoint(
            method="POST",
            path=f"{prefix}/update",
            name="taskstore_update",
            summary="Add, change and delete tasks, all or nothing",
            doc="If something is wrong with the tasks, the answer has status 200 and the lists of `Error`. Nothing has "
            "changed then.",
            handle=partial(post_update, unit=per_ms),
            role=("consume", "produce"),
            args=StoreUpdate,
            rewrite=partial(own_names, StoreUpdate),
            large=True,
            form_field="update",
            answer=_DONE,
            errors=(409,),
            **_COMMON,
        ),
        Endpoint(
            method="POST",
            path=f"{prefix}/claim",
            name="taskstore_claim",
            summary="Claim a random task of a group",
            doc="`Tasks` is null if nothing is available.",
            handle=partial(post_claim, unit=per_ms),
            role="consume",
            args=StoreClaim,
            rewrite=partial(own_names, StoreClaim),
            large=True,
            form_field="claim",
            answer=_DONE,
            errors=(409,),
            **_COMMON,
        ),
    )


ENDPOINTS = endpoints()
