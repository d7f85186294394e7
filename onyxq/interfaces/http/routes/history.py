"""Endpoints for those who follow or replay the log: the replica's digest, the origin, records as stored."""

from __future__ import annotations

import base64
from typing import Any

from starlette.responses import Response

from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.schemas import ref
from onyxq.interfaces.http.shapes import Field, Integer, Object
from onyxq.interfaces.http.values import answer

RAW_RECORDS_MAX = 1_000
WAIT_MS_MAX = 60_000

RAW_QUERY = Object(
    "RawLogQuery",
    {
        "from": Field(Integer(0), default=0, doc="First position wanted."),
        "limit": Field(Integer(1, RAW_RECORDS_MAX), default=RAW_RECORDS_MAX),
        "wait_ms": Field(Integer(0, WAIT_MS_MAX), default=0, doc="How long to wait for a record at that position."),
    },
)
ORIGIN_QUERY = Object(
    "OriginQuery",
    {
        "part": Field(Integer(0), default=0, doc="Which part, from 0."),
        "position": Field(Integer(-1), doc="The origin of which the earlier parts were; 409 if there is a newer one."),
    },
)


async def get_replica(call: Call) -> Response:
    """Position and digest of this peer's replica."""
    return answer(await call.ask("replica"))


async def get_raw_log(call: Call) -> Response:
    """Records as stored."""
    found = await call.api.call("log.raw", {name: call.query[name] for name in ("from", "limit", "wait_ms")})
    if "records" in found:
        records = [
            {"position": position, "at_ms": at_ms, "data_base64": _text(data)}
            for position, at_ms, data in found["records"]
        ]
        found = {**found, "records": records}
    return answer(found)


async def get_origin(call: Call) -> Response:
    """A part of the origin."""
    wanted = {name: call.query[name] for name in ("part", "position") if call.query.get(name) is not None}
    found = dict(await call.api.call("origin", wanted))
    data = found.pop("data")
    return answer({**found, "data_base64": _text(data)})


async def get_history(call: Call) -> Response:
    """What the store says of a task's claims."""
    found: dict[str, Any] = await call.ask("task_history", id=call.path["id"])
    return answer({"history": found["history"], "completion": found["completion"]})


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/replica",
        name="get_replica",
        tag="cluster",
        summary="Position and digest of this peer's replica",
        handle=get_replica,
        answer=ref("ReplicaDigest"),
    ),
    Endpoint(
        method="GET",
        path="/v1/log/raw",
        name="get_raw_log",
        tag="cluster",
        summary="Records of the log as stored, to follow or replay it",
        handle=get_raw_log,
        query=RAW_QUERY,
        answer=ref("RawLog"),
    ),
    Endpoint(
        method="GET",
        path="/v1/origin",
        name="get_origin",
        tag="cluster",
        summary="A part of the origin from which new readers of the log start",
        handle=get_origin,
        query=ORIGIN_QUERY,
        answer=ref("OriginPart"),
        errors=(409,),
    ),
    Endpoint(
        method="GET",
        path="/v1/tasks/{id}/history",
        name="get_task_history",
        tag="tasks",
        summary="What the store has kept of a task's claims",
        handle=get_history,
        answer=ref("TaskHistory"),
        errors=(404,),
    ),
)
