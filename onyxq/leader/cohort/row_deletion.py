"""Deletion of purged rows, which every node does little by little (design: retention).

Rows below a watermark are hidden and refused as soon as a record has raised it. The rows are
deleted later, in small steps. So clients do not wait, however much is purged at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import trio

from onyxq.core.errors import StoreFailed
from onyxq.core.purged import watermark_of
from onyxq.core.replica import Replica
from onyxq.store.interface import Batch, Purge
from onyxq.store.store import Store

ROWS_MAX = 256
"""Rows deleted in one write. The event loop is busy for that long."""
PAUSE_S = 0.01
ROUND_S = 60.0
"""Pause between two checks, in seconds, for purged rows that were restored when a damaged row was repaired."""
RETRY_S = 1.0

log = logging.getLogger(__name__)


class RowDeletionHost(Protocol):
    """What deletion needs of its node."""

    store: Store
    replica: Replica


class RowDeletion:
    """Deletes purged rows of one node; ``deleted`` is called with the number of rows deleted."""

    def __init__(self, host: RowDeletionHost, deleted: Callable[[int], None]) -> None:
        self._host = host
        self._deleted = deleted
        self._todo: set[int] = set()
        self._wake = trio.Event()

    def note(self, before: Replica, after: Replica) -> None:
        """Hide what a step of the log purged, and delete it later."""
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
        """Check all partitions for rows to delete."""
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
                log.warning("partition %d: purged rows cannot be deleted now: %s", number, error.message)
                await trio.sleep(RETRY_S)
                continue
            rows += written.purged_rows
            self._deleted(written.purged_rows)
            after = written.purged_after
            if not after:
                break
            await trio.sleep(PAUSE_S)
        if rows:
            log.info("partition %d: deleted %d rows of purged tasks", number, rows)
