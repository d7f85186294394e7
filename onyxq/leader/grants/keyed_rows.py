"""Rows of tasks with keys: a task is granted only once a majority has its row.

A leader reads its own disk. If it granted a task with a key that no other node has and died, the
next leader would not know the task, and would grant another task of the key beside it. So a new task
with a key is `UNCONFIRMED` until a write of its row is won. If the write fails, the row may be stored
here nevertheless. It is written again until a majority has it.

The rows that a new leader finds are confirmed otherwise. Tasks with ordering keys wait until the
leader is backed, and a unique task of an earlier leader is written again before its first grant.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from attrs import frozen

from onyxq.core import facts
from onyxq.core.errors import Corrupt
from onyxq.core.facts import Row
from onyxq.core.ids import Run, TaskId, mask_of, partition_of, stretch_of
from onyxq.core.task_headers import ORDERING_KEY, UNIQUE_KEY, may_say
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.state.states import State
from onyxq.system.procedures import pause
from onyxq.system.signal import Signal

AGAIN_EVERY_S = 1.0

log = logging.getLogger(__name__)


@frozen(eq=False)
class _Change:
    """A write of a row that is new or changed, and of what belongs to it."""

    leader: PartitionLeader
    rows: Sequence[Row]


class KeyedRows:
    """Writes rows of tasks with keys in the partitions that a node leads; one per node."""

    def __init__(self, host: OperationsHost) -> None:
        self._host = host
        self._state = host.leader_state
        self._failed: dict[TaskId, None] = {}
        """Tasks whose rows are to be written again."""
        self._latest: dict[TaskId, _Change] = {}
        """Tasks whose rows were changed or are new, and may not be on a majority yet."""
        self._wake = Signal()

    def write(self, leader: PartitionLeader, task_id: TaskId, rows: Sequence[Row], *, changed: bool = False) -> Vote:
        """Write the row of a task with a key, and what belongs to it; the task may be granted once that is won.

        ``changed``: whether it is another row than the stored one. The latest one that changed decides.
        """
        run = Run(task_id, 1)
        if changed or not self._host.store.known_bits(stretch_of(task_id)) & mask_of(*run):
            self._state.begin(State.UNCONFIRMED, [run])
            self._latest[task_id] = _Change(leader, rows)
        change = self._latest.get(task_id)

        def decided(won: bool) -> None:
            if change is not self._latest.get(task_id):
                return  # another change is being written
            if won:
                self._latest.pop(task_id, None)
                self._confirmed(run)
            else:
                self._later(task_id)

        return leader.replicate(rows, decided=decided)

    @contextmanager
    def storing(self, rows: Iterable[Row]) -> Iterator[None]:
        """Surround the storing of another node's rows; afterwards, write the new ones again for a majority."""
        new: list[TaskId] = []
        for row in rows:
            if row.key[2:3] != facts.TASK or not may_say(row.value, ORDERING_KEY, UNIQUE_KEY):
                continue
            first = facts.first_of(row.key)
            if not self._host.store.known_bits(stretch_of(first)) & mask_of(first, 1):
                self._state.begin(State.UNCONFIRMED, [Run(first, 1)])
                new.append(first)
        try:
            yield
        finally:
            for first in new:
                self._later(first)

    def _later(self, task_id: TaskId) -> None:
        self._failed[task_id] = None
        self._wake.fire()

    def _confirmed(self, run: Run) -> None:
        if self._state.any_in(State.UNCONFIRMED, [run]):
            self._state.settle(State.UNCONFIRMED, [run])
            self._host.granter.offer([run])

    async def run(self) -> None:
        """Write the rows again that a majority may lack, until cancelled."""
        while True:
            if not self._failed:
                await self._wake.wait()
            await pause(AGAIN_EVERY_S)
            failed, self._failed = self._failed, {}
            for task_id in failed:
                self._write_again(task_id)

    def _write_again(self, task_id: TaskId) -> None:
        leader = self._host.leaders.get(partition_of(task_id))
        if leader is None or leader.deposed or not self._state.any_in(State.UNCONFIRMED, [Run(task_id, 1)]):
            # The takeover finds the row again, wherever it is stored. The write may have begun after the leadership.
            self._state.settle(State.UNCONFIRMED, [Run(task_id, 1)])
            self._latest.pop(task_id, None)
            return
        try:
            row = self._host.store.task_row(task_id)
        except Corrupt as error:
            self._host.corrupt(leader.partition, error)
            self._later(task_id)
            return
        if row is None:  # it was refused here; if another node has it, it comes from there
            self._state.settle(State.UNCONFIRMED, [Run(task_id, 1)])
            self._latest.pop(task_id, None)
        else:
            latest = self._latest.get(task_id)  # this node's disk may not have it yet
            self.write(leader, task_id, latest.rows if latest and latest.leader is leader else [facts.task_row(*row)])
