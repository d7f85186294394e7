"""Endpoints for dead letters: tasks that failed for good, until they are requeued or discarded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from onyxq.core.errors import BadRequest, from_map
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.schemas import ref
from onyxq.interfaces.http.shapes import Array, Boolean, Field, HexId, Object, Text
from onyxq.interfaces.http.values import answer

IDS_MAX = 10_000
WHERE_CHARS_MAX = 1_000

_QUEUE = Field(Text(), doc="Only of this queue.")
_WHERE = Field(Text(1, WHERE_CHARS_MAX, name=False), doc="Only with this text in the error.")

CHOICE = Object(
    "DeadLetters",
    {
        "ids": Field(Array(HexId(), minimum=1, maximum=IDS_MAX), doc="These; else all that queue and where say."),
        "queue": _QUEUE,
        "where": _WHERE,
        "all": Field(Boolean(), doc="Every one there is."),
    },
)


def _changes(method: str) -> Callable[[Call], Awaitable[Response]]:
    async def change(call: Call) -> Response:
        body = call.body
        chosen = [name for name in ("ids", "queue", "where") if name in body]
        if not chosen and not body.get("all"):
            raise BadRequest(
                "which ones: ids, queue, where, or all", field="ids", hint='{"all": true} means every one.'
            )
        if "ids" not in chosen:
            wanted = {"queue": body.get("queue"), "where": body.get("where")}
            return answer({"count": (await call.ask(method, **wanted))["count"]})
        if len(chosen) > 1 or body.get("all"):
            raise BadRequest("ids, or queue and where: not both", field="ids")
        results = (await call.ask(method, ids=body["ids"]))["results"]
        done = [_result(task_id, why) for task_id, why in zip(body["ids"], results, strict=True)]
        return answer({"count": sum(one["ok"] for one in done), "results": done})

    return change


def _result(task_id: bytes, why: dict[str, Any] | None) -> dict[str, Any]:
    if why is None:
        return {"id": task_id, "ok": True}
    error = from_map(why)
    return {"id": task_id, "ok": False, "code": error.code, "detail": error.message, "hint": error.advice}


def _change(verb: str, summary: str, doc: str) -> Endpoint:
    return Endpoint(
        method="POST",
        path=f"/v1/dead/{verb}",
        name=f"{verb}_dead",
        tag="dead letters",
        summary=summary,
        doc=doc + " With ids each has a result of its own: one that is no dead letter does not spoil the others.",
        handle=_changes(f"dead.{verb}"),
        role="operate",
        body=CHOICE,
        large=True,
        answer=ref("DeadResults"),
    )


ENDPOINTS = (
    _change("requeue", "Have dead letters run again", "They are due at once, with all their retries."),
    _change("discard", "Give dead letters up", "They are cancelled; an ordering key that they stopped goes on."),
)
