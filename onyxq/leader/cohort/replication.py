"""Quorum writes: rows go to every holder of a partition, and a majority must store them.

Writes of many partitions to the same node are sent together, as one message and one transaction
there. The same holds for the leader's own store.
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
"""Called with the node, and with None once it has the rows, otherwise with its error."""
Send = Callable[[list[tuple[int, int, Sequence[Row]]], bool], Awaitable[list[OnyxqError | None]]]
"""Sends a message; the flag says whether the node may answer before the rows are on its disk."""


class Vote:
    """One write, until it is decided.

    It is won once majorities have it. It is lost once majorities can no longer have it and the leader knows
    whether it has the write itself.
    """

    def __init__(self, *, leader: str, members: Sequence[str], target: Sequence[str]) -> None:
        self.acks: set[str] = set()
        self.errors: dict[str, OnyxqError] = {}
        self._leader = leader
        self._cohorts = {frozenset(members), frozenset(target)}
        """Sets of nodes that must each have a majority. Mostly there is only one."""
        self._won = False
        self._decided = trio.Event()
        self._wanted = 0
        self._enough: trio.Event | None = None

    def hear(self, node: str, error: OnyxqError | None) -> None:
        """Take the answer of a holder."""
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
        """The lowest number of acknowledgements that can win."""
        return max(len(cohort) // 2 + 1 for cohort in self._cohorts)

    @property
    def won(self) -> bool:
        """Whether the leader and majorities of members and target have the write."""
        if not self._won:
            self._won = self._leader in self.acks and all(majority(cohort, self.acks) for cohort in self._cohorts)
        return self._won

    @property
    def _lost(self) -> bool:
        if not self.errors:
            return False
        # Until the leader's own store has answered, the leader may take the rows for missing although they are
        # stored here a moment later.
        return self._leader in self.errors or (self._leader in self.acks and self._out_of_reach)

    @property
    def _out_of_reach(self) -> bool:
        """Whether a majority can no longer have the write."""
        hopeful = {node for cohort in self._cohorts for node in cohort} - self.errors.keys()
        return not all(majority(cohort, hopeful) for cohort in self._cohorts)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the decision; return whether it was won within ``timeout_s``."""
        if not self.won:
            with trio.move_on_after(timeout_s):
                await self._decided.wait()
        return self.won

    def has(self, acks: int) -> bool:
        """Return whether the leader and at least ``acks`` nodes in total have the write."""
        return len(self.acks) >= acks and self._leader in self.acks

    def _may_have(self, acks: int) -> bool:
        """Return whether that many nodes, the leader among them, may still get the write."""
        holders = {self._leader}.union(*self._cohorts)
        return self._leader not in self.errors and len(holders - self.errors.keys()) >= acks

    async def wait_for(self, acks: int, timeout_s: float) -> int:
        """Wait until ``acks`` nodes have the write, at most ``timeout_s``; return how many have it.

        Returns early if not enough nodes can get it any more.
        """
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
    """Sends writes to one node."""

    def __init__(self, node: str, send: Send, *, missed: Callable[[], None] = lambda: None) -> None:
        self.node = node
        self._send = send
        self._on_missed = missed
        """Called when a caller begins to wait in `back`."""
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
        """Send writes to the node from now on, because it answers (again)."""
        self._down = None
        self.heard_at = trio.current_time()

    def suspect(self, error: OnyxqError) -> None:
        """Fail the waiting writes, and send no more until `resume`, because the node does not answer.

        The leaders' anti-entropy completes the node's copies later.
        """
        if not isinstance(error, StoreFailed):
            self._down = error
        waiting, self._waiting, self._bytes = list(self._waiting), deque(), 0
        for one in waiting:
            one.heard(self.node, error)

    @property
    def missed(self) -> bool:
        """Whether a caller waits for the node to answer again."""
        return self._waiters > 0

    def returned(self) -> None:
        """Wake the callers in `back`, because the node answered a probe."""
        self._returned.set()
        self._returned = trio.Event()

    async def back(self) -> None:
        """Wait until the node answers a probe."""
        self._waiters += 1
        self._on_missed()
        try:
            await self._returned.wait()
        finally:
            self._waiters -= 1

    def submit(self, partition: int, epoch: int, rows: Sequence[Row], heard: Heard, *, early: bool = False) -> None:
        """Queue rows of one partition; ``heard`` is called once, immediately if the node is down.

        ``early``: the node may answer before the rows are on its disk.
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
    """Return the errors in the maps that ``cohort.write`` returns."""
    return [from_map(result) if result is not None else None for result in results]
