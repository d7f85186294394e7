"""Keys of new tasks: the place in an ordering key, and the current task of a unique key.

The leader fixes the order of an ordering key and stores it in the task's row, so it is the same
under every leader. Tasks are ordered by time, then by the leader's epoch and count. The time is the
due time if the user named one in the future, otherwise the time of the enqueue. The time of
enqueues never goes back within a key.

If a task depends on tasks of its own key, it comes after them, however late they are. Before them
it would wait for tasks that wait for it.

A unique key is held by one task, until the task starts, ends or is purged, as its row says. Requests
about one key are serialised. A request waits until it is known whether the task that holds the key
was granted and whether it ended: another task gets the key only after a decision that every next
leader knows. Until its first attempt, the task can be changed: its row is written again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from attrs import frozen

from onyxq.core import facts
from onyxq.core.errors import BadRequest, Unavailable
from onyxq.core.ids import Run, TaskId, is_callback, mask_of, ms_of, partition_of, stretch_of
from onyxq.core.replica import HELD_MS, claim_of
from onyxq.core.task_headers import (
    CALLBACK,
    CHANGED_BY,
    DEPENDS,
    DUE_MS,
    MARK,
    ON_CONFLICT,
    ORDERING_KEY,
    REPLACE,
    UNIQUE_KEY,
)
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.completion_rows import history_of, is_overtaken
from onyxq.leader.completions import Completions
from onyxq.leader.dependencies import Dependencies
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
NEW, REPLACED, EXTENDED, EXISTS, REFUSED = "new", "replaced", "extended", "exists", "refused"
"""Outcomes of an enqueue with a unique key. The last one is answered as an error."""
MOVED_FIELDS = ("expires_ms",)
"""Fields that a waiting task gets together with a new due time."""
REPLACED_FIELDS = ("backoff_ms", "expires_ms", "format", "priority", "retries", "trace")
"""Fields that a waiting task gets together with new data."""
_PLACE_FIELDS = ("order", "scheduled", DUE_MS, MARK, CHANGED_BY)


def _nothing() -> None:
    """Do nothing."""


class RunRequest(NamedTuple):
    """A run to enqueue, with the contents of its row."""

    first: TaskId
    body: bytes
    at_ms: int | None
    """The due time that the user named."""
    header: dict[str, Any]
    count: int  # type: ignore[assignment]  # shadows the tuple's method


@frozen
class Started:
    """A write whose decision is not known yet."""

    leader: PartitionLeader
    vote: Vote
    current: tuple[TaskId, str] | None = None
    """For a unique key: the task that holds it, and the outcome."""
    over: Callable[[], None] = _nothing
    """Called once the write is decided."""


class TaskKeys:
    """Prepares rows of tasks with keys for the partitions that a node leads."""

    def __init__(
        self, host: OperationsHost, keyed_rows: KeyedRows, *, completions: Completions, dependencies: Dependencies
    ) -> None:
        self._host = host
        self._keyed_rows = keyed_rows
        self._completions = completions
        self._dependencies = dependencies
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

    async def unique(self, leader: PartitionLeader, one: RunRequest) -> Started | None:
        """Return the write that answers an enqueue if another task holds its unique key; None: store the new task.

        Enqueues of one key are serialised: the key is locked until `Started.over` of the returned write is called.
        After None the caller stores the task and calls `as_new`, or calls `failed` if it cannot.
        Raises `Unavailable` while it is not known whether the other task has ended.
        """
        digest = facts.unique_digest(one.header, one.first)
        await self._lock(digest)
        try:
            leader.check()
            holder = await self._other_holder(leader, one.first, digest)
            if holder is None:
                holder = self._changed_before(leader, one.first, digest)
            if holder is None:
                return None
            return await self._conflict(leader, holder, one, self._unlocking(digest))
        except BaseException:
            self._unlock(digest)
            raise

    async def _other_holder(self, leader: PartitionLeader, first: TaskId, digest: bytes) -> TaskId | None:
        """Return the task that holds a unique key in place of a new task; None if that one is new or is stored."""
        store = self._host.store
        if store.known_bits(stretch_of(first)) & mask_of(first, 1) and store.superseded_by(first) is None:
            return None
        holder = await self._holder(leader, digest)
        return holder if holder != first else None

    def _changed_before(self, leader: PartitionLeader, first: TaskId, digest: bytes) -> TaskId | None:
        """Return the last task of a unique key if it has started or ended with what this enqueue gave it."""
        latest = self._host.store.latest(leader.partition, digest)
        row = None if latest is None else self._host.store.task_row(latest.task)
        if latest is None or row is None or facts.task_header(row[1])[0].get(CHANGED_BY) != first:
            return None
        return latest.task

    async def _holder(self, leader: PartitionLeader, digest: bytes) -> TaskId | None:
        """Return the task that holds a unique key, once it is decided whether the task started and whether it ended.

        Raises `Unavailable` while only this node may know of the end.
        """
        host, until = self._host, now() + GRANT_PATIENCE_S
        while True:
            await host.settled()
            leader.check()
            latest = host.store.latest(leader.partition, digest)
            if latest is None:
                return None
            run, left_s = Run(latest.task, 1), until - now()
            if left_s > 0 and host.leader_state.any_in(State.FINISHING, [run]):
                await self._completions.until_decided([run])
            elif left_s > 0 and host.leader_state.blocked(run) and claim_of(host.replica, latest.task) is None:
                await host.moved(left_s)  # the log decides soon whether it is granted
            else:
                return latest.task if not latest.released or self._may_go_on(leader, latest.task) else None

    def _may_go_on(self, leader: PartitionLeader, task_id: TaskId) -> bool:
        """Return whether a worker may hold a task that has released its key, because its completion is void.

        Raises `Unavailable` while it is unknown whether a next leader would know of the end.
        """
        store, stretch, bit = self._host.store, stretch_of(task_id), mask_of(task_id, 1)
        if not store.finished_bits(stretch) & bit:
            return False  # the log says that it started, or was reopened
        if not leader.backed or self._host.leader_state.unsure(stretch) & bit:
            raise Unavailable(
                f"unique_key: a majority may not know yet that task {task_id.hex()} of this key has ended",
                field=UNIQUE_KEY,
            )
        claim = claim_of(self._host.replica, task_id)
        if claim is not None and claim[4] == HELD_MS:
            return False  # a committed transaction has completed the task
        return is_overtaken(store, task_id, claim)

    async def _conflict(
        self, leader: PartitionLeader, holder: TaskId, one: RunRequest, over: Callable[[], None]
    ) -> Started:
        row = self._host.store.task_row(holder)
        if row is None:
            raise missing(self._host.store, holder, "unique_key")
        choice = one.header.get(ON_CONFLICT, REPLACE)
        outcome = {"replace": REPLACED, "extend": EXTENDED, "refuse": REFUSED}.get(choice, EXISTS)
        changes = outcome in (REPLACED, EXTENDED)
        if changes and await self._has_started(holder):
            changes = False
            if facts.task_header(row[1])[0].get(CHANGED_BY) != one.first:
                outcome = EXISTS
        leader.check()  # it may have been deposed while this waited
        # The existing rows may be stored only here, so they are written again before they are acknowledged.
        body = self._changed(leader, row[1], one) if changes else row[1]
        rows = [facts.task_row(holder, body)]
        if calls_back := CALLBACK in facts.task_header(body)[0]:
            if is_callback(holder):
                taken = f"task {holder.hex()} holds this unique_key, and cannot have a callback because of its id"
                raise BadRequest(taken, field=CALLBACK, hint="Send the task without a callback, or with another key.")
            rows.append(self._dependencies.callback_row(holder))
        vote = self._keyed_rows.write(leader, holder, rows, changed=changes)
        if calls_back:
            self._dependencies.follow(holder)
        return Started(leader, vote, (holder, outcome), over)

    def _changed(self, leader: PartitionLeader, body: bytes, one: RunRequest) -> bytes:
        """Return the row of a waiting task after a request that replaces its data or moves its due time."""
        old, moves = facts.unpack_task(body), one.header.get(ON_CONFLICT) == "extend"
        fields = MOVED_FIELDS if moves else REPLACED_FIELDS
        gone = {*fields, *_PLACE_FIELDS}
        header = {name: value for name, value in old.header.items() if name not in gone}
        taken = fields if moves else (*fields, CALLBACK)  # without a new callback the old one stays
        header |= {name: one.header[name] for name in taken if name in one.header}
        payload = (old if moves else facts.unpack_task(one.body)).payload(0)
        changed = self.ordered(leader, one.first, header, facts.pack_task(header, [payload]), one.at_ms)
        placed, _ = facts.task_header(changed)
        if "scheduled" in placed or "scheduled" in old.header:
            placed[DUE_MS] = ms_of(one.first)
        else:  # it is ready, and keeps its place
            placed |= {"order": old.header["order"], MARK: list(leader.mark())}
            placed |= {DUE_MS: old.header[DUE_MS]} if DUE_MS in old.header else {}
        placed[CHANGED_BY] = one.first
        return facts.pack_task(dict(sorted(placed.items())), [payload])

    async def lock(self, header: dict[str, Any]) -> Callable[[], None]:
        """Wait for all other requests about the unique key of a task; return what lets the next one proceed."""
        digest = facts.key_digest(header["queue"], header[UNIQUE_KEY])  # timers have no period
        await self._lock(digest)
        return self._unlocking(digest)

    def as_new(self, started: Started, one: RunRequest) -> Started:
        """Return the same write as that of a new unique key, after `unique` allowed it."""
        unlock = self._unlocking(facts.unique_digest(one.header, one.first))
        return Started(started.leader, started.vote, (one.first, NEW), unlock)

    def failed(self, one: RunRequest) -> None:
        """Unlock the key after a write that `unique` allowed could not be started."""
        if UNIQUE_KEY in one.header:
            self._unlock(facts.unique_digest(one.header, one.first))

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

    async def _has_started(self, task_id: TaskId) -> bool:
        """Return whether a task was ever granted, is finished or is being finished, or cannot be changed now."""
        host, run = self._host, Run(task_id, 1)
        await host.settled()
        stretch = stretch_of(task_id)
        finished = host.store.finished_bits(stretch) | host.leader_state.unsure(stretch)
        return (
            bool(finished & mask_of(task_id, 1))
            or bool(host.leader_state.blocked(run))
            or claim_of(host.replica, task_id) is not None
            or bool(history_of(host.store, task_id))
        )
