"""Task updates: notes of a worker about a task, numbered per claim and stored as facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onyxq.core import facts
from onyxq.core.errors import (
    AlreadyFinished,
    Conflict,
    OnyxqError,
    SequenceGap,
    StaleToken,
    TooLarge,
    Unavailable,
    Unknown,
)
from onyxq.core.facts import Update
from onyxq.core.ids import Run, TaskId
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.state.token_rules import valid_tasks
from onyxq.leader.token_check import TokenCheck, unsure_partitions
from onyxq.operations.table.claim import UpdateTasks
from onyxq.store.store import Store
from onyxq.system.procedures import procedure

UPDATES_BYTES_MAX = 8 * 1024 * 1024
"""Most bytes of data in all updates of a task. They are read in one answer."""


def updates_of(store: Store, task_id: TaskId) -> list[Update]:
    """Return the stored updates of a task, of all its claims."""
    return [facts.unpack_update(body) for _, body in store.covering(facts.UPDATE, task_id)]


def check_room(stored: Sequence[Update], more: int, field: str) -> None:
    """Raise `TooLarge` if a task's updates would be too large with ``more`` additional bytes."""
    if sum(len(one.data) for one in stored) + more > UPDATES_BYTES_MAX:
        raise TooLarge(
            f"the updates of a task hold at most {UPDATES_BYTES_MAX} bytes, those of earlier attempts included",
            field=field,
        )


class TaskUpdates:
    """Stores updates of claimed tasks in the partitions that a node leads."""

    def __init__(self, host: OperationsHost, tokens: TokenCheck) -> None:
        self._host = host
        self._tokens = tokens
        self._state = host.leader_state

    @procedure
    async def update(self, args: UpdateTasks) -> list[int | dict[str, Any]]:
        """Store updates; return how many nodes have each, or its error map."""
        items = args.items
        unsure = await unsure_partitions(self._host, ((task_id, token) for task_id, token, *_ in items))
        started: list[tuple[PartitionLeader, Vote] | OnyxqError] = []
        begun = []
        for task_id, token, seq, data in items:
            try:
                started.append(self._start_update(task_id, token, seq, data, unsure))
                begun.append((task_id, token, seq))
            except OnyxqError as error:
                started.append(error)
        try:
            return [await self._ack(item.id, one, args.w) for item, one in zip(items, started, strict=True)]
        finally:  # also if the client no longer waits; it may repeat the request
            for one in begun:
                self._state.update_ends(*one)

    async def _ack(
        self, task_id: TaskId, started: tuple[PartitionLeader, Vote] | OnyxqError, wanted: int | None
    ) -> int | dict[str, Any]:
        if isinstance(started, OnyxqError):
            return started.to_map()
        leader, vote = started
        try:
            return await leader.decide(vote, wanted=wanted)
        except Unknown as error:
            error.details = [[task_id, 1, len(vote.acks)]]
            return error.to_map()
        except OnyxqError as error:
            return error.to_map()

    def _start_update(
        self, task_id: TaskId, token: int, seq: int, data: bytes, unsure: set[int]
    ) -> tuple[PartitionLeader, Vote]:
        leader = self._tokens.leader_for(task_id, token, unsure)
        taken, refused = valid_tasks(self._host, Run(task_id, 1), token)
        if refused or not taken:
            code = refused[0][2]["code"] if refused else AlreadyFinished.code
            raise (StaleToken if code == StaleToken.code else AlreadyFinished)(
                refused[0][2]["message"] if refused else f"task {task_id.hex()} is finished already"
            )
        found = updates_of(self._host.store, task_id)
        stored = {one.seq: one for one in found if one.token == token}
        if seq in stored:
            if stored[seq].data != data:
                raise Conflict(f"update {seq} of this claim holds other data", field="data")
            row = facts.update_row(task_id, stored[seq]._replace(mark=leader.mark()))
        else:
            expected = max(len(stored), self._state.next_update(task_id, token))
            if len(stored) <= seq < expected:
                raise Unavailable(f"update {seq} of this claim is being stored right now")
            if seq != expected:
                raise SequenceGap(f"update {expected} comes next, not {seq}", field="seq")
            check_room(found, len(data), "data")
            self._state.update_begins(task_id, token, seq)
            row = facts.update_row(task_id, Update(token, seq, self._host.wall_ms(), data, leader.mark()))
        return leader, leader.replicate([row])
