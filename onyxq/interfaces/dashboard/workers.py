"""The page of workers by host: those that hold claims or wait for tasks, and what they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import field, frozen
from starlette.responses import Response

from onyxq.interfaces.dashboard.page import ROWS, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.dashboard.tasks import rows
from onyxq.interfaces.http.endpoint import Call

RUNNING_MAX = ROWS
"""Most running tasks on the page, the newest first."""


@frozen
class Host:
    """The workers of a host: their names begin with its name and a colon."""

    name: str
    workers: list[dict[str, Any]] = field(factory=list)

    @property
    def claimed(self) -> int:
        """Number of tasks that its workers hold."""
        return sum(int(one["claimed"]) for one in self.workers)

    @property
    def busy(self) -> int:
        """Number of its workers that hold tasks."""
        return sum(one["claimed"] > 0 for one in self.workers)


async def get_workers(call: Call) -> Response:
    """Return the page."""
    found = await call.ask("workers")
    running = rows((await call.ask("list", state="claimed", limit=RUNNING_MAX, newest_first=True))["tasks"])
    return page(
        call,
        "workers.html",
        title="Workers",
        here="/ui/workers",
        found=found,
        hosts=hosts_of(found["workers"], running),
        more=len(running) == RUNNING_MAX,
    )


def hosts_of(workers: Iterable[Mapping[str, Any]], running: Iterable[Mapping[str, Any]]) -> list[Host]:
    """Return the workers by host, the busiest host first, with the tasks that each runs."""
    tasks: dict[str, list[Mapping[str, Any]]] = {}
    for task in running:
        if task["claims"]:
            tasks.setdefault(task["claims"][-1]["worker"], []).append(task)
    hosts: dict[str, Host] = {}
    for one in workers:
        name = str(one["worker"]).rpartition(":")[0]
        hosts.setdefault(name, Host(name)).workers.append({**one, "running": tasks.get(one["worker"], [])})
    return sorted(hosts.values(), key=lambda host: (-host.claimed, host.name))


ENDPOINTS = (shows("/ui/workers", "workers_page", get_workers),)
