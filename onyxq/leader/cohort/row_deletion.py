"""Every node deletes the rows of what is purged, a little at a time (design: retention).

From the record that raised a watermark on nothing below it is shown or taken; the rows go
behind that at leisure, so however much is purged at once nobody waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import trio

from onyxq.core.errors import StoreFailed
from onyxq.core.purged import watermark_of
from onyxq.core.replica import Replica
from onyxq.store.interface import Batch, Purge, Store

ROWS_MAX = 256
"""Rows deleted in one write: for so long the event loop is busy."""
PAUSE_S = 0.01
ROUND_S = 60.0
"""Between two looks for rows that came back otherwise: a damaged one that was put right."""
RETRY_S = 1.0

log = logging.getLogger(__name__)


class DeletingHost(Protocol):
    """What deleting needs of its node."""

    store: Store
    replica: Replica


class Deleting:
    """See the module's first paragraph; ``deleted`` hears how many rows went."""

    def __init__(self, host: DeletingHost, deleted: Callable[[int], None]) -> None:
        self._host = host
        self._deleted = deleted
        self._todo: set[int] = set()
        self._wake = trio.Event()

    def note(self, before: Replica, after: Replica) -> None:
        """The log went on: hide at once what is purged now, and delete it later."""
        for number, placed in after.partitions.items():
            if placed.purged_ms and placed is not before.partitions.get(number):
                watermark = watermark_of(placed)
                known = self._host.store.watermark(number)
                if watermark != known and watermark.reaches(known):
                    self._host.store.raise_watermark(number, watermark)
                    self._todo.add(number)
                    self._wake.set()

    async def run(self) -> None:
        """Delete until cancelled."""
        while True:
            await self._look()
            while self._todo:
                number = min(self._todo)
                self._todo.discard(number)
                if self._host.store.purge_left(number):
                    await self._delete(number)
            self._wake = trio.Event()
            with trio.move_on_after(ROUND_S):
                await self._wake.wait()

    async def _look(self) -> None:
        """Look through all partitions for something to delete."""
        for number in self._host.store.partitions():
            if self._host.store.purge_left(number):
                self._todo.add(number)
            await trio.lowlevel.checkpoint()

    async def _delete(self, number: int) -> None:
        store, after, rows = self._host.store, b"", 0
        while True:
            try:
                written = await store.write(Batch(purge=Purge(number, store.watermark(number), after, ROWS_MAX)))
            except StoreFailed as error:
                log.warning("partition %d: what is purged cannot be deleted now: %s", number, error.message)
                await trio.sleep(RETRY_S)
                continue
            rows += written.purged_rows
            self._deleted(written.purged_rows)
            after = written.purged_after
            if not after:
                break
            await trio.sleep(PAUSE_S)
        if rows:
            log.info("partition %d: %d rows of purged tasks are deleted", number, rows)
