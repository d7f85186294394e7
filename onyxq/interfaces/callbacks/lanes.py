"""Limits of a node's callbacks, so that receivers that do not answer delay few others.  Pure: callers pass the time.

A lane has the callbacks to one receiver (a host and port).  It is new before its first callback has ended, then slow
while callbacks take longer than `SLOW_S`, otherwise quick.  All lanes share `RUNS_MAX` places.  A host may use a part
of the free places, so its limit falls while many hosts are busy, and some places are always free (source: Choudhury and
Hahne, "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2),
1998).  Slow lanes leave places for new ones, and both leave places for quick ones.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Generic, Literal, TypeAlias, TypeVar

from attrs import define, field, frozen

PLACES = 512
"""Largest number of callbacks that a node has claimed at a time."""
AHEAD_MAX = 128
"""Largest number of them that wait in lanes."""
RUNS_MAX = PLACES - AHEAD_MAX
"""Largest number of them that run. Each may have a connection."""
SLOW_S = 1.0
"""Longest time of a callback in a lane that is not slow, in seconds."""
SLOW_AHEAD_MAX = AHEAD_MAX // 2
"""Largest number of callbacks that wait in slow lanes."""
PATIENCE_S = 2.0
"""Longest expected wait in a lane, in seconds."""
WEIGHT = 0.1
"""Weight of the latest callback in the average time of a lane."""
LANES_MAX = 2_000
"""Number of lanes, with those without callbacks, above which an idle one is forgotten."""

T = TypeVar("T")
Admission: TypeAlias = Literal["runs", "waits", "late"]
"""Whether a callback runs now, waits in its lane, or must be postponed."""


@frozen
class Limits:
    """Limits of the running callbacks in lanes of one kind."""

    lane: int
    """Largest number in one lane."""
    kept: int
    """Free places that these lanes leave for lanes of other kinds."""
    part: int
    """Divisor of the free places, less ``kept``: the result is the limit of a host."""


QUICK, NEW, SLOW = Limits(lane=32, kept=0, part=1), Limits(lane=32, kept=64, part=4), Limits(lane=8, kept=128, part=32)


@define(eq=False)
class Lane(Generic[T]):
    """Callbacks to one receiver."""

    host: str
    waiting: deque[T] = field(factory=deque)
    begun_s: dict[T, float] = field(factory=dict)
    """Start times of the running callbacks; the oldest first."""
    took_s: float = 0.0
    """Average time of recent callbacks, in seconds."""
    is_known: bool = False
    """Whether a callback to the receiver has ended."""

    @property
    def is_idle(self) -> bool:
        """Whether the lane has no callback."""
        return not self.begun_s and not self.waiting

    def is_slow(self, now_s: float) -> bool:
        """Return whether callbacks take longer than `SLOW_S`."""
        return self._takes_s(now_s) > SLOW_S

    def limits(self, now_s: float) -> Limits:
        """Return the limits of the lane's kind."""
        return SLOW if self.is_slow(now_s) else QUICK if self.is_known else NEW

    def wait_s(self, now_s: float) -> float:
        """Return the expected wait of a new callback, in seconds."""
        return len(self.waiting) * self._takes_s(now_s) / self.limits(now_s).lane

    def _takes_s(self, now_s: float) -> float:
        return max(self.took_s, now_s - next(iter(self.begun_s.values()), now_s))


class Lanes(Generic[T]):
    """All lanes of a node, by name: ``HOST:PORT``, or the name of a transport whose receivers are not known."""

    def __init__(self) -> None:
        self.waiting = 0
        """Number of callbacks that wait."""
        self._lanes: OrderedDict[str, Lane[T]] = OrderedDict()
        """Lanes in the order in which they were made or became idle; slow ones that became idle are first."""
        self._running: Counter[str] = Counter()
        """Number of running callbacks by host."""

    def admit(self, name: str, one: T, now_s: float) -> Admission:
        """Start a callback, put it into its lane to wait, or refuse it because the wait would be too long."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name.rpartition(":")[0] or name)
        if self._may_run(lane, now_s):
            self._begin(lane, one, now_s)
            return "runs"
        lane.waiting.append(one)
        self.waiting += 1
        if self._is_late(lane, now_s):
            lane.waiting.pop()
            self.waiting -= 1
            self._rest(name)
            return "late"
        return "waits"

    def end(self, name: str, one: T, now_s: float, *, made: bool) -> list[T]:
        """Note the end of a callback that ran, and return callbacks of its lane that start now.

        ``made``: whether the receiver was called. Only then the time shows how quick the receiver is.
        """
        lane, found = self._lanes[name], list[T]()
        took_s = now_s - lane.begun_s.pop(one)
        if made:
            lane.took_s += (WEIGHT if lane.is_known else 1) * (took_s - lane.took_s)
            lane.is_known = True
        self._running[lane.host] -= 1
        if not self._running[lane.host]:
            del self._running[lane.host]
        while lane.waiting and self._may_run(lane, now_s):
            found.append(lane.waiting.popleft())
            self._begin(lane, found[-1], now_s)
        self.waiting -= len(found)
        self._rest(name)
        return found

    def late(self, now_s: float) -> list[T]:
        """Remove the callbacks whose wait would be too long now from their lanes, and return them."""
        return self._taken(lambda lane: self._is_late(lane, now_s))

    def drained(self) -> list[T]:
        """Remove all waiting callbacks from their lanes, and return them."""
        return self._taken(lambda lane: True)

    def _taken(self, goes: Callable[[Lane[T]], bool]) -> list[T]:
        found: list[T] = []
        for lane in self._lanes.values():
            while lane.waiting and goes(lane):
                found.append(lane.waiting.pop())
                self.waiting -= 1
        return found

    def _begin(self, lane: Lane[T], one: T, now_s: float) -> None:
        lane.begun_s[one] = now_s
        self._running[lane.host] += 1

    def _may_run(self, lane: Lane[T], now_s: float) -> bool:
        limits, free = lane.limits(now_s), RUNS_MAX - self._running.total()
        fits = self._running[lane.host] * limits.part < free - limits.kept
        return fits and len(lane.begun_s) < limits.lane

    def _is_late(self, lane: Lane[T], now_s: float) -> bool:
        """Return whether the last waiting callback of a lane must be postponed."""
        if not lane.begun_s or lane.wait_s(now_s) > PATIENCE_S:
            return True  # A waiting callback starts only when a callback of its lane ends.
        return lane.is_slow(now_s) and self._waiting_in_slow(now_s) > SLOW_AHEAD_MAX

    def _waiting_in_slow(self, now_s: float) -> int:
        return sum(len(lane.waiting) for lane in self._lanes.values() if lane.waiting and lane.is_slow(now_s))

    def _rest(self, name: str) -> None:
        """Forget a lane if it is idle and new. If there are too many lanes, forget a slow one or the longest idle."""
        lane = self._lanes[name]
        if not lane.is_idle:
            return
        del self._lanes[name]
        if lane.is_known:
            self._lanes[name] = lane
            self._lanes.move_to_end(name, last=lane.took_s <= SLOW_S)
        if len(self._lanes) > LANES_MAX:
            idle = (other for other, lane in self._lanes.items() if lane.is_idle)
            self._lanes.pop(next(idle, name), None)
