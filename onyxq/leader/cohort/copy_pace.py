"""How fast copies are made: a limit in bytes a second, and clients first.

One `Pacer` per node and direction, for all partitions and nodes it exchanges rows with.
While the node serves clients one page is on its way at a time, and each is followed by a
pause in proportion to the time that it took: the busier the two nodes and the network are,
the longer a page takes, and the longer the pause.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

BYTES_PER_S = 64 << 20
"""The limit unless a setting says otherwise."""
PAGES_MAX = 2
"""Pages on their way at once while nobody is served."""
BURST_S = 0.1
"""So far may bytes run ahead of the limit."""
BUSY_S = 0.5
"""A client's write this long ago means that clients are being served."""
BUSY_PAUSE = 8.0
"""Pause behind a page while clients are served, as a multiple of the time that it took: with 4, peers that
share their processors with their clients lost a tenth of their speed more (``bench/sync.py``)."""
PAUSE_MAX_S = 2.0


class Pacer:
    """See the module's first paragraph; ``bytes_per_s`` is the limit."""

    def __init__(self, bytes_per_s: int = BYTES_PER_S) -> None:
        self.bytes_per_s = bytes_per_s
        self._served_at = float("-inf")
        self._free_at = float("-inf")
        self._moved_at = float("-inf")
        self._pages = trio.CapacityLimiter(PAGES_MAX)
        self._alone = trio.Lock()

    def served(self) -> None:
        """A client's write is under way."""
        self._served_at = trio.current_time()

    @property
    def busy(self) -> bool:
        """Whether clients are being served."""
        return trio.current_time() - self._served_at < BUSY_S

    @property
    def quiet(self) -> bool:
        """Whether neither clients are being served nor copies made."""
        return not self.busy and trio.current_time() - self._moved_at >= BUSY_S

    @asynccontextmanager
    async def page(self) -> AsyncIterator[None]:
        """Send or fetch one page inside; leaving it pauses as clients ask for."""
        # A page waits for the one before it and its pause; whoever begins when all is quiet need not.
        async with self._pages:
            if not self.busy:
                yield
                return
            async with self._alone:
                began = trio.current_time()
                yield
                took_s = trio.current_time() - began
                await trio.sleep(min(took_s * BUSY_PAUSE, PAUSE_MAX_S))

    async def took(self, size: int) -> None:
        """Return once ``size`` more bytes fit the limit."""
        now = self._moved_at = trio.current_time()
        self._free_at = max(self._free_at, now) + size / self.bytes_per_s
        await trio.sleep(max(0.0, self._free_at - now - BURST_S))
