"""Schemas of answers that are not results of operations, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onyxq.interfaces.http.shapes import Schema
from onyxq.operations.table import json_form
from onyxq.operations.table.job import SubmittedJob


def ref(name: str) -> Schema:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "format": "int64"}
_FLAG: Schema = {"type": "boolean"}
_ANY: Schema = {}
_ID: Schema = {"type": "string", "pattern": "^[0-9a-f]{40}$"}
_BYTES: Schema = {"type": "string", "contentEncoding": "base64", "format": "byte"}
_MS: Schema = {"type": "integer", "format": "int64", "description": "Milliseconds since the epoch."}


def _or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


_STATES = ["scheduled", "waiting", "ready", "claimed", "completed", "failed", "cancelled"]
_CLAIM_OF_TASK = _object(
    {"token": _COUNT, "worker": _TEXT},
    {"start_ms": _or_null(_MS), "end_ms": _or_null(_MS), "outcome": {"type": ["string", "null"]}},
)
_TASK = _object(
    {
        "id": _ID,
        "queue": _TEXT,
        "priority": {"type": "integer", "format": "int32"},
        "state": {"type": "string", "enum": _STATES},
        "at_ms": _MS,
        "depends": _list(_ID),
        "attempts": _COUNT,
    },
    {
        "data": _ANY,
        "data_base64": _BYTES,
        "ordering_key": {"type": ["string", "null"]},
        "unique_key": {"type": ["string", "null"]},
        "expires_ms": _or_null(_MS),
        "retries": {**_or_null(_COUNT), "description": "By the task or its queue; null: until one succeeds."},
        "claims": _list(_CLAIM_OF_TASK),
        "updates": _COUNT,
        "result": _ANY,
        "result_base64": _BYTES,
        "error": {"type": ["string", "null"]},
    },
)
_CLAIM_RESULT = _object({"id": _ID, "ok": _FLAG}, {"code": _TEXT, "detail": _TEXT, "hint": _TEXT})
SCHEMAS: Mapping[str, Schema] = {
    "Enqueued": _object(
        {"ids": _list(_ID), "acks": {**_COUNT, "description": "Fewest copies stored of any task."}},
        {
            "unique": _list({"type": ["string", "null"], "enum": ["new", "replaced", "exists", None]}),
            "guarantee": {**_TEXT, "description": "What is not promised of the stored tasks."},
        },
    ),
    "Task": _TASK,
    "Claim": _object({"token": _COUNT, "expires_ms": _MS, "task": ref("Task")}),
    "Claims": _object({"claims": _list(ref("Claim"))}),
    "ClaimResult": _CLAIM_RESULT,
    "UpdateResult": _object(
        {"id": _ID, "ok": _FLAG},
        {
            "acks": {**_COUNT, "description": "Copies stored, if w was given."},
            "guarantee": {**_TEXT, "description": "What is not promised of the stored tasks."},
        },
    ),
    "ClaimResults": _object({"results": _list(ref("ClaimResult"))}),
    **json_form.components(SubmittedJob),
    "Transacted": _object({"ids": _list(_ID), "token": _COUNT, "settled": _FLAG}),
    "Live": _object({"live": _FLAG}),
    "Problem": _object(
        {
            "type": {"type": "string", "format": "uri-reference"},
            "title": _TEXT,
            "status": {"type": "integer"},
            "detail": _TEXT,
            "code": {"type": "string", "description": "Stable, for programs."},
            "field": {"type": ["string", "null"], "description": "Dotted path of the wrong argument."},
            "hint": _TEXT,
        },
        {
            "ids": {**_list(_ID), "description": "For a write that failed in part: the id of every task."},
            "stored": {
                **_list({"type": ["boolean", "null"]}),
                "description": "For the same: which tasks are stored; null: unknown.",
            },
            "copies": {
                **_COUNT,
                "description": "For a write on fewer nodes than w: the number of nodes that have all of it.",
            },
        },
    ),
}


def components(inputs: Mapping[str, Schema]) -> dict[str, Any]:
    """Return all components: those of the answers and those of the requests."""
    return {**SCHEMAS, **inputs}
