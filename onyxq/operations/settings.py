"""What clients change in the replica by way of this node: queues' settings and periodic tasks.

Each method appends one entry, waits for its verdict, and answers once this node's replica has
it.  A method may be repeated: what is so already stays so.
"""

from __future__ import annotations

from typing import Any

from attrs import asdict

from log_entries import pause_periodic, remove_periodic, set_periodic
from onyxq.core import cron
from onyxq.core.entry import APPLIED
from onyxq.core.errors import BadRequest, NotFound
from onyxq.core.replica import Periodic
from onyxq.node.arguments import only
from onyxq.node.node import Node
from onyxq.operations.arguments import queues as check
from onyxq.operations.task_reads import Reading

ALREADY_SO = "already so"


class Settings:
    """The methods ``queue.*`` and ``periodic.*`` of a node."""

    def __init__(self, node: Node, reading: Reading) -> None:
        self._node = node
        self._reading = reading

    # --- queues

    async def set_queue(self, args: dict[str, Any]) -> dict[str, Any]:
        """Change settings of a queue; raises `BadRequest` naming the setting, `Unavailable`."""
        await self._submit(check.queue_settings(args))
        return {}

    async def get_queue(self, args: dict[str, Any]) -> dict[str, Any]:
        """A queue's settings, its depth by state, its oldest task, and how many of its limited tasks are claimed."""
        queue = check.queue_name(args)
        found = await self._reading.queue(queue)
        replica = self._node.replica
        return {**found, "running": replica.running.get(queue, 0), "position": replica.position}

    # --- periodic tasks

    async def set_periodic(self, args: dict[str, Any]) -> dict[str, Any]:
        """Set a periodic task up, or change it; raises `BadRequest` naming the field, `Unavailable`."""
        given = check.periodic(args)
        next_ms = self._next_ms(given["schedule"], given["zone"])
        await self._submit(set_periodic.Args(**given, next_ms=next_ms))
        return await self.get_periodic({"name": given["name"]})

    async def get_periodic(self, args: dict[str, Any]) -> dict[str, Any]:
        """One periodic task; raises `NotFound`."""
        return shown_periodic(self._periodic(check.periodic_name(args)))

    async def list_periodic(self, args: dict[str, Any]) -> dict[str, Any]:
        """All periodic tasks by name."""
        only(args, ())
        found = self._node.replica.periodic
        return {"periodic": [shown_periodic(found[name]) for name in sorted(found)]}

    async def remove_periodic(self, args: dict[str, Any]) -> dict[str, Any]:
        """End a periodic task; raises `NotFound`, `Unavailable`."""
        await self._submit(remove_periodic.Args(self._periodic(check.periodic_name(args)).name))
        return {}

    async def pause_periodic(self, args: dict[str, Any]) -> dict[str, Any]:
        """Pause a periodic task, or resume it (``paused`` false); raises `NotFound`, `Unavailable`."""
        found = self._periodic(check.periodic_name(args, "paused"))
        paused = check.switch(args.get("paused", True), "paused")
        next_ms = found.next_ms if paused else self._next_ms(found.schedule, found.zone)
        await self._submit(pause_periodic.Args(found.name, paused, next_ms))
        return await self.get_periodic({"name": found.name})

    def _next_ms(self, schedule: str, zone: str) -> int:
        cron.zone_of(zone)
        return cron.next_ms(cron.parse(schedule), zone, self._node.wall_ms())

    def _periodic(self, name: str) -> Periodic:
        found = self._node.replica.periodic.get(name)
        if found is None:
            raise NotFound(f"there is no periodic task {name!r}", field="name", hint="Look at those there are.")
        return found

    async def _submit(self, entry: Any) -> None:
        _, (verdict,) = await self._node.verdicts([entry])
        if verdict in (APPLIED, ALREADY_SO):
            return
        if verdict.startswith("no such"):
            raise NotFound(verdict, field="name")
        raise BadRequest(verdict, field=verdict.partition(" ")[0])


def shown_periodic(periodic: Periodic) -> dict[str, Any]:
    """A periodic task as clients see it; ``next_ms`` is null if it never falls due again."""
    shown = asdict(periodic)
    shown["data"] = shown.pop("payload")
    shown["next_ms"] = periodic.next_ms if periodic.next_ms < cron.NEVER_MS else None
    return shown
