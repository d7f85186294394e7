"""Endpoints for periodic tasks: what is enqueued again and again, by cron fields or every so often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from log_entries.set_periodic import MISSED
from onyxq.core.errors import BadRequest
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.schemas import ref
from onyxq.interfaces.http.shapes import AnyValue, Base64, Boolean, Choice, Field, Integer, Invalid, Object, Text
from onyxq.interfaces.http.values import BYTES, JSON, answer_text, encode_value, member, payload_of, with_members

PERIODIC = Object(
    "NewPeriodic",
    {
        "queue": Field(Text(), doc="Where its tasks go. Needed, but to pause or resume."),
        "schedule": Field(Text(), doc="Five cron fields, or `every 90s`. Needed, but to pause or resume."),
        "zone": Field(Text(), doc="Time zone of the cron fields; default UTC."),
        "data": Field(AnyValue(), keeps_null=True, doc="Any JSON value: the data of each task."),
        "data_base64": Field(Base64(), doc="Bytes, instead of data."),
        "priority": Field(Integer(-(1 << 31), (1 << 31) - 1), doc="Of its tasks; default 0."),
        "missed": Field(
            Choice(MISSED), doc="What becomes of times at which nothing could be enqueued; default once: one for all."
        ),
        "paused": Field(Boolean(), doc="Enqueues nothing until it is resumed."),
    },
)
_PAUSE = frozenset({"paused"})
_NULL = encode_value(None)


async def put_periodic(call: Call) -> Response:
    """Set one up or change it; with `paused` alone pause or resume one that is there."""
    name, body = call.path["name"], call.body
    if body.keys() == _PAUSE:
        return _answer(await call.ask("periodic.pause", name=name, paused=body["paused"]))
    for needed in ("queue", "schedule"):
        if needed not in body:
            raise BadRequest(f"{needed} is missing", field=needed)
    try:
        form, payload = payload_of(body, "data") or (JSON, _NULL)
    except Invalid as error:
        raise error.to_error("the body") from None
    said = {key: value for key, value in body.items() if key not in ("data", "data_base64")}
    return _answer(await call.ask("periodic.set", name=name, **said, data=payload, format=form))


async def get_periodic(call: Call) -> Response:
    """One of them."""
    return _answer(await call.ask("periodic.get", name=call.path["name"]))


async def list_periodic(call: Call) -> Response:
    """All of them."""
    found = (await call.ask("periodic.list"))["periodic"]
    return answer_text('{"periodic":[' + ",".join(map(_json, found)) + "]}")


async def delete_periodic(call: Call) -> Response:
    """End one; the tasks that it made stay."""
    await call.ask("periodic.remove", name=call.path["name"])
    return Response(status_code=204)


def _answer(periodic: Mapping[str, Any]) -> Response:
    return answer_text(_json(periodic))


def _json(periodic: Mapping[str, Any]) -> str:
    shown = {key: value for key, value in periodic.items() if key not in ("data", "format")}
    return with_members(shown, [member("data", periodic["data"], periodic.get("format", BYTES))])


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/periodic",
        name="list_periodic",
        tag="periodic tasks",
        summary="All periodic tasks by name",
        handle=list_periodic,
        answer=ref("PeriodicList"),
    ),
    Endpoint(
        method="GET",
        path="/v1/periodic/{name}",
        name="get_periodic",
        tag="periodic tasks",
        summary="One periodic task",
        handle=get_periodic,
        answer=ref("Periodic"),
        errors=(404,),
    ),
    Endpoint(
        method="PUT",
        path="/v1/periodic/{name}",
        name="set_periodic",
        tag="periodic tasks",
        summary="Set a periodic task up, or change, pause or resume it",
        doc="It becomes as the body says, what is missing is as by default; a body of `paused` alone pauses or resumes "
        "one that is there. Each time falls due once for the whole cluster, whichever peers come and go.",
        handle=put_periodic,
        role="operate",
        body=PERIODIC,
        large=True,
        answer=ref("Periodic"),
        errors=(404,),
    ),
    Endpoint(
        method="DELETE",
        path="/v1/periodic/{name}",
        name="remove_periodic",
        tag="periodic tasks",
        summary="End a periodic task",
        handle=delete_periodic,
        role="operate",
        status=204,
        errors=(404,),
    ),
)
