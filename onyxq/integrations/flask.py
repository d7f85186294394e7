"""Flask: ``/tasks/<id>``, its changes as events, and errors as answers (design: interfaces).

::

    queue = OnyxQ(app)
    queue.init_app(flask_app)
"""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Flask, Response, jsonify

from onyxq.core.errors import OnyxqError
from onyxq.integrations.task_views import EVENT_STREAM, PROBLEM_JSON, STREAM_HEADERS, TaskViews, problem
from onyxq.worker.app import App

__all__ = ["OnyxQ"]


class OnyxQ:
    """An application of OnyxQ in Flask.

    ``errors``: show the text of a failed task's error. ``outbox``: ids come from an outbox, so a new one may not exist
    yet. The client opens at its first use, in each process of the web server.
    """

    def __init__(self, app: App, *, errors: bool = False, outbox: bool = False) -> None:
        self._views = TaskViews(app=app, errors=errors, outbox=outbox)
        self.blueprint = Blueprint("onyxq", __name__)
        """The pages of tasks. Give it a ``before_request`` to check the user."""
        self.blueprint.add_url_rule("/<id>", "task", self._task)
        self.blueprint.add_url_rule("/<id>/events", "task_events", self._task_events)

    def init_app(self, flask_app: Flask, *, prefix: str = "/tasks") -> None:
        """Add the answers for errors, and the pages of tasks below ``prefix``."""
        flask_app.register_error_handler(OnyxqError, _answer)
        flask_app.register_blueprint(self.blueprint, url_prefix=prefix)

    def _task(self, id: str) -> dict[str, Any]:
        return self._views.view(id)

    def _task_events(self, id: str) -> Response:
        # One thread of the web server serves one caller for as long as the task runs.
        return Response(iter(self._views.watch(id)), mimetype=EVENT_STREAM, headers=STREAM_HEADERS)


def _answer(error: OnyxqError) -> Response:
    status, body, headers = problem(error)
    response = jsonify(body)
    response.status_code = status
    response.mimetype = PROBLEM_JSON
    response.headers.update(headers)
    return response
