"""Lists of tasks: a page at a time, or all of them as a stream of lines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from starlette.responses import Response

from onyxq.core.errors import BadRequest
from onyxq.interfaces.http.endpoint import Call
from onyxq.interfaces.http.streaming import NDJSON, LinesResponse, Page
from onyxq.interfaces.http.values import answer_text, dumps, task_json

PAGE_DEFAULT, PAGE_MAX = 100, 1_000

Reader: TypeAlias = Callable[[bytes | None, int], Awaitable[dict[str, Any]]]
"""Gives up to so many tasks behind an id: ``{"tasks", "after"}``."""


async def answer_pages(call: Call, read: Reader) -> Response:
    """What a request with ``after`` and ``limit`` asks for: one page, or with ``Accept`` a stream."""
    limit, after = call.query.get("limit"), call.query.get("after")
    streamed = NDJSON in call.headers.get("accept", "")
    if not streamed and limit is not None and limit > PAGE_MAX:
        hint = f"Ask for pages, or stream with Accept: {NDJSON}."
        raise BadRequest(f"limit must be 1 to {PAGE_MAX}, not {limit}", field="limit", hint=hint)
    if streamed:
        first = await _page(read, after, limit)
        return Response(media_type=NDJSON) if call.is_head else LinesResponse(first)
    page = await read(after, limit or PAGE_DEFAULT)
    tasks = ",".join(map(task_json, page["tasks"]))
    return answer_text(f'{{"tasks":[{tasks}],"after":{dumps(page["after"])}}}')


async def _page(read: Reader, after: bytes | None, limit: int | None) -> Page:
    """The page behind ``after`` of a stream that may have ``limit`` more lines."""
    page = await read(after, min(limit or PAGE_MAX, PAGE_MAX))
    left = None if limit is None else limit - len(page["tasks"])
    lines = list(map(task_json, page["tasks"]))
    if page["after"] is None or left == 0:
        return Page(lines, None)
    return Page(lines, partial(_page, read, page["after"], left))
