"""Quorum writes: rows go to every holder of a partition, and a majority must store them.

Writes of many partitions to the same node are sent together, as one message and one transaction
there. The same holds for the leader's own store, whose transactions take what waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import trio

from onyxq.core.errors import OnyxqError, StaleEpoch, StoreFailed, Unavailable, Unknown, from_map
from onyxq.core.facts import Row
from onyxq.core.replica import majority
from onyxq.leader.cohort.member import Cohort
from onyxq.leader.cohort.pending_facts import split_rows
from onyxq.leader.cohort.unflushed_writes import UnflushedWrites
from onyxq.store.index.pending_rows import check_pending
from onyxq.store.interface import Batch, Piece, Written
from onyxq.store.row_checks import Prepared, prepare
from onyxq.store.store import Store
from onyxq.system.procedures import Wait

SENDER_FLIGHTS = 2
"""Messages in flight per destination."""
SENDER_BYTES_MAX = 4 * 1024 * 1024
"""Row bytes of one message, unless one write alone has more."""

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Row bytes that may wait for one node before it counts as down."""
WRITE_TIMEOUT_S = 3.0


Rows: TypeAlias = Sequence[Row | Prepared]


class Vote:
    """One write, until it is decided.

    It is won once majorities have it. It is lost once majorities can no longer have it and the leader knows
    whether it has the write itself. ``failed`` is called with each holder that has not stored it, and the error;
    ``own`` with the answer of the leader's own store; ``decided`` once, with whether it is won.
    """

    def __init__(
        self,
        *,
        leader: str,
        members: Sequence[str],
        target: Sequence[str],
        failed: Callable[[str, OnyxqError], None],
        own: Callable[[OnyxqError | None], None] | None = None,
        decided: Callable[[bool], None] | None = None,
    ) -> None:
        self.acks: set[str] = set()
        self.errors: dict[str, OnyxqError] = {}
        self._leader = leader
        self._failed = failed
        self._own = own
        self._tell_decided = decided
        self._cohorts = {frozenset(members), frozenset(target)}
        """Sets of nodes that must each have a majority. Mostly there is only one."""
        self._won = False
        self._decided = Wait()
        self._wanted = 0
        self._enough: Wait | None = None

    def hear(self, node: str, error: OnyxqError | None) -> None:
        """Take the answer of a holder."""
        if error is None:
            self.acks.add(node)
        else:
            self.errors[node] = error
        if self.won or self._lost:
            self._decided.end()
            tell, self._tell_decided = self._tell_decided, None
            if tell is not None:
                tell(self.won)
        if self._enough is not None and (self.has(self._wanted) or not self._may_have(self._wanted)):
            self._enough.end()
        if error is not None:
            self._failed(node, error)
        if node == self._leader and self._own is not None:
            self._own(error)

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
            await self._decided.wait(timeout_s)
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
            self._wanted, self._enough = acks, Wait()
            await self._enough.wait(timeout_s)
        return len(self.acks)

    def failure(self, partition: int) -> OnyxqError:
        """Return the error of a write that is not won: `StaleEpoch`, `StoreFailed`, `Unavailable` or `Unknown`."""
        for kind in (StaleEpoch, StoreFailed):
            for error in self.errors.values():
                if isinstance(error, kind):
                    return error
        if not self.acks:
            return Unavailable(f"partition {partition}: no majority of its nodes accepts writes")
        return Unknown(f"partition {partition}: no majority of its nodes has confirmed the write")


class _Waiting(NamedTuple):
    """Rows that wait to be sent."""

    partition: int
    epoch: int
    rows: Rows
    vote: Vote
    early: bool


class SenderHost(Protocol):
    """What a sender needs of its node."""

    node_id: str
    cohort: Cohort

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`."""
        ...


class Sender:
    """Sends writes to one node, which may be the leader's own."""

    def __init__(self, host: SenderHost, node: str, *, missed: Callable[[], None]) -> None:
        self.node = node
        self._host = host
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
        self._down = error
        self._fail_waiting(error)

    def _fail_waiting(self, error: OnyxqError) -> None:
        waiting, self._waiting, self._bytes = list(self._waiting), deque(), 0
        for one in waiting:
            one.vote.hear(self.node, error)

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

    def submit(self, partition: int, epoch: int, rows: Rows, vote: Vote, *, early: bool = False) -> None:
        """Queue rows of one partition; ``vote`` hears the node once, immediately if the node is down.

        ``early``: the node may answer before the rows are on its disk.
        """
        size = sum(len(row.value) for row in rows)
        if self._down is None and self._bytes + size > WAITING_BYTES_MAX and self._waiting:
            self.suspect(Unavailable(f"node {self.node} does not keep up"))
        if self._down is not None:
            vote.hear(self.node, self._down)
            return
        self._bytes += size
        self._waiting.append(_Waiting(partition, epoch, rows, vote, early))
        self._ask()

    def _ask(self) -> None:
        """Have waiting writes taken."""
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
            await self.send_waiting()

    async def send_waiting(self) -> None:
        """Send one message of the writes that wait, and tell their votes."""
        group = self._take()
        try:
            errors = await self._send([one[:3] for one in group], early=group[0].early)
            self.heard_at = trio.current_time()
        except StoreFailed as error:
            errors = [error] * len(group)
            self._fail_waiting(error)
        except OnyxqError as error:
            errors = [error] * len(group)
            self.suspect(error)
        for one, problem in zip(group, errors, strict=True):
            one.vote.hear(self.node, problem)

    async def _send(self, writes: list[tuple[int, int, Rows]], *, early: bool) -> list[OnyxqError | None]:
        """Have the node store writes; return an error or None for each. Raises what the whole message met."""
        packed = [[partition, epoch, [[row.key, row.value] for row in rows]] for partition, epoch, rows in writes]
        args: dict[str, Any] = {"writes": packed, "early": True} if early else {"writes": packed}
        answer = await self._host.call(self.node, "cohort.write", args, timeout_s=WRITE_TIMEOUT_S)
        return [from_map(one) if one is not None else None for one in answer]

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


class OwnCopyHost(SenderHost, Protocol):
    """What writes to a leader's own store need of its node."""

    store: Store
    unflushed_writes: UnflushedWrites

    def pieces_added(self, pieces: Sequence[Piece]) -> None:
        """Take note of new pieces in the store."""
        ...


class OwnCopy(Sender):
    """Writes to the leader's own store: a rider of its transactions, which each takes what waits (design: facts)."""

    def __init__(self, host: OwnCopyHost, node: str) -> None:
        super().__init__(host, node, missed=_nothing)
        self._own = host
        self._riding: list[_Waiting] = []
        """Writes in the transaction under way."""
        self._counted = False
        """Whether the store's condition knows that a write waits here."""
        host.store.accompany(self)

    def submit(self, partition: int, epoch: int, rows: Rows, vote: Vote, *, early: bool = False) -> None:
        """Queue rows of one partition; ``vote`` hears once, at once if they count from memory."""
        try:
            self._own.cohort.check(partition, epoch)
            facts, pending = split_rows(rows)
            prepared = [row if isinstance(row, Prepared) else prepare(row) for row in facts]
            for row in pending:
                check_pending(row)
        except OnyxqError as error:
            vote.hear(self.node, error)
            return
        if early and not pending and self._own.unflushed_writes.take(prepared):
            vote.hear(self.node, None)
            return
        super().submit(partition, epoch, rows if pending else prepared, vote)

    def suspect(self, error: OnyxqError) -> None:
        """Fail the waiting writes."""
        self._fail_waiting(error)
        self._count()

    def _ask(self) -> None:
        try:
            self._own.store.begin_soon()
        except OnyxqError as error:
            self._fail_waiting(error)
        self._count()

    def _count(self) -> None:
        """Let the store's condition know whether a write waits here."""
        waits = bool(self._waiting or self._riding)
        if waits and not self._counted:
            self._own.store.condition.begin_write()
        elif self._counted and not waits:
            self._own.store.condition.end_write()
        self._counted = waits

    def take(self) -> Batch | None:
        """Return the rows that wait; see `onyxq.store.interface.Rider`."""
        if self._riding:
            return None
        rows: list[Row | Prepared] = []
        while self._waiting and not self._riding:
            for one in self._take():
                try:
                    self._own.cohort.check(one.partition, one.epoch)  # a newer epoch may have been promised meanwhile
                except OnyxqError as error:
                    one.vote.hear(self.node, error)
                else:
                    rows += one.rows
                    self._riding.append(one)
        self._count()
        if not self._riding:
            return None
        facts, pending = split_rows(rows)
        return Batch(rows=facts, pending=pending)

    def heard(self, outcome: Written | OnyxqError) -> None:
        """Tell the votes whether their rows are stored; see `onyxq.store.interface.Rider`."""
        riding, self._riding = self._riding, []
        error = outcome if isinstance(outcome, OnyxqError) else None
        if not isinstance(outcome, OnyxqError):
            self._own.pieces_added(outcome.pieces)
            self.heard_at = trio.current_time()
        for one in riding:
            one.vote.hear(self.node, error)
        if error is not None:
            self._fail_waiting(error)
        if self._waiting:
            self._ask()
        else:
            self._count()


def _nothing() -> None:
    """Do nothing."""
