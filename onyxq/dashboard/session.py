"""How a browser shows its token: a cookie that scripts cannot read and other sites cannot have sent.

It holds the token itself, so any peer knows it; it counts for pages only, never for ``/v1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response

from onyxq.dashboard.rendering import HEADERS, link, rendered
from onyxq.errors import Forbidden, Unauthorized
from onyxq.http.endpoint import Call, Endpoint, Failure
from onyxq.http.problems import error_headers

COOKIE = "onyxq_session"
SECURE_COOKIE = "__Host-onyxq_session"
"""The same over TLS: browsers take it from this very host alone, not from one beside it in the domain."""
TOKEN_CHARS_MAX = 1_000
LOGIN = "/ui/login"


def with_session(endpoint: Endpoint, headers: Headers) -> Headers:
    """The headers of a request with the cookie's token as its credential, where a page is asked for.

    Raises `Forbidden` for what would change something and was not sent by a page of this peer.
    """
    if not endpoint.page:
        return headers
    if endpoint.method != "GET":
        _check_sender(headers)
    token = _token(headers)
    if not token or "authorization" in headers:
        return headers
    return Headers(raw=[*headers.raw, (b"authorization", b"Bearer " + token.encode("latin-1"))])


def _check_sender(headers: Headers) -> None:
    # Browsers name the origin of every POST, so a request without one is not of a browser's form.
    origin = headers.get("origin", "")
    if origin.partition("://")[2] != headers.get("host"):
        raise Forbidden(
            "this was not sent by a page of this peer",
            field="Origin",
            hint="Use the page's own button; programs use the HTTP interface under /v1.",
        )


def _token(headers: Headers) -> str:
    token = _kept(headers)
    return token if token.isprintable() and token.isascii() else ""


def _kept(headers: Mapping[str, str]) -> str:
    found: dict[str, str] = {}
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        found.setdefault(name, value)
    return unquote(found.get(SECURE_COOKIE, found.get(COOKIE, "")))


def refused(failure: Failure) -> Response:
    """What a browser is told instead of the page: the way in, or what is wrong."""
    error, headers, path = failure.error, failure.headers, failure.address
    by_script = "hx-request" in headers
    if isinstance(error, Unauthorized) and not path.startswith(LOGIN):
        there = link(LOGIN, next=path, wrong="yes" if _kept(headers) else None)
        if by_script:
            return Response(status_code=401, headers={**HEADERS, "hx-redirect": there})
        return RedirectResponse(there, status_code=303, headers=dict(HEADERS))
    answer = rendered("error.html", status=error.status, error=error, title="That did not work")
    answer.headers.update(error_headers(error))
    return answer


async def get_login(call: Call) -> Response:
    """The form."""
    return rendered(
        "login.html", title="Sign in", next=_local(call.query.get("next", "/")), wrong=bool(call.query.get("wrong"))
    )


async def post_login(call: Call) -> Response:
    """Keep the token; whether it is known shows with the next page, as with any other request."""
    token = call.body.get("token", [""])[0].strip()
    there = _local(call.body.get("next", ["/"])[0])
    answer = RedirectResponse(there, status_code=303, headers=dict(HEADERS))
    answer.headers["set-cookie"] = _cookie(call, quote(token[:TOKEN_CHARS_MAX]))
    return answer


async def post_logout(call: Call) -> Response:
    """Forget the token."""
    answer = RedirectResponse(LOGIN, status_code=303, headers=dict(HEADERS))
    answer.headers["set-cookie"] = _cookie(call, "") + "; Max-Age=0"
    return answer


def _cookie(call: Call, value: str) -> str:
    encrypted = call.headers.get("origin", "").startswith("https:")
    return f"{SECURE_COOKIE}={value}; Secure; {_ATTRIBUTES}" if encrypted else f"{COOKIE}={value}; {_ATTRIBUTES}"


_ATTRIBUTES = "Path=/; HttpOnly; SameSite=Strict"


def _local(path: str) -> str:
    """A path of this peer, whatever was asked for."""
    fine = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and path.isascii()
    return path if fine else "/"
