"""Endpoints of the task store, as TaskStore's clients call them (see docs/taskstore.rst).

They stand under ``/taskstore`` and at the root of a port of their own.  Keys are taken whatever
their case; what is wrong with the tasks of a request is told with status 200, in five lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, ClassVar

from attrs import frozen
from starlette.responses import Response

from onyxq.core.errors import NotFound
from onyxq.core.limits import GROUP_CHARACTERS_MAX, OWNER_MAX, OWNER_MIN
from onyxq.core.taskstore.state import UNITS
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.shapes import Array, Field, Integer, Invalid, Object, Schema, Text, clip, kind_of
from onyxq.interfaces.http.values import answer

PREFIX = "/taskstore"
_YES, _NO = ("1", "yes", "true"), ("0", "no", "false")
_INT64 = Integer(-(1 << 63))


class AnyCase(Object):
    """An object whose keys may be written in any case; some have a second name."""

    second_names: ClassVar[Mapping[str, str]] = {"duration": "timespec", "changes": "updates"}

    def check(self, value: Any) -> dict[str, Any]:
        """The checked members under their own names."""
        if type(value) is not dict:
            raise Invalid(f"must be an object, not {kind_of(value)}")
        plain: dict[str, Any] = {}
        for key, item in value.items():
            name = self.second_names.get(key.lower(), key.lower())
            if name not in self.fields:
                unknown = self._unknown(key)
                unknown.within(key)
                raise unknown
            if plain.get(name) is not None and item is not None and plain[name] != item:
                twice = Invalid("is given twice, and not the same")
                twice.within(key)
                raise twice
            if item is not None or name not in plain:
                plain[name] = item
        return super().check(plain)

    def _unknown(self, key: str) -> Invalid:
        names = (*self.fields, *self.second_names)
        near = get_close_matches(clip(key).lower(), names, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(sorted(names))}."
        return Invalid("is not a known field", hint=hint)


class ClaimShape(AnyCase):
    """A claim: its own name for the time is the other one."""

    second_names: ClassVar[Mapping[str, str]] = {"timespec": "duration"}


@frozen
class YesNo:
    """``1``, ``yes``, ``true``, or ``0``, ``no``, ``false``, in any case."""

    def check(self, value: Any) -> bool:
        """Whether it is yes."""
        word = str(value).lower()
        if word not in (*_YES, *_NO):
            raise Invalid(f"must be one of {', '.join((*_YES, *_NO))}, not {clip(str(value))}")
        return word in _YES

    def schema(self) -> Schema:
        """The JSON schema of the value."""
        return {"type": "string", "enum": [*_YES, *_NO]}


_IGNORED = Field(_INT64, doc="Ignored.")
_DATA = Field(Text(0, 16 << 20, name=False), doc="Empty if left out.")
_TIME = Field(_INT64, doc="When it is available; up to 0: told from now. Also under the name `duration`.")
_TASK = {
    "data": _DATA,
    "timespec": _TIME,
    "ownerid": _IGNORED,
}
_ADD = AnyCase("StoreAdd", {"group": Field(Text(0, GROUP_CHARACTERS_MAX, name=False)), **_TASK, "id": _IGNORED})
_CHANGE = AnyCase(
    "StoreChange",
    {
        "id": Field(_INT64, required=True, doc="Of the task; up to 0: the task is added."),
        **_TASK,
        "group": Field(Text(0, GROUP_CHARACTERS_MAX, name=False), doc="Of a task that is added."),
    },
)
_CLIENT = Field(
    Integer(OWNER_MIN, OWNER_MAX),
    required=True,
    doc="Owner number of the client, a signed 32-bit integer. The client owns the tasks that it claims and adds.",
)
_IDS = Field(Array(_INT64))
_DEPENDS = Field(Array(_INT64), doc="Ids that must be there.")
UPDATE = AnyCase(
    "StoreUpdate",
    {
        "clientid": _CLIENT,
        "adds": Field(Array(_ADD)),
        "updates": Field(Array(_CHANGE), doc="Also under the name `changes`."),
        "deletes": _IDS,
        "depends": _DEPENDS,
    },
)
CLAIM = ClaimShape(
    "StoreClaim",
    {
        "clientid": _CLIENT,
        "group": Field(
            Text(0, GROUP_CHARACTERS_MAX, name=False),
            default="",
            doc="Nothing is available in the group without a name.",
        ),
        "duration": Field(_INT64, doc="How long the task is the client's from now."),
        "depends": _DEPENDS,
    },
)
_LIST_QUERY = Object(
    "StoreListQuery",
    {
        "limit": Field(Integer(-(1 << 63)), doc="How many at most; up to 0: all."),
        "owned": Field(YesNo(), doc="Whether to list those too that are not available now."),
    },
)

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


# --- handlers; ``unit``: how many units of time of the port make a millisecond


def _to_ms(time: int, unit: int) -> int:
    """A time of a port in milliseconds, away from 0 where it is none exactly."""
    return -(-time // unit) if time > 0 else time // unit


def _shown(task: list[Any] | None, unit: int) -> dict[str, Any] | None:
    if task is None:
        return None
    number, group, at_ms, owner, data = task
    time = at_ms * unit
    return {"id": number, "group": group, "data": data, "timespec": time, "duration": time, "ownerid": owner}


def _done(found: dict[str, Any], unit: int, *, nothing: Any) -> Response:
    """The answer to a change: tasks or what is wrong; ``nothing``: in place of no tasks."""
    refused = found.get("refused")
    if refused is None:
        tasks = [_shown(task, unit) for task in found["tasks"]]
        return answer({"Tasks": tasks or nothing, "Error": None})
    error = {name: refused[name.lower()] for name in _LISTS}
    bugs = refused["bugs"]
    # Clients of TaskStore can read a bug as null only; the words are for others.
    return answer({"Tasks": None, "Error": {**error, "Bugs": [None] * len(bugs), "Messages": bugs}})


async def get_groups(call: Call) -> Response:
    """Names of groups that have tasks."""
    return answer((await call.ask("taskstore.groups"))["groups"])


async def get_group(call: Call, *, unit: int) -> Response:
    """Tasks of a group."""
    asked = {"group": call.path["group"], "owned": call.query.get("owned", False), "limit": call.query.get("limit", 0)}
    return answer([_shown(task, unit) for task in (await call.ask("taskstore.group", **asked))["tasks"]])


async def get_task(call: Call, *, unit: int) -> Response:
    """One task."""
    number = call.path["number"]
    (task,) = (await call.ask("taskstore.tasks", ids=[number]))["tasks"]
    if task is None:
        raise NotFound(f"there is no task {number}", field="id", hint="A task has another id after each change.")
    return answer(_shown(task, unit))


async def get_tasks(call: Call, *, unit: int) -> Response:
    """Tasks by their ids."""
    found = (await call.ask("taskstore.tasks", ids=call.path["numbers"]))["tasks"]
    return answer([_shown(task, unit) for task in found])


async def post_update(call: Call, *, unit: int) -> Response:
    """Add, change, delete."""
    body = call.body
    updates = body.get("updates", ())
    new = [one for one in updates if one["id"] <= 0]
    asked = {
        "client": body["clientid"],
        "adds": [[one.get("group", ""), *_said(one, unit)] for one in (*body.get("adds", ()), *new)],
        "changes": [[one["id"], *_said(one, unit)] for one in updates if one["id"] > 0],
        **_ids(body, "deletes"),
        **_ids(body, "depends"),
    }
    found = await call.ask("taskstore.update", **asked)
    if new and "tasks" in found:
        found = {"tasks": _in_order(found["tasks"], len(asked["adds"]) - len(new), [one["id"] <= 0 for one in updates])}
    return _done(found, unit, nothing=[])


def _in_order(tasks: list[Any], adds: int, is_new: list[bool]) -> list[Any]:
    """The tasks of an update in the order of the request; ``is_new``: which of its updates are additions."""
    added, changed = iter(tasks[adds : adds + sum(is_new)]), iter(tasks[adds + sum(is_new) :])
    return tasks[:adds] + [next(added if new else changed) for new in is_new]


async def post_claim(call: Call, *, unit: int) -> Response:
    """Take a task."""
    body = call.body
    duration_ms = _to_ms(body.get("duration", 0), unit)
    asked = {"client": body["clientid"], "group": body["group"], "duration_ms": duration_ms, **_ids(body, "depends")}
    return _done(await call.ask("taskstore.claim", **asked), unit, nothing=None)


def _said(task: Mapping[str, Any], unit: int) -> tuple[str, int]:
    return task.get("data", ""), _to_ms(task.get("timespec", 0), unit)


def _ids(body: Mapping[str, Any], name: str) -> dict[str, list[int]]:
    return {name: body[name]} if name in body else {}


def endpoints(prefix: str = PREFIX, *, unit: str = "ms") -> tuple[Endpoint, ...]:
    """The endpoints under a path, with times in ``ms`` or ``ns``."""
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
            query=_LIST_QUERY,
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
            answer=_STORED,
            errors=(404,),
            **_COMMON,
        ),
        Endpoint(
            method="GET",
            path=f"{prefix}/tasks/{{numbers}}",
            name="taskstore_tasks",
            role=("read", "consume"),
            summary="Tasks by their ids; null where there is none",
            handle=partial(get_tasks, unit=per_ms),
            answer=_STORED_LIST,
            **_COMMON,
        ),
    )


def _form(name: str) -> Object:
    """The query of a change that is sent as a form."""
    return Object(f"Store{name.capitalize()}Query", {name: Field(Text(0, 16 << 20, name=False), doc="The JSON.")})


def _changes(prefix: str, per_ms: int) -> tuple[Endpoint, ...]:
    return (
        Endpoint(
            method="POST",
            path=f"{prefix}/update",
            name="taskstore_update",
            summary="Add, change and delete tasks, all or nothing",
            doc="What is wrong with the tasks is told with status 200, in the lists of `Error`; then nothing changed.",
            handle=partial(post_update, unit=per_ms),
            role=("consume", "produce"),
            query=_form("update"),
            body=UPDATE,
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
            summary="Take a task of a group at random",
            doc="`Tasks` is null if nothing is available.",
            handle=partial(post_claim, unit=per_ms),
            role="consume",
            query=_form("claim"),
            body=CLAIM,
            large=True,
            form_field="claim",
            answer=_DONE,
            errors=(409,),
            **_COMMON,
        ),
    )


ENDPOINTS = endpoints()
