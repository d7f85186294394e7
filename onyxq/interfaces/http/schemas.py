"""Schemas of answers, for the OpenAPI document; they may grow members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onyxq.interfaces.http.shapes import Schema


def ref(name: str) -> Schema:
    """A reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "format": "int64"}
_FLAG: Schema = {"type": "boolean"}
_ANY: Schema = {}
_ID: Schema = {"type": "string", "pattern": "^[0-9a-f]{40}$"}
_BYTES: Schema = {"type": "string", "contentEncoding": "base64", "format": "byte"}
_MS: Schema = {"type": "integer", "format": "int64", "description": "Milliseconds since the epoch."}
_POSITION: Schema = {"type": "integer", "format": "int64", "description": "Position of the replica in the log."}


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
_TIMER = _object(
    {
        "id": _TEXT,
        "timeout": _or_null(_COUNT),
        "data": {"type": ["string", "object", "null"]},
        "callback": {"type": ["object", "null"]},
        "state": {
            "type": "string",
            "enum": ["scheduled", "waiting", "ready", "claimed", "fired", "failed", "cancelled"],
        },
        "at_ms": _MS,
        "attempts": _COUNT,
        "error": {"type": ["string", "null"], "description": "Of the last attempt that failed."},
        "task": _ID,
    }
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
_UPDATE = _object({"token": _COUNT, "seq": _COUNT, "at_ms": _MS}, {"data": _ANY, "data_base64": _BYTES})
_JOB = _object(
    {
        "id": _TEXT,
        "state": {"type": "string", "enum": ["waiting", "running", "completed", "killed", "failed"]},
        "why": {**_TEXT, "description": "What a waiting job waits for."},
        "error": {**_TEXT, "description": "What it failed with: the task, the segment, the traceback."},
        "batch": {**_or_null(_COUNT), "description": "The last batch that was committed."},
        "digest": {**_TEXT, "description": "Of what was submitted, in hex."},
        "submitted_ms": _MS,
        "ended_ms": _or_null(_MS),
    },
    {
        "driver": {**_or_null(_TEXT), "description": "The peer that drives it."},
        "ready": {**_FLAG, "description": "Whether its query runs there."},
        "slots": _COUNT,
        "task_slots": {"type": "object", "additionalProperties": _COUNT},
        "scheduler": _TEXT,
        "percentage": _COUNT,
        "min_slots": _COUNT,
        "max_slots": _or_null(_COUNT),
        "tags": _list(_TEXT),
        "zones": _list(_TEXT),
        "beside": _or_null(_TEXT),
        "own_host": _FLAG,
        "inputs": {**_list(_TEXT), "description": "Those that can be sealed."},
        "sealed": _list(_TEXT),
        "version": {**_or_null(_COUNT), "description": "The fencing token of its driver."},
        "job": {"type": ["object", "null"], "description": "What was submitted; null once only the outcome is kept."},
        "progress": {"type": ["object", "null"], "description": "What its driver tells; null if it does not answer."},
    },
)
_CLAIM_RESULT = _object({"id": _ID, "ok": _FLAG}, {"code": _TEXT, "detail": _TEXT, "hint": _TEXT})
_MEMBER = _object({"peer": _TEXT, "node": _TEXT, "state": _TEXT}, {"watches": _list(_TEXT)})
_TRANSFER = _object(
    {
        "node": _TEXT,
        "rows_done": _COUNT,
        "bytes_done": _COUNT,
        "rows_left": _or_null(_COUNT),
        "seconds_left": _or_null(_COUNT),
    }
)
_PARTITION = _object(
    {
        "partition": _COUNT,
        "members": _list(_TEXT),
        "target": _list(_TEXT),
        "leader": _or_null(_TEXT),
        "leader_node": _or_null(_TEXT),
        "epoch": _COUNT,
        "ready": _FLAG,
        "under_replicated": _FLAG,
    },
    {
        "transfers": _list(_TRANSFER),
        "purged_before_ms": {**_or_null(_MS), "description": "Ids of before are purged, but for what is kept."},
        "kept_stretches": _COUNT,
        "purge_waits": {**_or_null(_TEXT), "description": "Why finished tasks stay; null: they do not."},
    },
)
_PEER = _object(
    {"peer": _TEXT, "node": _TEXT, "address": _TEXT, "http": _TEXT, "zone": _TEXT, "slots": _COUNT, "state": _TEXT},
    {
        "tags": _list(_TEXT),
        "draining": _FLAG,
        "leaving": _FLAG,
        "clock_skew_ms": _COUNT,
        "copies": _COUNT,
        "leads": _COUNT,
    },
)
_NODE = _object(
    {"node": _TEXT, "peer": _or_null(_TEXT), "zone": _TEXT},
    {"absent_since_ms": _or_null(_COUNT), "draining": _FLAG, "leaving": _FLAG, "copies": _COUNT, "leads": _COUNT},
)
_ENTRY = _object({"entry": _TEXT, "args": {"type": "object"}, "verdict": _TEXT})

SCHEMAS: Mapping[str, Schema] = {
    "Ids": _object({"ids": _list(_ID)}),
    "Enqueued": _object(
        {"ids": _list(_ID), "acks": {**_COUNT, "description": "Fewest copies stored of any task."}},
        {
            "unique": _list({"type": ["string", "null"], "enum": ["new", "replaced", "exists", None]}),
            "guarantee": {**_TEXT, "description": "What is not promised of what is stored."},
        },
    ),
    "Task": _TASK,
    "TaskPage": _object(
        {
            "tasks": _list(ref("Task")),
            "after": {
                **_or_null(_ID),
                "description": "Null at the end; a page that is short, or empty, need not be the last.",
            },
        }
    ),
    "TaskLog": _object({"updates": _list(_UPDATE)}),
    "Claim": _object({"token": _COUNT, "expires_ms": _MS, "task": ref("Task")}),
    "Claims": _object({"claims": _list(ref("Claim"))}),
    "ClaimResult": _CLAIM_RESULT,
    "UpdateResult": _object(
        {"id": _ID, "ok": _FLAG},
        {
            "acks": {**_COUNT, "description": "Copies stored, if w was given."},
            "guarantee": {**_TEXT, "description": "What is not promised of what is stored."},
        },
    ),
    "ClaimResults": _object({"results": _list(ref("ClaimResult"))}),
    "DeadResults": _object({"count": _COUNT}, {"results": _list(ref("ClaimResult"))}),
    "Timer": _TIMER,
    "Timers": _object({"timers": _list(ref("Timer")), "after": _or_null(_ID)}),
    "Job": _JOB,
    "Jobs": _object({"position": _POSITION, "jobs": _list(ref("Job"))}),
    "SubmittedJob": _object(
        {"id": _TEXT, "digest": _TEXT, "position": _POSITION},
        {"repeat": {**_FLAG, "description": "Whether it was submitted before."}},
    ),
    "Cluster": _object(
        {"name": _or_null(_TEXT), "id": _or_null(_TEXT), "position": _POSITION},
        {
            "log_time_ms": _COUNT,
            "settings": {"type": "object"},
            "peers": _COUNT,
            "members": _list(_TEXT),
            "under_replicated": _COUNT,
            "not_ready": _COUNT,
            "moving": _COUNT,
            "leaving": _list(_object({"node": _TEXT, "peer": _TEXT, "partitions_left": _COUNT})),
        },
    ),
    "Ring": _object({"position": _POSITION, "members": _list(_MEMBER)}, {"queue": _list(_TEXT), "closed": _FLAG}),
    "Partitions": _object({"position": _POSITION, "partitions": _list(_PARTITION)}),
    "Peers": _object({"position": _POSITION, "peers": _list(_PEER)}, {"nodes": _list(_NODE)}),
    "Log": _object(
        {
            "position": _POSITION,
            "records": _list(_object({"position": _COUNT, "at_ms": _MS, "peer": _TEXT, "entries": _list(_ENTRY)})),
        }
    ),
    "ReplicaDigest": _object({"position": _POSITION, "digest": _TEXT}, {"log_time_ms": _COUNT}),
    "RawLog": _object(
        {"position": _POSITION},
        {
            "records": _list(_object({"position": _COUNT, "at_ms": _MS, "data_base64": _BYTES})),
            "next": {**_COUNT, "description": "Where to go on."},
            "trimmed": {**_COUNT, "description": "Instead of records: the origin's position, behind which to go on."},
        },
    ),
    "OriginPart": _object(
        {"position": _COUNT, "part": _COUNT, "parts": _COUNT, "bytes": _COUNT, "data_base64": _BYTES}
    ),
    "TaskHistory": _object({"history": _list({"type": "object"}), "completion": {"type": ["object", "null"]}}),
    "Leaving": _object({}, {"partitions_left": _COUNT, "warning": _TEXT}),
    "Forced": _object({"partition": _COUNT, "position": _POSITION, "members": _list(_TEXT), "given_up": _list(_TEXT)}),
    "Transacted": _object({"ids": _list(_ID), "token": _COUNT, "settled": _FLAG}),
    "GcReport": _object({"position": _POSITION, "trimmed": _COUNT, "origin_bytes": _COUNT}),
    "Submitted": _object({"position": _POSITION, "verdict": _TEXT}),
    "ExtensionState": _object({"position": _POSITION, "state": _ANY}),
    "Live": _object({"live": _FLAG}),
    "Health": _object(
        {"live": _FLAG, "ready": _FLAG, "reasons": _list(_TEXT)},
        {"log_connected": _FLAG, "log_went_back": _FLAG, "log_lag": _COUNT, "position": _POSITION},
    ),
    "Problem": _object(
        {
            "type": {"type": "string", "format": "uri-reference"},
            "title": _TEXT,
            "status": {"type": "integer"},
            "detail": _TEXT,
            "code": {"type": "string", "description": "Stable, for programs."},
            "field": {"type": ["string", "null"], "description": "Dotted path of the argument at fault."},
            "hint": _TEXT,
        },
        {
            "ids": {**_list(_ID), "description": "Of a write that was not carried out as asked: the id of every task."},
            "stored": {
                **_list({"type": ["boolean", "null"]}),
                "description": "Of the same: which tasks are stored; null: it may be.",
            },
            "copies": {
                **_COUNT,
                "description": "Of a write that fewer nodes have than w asks for: how many have all of it.",
            },
        },
    ),
}


def components(inputs: Mapping[str, Schema]) -> dict[str, Any]:
    """All components: the answers' and those of the requests."""
    return {**SCHEMAS, **inputs}
