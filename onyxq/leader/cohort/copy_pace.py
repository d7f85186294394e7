"""The speed of copying: a limit in bytes per second, and priority for clients.

There is one `Pacer` per node and direction, for all partitions and nodes with which it exchanges
rows. While the node serves clients, only one page is in flight. After each page there is a pause in
proportion to the time that the page took. The busier the two nodes and the network are, the longer
a page takes, and the longer is the pause.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

BYTES_PER_S = 64 << 20
"""Default limit, in bytes per second."""
PAGES_MAX = 2
"""Pages in flight at once while no client is served."""
BURST_S = 0.1
"""Longest time by which bytes may exceed the limit, in seconds."""
BUSY_S = 0.5
"""Time after a client's write for which clients count as being served, in seconds."""
BUSY_PAUSE = 8.0
"""Pause after a page while clients are served, as a multiple of the time that the page took.

With 4, peers that share their processors with their clients lost another tenth of their speed
(``bench/sync.py``).
"""
PAUSE_MAX_S = 2.0


class Pacer:
    """Limits the speed of copying to ``bytes_per_s`` bytes per second, with priority for clients."""

    def __init__(self, bytes_per_s: int = BYTES_PER_S) -> None:
        self.bytes_per_s = bytes_per_s
        self._served_at = float("-inf")
        self._free_at = float("-inf")
        self._moved_at = float("-inf")
        self._pages = trio.CapacityLimiter(PAGES_MAX)
        self._alone = trio.Lock()

    def served(self) -> None:
        """Take note that a client's write has started."""
        self._served_at = trio.current_time()

    @property
    def busy(self) -> bool:
        """Whether clients are being served."""
        return trio.current_time() - self._served_at < BUSY_S

    @property
    def quiet(self) -> bool:
        """Whether no client is being served and no copy is being made."""
        return not self.busy and trio.current_time() - self._moved_at >= BUSY_S

    @asynccontextmanager
    async def page(self) -> AsyncIterator[None]:
        """Send or fetch one page inside the context; at its end, pause if clients are being served."""
        # A page waits for the previous page and its pause, unless no client is being served.
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
        """Wait until ``size`` more bytes fit the limit."""
        now = self._moved_at = trio.current_time()
        self._free_at = max(self._free_at, now) + size / self.bytes_per_s
        await trio.sleep(max(0.0, self._free_at - now - BURST_S))
