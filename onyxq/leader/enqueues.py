"""Enqueues: a leader stores runs of tasks on a majority of the holders of their partition.

Plain runs are stored at once. If a request has a run with a key, dependencies, a callback, an expiry time or
a named due time, its runs are checked one after the other. They are written in the order of the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from onyxq.core import facts
from onyxq.core.errors import BadRequest, Conflict, KeyTaken, OnyxqError, Unknown
from onyxq.core.facts import Completion, Row
from onyxq.core.ids import Run, TaskId, id_at, mask_of, offset_of, partition_of, runs_of, stretch_of
from onyxq.core.queues import settings_of
from onyxq.core.task_headers import CALLBACK, SPECIAL, UNIQUE_KEY
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.completion_rows import token_now
from onyxq.leader.dependencies import Dependencies
from onyxq.leader.grants.keyed_rows import KeyedRows
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.state.completion_plan import stored_rows
from onyxq.leader.task_keys import REFUSED, RunRequest, Started, TaskKeys
from onyxq.leader.token_check import TokenCheck
from onyxq.operations.table.enqueue import Enqueue
from onyxq.system.procedures import CANCELLED, beside, procedure, shielded

Ack = int | list[Any] | dict[str, Any]
"""The number of nodes that have a run, or an error map.

For a task with a unique key it is ``[number, task that holds the key, what happened]``.
"""


class Enqueues:
    """Stores task runs in the partitions that a node leads."""

    def __init__(
        self,
        host: OperationsHost,
        tokens: TokenCheck,
        *,
        dependencies: Dependencies,
        keys: TaskKeys,
        keyed_rows: KeyedRows,
    ) -> None:
        self._host = host
        self._tokens = tokens
        self._dependencies = dependencies
        self._keys = keys
        self._keyed_rows = keyed_rows

    @procedure
    async def enqueue(self, args: Enqueue) -> list[Ack]:
        """Store task runs; see `Ack` for the answers."""
        asked = [RunRequest(*run, *facts.task_header(run.body)) for run in args.runs]
        if any(one.at_ms is not None or not SPECIAL.isdisjoint(one.header) for one in asked):
            return await self._enqueue_special(asked, args.w)
        votes: list[Vote | OnyxqError] = []
        leaders: list[PartitionLeader | None] = []
        for one in asked:
            leader = None
            try:
                leader = self._tokens.leader(partition_of(one.first))
                votes.append(self._write(leader, one))
            except OnyxqError as error:
                votes.append(error)
            leaders.append(leader)
        return [
            await self._ack(one, vote, leader, args.w) for one, vote, leader in zip(asked, votes, leaders, strict=True)
        ]

    @procedure
    async def record(self, first: TaskId, body: bytes) -> bytes:
        """Store a task that is finished, unless its unique key has a task; return the data of the key's task.

        Without data, nothing is stored, and without a task of the key the answer is empty.
        """
        header, data = facts.task_header(body)[0], facts.unpack_task(body).payload(0)
        leader = self._tokens.leader(partition_of(first))
        unlock = await self._keys.lock(header)
        try:
            leader.check()
            store = self._host.store
            current = store.unique(leader.partition, facts.unique_digest(header, first))
            row = None if current is None else store.task_row(current)
            if row is None:
                if not data:
                    await leader.write([])  # a deposed leader may not know the newest tasks
                    return b""
                leader.check_new(first)
                self._host.count_event(header["queue"], "enqueued", 1)
                row = first, self._keys.ordered(leader, first, header, body, None)
            # An existing row may be stored only here, so it is written again before it is returned.
            rows = [facts.task_row(*row), *self._ended_rows(leader, row[0])]
            with shielded():  # the next request with this key must know the outcome
                await leader.decide(leader.replicate(rows))
            return facts.unpack_task(row[1]).payload(0)
        finally:
            unlock()

    def _ended_rows(self, leader: PartitionLeader, task_id: TaskId) -> list[Row]:
        """Return the completion of a task, a new one if it has none."""
        store, mark = self._host.store, leader.mark()
        token = token_now(store, task_id, self._host.replica.position)
        new = Completion(token, 1, facts.COMPLETED, self._host.wall_ms(), [], mark)
        return stored_rows(store, Run(task_id, 1), mark) or [facts.completion_row(task_id, new)]

    def _write(self, leader: PartitionLeader, one: RunRequest) -> Vote:
        """Write a plain run. If a claimer waits for its tasks, offer them meanwhile.

        Rows that count from memory are not offered: they count before they can be read. Neither are tasks that had
        claims before: only the store knows their attempts, once it has their row.
        """
        rows, early = self._rows(leader, one, one.body), self._early(one)
        stored = None
        if not early and not self._host.store.mentioned_bits(stretch_of(one.first)) & mask_of(one.first, one.count):
            stored = self._host.granter.offer_early(leader, Run(one.first, one.count), one.header, one.body)
        return leader.replicate(rows, early=early, stored=stored)

    def _early(self, one: RunRequest) -> bool:
        """Return whether the run, which has no key, may be acknowledged before it is on disk: its queue says so."""
        replica = self._host.replica
        if not replica.queues:
            return False
        return settings_of(replica, one.header["queue"]).durability == "opportunistic"

    def _rows(self, leader: PartitionLeader, one: RunRequest, body: bytes) -> list[Row]:
        """Return the rows to write for a run; for tasks that exist already, their existing rows.

        Raises `Conflict` if a task of another queue has one of the ids: then the request is not a repeat.
        """
        first, stretch = one.first, stretch_of(one.first)
        known = self._host.store.known_bits(stretch) & mask_of(first, one.count)
        new = mask_of(first, one.count) & ~known
        base = offset_of(first)
        if new:
            leader.check_new(first)
        rows = [
            facts.task_row(run.first, facts.slice_task(body, offset_of(run.first) - base, run.count))
            for run in runs_of(stretch, new)
        ]
        if known:
            # A repeated request: the existing rows are sent to the holders again before they are acknowledged.
            rows += self._known_rows(first, known, one.header["queue"])
        self._host.count_event(one.header["queue"], "enqueued", new.bit_count())
        return rows

    def _known_rows(self, first: TaskId, known: int, queue: str) -> list[Row]:
        rows: dict[bytes, Row] = {}
        for run in runs_of(stretch_of(first), known):
            place = run.first
            left = run.count
            while left > 0 and (found := self._host.store.task_row(place)) is not None:
                rows[found[0]] = facts.task_row(*found)
                header, count = facts.task_header(found[1])
                if header["queue"] != queue:
                    # The error does not name the queue: the caller may not know it.
                    raise Conflict(
                        f"the id {place.hex()} is the id of a task of another queue",
                        field="id",
                        hint="Use a fresh id, or repeat the request unchanged.",
                    )
                step = offset_of(found[0]) + count - offset_of(place)
                left -= step
                if left > 0:
                    place = id_at(stretch_of(place), offset_of(place) + step)
        return list(rows.values())

    async def _ack(
        self, one: RunRequest, vote: Vote | OnyxqError, leader: PartitionLeader | None, wanted: int | None
    ) -> int | dict[str, Any]:
        """Return the number of nodes that have the run; a task with a key always needs a majority."""
        if isinstance(vote, OnyxqError):
            return vote.to_map()
        if leader is None:
            return 0
        if wanted is not None and self._keys.concerns(one.header):
            wanted = max(wanted, vote.majority)
        try:
            return await leader.decide(vote, wanted=wanted)
        except Unknown as error:
            error.details = [[one.first, one.count, len(vote.acks)]]
            return error.to_map()
        except OnyxqError as error:
            return error.to_map()

    # --- runs with keys, dependencies or a time of their own

    async def _enqueue_special(self, asked: Sequence[RunRequest], wanted: int | None) -> list[Ack]:
        new = [one for one in asked if "depends" in one.header and not self._is_known(one)]
        found = await self._dependencies.outcomes_for({one for row in new for one in row.header["depends"]})
        acks: list[Ack] = [0] * len(asked)

        async def settle(place: int, started: Started) -> None:
            over = started.over
            try:
                count = await self._ack(asked[place], started.vote, started.leader, wanted)
                acks[place] = _told(count, started.current)
            except CANCELLED:
                # The client no longer waits, but the next request with the key waits for the decision.
                over = partial(self._host.start_soon, self._decide_abandoned, asked[place], started)
                raise
            finally:
                over()

        async with beside() as start:
            for place, one in enumerate(asked):
                try:
                    leader = self._tokens.leader(partition_of(one.first))
                    self._check_time(one)
                    started = await self._start(leader, one, found)
                except OnyxqError as error:
                    acks[place] = error.to_map()
                else:
                    start(settle(place, started))
        return acks

    async def _decide_abandoned(self, one: RunRequest, started: Started) -> None:
        try:
            await self._ack(one, started.vote, started.leader, None)
        finally:
            started.over()

    def _is_known(self, one: RunRequest) -> bool:
        mask = mask_of(one.first, one.count)
        return self._host.store.known_bits(stretch_of(one.first)) & mask == mask

    def _check_time(self, one: RunRequest) -> None:
        """Raise `BadRequest` if the named due time is further in the past than the queue's grace."""
        if one.at_ms is None or self._is_known(one):
            return
        grace_ms = settings_of(self._host.replica, one.header["queue"]).grace_ms
        late_ms = self._host.wall_ms() - one.at_ms
        if late_ms > grace_ms:
            raise BadRequest(
                f"at_ms is {late_ms} ms in the past; the queue allows at most {grace_ms} ms", field="at_ms"
            )

    def _calls_back(self, one: RunRequest) -> bool:
        """Return whether a task has a callback; if it is stored already, its row decides."""
        if CALLBACK not in one.header:
            return False
        row = self._host.store.task_row(one.first)
        return row is None or CALLBACK in facts.task_header(row[1])[0]

    async def _start(
        self, leader: PartitionLeader, one: RunRequest, found: dict[TaskId, str | OnyxqError | None]
    ) -> Started:
        body, extra, calls_back = one.body, list[Row](), self._calls_back(one)
        if "depends" in one.header and not self._is_known(one):
            extra = self._dependencies.check(leader, one.first, one.count, one.header, found)
        if UNIQUE_KEY in one.header:
            unique = await self._keys.unique(leader, one)
            if unique is not None:
                return unique
        try:
            if self._keys.concerns(one.header):  # the latest mark has the unique key: no other request has it now
                body = self._keys.ordered(leader, one.first, one.header, body, one.at_ms)
            rows = [*self._rows(leader, one, body), *extra]
            if calls_back:
                rows.append(self._dependencies.callback_row(one.first))
            if self._keys.concerns(one.header):
                vote = self._keyed_rows.write(leader, one.first, rows)
            else:
                vote = leader.replicate(rows, early=self._early(one))
            started = Started(leader, vote)
            if calls_back:
                self._dependencies.follow(one.first)
        except OnyxqError:
            self._keys.failed(one)
            raise
        if UNIQUE_KEY in one.header:
            return self._keys.as_new(started, one)
        return started


def _told(count: int | dict[str, Any], current: tuple[TaskId, str] | None) -> Ack:
    """Return the answer for a run, from what `Enqueues._ack` returned and the task that holds its unique key."""
    if current is None or not isinstance(count, int):
        return count
    holder, outcome = current
    if outcome != REFUSED:
        return [count, holder, outcome]
    taken = f"unique_key: task {holder.hex()} of the queue holds this key"
    return KeyTaken(taken, field=UNIQUE_KEY, details=[[holder.hex()]]).to_map()
