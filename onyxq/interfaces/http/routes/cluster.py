"""Endpoints for the cluster, the log and health."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import JSONResponse, Response

from onyxq.core.errors import NotFound, Unavailable
from onyxq.core.texts import whole
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.pages import docs_page
from onyxq.interfaces.http.problems import problem
from onyxq.interfaces.http.schemas import ref
from onyxq.interfaces.http.shapes import NOTHING, Boolean, Field, Integer, Object
from onyxq.interfaces.http.values import answer, plain
from onyxq.system.metrics import CONTENT_TYPE

HTML = "text/html"
LOG_PAGE_MAX = 1_000
_PAGE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
}

LOG_QUERY = Object(
    "LogQuery",
    {
        "from": Field(Integer(), doc="First position to show; default: near the end."),
        "limit": Field(Integer(1, LOG_PAGE_MAX), default=100),
    },
)
LEAVE = Object("Leave", {"permanent": Field(Boolean(), default=False, doc="Move the node's copies elsewhere first.")})


def _shows(method: str) -> Callable[[Call], Awaitable[Response]]:
    """A handler that answers with a method's result."""

    async def show(call: Call) -> Response:
        return answer(await call.ask(method))

    return show


async def get_log(call: Call) -> Response:
    """Records of the log with their verdicts."""
    wanted = {"from": call.query.get("from"), "limit": call.query["limit"]}
    return answer(await call.api.call("log", wanted))


async def post_gc(call: Call) -> Response:
    """Collect garbage; returns once the log is trimmed."""
    return answer(await call.ask("gc"))


async def post_leave(call: Call) -> Response:
    """Drain a peer."""
    permanent = call.body.get("permanent", False)
    return answer(await call.ask("leave", peer=call.path["peer"], permanent=permanent))


async def post_force(call: Call) -> Response:
    """Have a partition go on without the lost majority of its nodes."""
    number = whole(call.path["partition"])
    if number is None or number >= 1 << 16:
        raise NotFound("there is no such partition", field="partition")
    return answer(await call.ask("partition.force", partition=number, by="HTTP"))


async def get_live(call: Call) -> Response:
    """The process serves; nothing else is looked at."""
    return answer({"live": True})


async def get_ready(call: Call) -> Response:
    """Whether this peer serves; 503 with the reasons if not."""
    health: dict[str, Any] = await call.ask("health")
    if health["ready"]:
        return answer(health)
    reasons = "; ".join(map(str, health["reasons"])) or "not ready yet"
    return problem(Unavailable(reasons), plain(health))


async def get_metrics(call: Call) -> Response:
    """Prometheus text."""
    text = (await call.ask("metrics"))["text"]
    return Response(text.encode(), headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})


async def get_openapi(call: Call) -> Response:
    """The OpenAPI document."""
    return JSONResponse(call.kit.document())


async def get_docs(call: Call) -> Response:
    """The OpenAPI document as a page."""
    return _page(docs_page(call.kit.document()))


def _page(text: str) -> Response:
    return Response(text.encode(errors="replace"), media_type=HTML, headers=_PAGE_HEADERS)


def _view(name: str, summary: str, schema: str) -> Endpoint:
    return Endpoint(
        method="GET",
        path=f"/v1/{name}",
        name=f"get_{name}",
        role=("read", "produce", "consume"),
        tag="cluster",
        summary=summary,
        handle=_shows(name),
        answer=ref(schema),
    )


ENDPOINTS = (
    _view("cluster", "The cluster and its settings", "Cluster"),
    _view("ring", "Who watches whom", "Ring"),
    _view("partitions", "Where partitions live and who leads them", "Partitions"),
    _view("peers", "Peers and nodes", "Peers"),
    Endpoint(
        method="POST",
        path="/v1/peers/{peer}/leave",
        name="leave_peer",
        tag="cluster",
        summary="Drain a peer; it leaves once others serve its partitions",
        handle=post_leave,
        role="admin",
        body=LEAVE,
        body_required=False,
        answer=ref("Leaving"),
        errors=(404, 409),
    ),
    Endpoint(
        method="POST",
        path="/v1/partitions/{partition}/force",
        name="force_partition",
        tag="cluster",
        summary="Go on without the lost majority of a partition's nodes; what only they hold is lost",
        handle=post_force,
        role="admin",
        body=NOTHING,
        body_required=False,
        answer=ref("Forced"),
        errors=(404, 409),
    ),
    Endpoint(
        method="GET",
        path="/v1/log",
        name="get_log",
        tag="cluster",
        summary="Records of the log",
        handle=get_log,
        query=LOG_QUERY,
        answer=ref("Log"),
    ),
    Endpoint(
        method="POST",
        path="/v1/gc",
        name="gc",
        tag="cluster",
        summary="Snapshot the replica and trim the log",
        handle=post_gc,
        role="operate",
        body=NOTHING,
        body_required=False,
        answer=ref("GcReport"),
    ),
    Endpoint(
        method="GET",
        path="/livez",
        name="livez",
        tag="health",
        summary="Whether the process serves; without dependencies",
        handle=get_live,
        role=None,
        answer=ref("Live"),
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
        answer=ref("Health"),
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
