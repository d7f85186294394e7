"""Periodic calls of an application's functions: a worker registers them and warns about abandoned ones.

If the program drops a periodic call, the cluster keeps it: another version of the program, or another program, may
need it. The worker logs it, and an operator removes it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import anyio
from attrs import frozen

from onyxq.client import AsyncClient
from onyxq.core.errors import Forbidden, NotEnabled, NotFound, OnyxqError, Overloaded, TimedOut, Unavailable
from onyxq.core.limits import Missed
from onyxq.worker.functions import TaskFunction
from onyxq.worker.options import OF_RUNS

PAUSE_FIRST_S, PAUSE_MAX_S = 0.5, 30.0
"""Shortest and longest pause between attempts to register periodic tasks, in seconds."""
CONNECT_PAUSE_S = 0.5
"""Pause between two attempts to connect, in seconds. It does not grow, so that schedules are registered soon."""
TEMPORARY = (Unavailable, Overloaded, TimedOut, NotEnabled)
"""Errors after which a later attempt may succeed. Peers of an earlier version do not know all options yet."""

log = logging.getLogger(__name__)

Tasks = Mapping[str, TaskFunction[..., Any]]


@frozen
class Periodic:
    """A call that the cluster makes on a schedule."""

    function: TaskFunction[..., Any]
    name: str
    schedule: str
    zone: str
    missed: Missed

    def settings(self) -> dict[str, Any]:
        """Return the settings as the cluster stores them."""
        return {
            "queue": self.function.queue,
            "schedule": self.schedule,
            "zone": self.zone,
            "priority": self.function._options.priority,
            "missed": self.missed,
            "format": "json",
            **self.function._options.of_runs,
        }

    def is_same(self, found: Mapping[str, Any]) -> bool:
        """Return whether a periodic task of the cluster makes this call."""
        wanted = {"data": self.function.payload(), **self.settings()}
        return {name: found[name] for name in (*wanted, *OF_RUNS) if name in found} == wanted


async def keep(
    client: AsyncClient,
    periodics: Sequence[Periodic],
    *,
    tasks: Tasks,
    queues: Collection[str],
    give_up: Callable[[OnyxqError], None],
    done: Callable[[], None],
) -> None:
    """Register the periodic calls of an application, and again those that the cluster has lost.

    ``done`` is called after each look that succeeded. ``give_up`` is called with an error that no retry can fix.

    A restored cluster may lack periodic tasks. So a worker looks again after it lost its connection and found a peer.
    It then sets up what is missing, also what an operator removed. A periodic task that exists stays as it is, because
    a worker with a later version of the program may have changed it. Orphans are logged at the first look only.
    """
    pause_s, again = PAUSE_FIRST_S, False
    while True:
        try:
            reconnected = await _connected(client)
            await _set_up_all(client, periodics, again=again)
            found = [] if again else await _all_periodics(client)
            for said in orphans(found, periodics, tasks=tasks, queues=queues):
                log.warning("%s", said)
        except TEMPORARY as error:
            log.warning("periodic tasks are not checked yet, trying again: %s", error.message)
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            continue
        except OnyxqError as error:
            if periodics:
                give_up(error)
            done()
            return
        done()
        if not periodics:
            return
        await reconnected.wait()
        await anyio.sleep(PAUSE_FIRST_S)
        pause_s, again = PAUSE_FIRST_S, True


async def _connected(client: AsyncClient) -> anyio.Event:
    """Wait for a connection without a word, since its worker reports that there is none; see `reconnection`."""
    while True:
        try:
            return await client.reconnection()
        except TEMPORARY:
            await anyio.sleep(CONNECT_PAUSE_S)


async def _all_periodics(client: AsyncClient) -> Sequence[dict[str, Any]]:
    try:
        return await client.periodics()
    except Forbidden:  # the token is for some queues; only one for all queues may list them
        return []


async def _set_up_all(client: AsyncClient, periodics: Sequence[Periodic], *, again: bool) -> None:
    """Register each periodic task, then raise `NotEnabled` if there was one with options that peers do not know."""
    refusal: NotEnabled | None = None
    for periodic in periodics:
        try:
            await _set_up(client, periodic, again=again)
        except NotEnabled as error:
            refusal = error
    if refusal is not None:
        raise refusal


async def _set_up(client: AsyncClient, periodic: Periodic, *, again: bool) -> None:
    """Register a periodic task unless it is already as it should be; a paused one stays paused.

    ``again``: only if it is missing.
    """
    try:
        found = await client.periodic(periodic.name)
    except NotFound:
        found = {}
    if periodic.is_same(found) or (again and found):
        return
    paused = bool(found.get("paused", False))
    payload = periodic.function.payload()
    await client.set_periodic(periodic.name, payload=payload, paused=paused, **periodic.settings())
    if again:
        log.warning("periodic task %r was missing: it is set up again", periodic.name)


def orphans(
    found: Sequence[Mapping[str, Any]], periodics: Sequence[Periodic], *, tasks: Tasks, queues: Collection[str]
) -> list[str]:
    """Return a warning for each periodic call in a worker's queues that its application does not make."""
    mine = {periodic.name for periodic in periodics}
    out = []
    for one in found:
        called = _called(one["data"])
        if one["queue"] in queues and one["name"] not in mine and called is not None:
            what = "does not call it any more" if called in tasks else "has no such task"
            out.append(
                f"periodic task {one['name']!r} calls {called!r}, and this application {what}: "
                f"if no other program needs it, end it with: onyxq periodic remove {one['name']}"
            )
    return out


def _called(data: bytes) -> str | None:
    """Return the name of the task that a payload calls; None if it is not a call."""
    try:
        call = json.loads(data)
    except (ValueError, RecursionError):
        return None
    name = call.get("task") if isinstance(call, dict) else None
    return name if isinstance(name, str) else None
