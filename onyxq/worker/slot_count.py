"""Number of a worker's slots, between bounds (design: claims).

Only busy slots show that there is more to do, and only empty ones that there is less. If nearly all slots were busy
for a second, the worker gets half as many again. Slots that were unused for half a minute are removed.
"""

from __future__ import annotations

LOOK_EVERY_S = 1.0
BUSY = 0.9
"""Part of a second in which slots must run tasks to count as busy."""
UNUSED_LOOKS = 30
"""Number of consecutive checks after which unused slots are removed."""


class Scaling:
    """Slots from ``least`` to ``most``; fed with each change of the running tasks, checked every `LOOK_EVERY_S`."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        self.slots = least
        self._running = 0
        self._since = self._looked_at = 0.0
        self._busy_s = 0.0
        """Seconds that slots ran tasks since the last check, summed over slots."""
        self._used = 0
        """Largest number of tasks at a time since unused slots were last looked for."""
        self._looks = 0

    def runs(self, tasks: int, now: float) -> None:
        """Record that ``tasks`` tasks run from now on."""
        self._busy_s += self._running * (now - self._since)
        self._running, self._since = tasks, now
        self._used = max(self._used, tasks)

    def look(self, now: float) -> bool:
        """Adapt the number of slots; return whether it changed."""
        self.runs(self._running, now)
        passed_s, self._looked_at = now - self._looked_at, now
        busy, self._busy_s = self._busy_s, 0.0
        before = self.slots
        if busy >= BUSY * self.slots * passed_s:
            self.slots = min(self.most, self.slots + max(1, self.slots // 2))
            self._looks = 0
        self._looks += 1
        if self._looks >= UNUSED_LOOKS:
            self.slots = max(self.least, min(self.slots, self._used))
            self._looks, self._used = 0, self._running
        return self.slots != before
