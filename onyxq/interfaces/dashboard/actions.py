"""Actions of buttons: each form calls one endpoint of the HTTP interface, with its role and its checks.

A form becomes the arguments of that endpoint, which are checked as if they came over HTTP.  The peer's server log gets
a line with the name of the credential, besides the entry in the cluster's log.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import attrs
from attrs import frozen
from msgspec import UNSET
from starlette.responses import RedirectResponse, Response

from onyxq.core import timer_model
from onyxq.core.errors import BadRequest
from onyxq.core.limits import TIME_MS_MAX, TIMERS_QUEUE, members
from onyxq.core.queue_settings import SETTINGS
from onyxq.interfaces.dashboard.rendering import HEADERS, link
from onyxq.interfaces.dashboard.session import refused
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.operations import OF_OPERATIONS, endpoint_of, read_arguments
from onyxq.interfaces.http.routes import tasks, timers
from onyxq.interfaces.http.routes.enqueue import NewTask
from onyxq.interfaces.http.values import decode_json
from onyxq.operations.checks.access import Guarded
from onyxq.operations.table.json_form import from_text
from onyxq.operations.table.operation import Http
from onyxq.operations.table.periodic import GET_PERIODIC, GetPeriodic
from onyxq.operations.table.queue import SET_QUEUE
from onyxq.operations.table.timer import SET_TIMER
from onyxq.system.durations import milliseconds

Form: TypeAlias = Mapping[str, list[str]]
"""The fields of a form, with all their values."""
Members: TypeAlias = dict[str, Any]

_PAUSING = ("by", "why", "paused")
_log = logging.getLogger("onyxq.dashboard")
_log.setLevel(logging.INFO)  # actions are logged at any level of the root logger


@frozen
class Action:
    """A form and the endpoint that it calls."""

    name: str
    operation: Endpoint
    body: Callable[[Form], Members] = lambda _: {}
    """The arguments that are not in the path."""
    back: Callable[[Form], str] = lambda _: "/"
    """The page that shows the effect."""
    fill: Callable[[Call, Form], Awaitable[Form]] | None = None
    """Adds fields that the page need not have."""


def one(form: Form, name: str, default: str | None = None) -> str:
    """Return the only value of a field; raises `BadRequest` if it is missing, empty or given twice."""
    values = [value for value in form.get(name, []) if value]
    if not values and default is not None:
        return default
    if len(values) != 1:
        raise BadRequest(f"{name} is {'given twice' if values else 'missing'}", field=name)
    return values[0]


def _ids(form: Form) -> Members:
    """Return the ids that a page counted; they are separated by spaces in one field."""
    return {"ids": one(form, "ids").split()}


def _new_task(form: Form) -> Members:
    """Return a new task from the fields of a form. Its data is text, or base64 if it is copied from another task."""
    data = one(form, "data", "").replace("\r\n", "\n").encode()  # Browsers send lines with both characters.
    if encoded := one(form, "data_base64", ""):
        data = _decoded(encoded)
    given = {"data": _json(data)} if one(form, "format", "json") == "json" else {"data_base64": _encoded(data)}
    keys = {"ordering_key": text} if (text := one(form, "ordering_key", "")) else {}
    numbers = {
        name: None if text == "null" else from_text(members(NewTask)[name], text)
        for name in ("priority", "delay_ms", "retries", "backoff_ms", "expires_ms")
        if (text := one(form, name, ""))
    }
    return {"tasks": [{"queue": one(form, "queue"), **given, **keys, **numbers}]}


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise BadRequest("data_base64 is not base64", field="data_base64") from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"data is not JSON: {error}", field="data") from None


async def _with_run(call: Call, form: Form) -> Form:
    """Return a form with the fields of a task that a periodic task makes; raises `NotFound`."""
    found = await call.do(GET_PERIODIC, GetPeriodic(name=one(form, "name")))
    numbers: Members = {"priority": found.priority, "retries": found.retries, "backoff_ms": found.backoff_ms}
    if found.expires_after_ms is not UNSET:
        numbers["expires_ms"] = min(call.kit.now_ms() + found.expires_after_ms, TIME_MS_MAX)
    return {
        **form,
        "queue": [found.queue],
        "format": [found.format],
        "data_base64": [_encoded(found.data)],
        **{name: [json.dumps(number)] for name, number in numbers.items() if number is not UNSET},
    }


def _settings(form: Form) -> Members:
    """Return the settings that differ from those on the page; an empty field means the default."""
    body: Members = {}
    for name in SETTINGS:
        text = one(form, name, "")
        if name in form and name not in _PAUSING and text != one(form, f"was-{name}", ""):
            body[name] = from_text(SET_QUEUE.members[name], text) if text else None
    return body


def _said(form: Form) -> Members:
    return {"by": one(form, "by"), "why": one(form, "why", "")}


def _queue_page(form: Form) -> str:
    return link("/ui/queue", name=one(form, "queue"))


def _tasks_page(form: Form) -> str:
    """Return the page to show after a change: that of the task, or the list of tasks in all states."""
    if one(form, "page", "") == "task":
        return link(f"/ui/tasks/{one(form, 'ids')}")
    return list_of({name: one(form, name, "") for name in ("queue", "where", "since", "until")})


def list_of(fields: Mapping[str, str]) -> str:
    """Return the address of the list of tasks with these limits. Timers have a list of their own."""
    if fields["queue"] == TIMERS_QUEUE:
        return link("/ui/timers", where=fields["where"])
    return link("/ui/tasks", **fields)


def _timer(form: Form) -> Members:
    """Return a timer from the fields of a form; empty data is none."""
    text = one(form, "data", "").replace("\r\n", "\n")
    data = text or None if one(form, "format", "json") == "text" else _json(text.encode()) if text else None
    callback = {name: one(form, name) for name in timer_model.CALLBACK}
    return {
        "timeout": milliseconds(one(form, "timeout"), field="timeout"),
        "callback": callback,
        "data": data,
        "replace": one(form, "replace", "no") == "yes",
    }


def _job_page(form: Form) -> str:
    return link("/ui/job", id=one(form, "id"))


def _operation(table: Sequence[Endpoint], name: str) -> Endpoint:
    return next(endpoint for endpoint in table if endpoint.name == name)


_ENQUEUE = _operation(tasks.ENDPOINTS, "enqueue")
_SET_TIMER = endpoint_of(SET_TIMER, Http(verb="PUT", path=f"{timers.PATH}/{{id}}", id="set_timer", tag="timers"))
_SET_QUEUE = _operation(OF_OPERATIONS, "set_queue")
_SET_PERIODIC = _operation(OF_OPERATIONS, "set_periodic")

ACTIONS = (
    Action("pause", _SET_QUEUE, lambda form: {"paused": True, **_said(form)}, back=_queue_page),
    Action("resume", _SET_QUEUE, lambda form: {"paused": False, **_said(form)}, back=_queue_page),
    Action("queue", _SET_QUEUE, _settings, back=_queue_page),
    Action("requeue", _operation(OF_OPERATIONS, "requeue_dead"), _ids, back=_tasks_page),
    Action("discard", _operation(OF_OPERATIONS, "discard_dead"), _ids, back=_tasks_page),
    Action(
        "cancel",
        _operation(OF_OPERATIONS, "cancel_tasks"),
        lambda form: {**_ids(form), "claimed": True},
        back=_tasks_page,
    ),
    Action("enqueue", _ENQUEUE, _new_task, back=lambda _: "/ui/tasks"),
    Action("periodic-run", _ENQUEUE, _new_task, fill=_with_run),
    Action("periodic-pause", _SET_PERIODIC, lambda _: {"paused": True}, back=lambda _: "/ui/periodic"),
    Action("periodic-resume", _SET_PERIODIC, lambda _: {"paused": False}, back=lambda _: "/ui/periodic"),
    Action("periodic-remove", _operation(OF_OPERATIONS, "remove_periodic"), back=lambda _: "/ui/periodic"),
    Action("timer-set", _SET_TIMER, _timer, back=lambda form: link("/ui/timer", id=one(form, "id"))),
    Action("timer-cancel", _operation(timers.ENDPOINTS, "cancel_timer"), back=lambda _: "/ui/timers"),
    Action(
        "flow-cancel",
        _operation(OF_OPERATIONS, "cancel_flow"),
        back=lambda form: link("/ui/flow", id=one(form, "id")),
    ),
    Action(
        "flow-requeue",
        _operation(OF_OPERATIONS, "requeue_flow"),
        back=lambda form: link("/ui/flow", id=one(form, "id")),
    ),
    Action("seal", _operation(OF_OPERATIONS, "seal_input"), lambda form: {"input": one(form, "input")}, back=_job_page),
    Action("kill", _operation(OF_OPERATIONS, "kill_job"), back=_job_page),
    Action("gc", _operation(OF_OPERATIONS, "gc"), back=lambda _: "/ui/settings"),
    Action(
        "leave",
        _operation(OF_OPERATIONS, "leave_peer"),
        lambda form: {"permanent": one(form, "permanent", "no") == "yes"},
        back=lambda _: "/ui/cluster",
    ),
    Action("force", _operation(OF_OPERATIONS, "force_partition"), back=lambda _: "/ui/cluster"),
)


async def perform(action: Action, call: Call) -> Response:
    """Call the operation of a form; raises what the operation raises."""
    who = name_of(call)
    form: Form = {**call.body, "by": [one(call.body, "by", who)]}
    if action.fill is not None:
        form = await action.fill(call, form)
    operation = action.operation
    path = {part[1:-1]: one(form, part[1:-1]) for part in operation.segments if part.startswith("{")}
    args, _ = read_arguments(operation, path, (), action.body(form))
    inner = attrs.evolve(call, args=args, body={}, raw=b"")
    answer = await operation.handle(inner)
    _log.info("%s by %s: %s", action.name, who, _told(call.body))
    return RedirectResponse(_arrived(action, form, answer), status_code=303, headers=dict(HEADERS))


def name_of(call: Call) -> str:
    """Return the name of the caller's token."""
    return call.api.grants.name if isinstance(call.api, Guarded) else "the dashboard"


def _arrived(action: Action, form: Form, answer: Response) -> str:
    """Return the address of the next page, with the effect of the action; for a new task, its own page."""
    said = decode_json(bytes(answer.body)) if answer.body else {}
    path = action.back(form)
    effect: Members = {"did": action.name}
    if "ids" in said:
        path = f"/ui/tasks/{said['ids'][0]}"
    if "results" in said:
        refused = sum(_is_refused(one) for one in said["results"])
        effect |= {"count": len(said["results"]) - refused, "refused": refused or None}
    elif "count" in said:
        effect["count"] = said["count"]
    return link(path.partition("?")[0], **dict(parse_qsl(path.partition("?")[2])), **effect)


def _is_refused(result: Mapping[str, Any] | None) -> bool:
    """Return whether an operation refused one of several tasks."""
    return result is not None and not result.get("ok", False)


def _told(form: Form) -> str:
    """Return the fields of a form as one short line for the server log, without the data of tasks."""
    fields = {name: values for name, values in form.items() if name not in ("data", "data_base64")}
    return repr({name: values if len(values) < 5 else f"{len(values)} values" for name, values in fields.items()})[:500]


def _endpoint(action: Action) -> Endpoint:
    async def handle(call: Call) -> Response:
        return await perform(action, call)

    return Endpoint(
        method="POST",
        path=f"/ui/do/{action.name}",
        name=f"do_{action.name.replace('-', '_')}",
        tag="pages",
        summary=f"From a page: {action.operation.summary}",
        handle=handle,
        role=action.operation.role,
        status=303,
        page=True,
        tell=refused,
    )


ENDPOINTS = tuple(map(_endpoint, ACTIONS))
