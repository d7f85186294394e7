"""Periodic tasks: their schedules in words, the next run, and how the last one ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import anyio
import attrs
from attrs import frozen
from msgspec import UNSET, Meta
from starlette.responses import Response

from onyxq.core import cron
from onyxq.core.errors import BadRequest, NotFound, OnyxqError
from onyxq.core.periodic import task_id
from onyxq.core.replica import Periodic
from onyxq.history import words
from onyxq.interfaces.dashboard.calls import TITLE_CHARS, arguments_of
from onyxq.interfaces.dashboard.page import ROWS, Filter, PageArgs, shows
from onyxq.interfaces.dashboard.rendering import beginning, counted, page
from onyxq.interfaces.dashboard.schedules import in_words
from onyxq.interfaces.http.endpoint import Call
from onyxq.operations.table.calls import call_of
from onyxq.operations.table.periodic import LIST_PERIODIC, ListPeriodic, PeriodicView
from onyxq.system.durations import exact_span

TIMES_TRIED = 3
"""Number of latest times of a schedule at which the last run is looked for; the newest may not have a run yet."""
MISSED = {"once": "", "skip": "missed times are skipped", "all": "missed times are caught up"}
LOOK_BACK_MS = 9 * 366 * 86_400_000
"""Greatest age of a last run that is looked for; every schedule has a time in this period."""


class PeriodicPage(PageArgs):
    """Periodic tasks with a text in their name, queue or schedule."""

    like: Filter = ""
    skip: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


@frozen
class Row:
    """A periodic task on the page."""

    task: PeriodicView
    schedule: str
    """In words."""
    last: Mapping[str, Any] | None = None
    """The task of the last run; None: none is stored."""

    @property
    def said(self) -> str:
        """The call that its tasks make, or the beginning of their data."""
        call = call_of(self.task.data)
        if call is None:
            return beginning(self.task.data) if self.task.data else ""
        return f"{words.brief(call.function, TITLE_CHARS)}({arguments_of(call)})"

    @property
    def options(self) -> str:
        """What its tasks have in place of defaults, in words."""
        task = self.task
        said = [f"priority {task.priority}" if task.priority else "", MISSED[task.missed]]
        if task.retries is None:
            said.append("retries without limit")
        elif task.retries is not UNSET:
            said.append(counted(task.retries, "retry", "retries"))
        if task.backoff_ms is not UNSET:
            said.append(f"first retry after {exact_span(task.backoff_ms)}")
        if task.expires_after_ms is not UNSET:
            said.append(f"fails if not started within {exact_span(task.expires_after_ms)}")
        return ", ".join(filter(None, said))


async def get_periodic(call: Call) -> Response:
    """Answer with a page of periodic tasks by name."""
    like, skip = call.args.like.strip(), call.args.skip
    known = (await call.do(LIST_PERIODIC, ListPeriodic())).periodic
    found = [one for one in known if like in f"{one.name}\n{one.queue}\n{one.schedule}"]
    rows = [Row(one, in_words(one.schedule, one.zone)) for one in found[skip : skip + ROWS]]
    return page(
        call,
        "periodic.html",
        title="Periodic tasks",
        here="/ui/periodic",
        found=await _with_last_runs(call, rows),
        count=len(found),
        all=len(known),
        like=like,
        skip=skip,
        rows=ROWS,
    )


async def _with_last_runs(call: Call, rows: list[Row]) -> list[Row]:
    """Return rows with the tasks of their last runs, which are asked for together."""
    partitions = await call.partitions()
    out = list(rows)

    async def look(place: int) -> None:
        out[place] = attrs.evolve(out[place], last=await _last_run(call, out[place].task, partitions))

    async with anyio.create_task_group() as group:
        for place, row in enumerate(rows):
            if row.task.fired:
                group.start_soon(look, place)
    return out


async def _last_run(call: Call, one: PeriodicView, partitions: int) -> Mapping[str, Any] | None:
    """Return the task of the last run; None if it is not stored, or cannot be read now."""
    found = Periodic(name=one.name, queue=one.queue, schedule=one.schedule, zone=one.zone)
    for time_ms in reversed(last_times(one, call.kit.now_ms())):
        try:
            task: Mapping[str, Any] = await call.ask("get", id=task_id(found, time_ms, partitions))
        except NotFound:
            continue
        except OnyxqError:
            return None
        return task
    return None


def last_times(one: PeriodicView, now_ms: int) -> list[int]:
    """Return the latest times of a schedule, in ms since the epoch, oldest first; none if it cannot be read here."""
    first_ms = max(0, now_ms - LOOK_BACK_MS)
    try:
        found = cron.last(cron.parse(one.schedule), one.zone, first_ms, now_ms, TIMES_TRIED)
    except BadRequest:
        return []
    return [time_ms for time_ms in found if time_ms > first_ms]


ENDPOINTS = (shows("/ui/periodic", "periodic_page", get_periodic, args=PeriodicPage),)
