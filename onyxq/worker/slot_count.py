"""How many slots a worker has, between bounds (design: claims).

Only full slots tell that there is more to do, and only empty ones that there is less.  So a
worker whose slots were nearly always busy for a second gets half as many again, and one that
left slots unused for half a minute loses those.
"""

from __future__ import annotations

LOOK_EVERY_S = 1.0
BUSY = 0.9
"""The part of a second in which slots ran something, from which on they count as full."""
UNUSED_LOOKS = 30
"""So many looks in a row decide what was not used."""


class Scaling:
    """Slots from ``least`` to ``most``; told at each change what runs, and looked at every `LOOK_EVERY_S`."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        self.slots = least
        self._running = 0
        self._since = self._looked_at = 0.0
        self._busy_s = 0.0
        """Seconds that slots ran something since the last look, all together."""
        self._used = 0
        """The most that ran at a time since slots were last taken or found used."""
        self._looks = 0

    def runs(self, tasks: int, now: float) -> None:
        """So many tasks run from now on."""
        self._busy_s += self._running * (now - self._since)
        self._running, self._since = tasks, now
        self._used = max(self._used, tasks)

    def look(self, now: float) -> bool:
        """Decide; whether the number of slots changed."""
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
