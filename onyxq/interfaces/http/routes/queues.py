"""Endpoints for queues: their depth, and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from onyxq.core import queues
from onyxq.core.errors import BadRequest, NotFound
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.schemas import ref
from onyxq.interfaces.http.shapes import Boolean, Choice, Field, Integer, Number, Object, Shape, Text
from onyxq.interfaces.http.values import answer

_DOCS = {
    "paused": "Nothing of the queue is granted; claims in flight go on.",
    "lease_ms": "Lease of claims that name none.",
    "retries": "Failed attempts allowed beyond the first, of tasks that do not say; null: until one succeeds.",
    "backoff_ms": "Pause before the first retry, of tasks that do not say; it doubles.",
    "on_dead": "Whether a task that failed for good stops its ordering key until somebody sees to it.",
    "retention_ms": "How long finished tasks are kept.",
    "grace_ms": "How far in the past a due time may lie.",
    "rate": "Tasks granted a second in the whole cluster; 0: no limit.",
    "concurrency": "Tasks claimed at a time in the whole cluster; 0: no limit.",
    "key_rate": "Tasks granted a second of one ordering key; 0: no limit.",
    "durability": "opportunistic: answered before the disk has it.",
    "archive": "Finished tasks are archived before they are purged.",
}
_RATES = ("rate", "key_rate")


def _shape(name: str) -> Shape:
    if name in queues.WORDS:
        return Choice(queues.WORDS[name])
    if name in queues.FLAGS:
        return Boolean()
    low, high = queues.NUMBERS[name]
    return Number(0, high // 1_000) if name in _RATES else Integer(max(low, 0), high)


SETTINGS = Object(
    "QueueSettings",
    {
        **{name: Field(_shape(name), keeps_null=True, doc=_DOCS.get(name, "")) for name in queues.SETTINGS},
        "by": Field(Text(0, queues.WHY_CHARACTERS_MAX), doc="Who pauses it; shown with the queue."),
        "why": Field(Text(0, queues.WHY_CHARACTERS_MAX), doc="Why; shown with the queue."),
    },
)


def shown(queue: Mapping[str, Any]) -> dict[str, Any]:
    """A queue with its settings beside its depth, as answers have it."""
    return {**{name: value for name, value in queue.items() if name != "settings"}, **queue["settings"]}


async def get_queues(call: Call) -> Response:
    """All queues."""
    return answer({"queues": [shown(queue) for queue in (await call.ask("queues"))["queues"]]})


async def get_queue(call: Call) -> Response:
    """One queue; it exists as long as it has tasks or settings."""
    found = await _queue(call)
    if not found["depth"]["total"] and all(found["settings"][name] == value for name, value in _DEFAULTS.items()):
        hint = "A queue exists once a task was put into it, or once it was set."
        raise NotFound("there is no such queue", field="queue", hint=hint)
    return answer(shown(found))


async def put_queue(call: Call) -> Response:
    """Change settings; those that are not named stay as they are."""
    settings = {name: value for name, value in call.body.items() if name not in ("by", "why")}
    if not settings:
        raise BadRequest("nothing is to be set", hint=f"There are {', '.join(queues.SETTINGS)}.")
    said = {name: call.body.get(name, "") for name in ("by", "why")}
    await call.ask("queue.set", queue=call.path["queue"], settings=settings, **said)
    return answer(shown(await _queue(call)))


async def _queue(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = await call.ask("queue.get", queue=call.path["queue"])
    return found


_DEFAULTS = {name: getattr(queues.DEFAULTS, name) for name in queues.SETTINGS}

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/queues",
        name="get_queues",
        tag="queues",
        summary="Queues with their depth by state and their settings",
        handle=get_queues,
        answer=ref("Queues"),
    ),
    Endpoint(
        method="GET",
        path="/v1/queues/{queue}",
        name="get_queue",
        role=("read", "produce", "consume"),
        tag="queues",
        summary="One queue",
        handle=get_queue,
        answer=ref("Queue"),
        errors=(404,),
    ),
    Endpoint(
        method="PUT",
        path="/v1/queues/{queue}",
        name="set_queue",
        tag="queues",
        summary="Change settings of a queue; pause and resume it",
        doc="Settings that are not named stay as they are; null sets one back to its default, but for `retries`, "
        "where it is no limit. A queue needs no creation. Whoever waits for tasks of a queue that is resumed, or "
        "whose limit is raised, is woken.",
        handle=put_queue,
        role="operate",
        body=SETTINGS,
        answer=ref("Queue"),
    ),
)
