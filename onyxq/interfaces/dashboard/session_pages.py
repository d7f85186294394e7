"""Login and logout."""

from __future__ import annotations

from onyxq.interfaces.dashboard import session
from onyxq.interfaces.dashboard.page import shows
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
        args=session.Login,
        role=None,
    ),
    _does(session.LOGIN, "log_in", "Sign in to the pages with a token", session.post_login),
    _does("/ui/logout", "log_out", "Sign out of the pages", session.post_logout),
)
