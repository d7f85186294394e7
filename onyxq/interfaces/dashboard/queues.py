"""All queues page by page, and one queue with its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Annotated, Any

from attrs import frozen
from msgspec import Meta
from starlette.responses import Response

from onyxq.core.errors import OnyxqError
from onyxq.core.limits import Name, members
from onyxq.core.queue_settings import DEFAULTS, SETTINGS
from onyxq.history import words
from onyxq.history.attempts import attempt_ms
from onyxq.interfaces.dashboard.page import COUNT_WAIT_MS, ROWS, Filter, PageArgs, shows
from onyxq.interfaces.dashboard.rendering import counted, page
from onyxq.interfaces.http.endpoint import Call
from onyxq.operations.table.json_form import parameter
from onyxq.operations.table.missing_workers import Missing, missing_worker, still_queues
from onyxq.operations.table.queue import GET_QUEUE, PAGE_QUEUES, GetQueue, QueueRow, QueueSettings, QueueView

LATEST = 50
"""Latest completed tasks whose times are shown."""
SHARE = 0.95
MINUTE_MS = 60_000
STATES = ("ready", "scheduled", "waiting", "claimed", "completed", "failed", "cancelled")
ORDERS = {"name": "name", "unfinished": "most unfinished", "failed": "most failed", "oldest": "longest wait"}


class QueuesPage(PageArgs):
    """Queues with a text in their name, in some order."""

    like: Filter = ""
    order: Filter = ""
    skip: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class OneQueue(PageArgs, kw_only=True):
    """One queue."""

    name: Name


async def get_queues(call: Call) -> Response:
    """Answer with queues that have a text in their name, in some order."""
    like, order, skip = call.args.like, call.args.order or "name", call.args.skip
    asked = {"like": like, "order": order, "skip": skip, "limit": ROWS, "wait_ms": COUNT_WAIT_MS}
    found = await call.do(PAGE_QUEUES, PAGE_QUEUES.decode(asked))
    return page(
        call,
        "queues.html",
        title="Queues",
        here="/ui/queues",
        found=found,
        missing=await missing(call, found.queues),
        like=like,
        order=order,
        orders=ORDERS,
        skip=skip,
        rows=ROWS,
        states=STATES,
    )


async def missing(call: Call, queues: Sequence[QueueView | QueueRow]) -> Missing | None:
    """Return what some of the queues lack to run their ready tasks; None if they lack nothing, or if it is unknown."""
    names = still_queues(queues)
    try:
        return missing_worker(names, await call.ask("workers")) if names else None
    except OnyxqError:
        return None  # a credential may be for some queues only


async def get_queue(call: Call) -> Response:
    """Answer with one queue."""
    name = call.args.name
    found = await call.do(GET_QUEUE, GetQueue(queue=name))
    done = await call.ask("list", queue=name, state="completed", limit=LATEST, newest_first=True)
    settings = [
        {
            "name": one,
            "value": getattr(found.settings, one),
            "shown": _in_form(getattr(found.settings, one)),
            "default": getattr(DEFAULTS, one),
            "about": member.about,
            "schema": parameter(member),
        }
        for one, member in members(QueueSettings).items()
        if one in SETTINGS and one != "paused"
    ]
    return page(
        call,
        "queue.html",
        title=f"Queue {name}",
        here="/ui/queues",
        queue=found,
        missing=await missing(call, [found]),
        settings=settings,
        states=STATES,
        pace=pace_of(done["tasks"], call.kit.now_ms()),
        limits=limits_of(found.settings),
    )


@frozen
class Pace:
    """How fast the latest tasks of a queue were completed."""

    tasks: int
    """Number of tasks that were read."""
    last_minute: int
    """Number of these that were completed in the last minute."""
    wait_p95_ms: int
    run_p95_ms: int
    """Of their last attempts: a task that was retried is not counted as if it ran in the pauses between attempts."""


def pace_of(tasks: Sequence[Mapping[str, Any]], now_ms: int) -> Pace | None:
    """Return the pace of completed tasks; None if no task has its times."""
    known = [one for one in tasks if None not in (one["started_ms"], one["finished_ms"])]
    if not known:
        return None
    return Pace(
        len(known),
        sum(one["finished_ms"] > now_ms - MINUTE_MS for one in known),
        _p95([max(0, one["started_ms"] - one["created_ms"]) for one in known]),
        _p95([attempt_ms(one) or 0 for one in known]),
    )


def _p95(values: Sequence[int]) -> int:
    return sorted(values)[ceil(SHARE * len(values)) - 1]


def limits_of(settings: Any) -> list[str]:
    """Return what the settings of a queue mean, as sentences."""
    at_most = [
        (settings.rate, f"at most {settings.rate:g} tasks start per second"),
        (settings.concurrency, f"at most {counted(settings.concurrency, 'task')} run at a time"),
        (settings.key_rate, f"at most {settings.key_rate:g} tasks of one ordering key start per second"),
    ]
    limits = [text for value, text in at_most if value] or ["no limit on the rate or on running tasks"]
    retried = "not retried"
    if settings.retries != 0:
        times = "until an attempt succeeds" if settings.retries is None else f"up to {settings.retries} times"
        first = f"first after {words.duration(settings.backoff_ms)}; each further pause is twice as long"
        retried = f"retried {times}, {first}"
    return [
        f"In the whole cluster: {', '.join(limits)}.",
        f"Unless its function has other retries, a failed task is {retried}.",
        f"A worker holds a task for {words.duration(settings.lease_ms)} and renews it while the task runs.",
        f"Finished tasks are kept for {words.duration(settings.retention_ms)}.",
    ]


def _in_form(value: Any) -> str:
    """Return a setting as its form field has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


ENDPOINTS = (
    shows("/ui/queues", "queues_page", get_queues, args=QueuesPage),
    shows("/ui/queue", "queue_page", get_queue, args=OneQueue),
)
