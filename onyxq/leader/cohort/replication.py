"""Quorum writes: rows go to every holder of a partition, and a majority must keep them.

Writes of many partitions that wait for the same node leave together: one message, one
transaction there.  The same holds for the leader's own store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import trio

from onyxq.core.errors import OnyxqError, StoreFailed, Unavailable, from_map
from onyxq.core.facts import Row
from onyxq.core.replica import majority

SENDER_FLIGHTS = 2
"""Messages in flight per destination."""
SENDER_BYTES_MAX = 4 * 1024 * 1024
"""Row bytes of one message, unless one write alone has more."""

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Row bytes that may wait for one node before it counts as down."""

Heard = Callable[[str, OnyxqError | None], None]
"""Called with the node and None once it has the rows, else with its error."""
Send = Callable[[list[tuple[int, int, Sequence[Row]]], bool], Awaitable[list[OnyxqError | None]]]
"""Sends a message; told whether the node may answer before its disk has the rows."""


class Vote:
    """One write under way: decided when majorities have it, or can no longer have it and the leader knows if it has."""

    def __init__(self, *, leader: str, members: Sequence[str], target: Sequence[str]) -> None:
        self.acks: set[str] = set()
        self.errors: dict[str, OnyxqError] = {}
        self._leader = leader
        self._cohorts = {frozenset(members), frozenset(target)}
        """Those of which a majority must have it; mostly both are the same."""
        self._won = False
        self._decided = trio.Event()
        self._wanted = 0
        self._enough: trio.Event | None = None

    def hear(self, node: str, error: OnyxqError | None) -> None:
        """A holder answered."""
        if error is None:
            self.acks.add(node)
        else:
            self.errors[node] = error
        if self.won or self._lost:
            self._decided.set()
        if self._enough is not None and (self.has(self._wanted) or not self._may_have(self._wanted)):
            self._enough.set()

    @property
    def majority(self) -> int:
        """How many acks it takes at least."""
        return max(len(cohort) // 2 + 1 for cohort in self._cohorts)

    @property
    def won(self) -> bool:
        """The leader and majorities of members and target have it."""
        if not self._won:
            self._won = self._leader in self.acks and all(majority(cohort, self.acks) for cohort in self._cohorts)
        return self._won

    @property
    def _lost(self) -> bool:
        if not self.errors:
            return False
        # As long as the leader does not know it could take what is stored here a moment later for absent.
        return self._leader in self.errors or (self._leader in self.acks and self._out_of_reach)

    @property
    def _out_of_reach(self) -> bool:
        """Whether a majority can no longer have it."""
        hopeful = {node for cohort in self._cohorts for node in cohort} - self.errors.keys()
        return not all(majority(cohort, hopeful) for cohort in self._cohorts)

    async def wait(self, timeout_s: float) -> bool:
        """Whether it was won within ``timeout_s``."""
        if not self.won:
            with trio.move_on_after(timeout_s):
                await self._decided.wait()
        return self.won

    def has(self, acks: int) -> bool:
        """Whether the leader and so many in all have it."""
        return len(self.acks) >= acks and self._leader in self.acks

    def _may_have(self, acks: int) -> bool:
        """Whether that many nodes, the leader among them, may still get it."""
        holders = {self._leader}.union(*self._cohorts)
        return self._leader not in self.errors and len(holders - self.errors.keys()) >= acks

    async def wait_for(self, acks: int, timeout_s: float) -> int:
        """Return how many nodes have it, once ``acks`` have, or that has become impossible, or ``timeout_s`` passed."""
        if not self.has(acks) and self._may_have(acks):
            self._wanted, self._enough = acks, trio.Event()
            with trio.move_on_after(timeout_s):
                await self._enough.wait()
        return len(self.acks)


class _Waiting(NamedTuple):
    """Rows that wait to be sent."""

    partition: int
    epoch: int
    rows: Sequence[Row]
    heard: Heard
    early: bool


class Sender:
    """Carries writes to one node; see the module's first paragraph."""

    def __init__(self, node: str, send: Send, *, missed: Callable[[], None] = lambda: None) -> None:
        self.node = node
        self._send = send
        self._on_missed = missed
        """Called when somebody begins to wait in `back`."""
        self._waiting: deque[_Waiting] = deque()
        self._wake = trio.Event()
        self._bytes = 0
        self._down: OnyxqError | None = None
        self.heard_at = float("-inf")
        """Monotonic second of the last answer."""
        self._waiters = 0
        self._returned = trio.Event()

    @property
    def down(self) -> bool:
        """Whether the node did not answer the last writes."""
        return self._down is not None

    def resume(self) -> None:
        """The node answers (again): writes are sent to it from now on."""
        self._down = None
        self.heard_at = trio.current_time()

    def suspect(self, error: OnyxqError) -> None:
        """It does not answer: who waits hears it now, and nothing more is sent until `resume`.

        The leaders' anti-entropy makes the node whole later.
        """
        if not isinstance(error, StoreFailed):
            self._down = error
        waiting, self._waiting, self._bytes = list(self._waiting), deque(), 0
        for one in waiting:
            one.heard(self.node, error)

    @property
    def missed(self) -> bool:
        """Whether somebody waits for the node to answer again."""
        return self._waiters > 0

    def returned(self) -> None:
        """The node answered a probe: whoever waits in `back` goes on."""
        self._returned.set()
        self._returned = trio.Event()

    async def back(self) -> None:
        """Return when the node, which did not answer, answers a probe."""
        self._waiters += 1
        self._on_missed()
        try:
            await self._returned.wait()
        finally:
            self._waiters -= 1

    def submit(self, partition: int, epoch: int, rows: Sequence[Row], heard: Heard, *, early: bool = False) -> None:
        """Queue rows of one partition; ``heard`` is called once, at once if the node is down.

        ``early``: the node may answer before they are on its disk.
        """
        size = sum(len(row.value) for row in rows)
        if self._down is None and self._bytes + size > WAITING_BYTES_MAX and self._waiting:
            self.suspect(Unavailable(f"node {self.node} does not keep up"))
        if self._down is not None:
            heard(self.node, self._down)
            return
        self._bytes += size
        self._waiting.append(_Waiting(partition, epoch, rows, heard, early))
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(SENDER_FLIGHTS):
                nursery.start_soon(self._flight)

    async def _flight(self) -> None:
        while True:
            while not self._waiting:
                if self._wake.is_set():
                    self._wake = trio.Event()
                await self._wake.wait()
            group = self._take()
            try:
                errors = await self._send([one[:3] for one in group], group[0].early)
                self.heard_at = trio.current_time()
            except OnyxqError as error:
                errors = [error] * len(group)
                self.suspect(error)
            for one, problem in zip(group, errors, strict=True):
                one.heard(self.node, problem)

    def _take(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._waiting:
            following = self._waiting[0]
            more = sum(len(row.value) for row in following.rows)
            if group and (size + more > SENDER_BYTES_MAX or following.early != group[0].early):
                break
            group.append(self._waiting.popleft())
            size += more
        self._bytes -= size
        return group


def errors_from(results: Sequence[dict[str, object] | None]) -> list[OnyxqError | None]:
    """Errors out of the maps that ``cohort.write`` answers."""
    return [from_map(result) if result is not None else None for result in results]
