"""Endpoints for timers: Skyring's API, and beyond it a list of timers and the state of each.

As in Skyring, POST takes the id from the header ``x-timer-id`` or makes one. POST, PUT and DELETE answer without a
body and name the timer in ``location``. Errors are named in ``x-skyring-reason`` besides the problem document.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from attrs import evolve
from msgspec import Meta
from starlette.responses import Response

from onyxq.core.errors import OnyxqError
from onyxq.core.limits import Name
from onyxq.interfaces.http import keys
from onyxq.interfaces.http.endpoint import Call, Endpoint, Failure
from onyxq.interfaces.http.operations import endpoint_of
from onyxq.interfaces.http.problems import problem
from onyxq.operations.table.operation import Http, plain
from onyxq.operations.table.timer import (
    CANCEL_TIMER,
    GET_TIMER,
    LIST_TIMERS,
    SET_TIMER,
    CancelTimer,
    NewTimer,
    SetTimer,
    TimerId,
)

PATH = "/timer"
ID_HEADER, REASON_HEADER, REQUEST_HEADER = "x-timer-id", "x-skyring-reason", "idempotency-key"
REASON_CHARS_MAX = 500

_REQUEST = Annotated[Name, Meta(description="Name of the request: a repeat under the same name has no other effect.")]
_ID = Annotated[Name, Meta(description="Id of the timer; default: a new one, or that of the Idempotency-Key.")]


class ReplaceTimer(NewTimer, kw_only=True):
    """Replace a timer."""

    id: TimerId


async def post_timer(call: Call) -> Response:
    """Set a timer under a new id."""
    timer = _given(call.headers) or _made(call)
    try:
        await _set(call, timer, replace=False)
    except OnyxqError as error:
        response = explained(Failure(error, "POST", PATH, PATH, call.headers))
        response.headers.update(location(timer))
        return response
    return Response(status_code=201, headers=location(timer))


async def get_ping(call: Call) -> Response:
    """Answer without a body: the peer serves."""
    return Response()


async def put_timer(call: Call) -> Response:
    """Replace a timer as a whole."""
    await _set(call, call.args.id, replace=True)
    return Response(status_code=200, headers=location(call.args.id))


async def _set(call: Call, timer: str, *, replace: bool) -> None:
    asked = {**msgspec.structs.asdict(call.args), "id": timer, "replace": replace}
    request = call.headers.get(REQUEST_HEADER)
    # The id and the name of the request are headers, which nothing has checked yet.
    await call.do(SET_TIMER, SET_TIMER.decode(plain(SetTimer(**asked, request=request or ""))))


async def delete_timer(call: Call) -> Response:
    """Cancel a timer."""
    await call.do(CANCEL_TIMER, call.args)
    return Response(status_code=202, headers=location(call.args.id))


def _given(headers: Mapping[str, str]) -> str:
    """Return the id in the header, which is UTF-8 or Latin 1; empty if there is none."""
    raw = headers.get(ID_HEADER, "")
    try:
        return raw.encode("latin-1").decode()
    except UnicodeDecodeError:
        return raw


def _made(call: Call) -> str:
    """Return the id of a timer without one. It follows from the name of the request, so a repeat has the same id."""
    request = call.headers.get(REQUEST_HEADER)
    return str(uuid.UUID(bytes=keys.of_caller(call, request), version=4) if request else uuid.uuid4())


def location(timer: str) -> dict[str, str]:
    """Return the header that names a timer."""
    return {"location": f"{PATH}/{quote(timer, safe='')}"}


def explained(failure: Failure) -> Response:
    """Return a problem document with the headers that Skyring's clients look at."""
    error, path, response = failure.error, failure.path, problem(failure.error)
    reason = "".join(sign if " " <= sign <= "~" else "?" for sign in error.named())
    response.headers[REASON_HEADER] = reason[:REASON_CHARS_MAX]
    if path == PATH and failure.method == "POST":
        # As in Skyring, which makes the id before it looks at the body.
        response.headers.update(location(_given(failure.headers) or str(uuid.uuid4())))
    elif path != PATH and failure.method in ("PUT", "DELETE"):
        response.headers.update(location(path.removeprefix(f"{PATH}/")))
    return response


_ONE = PATH + "/{id}"
_COMMON: dict[str, Any] = {"tag": "timers", "tell": explained}

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/ping",
        name="ping",
        tag="timers",
        summary="200 without a body while the process serves, as in Skyring",
        handle=get_ping,
        role=None,
        vital=True,
    ),
    Endpoint(
        method="POST",
        path=PATH,
        name="set_timer",
        summary="Set a timer: a callback that is made once its time has come",
        doc="The id comes from the header x-timer-id, or is made; `location` names it. Without an id, repeats with the "
        "same Idempotency-Key get the same id. Delivered at least once: each attempt carries an idempotency key, the "
        "same for all attempts, and its number.",
        handle=post_timer,
        role="produce",
        args=NewTimer,
        large=True,
        headers={"x-timer-id": _ID, "Idempotency-Key": _REQUEST},
        status=201,
        errors=(409,),
        **_COMMON,
    ),
    evolve(endpoint_of(LIST_TIMERS, Http(verb="GET", path=PATH, id="list_timers", tag="timers")), tell=explained),
    evolve(
        endpoint_of(GET_TIMER, Http(verb="GET", path=_ONE, id="get_timer", tag="timers", errors=(404,))), tell=explained
    ),
    Endpoint(
        method="PUT",
        path=_ONE,
        name="replace_timer",
        summary="Replace a timer that has not fired: its time, data and callback",
        doc="One of the two timers exists at any moment. An attempt at the old one that has started may still arrive.",
        handle=put_timer,
        role="produce",
        args=ReplaceTimer,
        large=True,
        headers={"Idempotency-Key": _REQUEST},
        errors=(404,),
        **_COMMON,
    ),
    Endpoint(
        method="DELETE",
        path=_ONE,
        name="cancel_timer",
        summary="Cancel a timer that has not fired",
        doc="An attempt that has started may still arrive; no other one follows.",
        handle=delete_timer,
        role=("produce", "operate"),
        args=CancelTimer,
        status=202,
        errors=(404, 409),
        **_COMMON,
    ),
)
