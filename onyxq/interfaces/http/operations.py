"""Endpoints that follow from the table of operations, and the reading of their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from onyxq.core.errors import BadRequest
from onyxq.core.limits import members
from onyxq.interfaces.http.bodies import Disconnected
from onyxq.interfaces.http.endpoint import Call, Endpoint, Handler
from onyxq.interfaces.http.problems import Stopping
from onyxq.interfaces.http.streaming import NDJSON, LinesResponse, Page
from onyxq.interfaces.http.values import answer_text
from onyxq.operations.table.everything import OPERATIONS
from onyxq.operations.table.json_form import arguments, from_text, json_text
from onyxq.operations.table.operation import Http, Operation
from onyxq.operations.table.problems import clip

PAGE_MAX = 1_000
STREAMED = (
    f" With `Accept: {NDJSON}` all of them (at most limit), one a line. If that fails midway, the last line is "
    '`{"problem": ...}` and the connection is cut.'
)


def endpoint_of(operation: Operation[Any, Any], http: Http) -> Endpoint:
    """Return the endpoint of an operation."""
    return Endpoint(
        method=http.verb,
        path=http.path,
        name=http.id,
        tag=http.tag,
        summary=operation.summary,
        doc=operation.description + (STREAMED if http.pages else ""),
        handle=_handler(operation, http),
        role=operation.access.roles,
        args=operation.args,
        fixed=http.fixed,
        whole=http.whole,
        large=operation.large,
        waits=http.waits,
        body_required=any(one.required for one in operation.members.values() if f"{{{one.name}}}" not in http.path),
        status=http.status,
        result=None if http.status == 204 else (http.shows or operation).result,
        errors=http.errors,
    )


def _handler(operation: Operation[Any, Any], http: Http) -> Handler:
    if http.pages:
        return _pages_handler(operation, http.pages)

    async def handle(call: Call) -> Response:
        waits = http.waits and call.args.wait_ms
        result = await (_waited(call, operation) if waits else call.do(operation, call.args))
        if http.shows is not None:
            result = await call.do(http.shows, shown_arguments(operation, http.shows, call.args))
        return Response(status_code=204) if http.status == 204 else answer_text(json_text(result), status=http.status)

    return handle


async def _waited(call: Call, operation: Operation[Any, Any]) -> Any:
    """Return the result of an operation that may wait; raises `Disconnected` if the client is gone, `Stopping`."""
    result, gone = await call.while_connected(lambda: call.do(operation, call.args))
    if gone:
        raise Disconnected
    if result is None:
        raise Stopping("this peer is about to stop, or reads its tokens again", hint="Repeat the request.")
    return result


def _pages_handler(operation: Operation[Any, Any], name: str) -> Handler:
    """Return the handler that answers with a page, or with all items as lines if the client accepts them."""

    async def page(call: Call, args: Any, left: int | None) -> Page:
        size = PAGE_MAX if left is None else min(left, PAGE_MAX)
        result = await call.do(operation, msgspec.structs.replace(args, limit=size))
        items = getattr(result, name)
        left = None if left is None else left - len(items)
        lines = [json_text(one) for one in items]
        if result.after is None or left == 0:
            return Page(lines, None)
        return Page(lines, partial(page, call, msgspec.structs.replace(args, after=result.after), left))

    async def handle(call: Call) -> Response:
        if not is_streamed(call.headers):
            return answer_text(json_text(await call.do(operation, call.args)))
        first = await page(call, call.args, call.limit)
        return Response(media_type=NDJSON) if call.is_head else LinesResponse(first)

    return handle


def is_streamed(headers: Mapping[str, str]) -> bool:
    """Return whether a request asks for lines."""
    return NDJSON in headers.get("accept", "")


def shown_arguments(operation: Operation[Any, Any], shows: Operation[Any, Any], args: Any) -> Any:
    """Return the arguments of the operation that shows the effect of another one."""
    return shows.args(**{name: getattr(args, name) for name in shows.members if name in operation.members})


def read_arguments(
    endpoint: Endpoint,
    path: Mapping[str, str],
    query: Sequence[tuple[str, str]],
    body: Mapping[str, Any],
    *,
    streamed: bool = False,
) -> tuple[Any, int | None]:
    """Return the arguments of a request, and the limit of a stream, which may be more than a page has.

    Raises `BadRequest` naming the field.
    """
    known = members(endpoint.args)
    given: dict[str, Any] = {name: from_text(known[name], text) for name, text in path.items()}
    for name, text in query:
        if name in given or endpoint.has_body:
            twice = name in known and not endpoint.has_body
            raise BadRequest(f"{clip(name)} is {'given twice' if twice else 'not a known field'}", field=clip(name))
        given[name] = from_text(known[name], text) if name in known else text
    if endpoint.whole:
        body = {endpoint.whole: dict(body)}
    for name in body:
        if name in path:
            raise BadRequest(f"{name} is not a known field", field=name, hint="It is in the path.")
    if endpoint.rewrite is not None:
        body = endpoint.rewrite(body)
    limit = given.get("limit") if streamed else None
    if type(limit) is int and limit > PAGE_MAX:
        del given["limit"]
    return arguments(endpoint.args, {**given, **body}, fixed=endpoint.fixed), limit


OF_OPERATIONS: tuple[Endpoint, ...] = tuple(endpoint_of(one, one.http) for one in OPERATIONS if one.http is not None)
