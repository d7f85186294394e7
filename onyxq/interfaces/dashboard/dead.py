"""The page of dead letters, which can be requeued or discarded."""

from __future__ import annotations

from starlette.responses import Response

from onyxq.interfaces.dashboard.page import ROWS, After, Filter, PageArgs, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call


class DeadPage(PageArgs):
    """Dead letters of a queue, or with a text in their error."""

    queue: Filter = ""
    where: Filter = ""
    after: After = None


async def get_dead(call: Call) -> Response:
    """Answer with a page of dead letters."""
    args: DeadPage = call.args
    queue, where = args.queue or None, args.where or None
    found = await call.ask("dead", queue=queue, where=where, after=args.after, limit=ROWS)
    return page(
        call,
        "dead.html",
        title="Dead letters",
        here="/ui/dead",
        tasks=found["tasks"],
        after=found["after"],
        is_first=args.after is None,
        queue=queue or "",
        where=where or "",
    )


ENDPOINTS = (shows("/ui/dead", "dead_page", get_dead, args=DeadPage),)
