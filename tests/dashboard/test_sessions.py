"""Sign-in: a cookie is valid like its token, for pages only, and other sites cannot use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from onyxq.access.grants import Access, Token, digest_of
from onyxq.interfaces.dashboard import ENDPOINTS
from onyxq.interfaces.dashboard.session import COOKIE, SECURE_COOKIE, SESSION_MS, refused
from onyxq.interfaces.http.app import ENDPOINTS as ALL
from onyxq.interfaces.http.app import App, create_app
from onyxq.interfaces.http.bodies import SIGN_IN_BYTES_MAX, SIGN_INS_MAX, SMALL_BODY_BYTES_MAX
from tests.interfaces.http_world import FakeService, app_of, on_trio

TOKENS = {"r-token": "read", "a-token": "admin"}
SITE = {"origin": "http://peer"}


@asynccontextmanager
async def browser(tokens: dict[str, str] | None = TOKENS) -> AsyncIterator[tuple[FakeService, httpx.AsyncClient]]:
    """Return a client that keeps cookies."""
    service = FakeService()
    transport = httpx.ASGITransport(app_of(service, tokens), raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
        yield service, client


async def enter(client: httpx.AsyncClient, token: str, there: str = "/ui/tasks") -> httpx.Response:
    """Sign in."""
    return await client.post("/ui/login", data={"token": token, "next": there}, headers=SITE)


@on_trio
async def test_a_page_without_a_session_leads_to_the_login() -> None:
    """After the sign-in, the requested page is shown."""
    async with browser() as (service, client):
        answer = await client.get("/ui/tasks?queue=a%26b")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/ui/login?next=%2Fui%2Ftasks%3Fqueue%3Da%2526b"
        login = await client.get(answer.headers["location"])
        assert 'value="/ui/tasks?queue=a%26b"' in login.text
        assert service.calls == []
        assert (await client.get("/ui/tasks", headers={"hx-request": "true"})).headers["hx-redirect"].startswith("/ui/")


@on_trio
async def test_a_session_shows_pages() -> None:
    """Scripts and other sites cannot read the cookie, and signing out removes it."""
    async with browser() as (_, client):
        answer = await enter(client, "r-token")
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/tasks")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie and "Secure" not in cookie
        page = await client.get("/ui/tasks")
        assert page.status_code == 200 and "Sign out" in page.text
        await client.post("/ui/logout", headers=SITE)
        assert (await client.get("/ui/tasks")).status_code == 303


@on_trio
async def test_a_wrong_token_is_told() -> None:
    """The answer leads back to the login page, which reports it."""
    async with browser() as (_, client):
        await enter(client, "nope ünknown;\"'")
        back = await client.get("/ui/tasks")
        assert (
            back.status_code == 303 and "does not know the token" in (await client.get(back.headers["location"])).text
        )


async def begin_form(app: App, length: int) -> None:
    """Send the beginning of a sign-in form with that length, and never the rest."""
    parts = [b"token="]

    async def receive() -> dict[str, Any]:
        if not parts:
            await anyio.sleep_forever()
        return {"type": "http.request", "body": parts.pop(), "more_body": True}

    async def send(message: Any) -> None:
        await anyio.lowlevel.checkpoint()

    headers = [(b"host", b"peer"), (b"origin", b"http://peer"), (b"content-length", str(length).encode())]
    scope = {"type": "http", "method": "POST", "path": "/ui/login", "query_string": b"", "headers": headers}
    await app(scope, receive, send)


@on_trio
async def test_forms_that_never_end_take_no_room_from_callers_with_a_token() -> None:
    """Their memory and their number are bounded. Tasks are still accepted, and so is one more sign-in."""
    app = app_of(FakeService(), TOKENS)
    transport = httpx.ASGITransport(app)
    lengths = [SIGN_IN_BYTES_MAX, SMALL_BODY_BYTES_MAX] * (4 * SIGN_INS_MAX)
    async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
        async with anyio.create_task_group() as group:
            for length in lengths:
                group.start_soon(begin_form, app, length)
            await anyio.wait_all_tasks_blocked()
            assert 0 < app._gate.inside <= SIGN_INS_MAX
            assert 0 < app._budget.used <= SIGN_INS_MAX * SIGN_IN_BYTES_MAX
            headers = {"authorization": "Bearer a-token"}
            tasks = {"tasks": [{"queue": "a", "data": "x"}]}
            assert (await client.post("/v1/tasks", json=tasks, headers=headers)).status_code == 201
            assert (await enter(client, "r-token")).headers["location"] == "/ui/tasks"
            group.cancel_scope.cancel()
    assert app._budget.used == 0


@on_trio
async def test_the_cookie_is_no_credential_for_programs() -> None:
    """Requests to the programs' interface, also by scripts of any site, need the token itself."""
    async with browser() as (_, client):
        await enter(client, "a-token")
        assert (await client.get("/v1/cluster")).status_code == 401
        assert (await client.post("/v1/gc", headers=SITE)).status_code == 401


@pytest.mark.parametrize("there", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", ""])
def test_the_login_leads_nowhere_else(there: str) -> None:
    """The login page redirects only to pages of this peer."""

    @on_trio
    async def asked() -> None:
        async with browser() as (_, client):
            assert (await enter(client, "r-token", there)).headers["location"] == "/"

    asked()


@on_trio
async def test_a_session_has_the_role_of_its_token() -> None:
    """A user who may only read is refused before any action."""
    async with browser() as (service, client):
        await enter(client, "r-token")
        answer = await client.post("/ui/do/gc", headers=SITE)
        assert answer.status_code == 403 and "the role operate" in answer.text and service.asked("gc") == []
        await enter(client, "a-token")
        assert (await client.post("/ui/do/gc", headers=SITE)).status_code == 303 and service.asked("gc") == [{}]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", None])
@pytest.mark.parametrize("tokens", [TOKENS, None])
def test_other_sites_do_nothing(origin: str | None, tokens: dict[str, str] | None) -> None:
    """Only forms that a page of this peer sent are accepted, with and without tokens."""

    @on_trio
    async def asked() -> None:
        async with browser(tokens) as (service, client):
            await enter(client, "a-token")
            headers = {"origin": origin} if origin else {}
            for endpoint in ENDPOINTS:
                if endpoint.method == "POST":
                    answer = await client.post(endpoint.path, data={"queue": "a"}, headers=headers)
                    assert answer.status_code == 403, endpoint.path
            assert service.calls == []

    asked()


@on_trio
async def test_a_token_for_some_queues_shows_these() -> None:
    """Nothing of other queues is shown, nor anything about all queues."""
    service = FakeService()
    access = Access((Token.of("a token for ours", "ours", ["operate:ours."]),))
    app = create_app(service, access=access, now_ms=lambda: service.now_ms)
    headers = {"authorization": "Bearer a token for ours", **SITE}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://peer", headers=headers) as client:
        for path in ("/ui/queue?name=ours.q", "/ui/tasks?queue=ours.q", "/"):
            assert (await client.get(path)).status_code == 200, path
        for path in (
            "/ui/queue?name=theirs",
            "/ui/tasks?queue=theirs",
            "/ui/tasks",
            "/ui/queues",
            "/ui/log",
        ):
            assert (await client.get(path)).status_code == 403, path
        service.calls.clear()
        assert (await client.post("/ui/do/pause", data={"queue": "theirs"})).status_code == 403
        assert service.calls == []
        assert (await client.post("/ui/chosen", data={"action": "cancel", "which": "all"})).status_code == 403
        assert service.calls == []
        assert (await client.post("/ui/do/pause", data={"queue": "ours.q"})).status_code == 303
        assert service.asked("queue.set")[0]["by"] == "ours"


@on_trio
async def test_every_page_asks_for_the_token() -> None:
    """Every page needs the token except the login page and its files."""
    async with browser() as (service, client):
        free = {"/ui/login", "/ui/logout", "/ui/static/{file}"}
        for endpoint in ENDPOINTS:
            if endpoint.path in free:
                continue
            assert endpoint.roles, endpoint.path
            answer = await client.request(endpoint.method, endpoint.path.replace("{id}", "0" * 40), headers=SITE)
            assert answer.status_code == 303 and answer.headers["location"].startswith("/ui/login"), endpoint.path
        assert service.calls == []


def test_every_page_tells_its_errors_as_a_page() -> None:
    """Only pages report errors as pages."""
    assert {endpoint.name for endpoint in ALL if endpoint.tell is refused} == {one.name for one in ALL if one.page}


@on_trio
async def test_a_wrong_method_on_a_page_names_the_right_ones() -> None:
    """The page says the same as an answer to a program."""
    async with browser(None) as (_, client):
        answer = await client.put("/ui/queues")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
        assert "text/html" in answer.headers["content-type"]


@on_trio
async def test_over_tls_the_session_belongs_to_this_host_alone() -> None:
    """It is never sent unencrypted; another host of the domain can neither read nor replace it."""
    async with browser() as (_, client):
        for path, data in (("/ui/login", {"token": "r-token"}), ("/ui/logout", {})):
            answer = await client.post(f"https://peer{path}", data=data, headers={"origin": "https://peer"})
            said = answer.headers["set-cookie"]
            assert said.startswith(f"{SECURE_COOKIE}=") and "; Secure; Path=/; " in said and "Domain" not in said
    async with browser() as (_, client):
        answer = await client.post(
            "https://peer/ui/login", data={"token": "r-token"}, headers={"origin": "https://peer"}
        )
        own = answer.cookies[SECURE_COOKIE]
        client.cookies.clear()
        theirs = f"{COOKIE}=theirs; {SECURE_COOKIE}={own}; {COOKIE}=theirs"
        assert (await client.get("/ui/tasks", headers={"cookie": theirs})).status_code == 200


@on_trio
async def test_the_cookie_does_not_hold_the_token() -> None:
    """A stolen cookie gives access to pages for a day, and not to ``/v1``, the TCP port or a client."""
    async with browser() as (service, client):
        cookie = (await enter(client, "r-token")).cookies[COOKIE]
        assert "r-token" not in cookie and b"r-token".hex() not in cookie
        assert (await client.get("/ui/tasks")).status_code == 200
        assert (await client.get("/v1/queues", headers={"authorization": f"Bearer {cookie}"})).status_code == 401
        service.now_ms += SESSION_MS
        assert (await client.get("/ui/tasks")).headers["location"].startswith("/ui/login")


@on_trio
async def test_nobody_makes_or_changes_a_session_without_the_key() -> None:
    """Neither time nor token can be changed, nor can a session of another cluster be used."""
    async with browser() as (_, client):
        read, admin = [(await enter(client, token)).cookies[COOKIE].split(".") for token in ("r-token", "a-token")]
        client.cookies.clear()
        foreign = Access(peer_secret="the secret of another cluster").session("a-token", 1 << 50)
        forged = [[read[0], admin[1], read[2]], [str(1 << 50), *read[1:]], [*read[:2], ""], ["", "", ""], [foreign]]
        for parts in forged:
            answer = await client.get("/ui/tasks", headers={"cookie": f"{COOKIE}={'.'.join(parts)}"})
            assert answer.status_code == 303, parts


def test_a_session_is_known_to_every_peer_of_the_cluster() -> None:
    """A session is valid after a peer was restarted, and behind a proxy that chooses among peers."""
    one, other = (Access(peer_secret="what the peers share") for _ in range(2))
    assert other.digest_of_session(one.session("r-token", 2_000), 1_999) == digest_of("r-token")
    assert other.digest_of_session(one.session("r-token", 2_000), 2_000) is None
