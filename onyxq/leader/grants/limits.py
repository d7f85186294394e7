"""Limits of queues at a leader: how many more tasks may be granted now.

Limits hold in the whole cluster, so the log decides. An entry that would exceed a limit changes
nothing. With the counts here, leaders avoid useless entries and know when to try again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from onyxq.core import queues
from onyxq.core.replica import Replica
from onyxq.system.procedures import Wait, now

Name = TypeVar("Name", bound=Hashable)


class LimitsHost(Protocol):
    """What limits need of their node."""

    replica: Replica


class Limits:
    """Limits of all queues at one node."""

    def __init__(self, host: LimitsHost) -> None:
        self._host = host
        self._asked: dict[str, int] = {}
        """Tasks of limited queues that are being granted."""
        self._moved_s = 0.0
        """Monotonic second of the replica's last record."""

    def moved(self, before: Replica, after: Replica) -> list[str]:
        """Take a step of the log; return the queues whose limits or counts it changed."""
        self._moved_s = now()
        if before.queues is after.queues and before.running is after.running and before.rates is after.rates:
            return []
        return sorted(
            queue
            for queue in {*before.queues, *after.queues}
            if before.queues.get(queue) is not after.queues.get(queue)
            or before.running.get(queue) != after.running.get(queue)
            or before.rates.get(queue) != after.rates.get(queue)
        )

    def room(self, queue: str) -> int | None:
        """Return how many more tasks of a queue may be granted; None: any number."""
        replica = self._host.replica
        if queue not in replica.queues:
            return None
        left = queues.room(replica, queue, since_ms=self._since_ms())
        return left if left is None else max(0, left - self._asked.get(queue, 0))

    def wait_s(self, queue: str) -> float | None:
        """Return in how many seconds the queue's rate allows another task; None if it does not wait for its rate."""
        if queues.settings_of(self._host.replica, queue).paused:
            return None
        wait_ms = queues.wait_ms(self._host.replica, queue)
        if wait_ms is None or wait_ms <= (since_ms := self._since_ms()):
            return None  # it waits until claims end or grants are decided, and steps of the log report both
        return (wait_ms - since_ms) / 1000

    def limited(self, queue: str) -> bool:
        """Return whether the queue has limits, so that its grants are counted."""
        replica = self._host.replica
        return queue in replica.queues and queues.is_limited(replica.queues[queue])

    def ask(self, queue: str, count: int) -> None:
        """Count tasks of a limited queue as being granted; a negative count ends that, once the log has decided."""
        asked = self._asked.get(queue, 0) + count
        if asked > 0:
            self._asked[queue] = asked
        else:
            self._asked.pop(queue, None)

    def _since_ms(self) -> int:
        return int((now() - self._moved_s) * 1000)


class WakeTimers:
    """Calls ``wake(name)`` at given times. Each name has one pending time, the earliest."""

    def __init__(self, wake: Callable[[Name], None]) -> None:
        self._wake: Callable[..., None] = wake
        self._times: list[tuple[float, int, Hashable]] = []
        self._pending: dict[Hashable, float] = {}
        self._count = 0
        self._sooner = Wait()

    def after(self, seconds: float, name: Hashable) -> None:
        """Wake ``name`` after a number of seconds, unless it will be woken earlier anyway."""
        at_s = now() + seconds
        if self._pending.get(name, float("inf")) <= at_s:
            return
        self._pending[name] = at_s
        self._count += 1
        heapq.heappush(self._times, (at_s, self._count, name))
        self._sooner.end()

    async def run(self) -> None:
        """Wake names until cancelled."""
        while True:
            wait_s = self._times[0][0] - now() if self._times else float("inf")
            if wait_s > 0:
                self._sooner = Wait()
                await self._sooner.wait(wait_s)
                continue
            at_s, _, name = heapq.heappop(self._times)
            if self._pending.get(name) == at_s:
                del self._pending[name]
                self._wake(name)
