"""The search of the whole dashboard: an id, a queue, or a text in tasks."""

from __future__ import annotations

import re

from starlette.responses import RedirectResponse, Response

from onyxq.core.ids import ID_BYTES
from onyxq.interfaces.dashboard.page import Filter, PageArgs, shows
from onyxq.interfaces.dashboard.rendering import HEADERS, link
from onyxq.interfaces.http.endpoint import Call
from onyxq.operations.table.queue import PAGE_QUEUES, PageQueues

BEGINNING = re.compile(rf"[0-9a-fA-F]{{12,{2 * ID_BYTES}}}")
"""The id of a task, or its first digits with the whole time. Shorter beginnings have many matches."""
QUEUES_READ = 50


class SearchPage(PageArgs):
    """A text from the search field."""

    q: Filter = ""


async def get_search(call: Call) -> Response:
    """Redirect to the task, the queue or the list of tasks that a text means."""
    return RedirectResponse(await _place(call, call.args.q.strip()), status_code=303, headers=dict(HEADERS))


async def _place(call: Call, text: str) -> str:
    if BEGINNING.fullmatch(text) and (found := await _task(call, text.lower())):
        return f"/ui/tasks/{found}"
    if text:
        queues = await call.do(PAGE_QUEUES, PageQueues(like=text, limit=QUEUES_READ))
        if any(queue.queue == text for queue in queues.queues):
            return link("/ui/queue", name=text)
    return link("/ui/tasks", where=text)


async def _task(call: Call, text: str) -> str:
    """Return the id of the first task whose id begins with these digits; empty if there is none."""
    if len(text) == 2 * ID_BYTES:
        return text
    before = (int(text.ljust(2 * ID_BYTES, "0"), 16) or 1) - 1
    listed = await call.ask("list", after=before.to_bytes(ID_BYTES, "big"), limit=1)
    found = [task["id"].hex() for task in listed["tasks"]]
    return found[0] if found and found[0].startswith(text) else ""


ENDPOINTS = (shows("/ui/search", "search", get_search, args=SearchPage),)
