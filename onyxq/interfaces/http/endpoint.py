"""Endpoints of the HTTP interface, and the arguments of their handlers.

Endpoints are values in explicit tables. Routing, authorization, validation and the OpenAPI document follow from
them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import anyio
from attrs import define, field, frozen
from starlette.responses import Response
from starlette.types import Receive

from onyxq.access.grants import Access
from onyxq.core.errors import OnyxqError
from onyxq.core.ids import IdMaker
from onyxq.interfaces.http.past import Past
from onyxq.interfaces.http.problems import problem
from onyxq.operations.table.json_form import Schema
from onyxq.operations.table.operation import A, Args, Operation, R, Result
from onyxq.system.settings import Setting

T = TypeVar("T")

ENDPOINT_ROLES: Mapping[str, tuple[str, ...]] = {"write": ("consume", "produce")}
"""Name -> roles, one of them enough."""


class Api(Protocol):
    """The node's service as this interface uses it."""

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Return the result of a method of the node; raises `OnyxqError`."""
        ...

    async def do(self, operation: Operation[A, R], args: A) -> R:
        """Return the result of an operation with valid arguments; raises `OnyxqError`."""
        ...


@define
class Kit:
    """State that lives as long as the application."""

    api: Api
    now_ms: Callable[[], int]
    maker: IdMaker
    document: Callable[[], dict[str, Any]]
    """The OpenAPI document."""
    access: Access
    """The known credentials."""
    closing: anyio.Event = field(factory=anyio.Event)
    """Set when the server stops, or another one replaces it: waiting requests answer then."""
    avoided: dict[int, int] = field(factory=dict)
    """Partition -> time in ms until which new tasks go to others."""
    partitions: int = 0
    """Number of partitions, once known."""
    past: Past = field(factory=Past)
    """The replica at earlier positions, for views of the log."""
    settings: tuple[Setting, ...] = ()
    """The settings of this process with their sources and without secrets."""
    kept: dict[str, bytes] = field(factory=dict)
    """Path -> answer that never changes, once it was asked for."""
    turn: int = 0
    """Rises with each run of new tasks, and spreads them over partitions."""


@frozen
class Call:
    """One request after its validation."""

    kit: Kit
    closing: anyio.Event
    """That of the `Kit` when the caller was identified: set when waiting requests must answer."""
    api: Api
    """The node's service with the permissions of the caller."""
    args: Any
    """The arguments: a struct of the endpoint's type."""
    limit: int | None
    """The limit of a stream of lines, which may be more than a page has."""
    body: Mapping[str, Any]
    raw: bytes
    """The body as it arrived."""
    owner: str
    """Name of the credential, which does not contain it; empty if none is needed."""
    headers: Mapping[str, str]
    is_head: bool
    receive: Receive
    """Returns only the client's disconnect once the body is read."""

    async def partitions(self) -> int:
        """Return the number of partitions, which never changes."""
        if not self.kit.partitions:
            self.kit.partitions = (await self.ask("routes"))["partitions"]
        return self.kit.partitions

    async def ask(self, method: str, **args: Any) -> Any:
        """Return the result of a method of the node; raises `OnyxqError`."""
        return await self.api.call(method, args)

    async def do(self, operation: Operation[A, R], args: A) -> R:
        """Return the result of an operation; raises `OnyxqError`."""
        return await self.api.do(operation, args)

    async def while_connected(self, work: Callable[[], Awaitable[T]]) -> tuple[T | None, bool]:
        """Return the result of ``work``, None if it was cancelled, and whether the client is gone.

        The work is cancelled when the client goes away or the server stops.
        """
        result: T | None = None
        gone = False
        failure: OnyxqError | None = None
        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()

            async def watch_client() -> None:
                nonlocal gone
                while (await self.receive())["type"] != "http.disconnect":
                    await anyio.lowlevel.checkpoint()
                gone = True
                scope.cancel()

            async def watch_server() -> None:
                await self.closing.wait()
                scope.cancel()

            group.start_soon(watch_client)
            group.start_soon(watch_server)
            with scope:
                try:
                    result = await work()
                except OnyxqError as error:
                    failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return result, gone


Handler: TypeAlias = Callable[[Call], Awaitable[Response]]


@frozen
class Failure:
    """A request that failed, and its error."""

    error: OnyxqError
    method: str
    path: str
    """Decoded."""
    address: str
    """Path and query as they arrived."""
    headers: Mapping[str, str]


Tell: TypeAlias = Callable[[Failure], Response]


def as_problem(failure: Failure) -> Response:
    """Return a problem document, for programs."""
    return problem(failure.error)


class Nothing(Args):
    """No arguments."""


@frozen(kw_only=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    """Segments in braces are arguments."""
    name: str
    """The operation's id, for generated clients."""
    summary: str
    doc: str = ""
    tag: str
    handle: Handler
    role: str | tuple[str, ...] | None = "read"
    """Role that a token needs, or several roles, one of them enough; None: no token is needed.

    A request without it is refused at once.  The operations that the handler calls decide on which queues it is
    needed: see `onyxq.operations.table.access`.
    """
    args: type[Args] = Nothing
    """Arguments that the path names, and all others in the query, or in the body of POST and PUT."""
    fixed: Mapping[str, Any] = field(factory=dict)
    """Arguments that it always has."""
    whole: str = ""
    """The argument that the whole body is; empty: the body has the arguments as members."""
    rewrite: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Function that gives the members of a body their own names before they are decoded; raises `BadRequest`."""
    body_required: bool = True
    large: bool = False
    """Whether the body may have 16 MiB, for lists of tasks or data; others have at most 256 KiB."""
    form_field: str = ""
    """Field of a form, or of the query, in which the JSON may come instead of being the body."""
    has_tail: bool = False
    """Whether the path's last parameter takes all that follows, slashes included."""
    empty: bool = False
    """Whether the path's parameters may be empty."""
    head: bool = True
    """Whether HEAD is answered as GET without the body."""
    status: int = 200
    result: type[Result] | None = None
    """Type of the answer."""
    answer: Schema | None = None
    """JSON schema of an answer without such a type; None: no body."""
    media: str = "application/json"
    headers: Mapping[str, Any] = field(factory=dict)
    """Type of each header that it reads."""
    errors: tuple[int, ...] = ()
    """Statuses of its own errors, besides those of any endpoint."""
    waits: bool = False
    """Whether it may wait for long: such requests have a bound of their own."""
    vital: bool = False
    """Whether it is answered under overload too."""
    page: bool = False
    """Whether it is for browsers: its body is a form, and the cookie of a session is accepted."""
    tell: Tell = as_problem
    """Function that answers its errors, and those of other methods on its path."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles, one of them enough for a token; none: no token is needed."""
        named = (self.role,) if isinstance(self.role, str) else self.role or ()
        return tuple(role for name in named for role in ENDPOINT_ROLES.get(name, (name,)))

    @property
    def has_body(self) -> bool:
        """Whether requests have a JSON body."""
        return self.method in ("POST", "PUT") and not self.page

    @property
    def segments(self) -> tuple[str, ...]:
        """The path's parts."""
        return tuple(self.path.strip("/").split("/"))
