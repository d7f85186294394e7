"""The way in and out."""

from __future__ import annotations

from onyxq.interfaces.dashboard import session
from onyxq.interfaces.dashboard.page import filter_field, shows
from onyxq.interfaces.http.endpoint import Endpoint, Handler


def _does(path: str, name: str, summary: str, handle: Handler) -> Endpoint:
    return Endpoint(
        method="POST",
        path=path,
        name=name,
        tag="pages",
        summary=summary,
        handle=handle,
        role=None,
        status=303,
        page=True,
        tell=session.refused,
    )


ENDPOINTS = (
    shows(
        session.LOGIN,
        "login_page",
        session.get_login,
        query={"next": filter_field("Where to go from there."), "wrong": filter_field("Whether a token was refused.")},
        role=None,
    ),
    _does(session.LOGIN, "log_in", "Keep a token for the pages", session.post_login),
    _does("/ui/logout", "log_out", "Forget the token", session.post_logout),
)
