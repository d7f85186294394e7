"""The OpenAPI 3.1 document, from the tables of endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeAlias

from onyxq import __version__
from onyxq.interfaces.http.endpoint import PATH_FIELDS, Endpoint
from onyxq.interfaces.http.problems import PROBLEM_TYPE
from onyxq.interfaces.http.schemas import components, ref
from onyxq.interfaces.http.shapes import Array, Field, Object, Schema, Shape
from onyxq.operations.table import json_form
from onyxq.operations.table.operation import Http, Operation

OperationRow: TypeAlias = Operation[Any, Any]

_DESCRIPTION = (
    "Tasks, claims and the state of an OnyxQ cluster. Any peer answers any request. "
    "Ids are 40 hex digits, times integer milliseconds since the epoch, errors `application/problem+json`. "
    "Answers may grow members; requests with unknown ones are refused."
)
_TAGS = {
    "tasks": "Putting tasks in and looking at them.",
    "claims": "Working on tasks: a claim is a lease with a fencing token.",
    "transactions": "Several changes in one atomic step.",
    "queues": "Queues: their depth and their settings.",
    "dead letters": "Tasks that failed for good.",
    "periodic tasks": "What is enqueued again and again.",
    "jobs": "Data pipelines that run on Spark.",
    "cluster": "What the replica says, and operations on the cluster.",
    "extensions": "Entries and states of what is installed beside OnyxQ.",
    "task store": "Small tasks that are updated and claimed atomically, in groups.",
    "health": "For probes and monitoring.",
    "pages": "For people.",
}
_COMMON_ERRORS = {"query": (400,), "body": (400, 408, 413, 415)}
_SCHEME = "token"


def openapi(endpoints: Sequence[Endpoint], *, with_tokens: bool) -> dict[str, Any]:
    """The document; ``with_tokens``: whether requests need an Authorization header."""
    paths: dict[str, dict[str, Any]] = {}
    inputs: dict[str, Schema] = {}
    for endpoint in endpoints:
        if endpoint.page:
            continue  # for people with browsers
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, with_tokens)
        if endpoint.operation is not None and endpoint.operation.http is not None:
            if endpoint.answer is not None:
                inputs |= json_form.components((endpoint.operation.http.shows or endpoint.operation).result)
            if endpoint.has_body:
                inputs[endpoint.operation.args.__name__] = _body(endpoint.operation, endpoint.operation.http)
        elif endpoint.body is not None:
            _collect(endpoint.body, inputs)
    schemes = {_SCHEME: {"type": "http", "scheme": "bearer"}}
    used = {endpoint.tag for endpoint in endpoints if not endpoint.page}
    known = {**_TAGS, **dict.fromkeys(sorted(used - set(_TAGS)), "")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "OnyxQ",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag, "description": text} for tag, text in known.items() if tag in used],
        "paths": paths,
        "components": {
            "schemas": components(inputs),
            "responses": {"Problem": _problem()},
            **({"securitySchemes": schemes} if with_tokens else {}),
        },
    }


def _collect(shape: Shape, inputs: dict[str, Schema]) -> None:
    if isinstance(shape, Array):
        _collect(shape.item, inputs)
    if isinstance(shape, Object):
        inputs[shape.name] = shape.definition()
        for member in shape.fields.values():
            _collect(member.shape, inputs)


def _problem() -> dict[str, Any]:
    retry = {"description": "Seconds; with 429 and 503.", "schema": {"type": "integer"}}
    return {
        "description": "What is wrong, and what to do about it.",
        "headers": {"Retry-After": retry},
        "content": {PROBLEM_TYPE: {"schema": ref("Problem")}},
    }


def _parameters(place: str, fields: Mapping[str, Field]) -> list[dict[str, Any]]:
    out = []
    for name, member in fields.items():
        schema = dict(member.shape.schema())
        if member.default is not None:
            schema["default"] = member.default
        described = {"description": member.doc} if member.doc else {}
        out.append({"name": name, "in": place, "required": member.required, "schema": schema, **described})
    return out


def _path_names(endpoint: Endpoint) -> list[str]:
    return [part[1:-1] for part in endpoint.segments if part.startswith("{")]


def _path_fields(endpoint: Endpoint) -> dict[str, Field]:
    return {name: PATH_FIELDS[name] for name in _path_names(endpoint)}


def _body(operation: OperationRow, http: Http) -> Schema:
    if http.body:
        return {"type": "object", "additionalProperties": True}
    return json_form.request_schema(
        operation, [name for name in operation.members if f"{{{name}}}" not in http.path and name not in http.fixed]
    )


def _arguments(endpoint: Endpoint, operation: OperationRow, http: Http) -> list[dict[str, Any]]:
    """Return the parameters of an operation's path and query."""
    in_path, out = _path_names(endpoint), []
    for name, member in operation.members.items():
        if name in in_path or (not endpoint.has_body and name not in http.fixed):
            place = "path" if name in in_path else "query"
            about = {"description": member.about} if member.about else {}
            shape = json_form.parameter(member)
            out.append({"name": name, "in": place, "required": member.required, "schema": shape, **about})
    return out


def _operation(endpoint: Endpoint, with_tokens: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        **({"description": endpoint.doc} if endpoint.doc else {}),
    }
    row = endpoint.operation
    if row is not None and row.http is not None:
        parameters = _arguments(endpoint, row, row.http)
        body = {"$ref": f"#/components/schemas/{row.args.__name__}"} if endpoint.has_body else None
    else:
        parameters = [
            *_parameters("path", _path_fields(endpoint)),
            *_parameters("query", endpoint.query.fields),
            *_parameters("header", endpoint.headers),
        ]
        body = None if endpoint.body is None else endpoint.body.schema()
    operation["responses"] = _responses(endpoint, with_tokens, has_parameters=bool(parameters))
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {
            "required": endpoint.body_required,
            "content": {"application/json": {"schema": body}},
        }
    if with_tokens and endpoint.roles:
        operation["security"] = [{_SCHEME: []}]
    return operation


def _responses(endpoint: Endpoint, with_tokens: bool, *, has_parameters: bool) -> dict[str, Any]:
    done: dict[str, Any] = {"description": HTTPStatus(endpoint.status).phrase}
    if endpoint.answer is not None:
        done["content"] = {endpoint.media: {"schema": endpoint.answer}}
    statuses = {*endpoint.errors}
    if has_parameters:
        statuses.update(_COMMON_ERRORS["query"])
    if endpoint.has_body:
        statuses.update(_COMMON_ERRORS["body"])
    if endpoint.path not in ("/livez", "/docs", "/openapi.json"):
        statuses.update((429, 503))
    if with_tokens and endpoint.roles:
        statuses.update((401, 403))
    problem = {"$ref": "#/components/responses/Problem"}
    return {str(endpoint.status): done, **{str(status): problem for status in sorted(statuses)}, "default": problem}
