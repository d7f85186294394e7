"""Answers of many lines, read page by page as the client takes them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
from attrs import frozen
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onyxq.core.errors import OnyxqError
from onyxq.interfaces.http.problems import problem_of
from onyxq.interfaces.http.values import dumps

NDJSON = "application/x-ndjson"

_log = logging.getLogger("onyxq.http")


@frozen
class Page:
    """Some lines, and the function that reads the next page (None: this is the last one)."""

    lines: Sequence[str]
    following: Callable[[], Awaitable[Page]] | None


class LinesResponse(Response):
    """Streams pages of JSON lines until the last one, or until the client goes away.

    An error midway becomes the last line, and the answer stays unfinished, so that no client takes it for complete.
    """

    media_type = NDJSON

    def __init__(self, first: Page) -> None:
        super().__init__(headers={"cache-control": "no-store", "content-length": "0"})
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer over ASGI."""
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()

            group.start_soon(watch)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if await self._send_pages(send):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            group.cancel_scope.cancel()

    async def _send_pages(self, send: Send) -> bool:
        """Send pages, and return whether all were sent."""
        page: Page | None = self._first
        while page is not None:
            await _send_lines(send, page.lines)
            try:
                page = await page.following() if page.following else None
            except OnyxqError as error:
                _log.warning("a stream was cut short: %s", error)
                await _send_lines(send, [dumps({"problem": problem_of(error)})])
                return False
        return True


async def _send_lines(send: Send, lines: Sequence[str]) -> None:
    if lines:
        body: Any = ("\n".join(lines) + "\n").encode()
        await send({"type": "http.response.body", "body": body, "more_body": True})
