"""Endpoints for health, metrics and the documentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse, Response

from onyxq.core.errors import Unavailable
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.pages import docs_page
from onyxq.interfaces.http.problems import problem
from onyxq.interfaces.http.values import answer, answer_text, plain
from onyxq.operations.table.cluster import Health
from onyxq.operations.table.json_form import json_text
from onyxq.operations.table.operation import Result
from onyxq.system.metrics import CONTENT_TYPE

HTML = "text/html"


class Live(Result):
    """That the process serves."""

    live: bool


_PAGE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


async def get_live(call: Call) -> Response:
    """Answer that the process serves; nothing else is checked."""
    return answer_text(json_text(Live(live=True)))


async def get_ready(call: Call) -> Response:
    """Answer whether this peer serves; 503 with the reasons if not."""
    health: dict[str, Any] = await call.ask("health")
    if health["ready"]:
        return answer(health)
    reasons = "; ".join(map(str, health["reasons"])) or "not ready yet"
    return problem(Unavailable(reasons), plain(health))


async def get_metrics(call: Call) -> Response:
    """Answer with Prometheus text."""
    text = (await call.ask("metrics"))["text"]
    return Response(text.encode(), headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})


async def get_openapi(call: Call) -> Response:
    """Answer with the OpenAPI document."""
    data = _kept(call, "/openapi.json", lambda: bytes(JSONResponse(call.kit.document()).body))
    return Response(data, media_type="application/json")


async def get_docs(call: Call) -> Response:
    """Answer with the OpenAPI document as a page."""
    data = _kept(call, "/docs", lambda: docs_page(call.kit.document()).encode(errors="replace"))
    return Response(data, media_type=HTML, headers=_PAGE_HEADERS)


def _kept(call: Call, path: str, make: Callable[[], bytes]) -> bytes:
    """Return an answer that never changes. It is made once, because callers without a credential may ask for it."""
    if path not in call.kit.kept:
        call.kit.kept[path] = make()
    return call.kit.kept[path]


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/livez",
        name="livez",
        tag="health",
        summary="Whether the process serves; without dependencies",
        handle=get_live,
        role=None,
        result=Live,
        vital=True,
    ),
    Endpoint(
        method="GET",
        path="/readyz",
        name="readyz",
        tag="health",
        summary="Whether this peer is ready, with its lag behind the log",
        handle=get_ready,
        role=None,
        result=Health,
        vital=True,
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        name="metrics",
        tag="health",
        summary="Metrics in Prometheus' text format",
        handle=get_metrics,
        answer={"type": "string"},
        media="text/plain",
        vital=True,
    ),
    Endpoint(
        method="GET",
        path="/openapi.json",
        name="openapi",
        tag="pages",
        summary="This document",
        handle=get_openapi,
        role=None,
        answer={"type": "object"},
    ),
    Endpoint(
        method="GET",
        path="/docs",
        name="docs",
        tag="pages",
        summary="This document as a page",
        handle=get_docs,
        role=None,
        answer={"type": "string"},
        media=HTML,
    ),
)
