"""Periodic calls of an application's functions: a worker sets them up, and tells of those that nobody wants any more.

What the program no longer has the cluster still has, and another version of the program, or another
program, may want it: so it is told, and an operator ends it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import anyio
from attrs import frozen

from onyxq.client import AsyncClient
from onyxq.core.errors import NotFound, OnyxqError, Overloaded, TimedOut, Unavailable
from onyxq.worker.functions import TaskFunction

PAUSE_FIRST_S, PAUSE_MAX_S = 0.5, 30.0
"""Pauses between attempts at setting periodic tasks up."""

log = logging.getLogger(__name__)

Tasks = Mapping[str, TaskFunction[..., Any]]


@frozen
class Periodic:
    """A call that the cluster makes by itself."""

    function: TaskFunction[..., Any]
    name: str
    schedule: str
    zone: str
    missed: str

    def settings(self) -> dict[str, Any]:
        """As the cluster keeps it."""
        return {
            "queue": self.function.queue,
            "schedule": self.schedule,
            "zone": self.zone,
            "priority": self.function._options.priority,
            "missed": self.missed,
            "format": "json",
        }


async def keep(
    client: AsyncClient,
    periodics: Sequence[Periodic],
    *,
    tasks: Tasks,
    queues: Collection[str],
    give_up: Callable[[OnyxqError], None],
) -> None:
    """Set up what an application calls again and again, and log what it does not call any more.

    ``give_up`` is told of what no retry can mend.
    """
    pause_s = PAUSE_FIRST_S
    while True:
        try:
            for periodic in periodics:
                await _set_up(client, periodic)
            for said in orphans(await client.periodics(), periodics, tasks=tasks, queues=queues):
                log.warning("%s", said)
            return
        except (Unavailable, Overloaded, TimedOut) as error:
            log.warning("periodic tasks are not set up yet, trying again: %s", error.message)
        except OnyxqError as error:
            if periodics:
                give_up(error)
            return
        await anyio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


async def _set_up(client: AsyncClient, periodic: Periodic) -> None:
    """Set a periodic task up, unless it is as it should be; one that is paused stays paused."""
    settings, payload = periodic.settings(), periodic.function.payload()
    try:
        found = await client.periodic(periodic.name)
    except NotFound:
        found = {}
    if found.get("data") != payload or any(found.get(name) != value for name, value in settings.items()):
        paused = bool(found.get("paused", False))
        await client.set_periodic(periodic.name, payload=payload, paused=paused, **settings)


def orphans(
    found: Sequence[Mapping[str, Any]], periodics: Sequence[Periodic], *, tasks: Tasks, queues: Collection[str]
) -> list[str]:
    """What to tell of each periodic call in a worker's queues that its application does not make."""
    mine = {periodic.name for periodic in periodics}
    out = []
    for one in found:
        called = _called(one["data"])
        if one["queue"] in queues and one["name"] not in mine and called is not None:
            what = "does not call it any more" if called in tasks else "has no such task"
            out.append(
                f"periodic task {one['name']!r} calls {called!r}, and this application {what}: "
                f"if nobody else wants it, end it with: onyxq periodic remove {one['name']}"
            )
    return out


def _called(data: bytes) -> str | None:
    """The name of the task that a payload calls; None if it is no call."""
    try:
        call = json.loads(data)
    except ValueError:
        return None
    name = call.get("task") if isinstance(call, dict) else None
    return name if isinstance(name, str) else None
