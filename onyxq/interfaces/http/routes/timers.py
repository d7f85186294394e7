"""Endpoints for timers: Skyring's API, and beyond it what is set, what has fired and what failed.

As Skyring does, POST takes the id from the header ``x-timer-id`` or makes one, POST, PUT and DELETE
answer without a body and name the timer in ``location``, and errors are told in ``x-skyring-reason``
besides the problem document.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, get_args
from urllib.parse import quote

from starlette.responses import Response

from onyxq.core.errors import OnyxqError
from onyxq.core.limits import TIMER_URI_CHARS_MAX as URI_CHARS_MAX
from onyxq.core.timer_model import ID_CHARS_MAX
from onyxq.interfaces.http.endpoint import Call, Endpoint, Failure
from onyxq.interfaces.http.problems import problem
from onyxq.interfaces.http.schemas import ref
from onyxq.interfaces.http.shapes import MS_MAX, Choice, Field, HexId, Integer, Invalid, Object, Schema, Text, kind_of
from onyxq.interfaces.http.values import answer
from onyxq.operations.table.timer import TimerState

PATH = "/timer"
PAGE_DEFAULT, PAGE_MAX = 100, 1_000
ID_HEADER, REASON_HEADER, REQUEST_HEADER = "x-timer-id", "x-skyring-reason", "idempotency-key"
REASON_CHARS_MAX = 500


class _Data:
    """Null, a string or an object."""

    def check(self, value: Any) -> Any:
        """The value itself."""
        if value is not None and type(value) not in (str, dict):
            raise Invalid(f"must be null, a string or an object, not {kind_of(value)}")
        return value

    def schema(self) -> Schema:
        """The JSON schema of the value."""
        return {"anyOf": [{"type": "string"}, {"type": "object"}]}


CALLBACK = Object(
    "TimerCallback",
    {
        "transport": Field(Text(), required=True, doc="http, tcp, or one that the peers have installed."),
        "uri": Field(
            Text(1, URI_CHARS_MAX),
            required=True,
            doc="An address of HTTP or HTTPS; for tcp one of the scheme tcp, with a port.",
        ),
        "method": Field(Text(), required=True, doc="Of HTTP; for tcp `plain` sends the data alone."),
    },
)
TIMER = Object(
    "NewTimer",
    {
        "timeout": Field(Integer(1, MS_MAX), required=True, doc="Milliseconds from now."),
        "data": Field(_Data(), keeps_null=True, doc="Sent with the callback: an object as JSON, a string as a form."),
        "callback": Field(CALLBACK, required=True),
    },
)
LIST_QUERY = Object(
    "TimersQuery",
    {
        "state": Field(Choice(get_args(TimerState)), doc="Only in this state."),
        "after": Field(HexId(), doc="Give timers behind this `after` of a page."),
        "limit": Field(Integer(1, PAGE_MAX), doc=f"Default {PAGE_DEFAULT}."),
    },
)
_REQUEST = Field(Text(), doc="Names the request: repeated under the same name it has no other effect.")
_ID = Field(Text(1, ID_CHARS_MAX), doc="The timer's id; one is made without.")


async def post_timer(call: Call) -> Response:
    """Set a timer under a new id."""
    timer = _given(call.headers) or str(uuid.uuid4())
    try:
        await call.ask("timer.set", id=timer, **_said(call))
    except OnyxqError as error:
        response = explained(Failure(error, "POST", PATH, PATH, call.headers))
        response.headers.update(location(timer))
        return response
    return Response(status_code=201, headers=location(timer))


async def get_ping(call: Call) -> Response:
    """Nothing: the peer answers."""
    return Response()


async def put_timer(call: Call) -> Response:
    """Replace a timer as a whole."""
    timer = call.path["timer"]
    await call.ask("timer.set", id=timer, replace=True, **_said(call))
    return Response(status_code=200, headers=location(timer))


async def delete_timer(call: Call) -> Response:
    """Cancel a timer."""
    timer = call.path["timer"]
    await call.ask("timer.cancel", id=timer)
    return Response(status_code=202, headers=location(timer))


async def get_timer(call: Call) -> Response:
    """One timer."""
    return answer(await call.ask("timer.get", id=call.path["timer"]))


async def list_timers(call: Call) -> Response:
    """A page of timers."""
    limit = call.query.get("limit") or PAGE_DEFAULT
    wanted = {"state": call.query.get("state"), "after": call.query.get("after"), "limit": limit}
    return answer(await call.ask("timer.list", **wanted))


def _given(headers: Mapping[str, str]) -> str:
    """The id in the header, which is UTF-8 or Latin 1; empty if there is none."""
    raw = headers.get(ID_HEADER, "")
    try:
        return raw.encode("latin-1").decode()
    except UnicodeDecodeError:
        return raw


def _said(call: Call) -> dict[str, Any]:
    body = call.body
    said = {"timeout": body["timeout"], "data": body.get("data"), "callback": body["callback"]}
    request = call.headers.get(REQUEST_HEADER)
    return said | {"request": request} if request else said


def location(timer: str) -> dict[str, str]:
    """The header that names a timer."""
    return {"location": f"{PATH}/{quote(timer, safe='')}"}


def explained(failure: Failure) -> Response:
    """A problem document with what Skyring's clients look at."""
    error, path, response = failure.error, failure.path, problem(failure.error)
    reason = "".join(sign if " " <= sign <= "~" else "?" for sign in error.named())
    response.headers[REASON_HEADER] = reason[:REASON_CHARS_MAX]
    if path == PATH and failure.method == "POST":
        # As Skyring does, which makes the id before it looks at the body.
        response.headers.update(location(_given(failure.headers) or str(uuid.uuid4())))
    elif path != PATH and failure.method in ("PUT", "DELETE"):
        response.headers.update(location(path.removeprefix(f"{PATH}/")))
    return response


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/ping",
        name="ping",
        tag="timers",
        summary="200 without a body while the process serves, as Skyring answers it",
        handle=get_ping,
        role=None,
        vital=True,
    ),
    Endpoint(
        method="POST",
        path=PATH,
        name="set_timer",
        tag="timers",
        tell=explained,
        summary="Set a timer: a callback that is made once its time has come",
        doc="The id is that of the header x-timer-id, or made; `location` names it. Delivered at least once: each "
        "attempt carries an idempotency key, constant over attempts, and its number.",
        handle=post_timer,
        role="produce",
        body=TIMER,
        large=True,
        headers={"x-timer-id": _ID, "Idempotency-Key": _REQUEST},
        status=201,
        errors=(409,),
    ),
    Endpoint(
        method="GET",
        path=PATH,
        name="list_timers",
        tag="timers",
        tell=explained,
        summary="Timers in the order of their due times",
        doc="Fired, failed and cancelled ones too, until they are purged.",
        handle=list_timers,
        query=LIST_QUERY,
        answer=ref("TimerPage"),
    ),
    Endpoint(
        method="GET",
        path=PATH + "/{timer}",
        name="get_timer",
        tag="timers",
        tell=explained,
        summary="One timer",
        handle=get_timer,
        role=("read", "produce"),
        answer=ref("TimerView"),
        errors=(404,),
    ),
    Endpoint(
        method="PUT",
        path=PATH + "/{timer}",
        name="replace_timer",
        tag="timers",
        tell=explained,
        summary="Replace a timer that has not fired: its time, data and callback",
        doc="There is no moment with neither the old one nor the new one. An attempt at the old one that is under way "
        "may still arrive.",
        handle=put_timer,
        role="produce",
        body=TIMER,
        large=True,
        headers={"Idempotency-Key": _REQUEST},
        errors=(404,),
    ),
    Endpoint(
        method="DELETE",
        path=PATH + "/{timer}",
        name="cancel_timer",
        tag="timers",
        tell=explained,
        summary="Cancel a timer that has not fired",
        doc="An attempt that is under way may still arrive; no other one follows.",
        handle=delete_timer,
        role=("produce", "operate"),
        status=202,
        errors=(404, 409),
    ),
)
