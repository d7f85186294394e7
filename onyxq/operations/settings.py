"""Changes of the replica by clients: settings of queues and periodic tasks.

Each method appends one entry, waits for its verdict, and answers once this node's replica has it.  A repeat of a
method changes nothing.
"""

from __future__ import annotations

from typing import Any

import attrs
from msgspec import UNSET
from pyrsistent import pmap

from log_entries import pause_periodic, remove_periodic, set_periodic, set_queue
from onyxq.core import cron
from onyxq.core.entry import APPLIED
from onyxq.core.errors import BadRequest, NotFound, Unavailable
from onyxq.core.periodic import run_options
from onyxq.core.queue_settings import DEFAULTS, NO_LIMIT, check_writable
from onyxq.core.queues import settings_of
from onyxq.core.replica import Periodic
from onyxq.node.node import Node
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.table.operation import Done
from onyxq.operations.table.periodic import (
    GET_PERIODIC,
    LIST_PERIODIC,
    REMOVE_PERIODIC,
    SET_PERIODIC,
    GetPeriodic,
    ListPeriodic,
    Periodics,
    PeriodicView,
    RemovePeriodic,
    SetPeriodic,
)
from onyxq.operations.table.queue import GET_QUEUE, SET_QUEUE, GetQueue, QueueNow, SetQueue, changes
from onyxq.operations.task_reads import Reading

ALREADY_SO = "already so"


class Settings:
    """Serves the operations on settings of queues and on periodic tasks."""

    def __init__(self, node: Node, reading: Reading) -> None:
        self._node = node
        self._reading = reading

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(
            served(GET_QUEUE, self.get_queue),
            served(SET_QUEUE, self.set_queue),
            served(LIST_PERIODIC, self.list_periodic),
            served(GET_PERIODIC, self.get_periodic),
            served(SET_PERIODIC, self.set_periodic),
            served(REMOVE_PERIODIC, self.remove_periodic),
        )

    # --- queues

    async def set_queue(self, args: SetQueue) -> Done:
        """Change settings of a queue; raises `BadRequest` naming the setting, `Unavailable`."""
        given, cleared = changes(args)
        numbers = {name: value for name, value in given.items() if type(value) is int}
        words = {name: value for name, value in given.items() if isinstance(value, str)}
        flags = {name: value for name, value in given.items() if isinstance(value, bool)}
        await self._submit(
            set_queue.Args(
                queue=args.queue,
                numbers=pmap(numbers),
                words=pmap(words),
                flags=pmap(flags),
                cleared=tuple(sorted(cleared)),
                by=args.by or "",
                why=args.why or "",
            )
        )
        return Done()

    async def get_queue(self, args: GetQueue) -> QueueNow:
        """Return a queue's settings, its depth, its oldest task and the number of its limited claims."""
        found = await self._reading.queue(args.queue)
        replica = self._node.replica
        if args.known and not found.depth.total and settings_of(replica, args.queue) == DEFAULTS:
            hint = "A queue exists once a task was put into it, or once its settings were changed."
            raise NotFound(f"there is no queue {args.queue!r}", field="queue", hint=hint)
        return QueueNow(
            queue=found.queue,
            depth=found.depth,
            oldest_ready_ms=found.oldest_ready_ms,
            settings=found.settings,
            running=replica.running.get(args.queue, 0),
            position=replica.position,
        )

    # --- periodic tasks

    async def set_periodic(self, args: SetPeriodic) -> PeriodicView:
        """Set a periodic task up, or change it; raises `BadRequest` naming the field, `Unavailable`."""
        if args.paused is not UNSET and args == SetPeriodic(name=args.name, paused=args.paused):
            return await self._pause(self._periodic(args.name), paused=args.paused is True)
        for needed in ("queue", "schedule"):
            if getattr(args, needed) is UNSET:
                raise BadRequest(f"{needed} is missing", field=needed)
        if args.queue is not UNSET:
            check_writable(args.queue, "queue")
        given: Any = {name: getattr(args, name) for name in SetPeriodic.__struct_fields__}
        options = {name: given.pop(name) for name in set_periodic.BOUNDS}
        numbers = {name: NO_LIMIT if value is None else value for name, value in options.items() if value is not UNSET}
        given |= {"paused": args.paused is True, "payload": given.pop("data"), "options": pmap(numbers)}
        await self._submit(set_periodic.Args(**given, next_ms=self._next_ms(given["schedule"], args.zone)))
        return shown_periodic(self._periodic(args.name))

    async def get_periodic(self, args: GetPeriodic) -> PeriodicView:
        """Return one periodic task; raises `NotFound`, and `Unavailable` before this peer has read the whole log."""
        return shown_periodic(self._periodic(args.name))

    async def list_periodic(self, args: ListPeriodic) -> Periodics:
        """Return all periodic tasks by name."""
        found = self._node.replica.periodic
        return Periodics(periodic=[shown_periodic(found[name]) for name in sorted(found)])

    async def remove_periodic(self, args: RemovePeriodic) -> Done:
        """Remove a periodic task; raises `NotFound`, `Unavailable`."""
        await self._submit(remove_periodic.Args(self._periodic(args.name).name))
        return Done()

    async def _pause(self, found: Periodic, *, paused: bool) -> PeriodicView:
        next_ms = found.next_ms if paused else self._next_ms(found.schedule, found.zone)
        await self._submit(pause_periodic.Args(found.name, paused, next_ms))
        return shown_periodic(self._periodic(found.name))

    def _next_ms(self, schedule: str, zone: str) -> int:
        cron.zone_of(zone)
        return cron.next_ms(cron.parse(schedule), zone, self._node.wall_ms())

    def _periodic(self, name: str) -> Periodic:
        replica = self._node.replica
        if self._node.peer_id not in replica.ring.members:
            raise Unavailable("this peer has not read the whole log yet, which may have changes of the periodic task")
        found = replica.periodic.get(name)
        if found is None:
            hint = "onyxq periodic list shows those that exist."
            raise NotFound(f"there is no periodic task {name!r}", field="name", hint=hint)
        return found

    async def _submit(self, entry: Any) -> None:
        _, (verdict,) = await self._node.verdicts([entry])
        if verdict in (APPLIED, ALREADY_SO):
            return
        if verdict.startswith("no such"):
            raise NotFound(verdict, field="name")
        raise BadRequest(verdict, field=verdict.partition(" ")[0])


def shown_periodic(periodic: Periodic) -> PeriodicView:
    """Return a periodic task as clients see it; ``next_ms`` is None if it is never due again."""
    shown = attrs.asdict(periodic)
    shown["data"] = shown.pop("payload")
    shown |= run_options(periodic)
    del shown["options"]
    shown["next_ms"] = periodic.next_ms if periodic.next_ms < cron.NEVER_MS else None
    return PeriodicView(**shown)
