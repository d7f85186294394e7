"""Errors as HTTP answers: ``application/problem+json`` of RFC 9457.

Every problem has ``type``, ``title``, ``status``, ``detail``, ``code``, ``field`` (null if no argument is wrong) and
``hint``; ``type`` points into the page ``/docs``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from onyxq.core.errors import BadRequest, KeyTaken, OnyxqError, Overloaded, Unauthorized, Unavailable, Unknown
from onyxq.core.ids import ids_of
from onyxq.core.limits import TaskIdBytes
from onyxq.operations.table.operation import Result

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
SEE_DOCS = "Nothing was changed. /docs describes the fields of each request."
"""Hint of errors whose message is enough: programs rely on a text there."""

_ITEM = re.compile(r"(?:items|runs)\[([0-9]{1,9})\](.*)")


class MethodNotAllowed(OnyxqError):
    """The path exists, but not with this method."""

    code, status, exit_code, hint = "method_not_allowed", 405, 2, "Use a method that the Allow header names."

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class UnsupportedMedia(BadRequest):
    """The body's content type or encoding is not supported."""

    code, status, hint = "unsupported_media_type", 415, "Send plain JSON as application/json in UTF-8."


class BodyTooSlow(OnyxqError):
    """The request's body did not arrive in time."""

    code, status, exit_code, hint = "request_timeout", 408, 6, "Send the body without long pauses."


class Stopping(Unavailable):
    """The server is about to stop."""

    code, hint = "stopping", "Ask another peer, or this one after its restart."


def title_of(code: str) -> str:
    """Return a code in words."""
    return code.replace("_", " ").capitalize()


class StaleClaim(Result):
    """A claim that is not valid any more."""

    id: TaskIdBytes
    token: int
    code: str
    detail: str


class Problem(Result):
    """A problem document: what is wrong, and what to do about it."""

    type: str
    title: str
    status: int
    detail: str
    code: Annotated[str, Meta(description="Stable, for programs.")]
    field: Annotated[str | None, Meta(description="Dotted path of the wrong argument.")]
    hint: str
    ids: Annotated[
        list[TaskIdBytes] | UnsetType, Meta(description="For a write that failed in part: the id of every task.")
    ] = UNSET
    stored: Annotated[
        list[bool | None] | UnsetType, Meta(description="For the same: which tasks are stored; null: unknown.")
    ] = UNSET
    copies: Annotated[
        int | UnsetType,
        Meta(description="For a write on fewer nodes than w: the number of nodes that have all of it."),
    ] = UNSET
    existing: Annotated[
        TaskIdBytes | UnsetType, Meta(description="For a unique key that is taken: the task that holds it.")
    ] = UNSET
    claims: Annotated[
        list[StaleClaim] | UnsetType, Meta(description="For a transaction that was refused: each claim at fault.")
    ] = UNSET


def problem_of(error: OnyxqError, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the members of the problem document; ``extra`` adds others."""
    return {
        "type": f"/docs#problem-{error.code}",
        "title": title_of(error.code),
        "status": error.status,
        "detail": error.message,
        "code": error.code,
        "field": error.field,
        "hint": error.advice or SEE_DOCS,
        **_copies_of(error),
        **_existing_of(error),
        **(extra or {}),
    }


def _copies_of(error: OnyxqError) -> dict[str, Any]:
    """Return, for a write on too few nodes, its tasks and the number of nodes that have all of it."""
    if not isinstance(error, Unknown) or error.copies is None:
        return {}
    ids = [one.hex() for first, count, _ in error.details for one in ids_of(first, count)]
    return {"ids": ids, "copies": error.copies}


def _existing_of(error: OnyxqError) -> dict[str, Any]:
    """Return, for a unique key that is taken, the task that holds it."""
    return {"existing": error.existing.hex()} if isinstance(error, KeyTaken) and error.existing else {}


def problem(error: OnyxqError, extra: Mapping[str, Any] | None = None) -> Response:
    """Return the answer for an error."""
    # ASCII escapes: a message may repeat text that is not encodable.
    body = json.dumps(problem_of(error, extra)).encode("ascii")
    return Response(body, status_code=error.status, headers=error_headers(error), media_type=PROBLEM_TYPE)


def error_headers(error: OnyxqError) -> dict[str, str]:
    """Return the headers for an error, whatever the form of its answer."""
    headers = {"cache-control": "no-store"}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(-(-error.retry_after_ms // 1000))
    elif error.status == 503:
        headers["retry-after"] = str(RETRY_AFTER_S)
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = 'Bearer realm="onyxq"'
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.allow
    return headers


def renamed(place: str | None, starts: Sequence[int], name: str) -> str | None:
    """Return a field of a method's argument under its name in the request.

    ``items[1].token`` becomes ``claims[7].token`` where item 1 starts at claim 7.
    """
    found = _ITEM.fullmatch(place or "")
    if not found or int(found[1]) >= len(starts):
        return place
    return f"{name}[{starts[int(found[1])]}]{found[2]}" if name else found[2].removeprefix(".")
