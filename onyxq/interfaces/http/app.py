"""The HTTP interface as an ASGI application, for trio and asyncio.

It knows the node only as an object with ``call`` and ``do``.  A request passes these checks in this order: path,
method, host, origin, token, overload, query, body. Then its handler runs.  Every error is answered as a problem
document.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import anyio
from attrs import define, frozen
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from onyxq.access.grants import OPEN, Access, Grants, digest_of
from onyxq.access.host_names import EVERY, Hosts
from onyxq.core.errors import BadRequest, Forbidden, NotFound, OnyxqError, Overloaded, Unauthorized, Unavailable
from onyxq.core.ids import IdMaker
from onyxq.interfaces import dashboard
from onyxq.interfaces.dashboard.session import check_sender, digest_in, refused
from onyxq.interfaces.http.bodies import (
    BODIES_BYTES_MAX,
    BODIES_DECODED_BYTES_MAX,
    BODY_BYTES_MAX,
    SIGN_IN_BYTES_MAX,
    SIGN_IN_S,
    SIGN_INS_MAX,
    SMALL_BODY_BYTES_MAX,
    Body,
    Budget,
    Disconnected,
    check_media,
    form_fields,
    form_text,
    path_segments,
    query_pairs,
)
from onyxq.interfaces.http.endpoint import Api, Call, Endpoint, Failure, Kit, as_problem
from onyxq.interfaces.http.openapi import openapi
from onyxq.interfaces.http.operations import OF_OPERATIONS, is_streamed, read_arguments
from onyxq.interfaces.http.problems import BodyTooSlow, MethodNotAllowed, problem
from onyxq.interfaces.http.routes import (
    claims,
    cluster,
    jobs,
    tasks,
    taskstore,
    timers,
    transactions,
)
from onyxq.interfaces.http.values import decode_json
from onyxq.operations.checks.access import Guarded
from onyxq.operations.table.problems import shown
from onyxq.system.failures import serving
from onyxq.wire.bounds import OWNER, Newcomers

ENDPOINTS: tuple[Endpoint, ...] = (
    *tasks.ENDPOINTS,
    *claims.ENDPOINTS,
    *transactions.ENDPOINTS,
    *OF_OPERATIONS,
    *timers.ENDPOINTS,
    *jobs.ENDPOINTS,
    *cluster.ENDPOINTS,
    *taskstore.ENDPOINTS,
    *dashboard.ENDPOINTS,
)

REQUESTS_MAX = 1_024
"""Most requests in progress, without those that wait."""
WAITING_MAX = 4_096
API = "v1"
"""First part of the paths of the API for programs."""
VITAL_ONLY = "vital_only"
"""Key in the state of a connection above the bound, on which only probes are answered."""

_log = logging.getLogger("onyxq.http")


@frozen
class Arrival:
    """A request as it arrived."""

    scope: Scope
    headers: Headers
    body: Body
    receive: Receive

    def segments(self) -> list[str]:
        """Return the decoded parts of the path; raises `BadRequest`."""
        return path_segments(self.scope.get("raw_path") or self.scope["path"].encode())

    def source(self) -> Hashable:
        """Return address and port of the caller, which are unique to a connection."""
        client = self.scope.get("client")
        return tuple(client) if client else ""

    def address(self) -> str:
        """Return path and query as they arrived."""
        path, query = self.scope.get("raw_path") or self.scope["path"].encode(), self.scope["query_string"]
        address: bytes = path + (b"?" + query if query else b"")
        return address.decode("ascii", "replace")

    def failed(self, error: OnyxqError) -> Failure:
        """Return the request and its error for the endpoint's error page."""
        return Failure(error, self.scope["method"], self.scope["path"], self.address(), self.headers)


@frozen
class Caller:
    """The caller of a request."""

    owner: str = ""
    """Name of the credential, which does not contain it."""
    grants: Grants | None = None
    """Its permissions; None: no credential is needed."""


@define
class Gate:
    """A bound on requests in progress."""

    limit: int
    inside: int = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count one request; raises `Overloaded` at the bound."""
        if self.inside >= self.limit:
            raise Overloaded(f"{self.limit} requests of this kind are in progress")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1


class Admitting(Protocol):
    """A bound on the writes in progress; see `onyxq.operations.admission`."""

    def check(self, size: int) -> None:
        """Raise `Overloaded` for a write that is too large for any caller now."""
        ...

    def admitted(self, caller: Hashable, size: int) -> AbstractContextManager[None]:
        """Count a write while it is served; raises `Overloaded`."""
        ...


class NoBound:
    """Admits every write."""

    def check(self, size: int) -> None:
        """See `Admitting`."""

    def admitted(self, caller: Hashable, size: int) -> AbstractContextManager[None]:
        """See `Admitting`."""
        return nullcontext()


def create_app(
    api: Api,
    *,
    access: Access | None = None,
    hosts: Hosts = EVERY,
    endpoints: Sequence[Endpoint] = ENDPOINTS,
    admission: Admitting | None = None,
    now_ms: Callable[[], int] | None = None,
    random_64: Callable[[], int] | None = None,
) -> App:
    """Return the ASGI application that serves the HTTP API and the dashboard of a node.

    ``access``: the credentials that a request must show; by default, it needs none. ``hosts``: the host names that
    requests may be sent to; by default, all. ``admission``: a bound on the writes in progress; by default, there is
    none. ``now_ms``: the wall clock, in ms since the epoch. ``random_64``: random numbers for new ids, for tests.
    """
    return App(
        api,
        access=access or OPEN,
        hosts=hosts,
        endpoints=endpoints,
        admission=admission or NoBound(),
        now_ms=now_ms or _now_ms,
        random_64=random_64 or _random_64,
    )


class App:
    """See `create_app`."""

    def __init__(
        self,
        api: Api,
        *,
        access: Access,
        hosts: Hosts,
        endpoints: Sequence[Endpoint],
        admission: Admitting,
        now_ms: Callable[[], int],
        random_64: Callable[[], int],
    ) -> None:
        self._access = access
        self._admission = admission
        self._hosts = hosts
        self._endpoints = tuple(endpoints)
        self._document: dict[str, Any] | None = None
        self.kit = Kit(api, now_ms, IdMaker(now_ms, random_64), self.document, access)
        self._budget, self._decoded = Budget(BODIES_BYTES_MAX), Budget(BODIES_DECODED_BYTES_MAX)
        self._gate, self._waiting = Gate(REQUESTS_MAX), Gate(WAITING_MAX)
        self._sign_ins = Newcomers(SIGN_INS_MAX)

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        if self._document is None:
            self._document = openapi(self._endpoints, with_tokens=bool(self._access))
        return self._document

    def close(self) -> None:
        """Answer waiting requests now."""
        self.kit.closing.set()

    def answer_waiting(self) -> None:
        """Answer requests that wait for tasks now: their credentials may no longer be valid."""
        waited, self.kit.closing = self.kit.closing, anyio.Event()
        waited.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of ASGI."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._respond(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        body = Body(headers, receive, self._budget, self._decoded)
        arrival = Arrival(scope, headers, body, receive)
        sender = Sender(send, body, receive, is_head=scope["method"] == "HEAD")
        with body.accounted():
            try:
                response = await self._answer(arrival)
            except Disconnected:
                return
            except OnyxqError as error:
                response = problem(error)
            except Exception:
                _log.exception("a request to %s failed", scope["path"])
                response = problem(OnyxqError("something unexpected happened here"))
            try:
                await response(scope, receive, sender)
            except Exception as error:
                # The answer has started. The client notices that it is not complete.
                _log.error("an answer to %s was cut short: %s", scope["path"], error)

    async def _answer(self, arrival: Arrival) -> Response:
        segments, method = arrival.segments(), arrival.scope["method"]
        candidates = [endpoint for endpoint in self._endpoints if _matches(endpoint, segments)]
        if not candidates:
            error = NotFound("there is no such path", hint="See /docs for all paths.")
            # Some libraries of programs accept HTML unless told otherwise, so the API has problems for all.
            of_browser = "text/html" in arrival.headers.get("accept", "") and segments[:1] != [API]
            return (refused if of_browser else as_problem)(arrival.failed(error))
        allow = _allow(candidates)
        if method == "OPTIONS":
            return Response(status_code=204, headers={"allow": allow})
        wanted = "GET" if method == "HEAD" else method
        possible = (endpoint for endpoint in candidates if endpoint.method == wanted)
        endpoint = next((endpoint for endpoint in possible if endpoint.head or method != "HEAD"), None)
        try:
            if endpoint is None:
                raise MethodNotAllowed(f"{method[:20]} is not possible here", allow=allow)
            return await self._admit(endpoint, arrival)
        except OnyxqError as error:
            return (endpoint or candidates[0]).tell(arrival.failed(error))

    async def _admit(self, endpoint: Endpoint, arrival: Arrival) -> Response:
        if not endpoint.vital and arrival.scope.get("state", {}).get(VITAL_ONLY):
            raise Unavailable("this peer has too many connections", hint="Ask another peer, or close connections.")
        closing, caller = self.kit.closing, self._authorize(endpoint, arrival.headers)
        if endpoint.vital:
            return await self._handle(endpoint, arrival, caller, closing)
        with (self._waiting if endpoint.waits else self._gate).entered():
            return await self._handle(endpoint, arrival, caller, closing)

    def _authorize(self, endpoint: Endpoint, headers: Headers) -> Caller:
        """Return the caller; raises `Misdirected`, `Unauthorized`, `Forbidden`, `Overloaded` (a token in heavy use)."""
        check_sender(endpoint, headers)
        if endpoint.roles:
            self._hosts.check(headers.get("host", headers.get(":authority")))
        if not self._access:
            _check_origin(endpoint, headers)
            return Caller()
        if not endpoint.roles:
            return Caller()
        digest = _bearer(headers) or digest_in(endpoint, headers, self._access, self.kit.now_ms())
        if digest is None:
            raise Unauthorized("a bearer token is needed", field="Authorization")
        grants = self._access.of_digest(digest)
        if grants is None:
            raise Unauthorized("the token is not known", field="Authorization")
        if not any(grants.has(role) for role in endpoint.roles):
            needed = " or ".join(endpoint.roles)
            raise Forbidden(f"{endpoint.method} {endpoint.path} needs the role {needed}", field="Authorization")
        if grants.pace is not None:
            grants.pace.take(anyio.current_time())
        return Caller(digest.hex(), grants)

    async def _handle(self, endpoint: Endpoint, arrival: Arrival, caller: Caller, closing: anyio.Event) -> Response:
        """Return the answer to a request; ``closing``: that of `Kit` when the caller was identified."""
        parts = _path_parts(endpoint, arrival.segments())
        pairs = query_pairs(arrival.scope["query_string"])
        form = _form_of(endpoint, pairs)
        raw, value = await self._body(endpoint, arrival, form)
        made = {} if endpoint.page else value
        args, limit = read_arguments(endpoint, parts, pairs, made, streamed=is_streamed(arrival.headers))
        if closing is not self.kit.closing:  # the tokens were read again while the body arrived
            closing, caller = self.kit.closing, self._authorize(endpoint, arrival.headers)
        OWNER.set(caller.owner)
        call = Call(
            kit=self.kit,
            closing=closing,
            api=self.kit.api if caller.grants is None else Guarded(self.kit.api, caller.grants),
            args=args,
            limit=limit,
            body=value,
            raw=raw,
            owner=caller.owner,
            headers=arrival.headers,
            is_head=arrival.scope["method"] == "HEAD",
            receive=arrival.receive,
        )
        what, reads = f"{endpoint.method} {endpoint.path}", endpoint.method == "GET"
        bounded = not (reads or endpoint.waits)
        admitted = self._admission.admitted(arrival.source(), len(raw)) if bounded else nullcontext()
        with admitted, serving(what, reads=reads, passes=(Disconnected,)):
            return await endpoint.handle(call)

    async def _sign_in(self, body: Body) -> bytes:
        """Return the form of a caller without a credential; raises `BodyTooSlow`, also if many others send one."""
        try:
            with self._sign_ins.entered(SIGN_IN_S):
                return await body.read(SIGN_IN_BYTES_MAX)
        finally:
            body.release()  # dropping the rest of a refused form takes time, but no memory
        raise BodyTooSlow(f"the form did not arrive in time (within {SIGN_IN_S:g} s, less if many sign in)")

    async def _body(self, endpoint: Endpoint, arrival: Arrival, form: bytes) -> tuple[bytes, dict[str, Any]]:
        """Return the bytes and the members of the body; ``form``: the body if it came in the query."""
        if endpoint.page and endpoint.method == "POST":
            reading = arrival.body.read(SMALL_BODY_BYTES_MAX) if endpoint.roles else self._sign_in(arrival.body)
            return b"", form_fields(arrival.headers, await reading)
        if not endpoint.has_body:
            if arrival.body.complete:
                await arrival.body.read()  # the message without content; only the disconnect follows it
            return b"", {}
        check_media(arrival.headers)
        if not endpoint.waits:
            self._admission.check(arrival.body.length)
        raw = await arrival.body.read(BODY_BYTES_MAX if endpoint.large else SMALL_BODY_BYTES_MAX)
        if endpoint.form_field:
            raw = form_text(raw, endpoint.form_field) or form
        arrival.body.check_values(raw)
        given = decode_json(raw) if raw or endpoint.body_required else {}
        if not isinstance(given, dict):
            raise BadRequest(f"the body must be an object, not {shown(given)}")
        return raw, given


class Sender:
    """Sends an answer, without a body for HEAD, after the unread rest of the request is dropped.

    Closing a connection with unread data would reset it, and the client may lose the answer.
    """

    def __init__(self, send: Send, body: Body, receive: Receive, *, is_head: bool) -> None:
        self._send = send
        self._body = body
        self._receive = receive
        self._is_head = is_head

    async def __call__(self, message: Message) -> None:
        """Send one ASGI message."""
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        if self._is_head:
            message = {**message, "body": b""}
        if message.get("more_body", False) or self._body.complete:
            await self._send(message)
            return
        await self._send({**message, "more_body": True})
        await self._body.drain()
        await self._finish()

    async def _finish(self) -> None:
        # The server may wait for room for the rest of the body, so it is read here.
        async with anyio.create_task_group() as group:
            group.start_soon(self._swallow)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            group.cancel_scope.cancel()

    async def _swallow(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            await anyio.lowlevel.checkpoint()


def _bearer(headers: Headers) -> bytes | None:
    """Return the digest of the bearer token; None without one."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    token = text.strip()
    return digest_of(token) if scheme.lower() == "bearer" and token else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _random_64() -> int:
    return secrets.randbits(64)


def _matches(endpoint: Endpoint, segments: list[str]) -> bool:
    parts = endpoint.segments
    if len(parts) != len(segments):
        if not endpoint.has_tail or len(parts) > len(segments):
            return False
        segments = _with_tail(parts, segments)
    pairs = zip(parts, segments, strict=True)
    return all(part == segment or (part.startswith("{") and (segment or endpoint.empty)) for part, segment in pairs)


def _with_tail(parts: tuple[str, ...], segments: list[str]) -> list[str]:
    """Return the segments, with all that the last parameter takes as one segment."""
    last = len(parts) - 1
    return [*segments[:last], "/".join(segments[last:])]


def _allow(candidates: Sequence[Endpoint]) -> str:
    methods = {endpoint.method for endpoint in candidates} | {"OPTIONS"}
    if any(endpoint.method == "GET" and endpoint.head for endpoint in candidates):
        methods.add("HEAD")
    return ", ".join(sorted(methods))


def _check_origin(endpoint: Endpoint, headers: Headers) -> None:
    """Raise `Forbidden` for changes by web pages of other sites, which matter without tokens."""
    origin = headers.get("origin")
    if origin is None or endpoint.method == "GET":
        return
    if origin.partition("://")[2] != headers.get("host"):
        raise Forbidden("a page of another site must not do this", field="Origin", hint="Configure tokens to allow it.")


def _path_parts(endpoint: Endpoint, segments: list[str]) -> dict[str, str]:
    if endpoint.has_tail:
        segments = _with_tail(endpoint.segments, segments)
    return {part[1:-1]: text for part, text in zip(endpoint.segments, segments, strict=True) if part.startswith("{")}


def _form_of(endpoint: Endpoint, pairs: list[tuple[str, str]]) -> bytes:
    """Remove the body from the query if it came in a field there, and return it."""
    found = next((pair for pair in pairs if endpoint.form_field and pair[0] == endpoint.form_field), None)
    if found is None:
        return b""
    pairs.remove(found)
    return found[1].encode()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
