"""What pages are to the HTTP interface: endpoints whose query tells what to show and what was just done."""

from __future__ import annotations

from collections.abc import Mapping

from onyxq.interfaces.dashboard.session import refused
from onyxq.interfaces.http.endpoint import Endpoint, Handler
from onyxq.interfaces.http.shapes import Field, HexId, Integer, Object, Text

ROWS = 50
"""Of a list, in one page."""
COUNT_WAIT_MS = 40
"""How long a page waits for the first count of all queues; then it comes without, and asks again by itself."""
FILTER_CHARS_MAX = 1_000


def filter_field(doc: str) -> Field:
    """A field of a filter; forms send it empty where nothing is wanted."""
    return Field(Text(0, FILTER_CHARS_MAX, name=False), doc=doc)


AFTER = Field(HexId(), doc="Show what comes behind this id.")
_DONE: Mapping[str, Field] = {
    "did": Field(Text(0, 40), doc="The action that led here."),
    "count": Field(Integer(0), doc="How many it changed."),
}


def shows(
    path: str,
    name: str,
    handle: Handler,
    *,
    query: Mapping[str, Field] | None = None,
    waits: bool = False,
    role: str | None = "read",
) -> Endpoint:
    """The endpoint of a page."""
    return Endpoint(
        method="GET",
        path=path,
        name=name,
        tag="pages",
        summary=f"The page {name.replace('_', ' ')}",
        handle=handle,
        query=Object(name.title().replace("_", ""), {**_DONE, **(query or {})}),
        answer={"type": "string"},
        media="text/html",
        role=role,
        waits=waits,
        page=True,
        tell=refused,
    )
