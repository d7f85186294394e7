"""A signal: procedures and tasks wait for the next change of something, and each change wakes all of them."""

from __future__ import annotations

import math

from onyxq.system.procedures import Wait


class Signal:
    """Wakes all that wait. What begins to wait afterwards waits for the next change."""

    def __init__(self) -> None:
        self._waiting: dict[Wait, None] = {}

    @property
    def awaited(self) -> bool:
        """Whether a procedure or task waits."""
        return bool(self._waiting)

    def fire(self) -> None:
        """Wake all that wait."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            one.end()

    async def wait(self, timeout_s: float = math.inf) -> bool:
        """Wait for the next change, up to ``timeout_s``; return whether it came."""
        one = Wait()
        self._waiting[one] = None
        try:
            return await one.wait(timeout_s)
        finally:
            self._waiting.pop(one, None)
