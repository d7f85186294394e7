"""FastAPI: ``/tasks/{id}``, its changes as events, errors as answers, and the client's life (design: interfaces).

::

    queue = OnyxQ(app)
    api = FastAPI(lifespan=queue.lifespan)
    queue.install(api)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, FastAPI, Request
from fastapi.params import Depends
from fastapi.responses import JSONResponse, StreamingResponse

from onyxq.core.errors import OnyxqError
from onyxq.integrations.task_views import EVENT_STREAM, PROBLEM_JSON, STREAM_HEADERS, TaskViews, problem
from onyxq.worker.app import App

__all__ = ["OnyxQ"]


class OnyxQ:
    """An application of OnyxQ in FastAPI.

    ``errors``: show the text of a failed task's error. ``outbox``: ids come from an outbox, so a new one may not exist
    yet.
    """

    def __init__(self, app: App, *, errors: bool = False, outbox: bool = False) -> None:
        self.app = app
        self._views = TaskViews(app=app, errors=errors, outbox=outbox)

    @asynccontextmanager
    async def lifespan(self, api: FastAPI) -> AsyncIterator[None]:
        """Keep the client open as long as the web application runs.

        If you have a lifespan of your own, write ``async with queue.lifespan(api):`` in it.
        """
        await anyio.to_thread.run_sync(lambda: self.app.client)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.app.close)

    def install(self, api: FastAPI, *, prefix: str = "/tasks", dependencies: Sequence[Depends] = ()) -> None:
        """Add the answers for errors, and the pages of tasks below ``prefix``.

        ``dependencies``: what FastAPI runs before each of these pages, for example a check of the user.
        """
        api.add_exception_handler(OnyxqError, _answer)
        api.include_router(self._router(prefix, dependencies))

    def _router(self, prefix: str, dependencies: Sequence[Depends]) -> APIRouter:
        router = APIRouter(prefix=prefix, dependencies=dependencies, tags=["tasks"])

        @router.get("/{id}")
        def task(id: str) -> dict[str, Any]:
            """Return a task: state, progress and result."""
            return self._views.view(id)

        @router.get("/{id}/events", response_class=StreamingResponse)
        def task_events(id: str) -> StreamingResponse:
            """Send a task after each change as server-sent events, until it is finished."""
            watch = self._views.watch(id)
            return StreamingResponse(aiter(watch), media_type=EVENT_STREAM, headers=STREAM_HEADERS)

        return router


async def _answer(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OnyxqError)
    status, body, headers = problem(error)
    return JSONResponse(body, status_code=status, headers=headers, media_type=PROBLEM_JSON)
