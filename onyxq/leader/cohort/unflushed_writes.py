"""Rows that a node acknowledges from memory, before they are on its disk.

This is done only for queues with ``durability`` ``opportunistic``. The possible loss if the machine
stops is bounded. Once one of the rows has waited for the disk for `WINDOW_S`, or many bytes wait,
no more rows are acknowledged early. A write that fails is repeated until the disk accepts it.
Meanwhile no rows are acknowledged early.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import trio

from onyxq.core.errors import BadRequest, StoreFailed
from onyxq.core.facts import Row
from onyxq.store.interface import Batch, Written
from onyxq.store.row_checks import Prepared
from onyxq.store.store import Store
from onyxq.system.signal import Signal

WINDOW_S = 0.1
"""Longest time between the acknowledgements of two rows that are not written yet, in seconds."""
BYTES_MAX = 16 * 1024 * 1024
RETRY_EVERY_S = 0.25
READABLE_S = 1.0

log = logging.getLogger(__name__)


class UnflushedWrites:
    """Writes rows that were acknowledged early; ``stored`` takes the result of each write."""

    def __init__(self, store: Store, *, stored: Callable[[Written], None], start_soon: Callable[..., object]) -> None:
        self._store = store
        self._stored = stored
        self._start_soon = start_soon
        self._since: dict[int, float] = {}
        """Running write -> when its rows were acknowledged; the oldest first."""
        self._bytes = 0
        self._number = 0
        self._flushed = Signal()
        self.longest_s = 0.0
        """The longest wait of a row for the disk so far, in seconds."""

    def take(self, rows: Sequence[Row | Prepared]) -> bool:
        """Start to write checked rows and return True, or return False if they must not be acknowledged early."""
        now = trio.current_time()
        oldest = next(iter(self._since.values()), now)
        if now - oldest >= WINDOW_S or self._bytes >= BYTES_MAX:
            return False
        self._number += 1
        self._since[self._number] = now
        size = sum(len(row.value) for row in rows)
        self._bytes += size
        self._start_soon(self._write, self._number, rows, size)
        return True

    async def flushed(self, timeout_s: float = math.inf) -> None:
        """Wait until all rows that were acknowledged before are written, for up to ``timeout_s``."""
        last, until = self._number, trio.current_time() + timeout_s
        while self._since and next(iter(self._since)) <= last:
            if not await self._flushed.wait(max(0.0, until - trio.current_time())):
                return

    async def readable(self) -> None:
        """Wait like `flushed`, but not long: a reader may miss rows rather than wait for a failing disk."""
        await self.flushed(READABLE_S)

    async def _write(self, number: int, rows: Sequence[Row | Prepared], size: int) -> None:
        try:
            while True:
                try:
                    self._stored(await self._store.write(Batch(rows=rows)))
                    return
                except StoreFailed as error:
                    log.error("%d acknowledged rows cannot be written yet: %s", len(rows), error.message)
                    await trio.sleep(RETRY_EVERY_S)
                except BadRequest as error:
                    log.error("the store refuses %d acknowledged rows: %s", len(rows), error.message)
                    return
        finally:
            self.longest_s = max(self.longest_s, trio.current_time() - self._since.pop(number))
            self._bytes -= size
            self._flushed.fire()
