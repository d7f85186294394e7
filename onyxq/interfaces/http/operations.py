"""Endpoints that follow from the table of operations: path, query and body have an operation's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from onyxq.core.errors import BadRequest
from onyxq.interfaces.http.endpoint import Call, Endpoint, Handler
from onyxq.interfaces.http.values import answer_text
from onyxq.operations.table.everything import OPERATIONS
from onyxq.operations.table.json_form import arguments, from_text, json_text
from onyxq.operations.table.operation import Http, Operation


def endpoint_of(operation: Operation[Any, Any], http: Http) -> Endpoint:
    """Return the endpoint of an operation."""
    shown = http.shows or operation
    return Endpoint(
        method=http.verb,
        path=http.path,
        name=http.id,
        tag=http.tag,
        summary=operation.summary,
        doc=operation.description,
        handle=_handler(operation, http),
        role=operation.access.roles,
        operation=operation,
        large=operation.large,
        status=http.status,
        answer=None if http.status == 204 else {"$ref": f"#/components/schemas/{shown.result.__name__}"},
        errors=http.errors,
    )


def _handler(operation: Operation[Any, Any], http: Http) -> Handler:
    async def handle(call: Call) -> Response:
        result = await call.do(operation, call.args)
        if http.shows is not None:
            result = await call.do(http.shows, shown_arguments(operation, http.shows, call.args))
        return Response(status_code=204) if http.status == 204 else answer_text(json_text(result), status=http.status)

    return handle


def shown_arguments(operation: Operation[Any, Any], shows: Operation[Any, Any], args: Any) -> Any:
    """Return the arguments of the operation that shows what another one did."""
    return shows.args(**{name: getattr(args, name) for name in shows.members if name in operation.members})


def read_arguments(
    endpoint: Endpoint,
    operation: Operation[Any, Any],
    path: Mapping[str, str],
    query: Sequence[tuple[str, str]],
    body: Mapping[str, Any],
) -> Any:
    """Return the arguments of a request; raises `BadRequest` naming the field."""
    given: dict[str, Any] = dict(path)
    for name, text in query:
        if name in given or endpoint.has_body:
            known = name in operation.members and not endpoint.has_body
            raise BadRequest(f"{name} is {'given twice' if known else 'not a known field'}", field=name)
        member = operation.members.get(name)
        given[name] = text if member is None else from_text(member, text)
    for name in body:
        if name in path:
            raise BadRequest(f"{name} is not a known field", field=name, hint="It is in the path.")
    assert operation.http is not None
    return arguments(operation, {**given, **body}, fixed=operation.http.fixed)


OF_OPERATIONS: tuple[Endpoint, ...] = tuple(endpoint_of(one, one.http) for one in OPERATIONS if one.http is not None)
