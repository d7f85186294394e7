"""Reports of the outcomes of claims.

A report is sent at once if fewer than `SENDERS` requests are in flight.  Later reports are sent together.  If
a peer dies before a completion is stored, the callback is made again, so reports are never held back.
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
"""Pause before reports that failed are sent again, in seconds."""
SENDERS = 4
"""Most requests of one method in flight."""
METHODS = ("complete", "fail", "release")

log = logging.getLogger(__name__)

Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]


@define(eq=False)
class _Report:
    """The report of one claim: an item of the method's arguments."""

    item: list[Any]
    over: Callable[[], None]
    """Called when the report was accepted or given up."""
    tries: int = 0


@define
class _Batch:
    """Reports that wait for one method."""

    waiting: list[_Report] = field(factory=list)
    wake: trio.Event = field(factory=trio.Event)


class Reporting:
    """The reports of one node; ``ask`` calls a method of the node."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._batches = {method: _Batch() for method in METHODS}

    async def run(self) -> None:
        """Send reports until cancelled."""
        async with trio.open_nursery() as nursery:
            for method, batch in self._batches.items():
                for _ in range(SENDERS):
                    nursery.start_soon(self._send_all, method, batch)

    def add(self, method: str, item: list[Any], over: Callable[[], None]) -> None:
        """Add an item for ``complete``, ``fail`` or ``release``; ``over`` is called at its end."""
        batch = self._batches[method]
        batch.waiting.append(_Report(item, over))
        batch.wake.set()

    async def _send_all(self, method: str, batch: _Batch) -> None:
        while True:
            while not batch.waiting:
                if batch.wake.is_set():
                    batch.wake = trio.Event()
                await batch.wake.wait()
            some, batch.waiting = batch.waiting[:ITEMS_MAX], batch.waiting[ITEMS_MAX:]
            again = await self._send(method, some)
            if again:
                await trio.sleep(PAUSE_S)
                batch.waiting = again + batch.waiting

    async def _send(self, method: str, reports: list[_Report]) -> list[_Report]:
        """Send reports; return those that could not be accepted now and are to be sent again."""
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
                log.info("timer task %s: %s was refused: %s", task, method, problem.message)
            report.over()
        return again
