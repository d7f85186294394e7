"""Pages as endpoints of the HTTP interface: the query has what to show, and the last action."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, get_args

from msgspec import Meta

from onyxq.core.errors import BadRequest
from onyxq.core.limits import TaskIdBytes
from onyxq.interfaces.dashboard.session import refused
from onyxq.interfaces.http.endpoint import Endpoint, Handler
from onyxq.operations.table.operation import Args

ROWS = 50
"""Rows of a list in one page."""
COUNT_WAIT_MS = 40
"""How long a page waits for the first count of all queues; then it comes without, and asks again."""
FILTER_CHARS_MAX = 1_000
Filter: TypeAlias = Annotated[str, Meta(max_length=FILTER_CHARS_MAX)]
"""A field of a filter; forms send it empty for no filter."""
After: TypeAlias = Annotated[TaskIdBytes | None, Meta(description="Show what comes after this id.")]


class PageArgs(Args):
    """Base of the arguments of pages: the action that led there."""

    did: Annotated[str, Meta(max_length=40, description="The action.")] = ""
    count: Annotated[int, Meta(ge=0, description="Number of things that it changed.")] = 0
    refused: Annotated[int, Meta(ge=0, description="Number of things that it could not change.")] = 0


def shows(
    path: str,
    name: str,
    handle: Handler,
    *,
    args: type[Args] = PageArgs,
    waits: bool = False,
    role: str | None = "read",
) -> Endpoint:
    """Return the endpoint of a page."""
    return Endpoint(
        method="GET",
        path=path,
        name=name,
        tag="pages",
        summary=f"The page {name.replace('_', ' ')}",
        handle=handle,
        args=args,
        answer={"type": "string"},
        media="text/html",
        role=role,
        waits=waits,
        page=True,
        tell=refused,
    )


def filtered(state: str, states: Any) -> str | None:
    """Return the state that a page is asked for, or None for all; ``states``: a literal type. Raises `BadRequest`."""
    known = get_args(states)
    if state and state not in known:
        raise BadRequest(f"state must be one of {', '.join(known)}", field="state")
    return state or None
