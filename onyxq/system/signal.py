"""A signal: tasks wait for the next change of something, and each change wakes all of them."""

from __future__ import annotations

import trio


class Signal:
    """Wakes all waiting tasks. A task that begins to wait afterwards waits for the next change."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def fire(self) -> None:
        """Wake all waiting tasks."""
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._event.wait()
