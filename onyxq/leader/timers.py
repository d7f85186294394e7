"""Timers at a partition's leader: which task is the current one of a timer's id.

A timer's id is the unique key of its task, so the index of unique keys finds the task. To replace a
timer, the leader stores another task under its key with a higher mark, which is one row. Once a
majority has the row, the new task is the current one. If the old task was already claimed, it may
still be delivered, but is not tried again. Requests about one id are serialised.
"""

from __future__ import annotations

from typing import Any

from onyxq.core import facts
from onyxq.core.errors import AlreadyFinished, Conflict, NotFound, OnyxqError, from_map
from onyxq.core.ids import Run, TaskId, mask_of, ms_of, partition_of, stretch_of
from onyxq.core.task_headers import UNIQUE_KEY
from onyxq.core.timer_model import request_of
from onyxq.leader.cancellations import Cancellations
from onyxq.leader.completions import Completions
from onyxq.leader.grants.keyed_rows import KeyedRows
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.task_keys import TaskKeys
from onyxq.leader.token_check import TokenCheck
from onyxq.operations.table.task import CancelTasks
from onyxq.system.procedures import procedure, shielded

CANCELLED, REPLACED, FINISHED = "cancelled", "replaced", "finished"
"""Outcomes of a cancel."""


class Timers:
    """Sets and cancels timers in the partitions that a node leads."""

    def __init__(
        self,
        host: OperationsHost,
        tokens: TokenCheck,
        *,
        keys: TaskKeys,
        keyed_rows: KeyedRows,
        completions: Completions,
        cancellations: Cancellations,
    ) -> None:
        self._host = host
        self._tokens = tokens
        self._keys = keys
        self._keyed_rows = keyed_rows
        self._completions = completions
        self._cancellations = cancellations

    def current_task(self, partition: int, queue: str, timer: str) -> TaskId | None:
        """Return the current task of a timer's id, finished or not; raises `NotLeader`."""
        self._tokens.leader(partition)
        return self._host.store.unique(partition, facts.key_digest(queue, timer))

    @procedure
    async def set(self, first: TaskId, body: bytes, *, replace: bool) -> int:
        """Make a new task the current one of the id in its header; return how many nodes have it.

        Without ``replace``, raises `Conflict` if the id has an unfinished task. With ``replace``, raises
        `NotFound` if it has none. A repeated task, or another task of the same request, is stored once.
        """
        header = facts.task_header(body)[0]
        leader = self._tokens.leader(partition_of(first))
        unlock = await self._keys.lock(header)
        try:
            leader.check()
            row = await self._row(leader, first, header, body, replace=replace)
            leader.check()  # it may have been deposed while this waited
            with shielded():  # the next request about this id must know the outcome
                return await leader.decide(self._keyed_rows.write(leader, facts.first_of(row.key), [row]))
        finally:
            unlock()

    async def _row(
        self, leader: PartitionLeader, first: TaskId, header: dict[str, Any], body: bytes, *, replace: bool
    ) -> facts.Row:
        store = self._host.store
        if store.known_bits(stretch_of(first)) & mask_of(first, 1) and (known := store.task_row(first)) is not None:
            # a repeat: the row may be stored only here, so it is written again before it is acknowledged
            return facts.task_row(*known)
        current = store.unique(leader.partition, facts.unique_digest(header, first))
        if current is not None and (row := store.task_row(current)) is not None and _alike(row[1], body):
            return facts.task_row(*row)
        lives = current is not None and await self._lives(current)
        if lives and not replace:
            raise Conflict(
                f"there is a timer {header[UNIQUE_KEY]!r} already", field="id", hint="Replace it, or cancel it first."
            )
        if replace and not lives:
            raise NotFound(f"there is no timer {header[UNIQUE_KEY]!r} that has not fired yet", field="id")
        leader.check_new(first)
        self._host.count_event(header["queue"], "enqueued", 1)
        return facts.task_row(first, self._keys.ordered(leader, first, header, body, ms_of(first)))

    async def _lives(self, task_id: TaskId) -> bool:
        await self._host.settled()
        await self._completions.until_decided([Run(task_id, 1)])
        return not self._cancellations.finished(task_id)

    @procedure
    async def cancel(self, task_id: TaskId) -> str:
        """Cancel a timer's task, claimed or not, if it is still the current one of its id; return the outcome.

        Raises `NotFound`, and `Unavailable` if the outcome is unknown now.
        """
        self._tokens.leader(partition_of(task_id))
        row = self._host.store.task_row(task_id)
        if row is None:
            raise NotFound("there is no such timer", field="id")
        header = facts.task_header(row[1])[0]
        if UNIQUE_KEY not in header:
            raise NotFound("there is no such timer", field="id")
        unlock = await self._keys.lock(header)
        try:
            if self._host.store.superseded_by(task_id) is not None:
                return REPLACED
            with shielded():
                (refused,) = await self._cancellations.cancel(CancelTasks(ids=[task_id], claimed=True))
        finally:
            unlock()
        error: OnyxqError | None = None if refused is None else from_map(refused)
        if isinstance(error, AlreadyFinished):
            return FINISHED
        if error is not None:
            raise error
        return CANCELLED


def _alike(known: bytes, body: bytes) -> bool:
    """Return whether two tasks were made for the same request."""
    request = request_of(facts.unpack_task(body).payload(0))
    return bool(request) and request_of(facts.unpack_task(known).payload(0)) == request
