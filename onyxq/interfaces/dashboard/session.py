"""Sessions of browsers: a cookie that scripts cannot read and that other sites cannot make a browser send.

It has a session of the token, signed with a key that all peers have, and never the token. It is valid for
`SESSION_MS` and for pages only: neither ``/v1`` nor the TCP port accepts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response

from onyxq.access.grants import Access
from onyxq.core.errors import Forbidden, Unauthorized
from onyxq.interfaces.dashboard.rendering import HEADERS, link, rendered
from onyxq.interfaces.http.endpoint import Call, Endpoint, Failure
from onyxq.interfaces.http.problems import error_headers
from onyxq.operations.table.operation import Args

COOKIE = "onyxq_session"
SECURE_COOKIE = "__Host-onyxq_session"
"""Name of the cookie over TLS: browsers accept it only from this host, not from others of its domain."""
SESSION_MS = 24 * 3_600_000
"""How long a session is valid, in milliseconds."""
TOKEN_CHARS_MAX = 1_000
LOGIN = "/ui/login"


def digest_in(endpoint: Endpoint, headers: Headers, access: Access, now_ms: int) -> bytes | None:
    """Return the digest of the token whose session is in the cookie of a page's request, or None."""
    return access.digest_of_session(_kept(headers), now_ms) if endpoint.page else None


def check_sender(endpoint: Endpoint, headers: Headers) -> None:
    """Raise `Forbidden` if a request would change something and does not come from a page of this peer."""
    if not endpoint.page or endpoint.method == "GET":
        return
    # Browsers send the origin with every POST, so a request without one is not a form of a browser.
    origin = headers.get("origin", "")
    if origin.partition("://")[2] != headers.get("host"):
        raise Forbidden(
            "this request does not come from a page of this peer",
            field="Origin",
            hint="Use the button on the page. Programs use the HTTP interface under /v1.",
        )


def _kept(headers: Mapping[str, str]) -> str:
    found: dict[str, str] = {}
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        found.setdefault(name, value)
    return found.get(SECURE_COOKIE, found.get(COOKIE, ""))


def refused(failure: Failure) -> Response:
    """Return the answer instead of a page: the way to the login, or the error."""
    error, headers, path = failure.error, failure.headers, failure.address
    by_script = "hx-request" in headers
    if isinstance(error, Unauthorized) and not path.startswith(LOGIN):
        there = link(LOGIN, next=path, wrong="yes" if _kept(headers) else None)
        if by_script:
            return Response(status_code=401, headers={**HEADERS, "hx-redirect": there})
        return RedirectResponse(there, status_code=303, headers=dict(HEADERS))
    answer = rendered("error.html", status=error.status, error=error, title="Error")
    answer.headers.update(error_headers(error))
    return answer


class Login(Args):
    """Where to go after the login, and whether a token was refused."""

    next: Annotated[str, Meta(max_length=1_000)] = ""
    wrong: Annotated[str, Meta(max_length=1_000)] = ""


async def get_login(call: Call) -> Response:
    """Answer with the form."""
    return rendered("login.html", title="Sign in", next=_local(call.args.next or "/"), wrong=bool(call.args.wrong))


async def post_login(call: Call) -> Response:
    """Start a session; the next page shows whether the token is known."""
    token = call.body.get("token", [""])[0].strip()
    there = _local(call.body.get("next", ["/"])[0])
    answer = RedirectResponse(there, status_code=303, headers=dict(HEADERS))
    answer.headers["set-cookie"] = _cookie(
        call, call.kit.access.session(token[:TOKEN_CHARS_MAX], call.kit.now_ms() + SESSION_MS)
    )
    return answer


async def post_logout(call: Call) -> Response:
    """Make the browser forget the session."""
    answer = RedirectResponse(LOGIN, status_code=303, headers=dict(HEADERS))
    answer.headers["set-cookie"] = _cookie(call, "") + "; Max-Age=0"
    return answer


def _cookie(call: Call, value: str) -> str:
    encrypted = call.headers.get("origin", "").startswith("https:")
    return f"{SECURE_COOKIE}={value}; Secure; {_ATTRIBUTES}" if encrypted else f"{COOKIE}={value}; {_ATTRIBUTES}"


_ATTRIBUTES = "Path=/; HttpOnly; SameSite=Strict"


def _local(path: str) -> str:
    """Return the path if it belongs to this peer, else the first page."""
    fine = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and path.isascii()
    return path if fine else "/"
