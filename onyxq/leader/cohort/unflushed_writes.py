"""Rows that a node answers for from memory, before they are on its disk.

Only for queues that ask for it (``durability`` ``opportunistic``).  How much can be lost if
the machine stops is bounded: once one of the rows has waited for the disk for
`WINDOW_S`, or many bytes wait, nothing more is answered for before it is written.  A disk
that fails is tried again until it takes the rows, and meanwhile nothing is answered early.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from onyxq.core.errors import BadRequest, StoreFailed
from onyxq.core.facts import Row
from onyxq.store.interface import Batch, Store, Written
from onyxq.store.row_checks import Prepared

WINDOW_S = 0.1
"""What was answered for, and is not written yet, was so within a span of this length."""
BYTES_MAX = 16 * 1024 * 1024
RETRY_EVERY_S = 0.25
READABLE_S = 1.0

log = logging.getLogger(__name__)


class Floating:
    """See the module's first paragraph; ``stored`` hears what each write changed."""

    def __init__(self, store: Store, *, stored: Callable[[Written], None], start_soon: Callable[..., object]) -> None:
        self._store = store
        self._stored = stored
        self._start_soon = start_soon
        self._since: dict[int, float] = {}
        """When each write that is under way was answered for; the oldest first."""
        self._bytes = 0
        self._number = 0
        self._landed = trio.Event()
        self.longest_s = 0.0
        """The longest that a row had to wait so far."""

    def take(self, rows: Sequence[Row | Prepared]) -> bool:
        """Begin to write checked rows; whether they may be answered for now. If not nothing was begun."""
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

    async def landed(self) -> None:
        """Return once all that was answered for before is written."""
        last = self._number
        while self._since and next(iter(self._since)) <= last:
            await self._landed.wait()

    async def readable(self) -> None:
        """The same for who would rather miss some than wait for a disk that fails."""
        with trio.move_on_after(READABLE_S):
            await self.landed()

    async def _write(self, number: int, rows: Sequence[Row | Prepared], size: int) -> None:
        try:
            while True:
                try:
                    self._stored(await self._store.write(Batch(rows=rows)))
                    return
                except StoreFailed as error:
                    log.error("%d rows that were answered for cannot be written yet: %s", len(rows), error.message)
                    await trio.sleep(RETRY_EVERY_S)
                except BadRequest as error:
                    log.error("%d rows that were answered for are refused: %s", len(rows), error.message)
                    return
        finally:
            self.longest_s = max(self.longest_s, trio.current_time() - self._since.pop(number))
            self._bytes -= size
            self._landed.set()
            self._landed = trio.Event()
