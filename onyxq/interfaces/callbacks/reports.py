"""Reports how claims ended.

A report leaves at once while fewer than `TELLERS` are on their way; later ones gather and go
together.  A callback whose completion is not stored when its peer dies is made again, so
reports wait for nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from attrs import define, field

from onyxq.core.errors import OnyxqError, from_map

ITEMS_MAX = 500
TRIES = 6
PAUSE_S = 0.25
"""Before what nobody could take is told again."""
TELLERS = 4
"""Requests of one method under way at a time."""
METHODS = ("complete", "fail", "release")

log = logging.getLogger(__name__)

Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]


@define(eq=False)
class _Report:
    """One claim that ended: the item of the method."""

    item: list[Any]
    over: Callable[[], None]
    """Called once it was taken, or given up."""
    tries: int = 0


@define
class _Batch:
    """What waits to be told by one method."""

    waiting: list[_Report] = field(factory=list)
    wake: trio.Event = field(factory=trio.Event)


class Reporting:
    """See the module's first paragraph; ``ask`` calls a method of the node."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._batches = {method: _Batch() for method in METHODS}

    async def run(self) -> None:
        """Tell until cancelled."""
        async with trio.open_nursery() as nursery:
            for method, batch in self._batches.items():
                for _ in range(TELLERS):
                    nursery.start_soon(self._tell_all, method, batch)

    def add(self, method: str, item: list[Any], over: Callable[[], None]) -> None:
        """Have an item of ``complete``, ``fail`` or ``release`` told."""
        batch = self._batches[method]
        batch.waiting.append(_Report(item, over))
        batch.wake.set()

    async def _tell_all(self, method: str, batch: _Batch) -> None:
        while True:
            while not batch.waiting:
                if batch.wake.is_set():
                    batch.wake = trio.Event()
                await batch.wake.wait()
            some, batch.waiting = batch.waiting[:ITEMS_MAX], batch.waiting[ITEMS_MAX:]
            again = await self._tell(method, some)
            if again:
                await trio.sleep(PAUSE_S)
                batch.waiting = again + batch.waiting

    async def _tell(self, method: str, reports: list[_Report]) -> list[_Report]:
        """Those that nobody could take now, and that are worth another try."""
        problems: list[OnyxqError | None]
        try:
            answer = await self._ask(method, {"items": [report.item for report in reports]})
            problems = [from_map(parts[0][2]) if parts else None for parts in answer["results"]]
        except OnyxqError as error:
            problems = [error] * len(reports)
        again = []
        for report, problem in zip(reports, problems, strict=True):
            report.tries += 1
            if problem is not None and problem.status == 503 and report.tries < TRIES:
                again.append(report)
                continue
            if problem is not None:
                task = report.item[0].hex()
                log.info("that timer task %s is to %s was not taken: %s", task, method, problem.message)
            report.over()
        return again
