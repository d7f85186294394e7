"""Django: ``tasks/<id>``, its changes as events, and errors as answers (design: interfaces).

::

    urlpatterns = [path("tasks/", include(task_urls(app, access=login_required)))]
    MIDDLEWARE = [..., "onyxq.integrations.django.ErrorMiddleware"]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import URLPattern, path
from django.utils.deprecation import MiddlewareMixin
from django.views.decorators.http import require_GET

from onyxq.core.errors import OnyxqError
from onyxq.integrations.task_views import EVENT_STREAM, PROBLEM_JSON, STREAM_HEADERS, TaskViews, problem
from onyxq.worker.app import App

__all__ = ["ErrorMiddleware", "task_urls"]

View = Callable[..., HttpResponse]


def task_urls(
    app: App, *, access: Callable[[View], View] | None = None, errors: bool = False, outbox: bool = False
) -> list[URLPattern]:
    """Return the pages of tasks, for ``include``.

    ``access``: decorator of the pages that checks the user. ``errors``: show the text of a failed task's error.
    ``outbox``: ids come from an outbox, so a new one may not exist yet. The client opens at its first use, in each
    process of the web server.
    """
    views = TaskViews(app=app, errors=errors, outbox=outbox)

    def task(request: HttpRequest, id: str) -> HttpResponse:
        try:
            return JsonResponse(views.view(id))
        except OnyxqError as error:
            return answer(error)

    def task_events(request: HttpRequest, id: str) -> HttpResponse:
        try:
            watch = views.watch(id)
        except OnyxqError as error:
            return answer(error)
        # Under ASGI a plain iterator would hold up the event loop. Under WSGI each caller takes a thread.
        body = aiter(watch) if hasattr(request, "scope") else iter(watch)
        return StreamingHttpResponse(body, content_type=EVENT_STREAM, headers=STREAM_HEADERS)

    checked = access or (lambda view: view)
    return [
        path("<str:id>", require_GET(checked(task)), name="onyxq_task"),
        path("<str:id>/events", require_GET(checked(task_events)), name="onyxq_task_events"),
    ]


def answer(error: OnyxqError) -> HttpResponse:
    """Return the answer for an error of OnyxQ."""
    status, body, headers = problem(error)
    return JsonResponse(body, status=status, headers=headers, content_type=PROBLEM_JSON)


class ErrorMiddleware(MiddlewareMixin):
    """Answers requests whose view raised an error of OnyxQ."""

    def process_exception(self, request: HttpRequest, error: Exception) -> Any:
        """Return the answer for an error of OnyxQ, None for others."""
        return answer(error) if isinstance(error, OnyxqError) else None
