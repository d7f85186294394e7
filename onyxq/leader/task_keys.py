"""Keys of new tasks: the place in an ordering key, and the current task of a unique key.

The leader fixes the order of an ordering key and stores it in the task's row, so it is the same
under every leader. Tasks are ordered by time, then by the leader's epoch and count. The time is the
due time if the user named one in the future, otherwise the time of the enqueue. The time of
enqueues never goes back within a key.

If a task depends on tasks of its own key, it comes after them, however late they are. Before them
it would wait for tasks that wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from attrs import frozen

from onyxq.core import facts
from onyxq.core.facts import Data, Row
from onyxq.core.ids import Run, TaskId, mask_of, ms_of, partition_of, stretch_of
from onyxq.core.replica import claim_of
from onyxq.core.task_headers import DEPENDS, ORDERING_KEY, UNIQUE_KEY
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.completion_rows import history_of
from onyxq.leader.grants.keyed_rows import KeyedRows
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.missing_tasks import missing
from onyxq.leader.state.states import State
from onyxq.system.procedures import Wait, now

CLOCKS_APART_MS = 1_000
"""How far an id's time may be ahead of the leader's clock if the user named no later time."""
GRANT_PATIENCE_S = 4.0
"""Longest wait of a repeated unique key for the log to decide a grant of its task, in seconds."""
NEW, REPLACED, EXISTS = "new", "replaced", "exists"


def _nothing() -> None:
    """Do nothing."""


@frozen
class Started:
    """A write whose decision is not known yet."""

    leader: PartitionLeader
    vote: Vote
    current: tuple[TaskId, str] | None = None
    """For a unique key: its current task, and whether the task is new, has new data or existed."""
    over: Callable[[], None] = _nothing
    """Called once the write is decided."""


class TaskKeys:
    """Prepares rows of tasks with keys for the partitions that a node leads."""

    def __init__(self, host: OperationsHost, keyed_rows: KeyedRows) -> None:
        self._host = host
        self._keyed_rows = keyed_rows
        self._clocks: dict[tuple[int, int], int] = {}
        """(partition, epoch) -> the latest time given to a row."""
        self._locks: dict[bytes, deque[Wait]] = {}
        """Unique keys that are being enqueued, with the requests that wait for each."""

    @staticmethod
    def concerns(header: dict[str, Any]) -> bool:
        """Return whether a row has a key."""
        return ORDERING_KEY in header or UNIQUE_KEY in header

    # --- order

    def ordered(
        self, leader: PartitionLeader, first: TaskId, header: dict[str, Any], body: bytes, at_ms: int | None
    ) -> bytes:
        """Return the body of a new row with its place in the order of its key."""
        now_ms, due_ms = self._clock_ms(leader), ms_of(first)
        scheduled = due_ms > now_ms + (CLOCKS_APART_MS if at_ms is None else 0)
        if not scheduled:
            due_ms = now_ms
            if ORDERING_KEY in header:
                digest = facts.key_digest(header["queue"], header[ORDERING_KEY])
                due_ms = max(now_ms, self._host.store.last_immediate_ms(leader.partition, digest))
        dependency_ms = self._latest_dependency_ms(leader, header)
        if dependency_ms > due_ms:
            due_ms, scheduled = dependency_ms, True
        said = {**header, "order": [due_ms, *leader.mark()], **({"scheduled": True} if scheduled else {})}
        return facts.pack_task(dict(sorted(said.items())), facts.unpack_task(body).all_payloads())

    def _latest_dependency_ms(self, leader: PartitionLeader, header: dict[str, Any]) -> int:
        """Return the latest due time of the tasks of the same key on which a task depends; 0 if there are none."""
        if not {ORDERING_KEY, DEPENDS} <= header.keys():
            return 0
        found = [0]
        for one in header[DEPENDS]:
            row = self._host.store.task_row(one) if partition_of(one) == leader.partition else None
            other = {} if row is None else facts.task_header(row[1])[0]
            if (other.get("queue"), other.get(ORDERING_KEY)) == (header["queue"], header[ORDERING_KEY]):
                found.append(other["order"][0])
        return max(found)

    def _clock_ms(self, leader: PartitionLeader) -> int:
        """Return the wall clock, which never goes back while the partition is led."""
        led = (leader.partition, leader.epoch)
        now_ms = max(self._host.wall_ms(), self._clocks.get(led, 0))
        if led not in self._clocks:
            self._clocks = {one: at for one, at in self._clocks.items() if one[0] != leader.partition}
        self._clocks[led] = now_ms
        return now_ms

    # --- unique keys

    async def unique(
        self, leader: PartitionLeader, first: TaskId, header: dict[str, Any], body: bytes
    ) -> Started | None:
        """Return the write for a unique key that has a current task; None if the new task may be stored.

        Enqueues of one key are serialised. The next one waits for `Started.over` of this write, or of the write
        that is returned for the new task.
        """
        digest = facts.key_digest(header["queue"], header[UNIQUE_KEY])
        await self._lock(digest)
        try:
            leader.check()
            current = self._other_task(leader, first, header)
            if current is None:
                return None
            return await self._repeat(leader, current, body, self._unlocking(digest))
        except BaseException:
            self._unlock(digest)
            raise

    def _other_task(self, leader: PartitionLeader, first: TaskId, header: dict[str, Any]) -> TaskId | None:
        """Return the current task of a unique key if it is another one than ``first``."""
        current = self._host.store.unique(leader.partition, header["queue"], header[UNIQUE_KEY])
        return current if current != first else None

    async def lock(self, header: dict[str, Any]) -> Callable[[], None]:
        """Wait for all other requests about the unique key of a task; return what lets the next one proceed."""
        digest = facts.key_digest(header["queue"], header[UNIQUE_KEY])
        await self._lock(digest)
        return self._unlocking(digest)

    def as_new(self, started: Started, first: TaskId, header: dict[str, Any]) -> Started:
        """Return the same write as that of a new unique key, after `unique` allowed it."""
        digest = facts.key_digest(header["queue"], header[UNIQUE_KEY])
        return Started(started.leader, started.vote, (first, NEW), self._unlocking(digest))

    def failed(self, header: dict[str, Any]) -> None:
        """Unlock the key after a write that `unique` allowed could not be started."""
        if UNIQUE_KEY in header:
            self._unlock(facts.key_digest(header["queue"], header[UNIQUE_KEY]))

    def _unlocking(self, digest: bytes) -> Callable[[], None]:
        return lambda: self._unlock(digest)

    async def _lock(self, digest: bytes) -> None:
        """Wait until no other request has the key. The caller has it then, until `_unlock`."""
        if digest not in self._locks:
            self._locks[digest] = deque()
            return
        turn = Wait()
        self._locks[digest].append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.over:
                self._unlock(digest)
            else:
                self._locks[digest].remove(turn)
            raise

    def _unlock(self, digest: bytes) -> None:
        if self._locks[digest]:
            self._locks[digest].popleft().end()
        else:
            del self._locks[digest]

    async def _repeat(self, leader: PartitionLeader, current: TaskId, body: bytes, over: Callable[[], None]) -> Started:
        row = self._host.store.task_row(current)
        if row is None:
            raise missing(self._host.store, current, "unique_key")
        # The existing row may be stored only here, so it is written again before it is acknowledged.
        rows: list[Row] = [facts.task_row(*row)]
        if await self._was_granted(current):
            return Started(leader, self._keyed_rows.write(leader, current, rows), (current, EXISTS), over)
        run = Run(current, 1)
        self._host.leader_state.begin(State.CHANGING, [run])
        data = Data(self._host.wall_ms(), facts.unpack_task(body).payload(0), leader.mark())
        vote = self._keyed_rows.write(leader, current, [*rows, facts.data_row(current, data)])

        def written() -> None:
            self._host.granter.offer(self._host.leader_state.end(State.CHANGING, [run]))
            over()

        return Started(leader, vote, (current, REPLACED), written)

    async def _was_granted(self, task_id: TaskId) -> bool:
        """Return whether a task was ever granted, is finished or is being finished."""
        host, run = self._host, Run(task_id, 1)
        await host.settled()
        until = now() + GRANT_PATIENCE_S
        # A grant may be on its way, which the log decides soon.
        while host.leader_state.blocked(run) and claim_of(host.replica, task_id) is None:
            left_s = until - now()
            if left_s <= 0:
                break
            await host.moved(left_s)
        await host.settled()
        stretch = stretch_of(task_id)
        finished = host.store.finished_bits(stretch) | host.leader_state.unsure(stretch)
        granted = (one.event == facts.GRANTED for one in history_of(host.store, task_id))
        return (
            bool(finished & mask_of(task_id, 1))
            or bool(host.leader_state.blocked(run))
            or (claim_of(host.replica, task_id) is not None or any(granted))
        )
