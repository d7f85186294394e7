"""The OpenAPI 3.1 document, made from the tables of endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from msgspec import inspect

from onyxq import __version__
from onyxq.core.limits import bare, members
from onyxq.interfaces.http.endpoint import Endpoint
from onyxq.interfaces.http.problems import PROBLEM_TYPE, Problem
from onyxq.operations.table import json_form

_DESCRIPTION = (
    "Tasks, claims and the state of an OnyxQ cluster. Any peer answers any request. "
    "Ids are 40 hex digits, times integer milliseconds since the epoch, errors `application/problem+json`. "
    "Answers may grow members; requests with unknown ones are refused."
)
_TAGS = {
    "tasks": "Enqueue tasks and read them.",
    "flows": "Tasks that depend on each other, as a whole.",
    "claims": "Work on tasks: a claim is a lease with a fencing token.",
    "transactions": "Several changes in one atomic step.",
    "queues": "Queues: their depth and their settings.",
    "dead letters": "Tasks that failed for good.",
    "periodic tasks": "Tasks that are enqueued on a schedule.",
    "jobs": "Data pipelines that run on Spark.",
    "cluster": "The state of the replica, and operations on the cluster.",
    "extensions": "Entries and states of installed extensions.",
    "task store": "Small tasks that are updated and claimed atomically, in groups.",
    "health": "For probes and monitoring.",
    "pages": "For people.",
}
_COMMON_ERRORS = {"query": (400,), "body": (400, 408, 413, 415)}
_SCHEME = "token"


def openapi(endpoints: Sequence[Endpoint], *, with_tokens: bool) -> dict[str, Any]:
    """Return the document; ``with_tokens``: whether requests need an Authorization header."""
    paths: dict[str, dict[str, Any]] = {}
    inputs = json_form.components(Problem)
    for endpoint in endpoints:
        if endpoint.page:
            continue  # for people with browsers
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, with_tokens)
        if endpoint.result is not None:
            inputs |= json_form.components(endpoint.result)
        if endpoint.has_body:
            inputs |= _body(endpoint)
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
            "schemas": inputs,
            "responses": {"Problem": _problem()},
            **({"securitySchemes": schemes} if with_tokens else {}),
        },
    }


def ref(name: str) -> json_form.Schema:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def _problem() -> dict[str, Any]:
    retry = {"description": "Seconds; with 429 and 503.", "schema": {"type": "integer"}}
    return {
        "description": "What is wrong, and what to do next.",
        "headers": {"Retry-After": retry},
        "content": {PROBLEM_TYPE: {"schema": ref("Problem")}},
    }


def _headers(headers: Mapping[str, Any]) -> list[dict[str, Any]]:
    out = []
    for name, kind in headers.items():
        node, _, about, _ = bare(inspect.type_info(kind))
        shape = json_form.schema(node)
        out.append({"name": name, "in": "header", "required": False, "schema": shape, "description": about})
    return out


def _path_names(endpoint: Endpoint) -> list[str]:
    return [part[1:-1] for part in endpoint.segments if part.startswith("{")]


def _body(endpoint: Endpoint) -> dict[str, json_form.Schema]:
    if endpoint.whole:
        return {endpoint.args.__name__: {"type": "object", "additionalProperties": True}}
    elsewhere = {*_path_names(endpoint), *endpoint.fixed}
    return json_form.request_components(
        endpoint.args, [name for name in members(endpoint.args) if name not in elsewhere]
    )


def _arguments(endpoint: Endpoint) -> list[dict[str, Any]]:
    """Return the parameters of an endpoint's path and query."""
    in_path, out = _path_names(endpoint), []
    for name, member in members(endpoint.args).items():
        if name in in_path or (not endpoint.has_body and name not in endpoint.fixed):
            place = "path" if name in in_path else "query"
            about = {"description": member.about} if member.about else {}
            shape = json_form.parameter(member)
            out.append({"name": name, "in": place, "required": member.required, "schema": shape, **about})
    if endpoint.form_field:
        about = {"description": "The body, if it is not sent as such."}
        out.append(
            {"name": endpoint.form_field, "in": "query", "required": False, "schema": {"type": "string"}, **about}
        )
    return out


def _operation(endpoint: Endpoint, with_tokens: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        **({"description": endpoint.doc} if endpoint.doc else {}),
    }
    parameters = [*_arguments(endpoint), *_headers(endpoint.headers)]
    operation["responses"] = _responses(endpoint, with_tokens, has_parameters=bool(parameters))
    if parameters:
        operation["parameters"] = parameters
    if endpoint.has_body:
        operation["requestBody"] = {
            "required": endpoint.body_required,
            "content": {"application/json": {"schema": ref(endpoint.args.__name__)}},
        }
    if with_tokens and endpoint.roles:
        operation["security"] = [{_SCHEME: []}]
    return operation


def _responses(endpoint: Endpoint, with_tokens: bool, *, has_parameters: bool) -> dict[str, Any]:
    done: dict[str, Any] = {"description": HTTPStatus(endpoint.status).phrase}
    answer = endpoint.answer if endpoint.result is None else ref(endpoint.result.__name__)
    if answer is not None:
        done["content"] = {endpoint.media: {"schema": answer}}
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
