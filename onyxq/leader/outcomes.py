"""Outcomes of tasks, as the leader of their partition reports them to nodes with waiting tasks.

A completion counts once a majority has it. A failure or a cancel counts only once no transaction can
complete the task any more. A node that asks about an unfinished task gets a hint when the task is finished.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from onyxq.core import facts
from onyxq.core.errors import Corrupt, NotLeader, OnyxqError
from onyxq.core.ids import Run, TaskId, ids_of, mask_of, partition_of, runs_of, stretch_of
from onyxq.core.replica import claim_of
from onyxq.leader.cohort import pending_facts
from onyxq.leader.completion_rows import completions_of, is_overtaken
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.system.procedures import now

ASKED_IDS_MAX = 5_000
"""Most ids in one request or one hint."""
TELL_TIMEOUT_S = 4.0
WATCHED_MAX = 200_000
"""Most stretches of watched tasks in memory. If one is forgotten, the node asks again."""

UNFINISHED, UNSERVED, PURGED = "unfinished", "unserved", "purged"
ENDS = ("completed", "failed", "cancelled", PURGED)
"""Outcomes that are final unless a user requeues the task."""

log = logging.getLogger(__name__)


class Outcomes:
    """Reports outcomes of local tasks; one per node. ``hint`` takes finished tasks for which this node waits."""

    def __init__(self, host: OperationsHost, hint: Callable[[Iterable[TaskId]], None]) -> None:
        self._host = host
        self._hint = hint
        self._watchers: dict[bytes, dict[str, int]] = {}
        """Stretch -> node that waits for tasks of it -> mask of these tasks."""
        self.unstored: set[TaskId] = set()
        """First ids of runs of committed transactions that this leader does not store, so these tasks never come."""
        self._undecided: set[TaskId] = set()
        """Failed and cancelled tasks that a transaction may still complete, and for which a node waits."""

    async def outcomes(self, ids: Sequence[TaskId], watcher: str) -> list[str | None]:
        """Return the outcome of each task that is led from here.

        ``watcher`` is the node that gets a hint when one of the unfinished tasks is finished.
        """
        # If such a claim has ended, the store must show that the old completion is void before it is reported.
        overtaken = {task_id for task_id in ids if self._is_overtaken(task_id)}
        await self._host.settled()
        found = [UNFINISHED if task_id in overtaken else self._outcome(task_id) for task_id in ids]
        # Without a wait in between: a transaction that is visible a moment later counts neither here nor there.
        found = self._unless_coming(ids, found)
        for task_id, said in zip(ids, found, strict=True):
            if said == UNFINISHED:
                self.watch(task_id, watcher)
        for partition in sorted({partition_of(one) for one, said in zip(ids, found, strict=True) if said is None}):
            leader = self._host.leaders.get(partition)
            if leader is None:
                raise NotLeader(f"partition {partition} is no longer led from here")
            await leader.write([])  # a deposed leader may not know the newest tasks
        return found

    def _unless_coming(self, ids: Sequence[TaskId], found: Sequence[str | None]) -> list[str | None]:
        """Return the outcomes, `UNSERVED` for absent tasks that a committed transaction enqueues soon.

        Such a task exists, however long its partition takes to make the transaction visible.
        """
        absent = {partition_of(one) for one, said in zip(ids, found, strict=True) if said is None}
        coming = {partition: self._coming(partition) for partition in sorted(absent)}

        def may_come(task_id: TaskId) -> bool:
            bits = coming[partition_of(task_id)]
            return bits is None or bool(bits.get(stretch_of(task_id), 0) & mask_of(task_id, 1))

        return [UNSERVED if said is None and may_come(one) else said for one, said in zip(ids, found, strict=True)]

    def _coming(self, partition: int) -> dict[bytes, int] | None:
        """Return the tasks that committed transactions enqueue in a partition, by stretch; None: that is not known."""
        try:
            store, replica = self._host.store, self._host.replica
            return pending_facts.coming_bits(store, replica, partition, without=self.unstored)
        except Corrupt as error:
            log.info("partition %d: it is not known which tasks are coming: %s", partition, error.message)
            return None

    def _outcome(self, task_id: TaskId) -> str | None:
        leader = self._host.leaders.get(partition_of(task_id))
        if leader is None or leader.deposed or not leader.ready:
            return UNSERVED
        store, stretch, mask = self._host.store, stretch_of(task_id), mask_of(task_id, 1)
        if not store.known_bits(stretch) & mask:
            return PURGED if store.watermark(leader.partition).covers(task_id) else None
        if not store.finished_bits(stretch) & mask:
            current = self._current_task(task_id)
            return UNFINISHED if current == task_id else self._outcome(current)
        unsure = self._host.leader_state.unsure(stretch)
        if unsure & mask or not leader.backed or self._is_overtaken(task_id):
            return UNFINISHED
        try:
            return self._end(leader, task_id)
        except Corrupt:
            return UNFINISHED  # as far as is known until the repair

    def _end(self, leader: PartitionLeader, task_id: TaskId) -> str:
        """Return the outcome of a finished task; raises `Corrupt`.

        No entry records a failure or a cancel. The log orders it and a commit by the end of the claim alone.
        """
        outcome = completions_of(self._host.store, Run(task_id, 1))[0][1].outcome
        if outcome != facts.COMPLETED and pending_facts.is_completed(self._host.store, self._host.replica, task_id):
            self._hint_later(leader, task_id)
            return UNFINISHED
        return self._reported(leader, task_id, facts.OUTCOMES[outcome])

    def _hint_later(self, leader: PartitionLeader, task_id: TaskId) -> None:
        """Send hints about a finished task once the log has ended its claim."""

        async def later() -> None:
            try:
                while self._host.leaders.get(leader.partition) is leader:
                    if claim_of(self._host.replica, task_id) is None:
                        self.finished([Run(task_id, 1)])
                        return
                    await self._host.moved()
            finally:
                self._undecided.discard(task_id)

        if task_id not in self._undecided:
            self._undecided.add(task_id)
            self._host.start_soon(later)

    @staticmethod
    def _reported(leader: PartitionLeader, task_id: TaskId, outcome: str) -> str:
        """Return the outcome to report, and remember reported failures: dependents need time before a purge."""
        if outcome == facts.OUTCOMES[facts.COMPLETED]:
            return outcome
        if leader.closing.covers(task_id):
            return UNSERVED
        if len(leader.reported_s) >= WATCHED_MAX:
            leader.reported_s, leader.since_s = {}, now()
        leader.reported_s[stretch_of(task_id)] = now()
        return outcome

    def _current_task(self, task_id: TaskId) -> TaskId:
        """Return the task that holds the task's unique key in its place, or the task itself."""
        return self._host.store.superseded_by(task_id) or task_id

    def _is_overtaken(self, task_id: TaskId) -> bool:
        """Return whether the completion of a task is void, or may be: it is damaged."""
        try:
            return is_overtaken(self._host.store, task_id, claim_of(self._host.replica, task_id))
        except Corrupt:
            return True

    def watch(self, task_id: TaskId, watcher: str) -> None:
        """Give a node a hint once a task is finished."""
        if len(self._watchers) >= WATCHED_MAX:
            self._watchers.clear()
        watchers = self._watchers.setdefault(stretch_of(task_id), {})
        watchers[watcher] = watchers.get(watcher, 0) | mask_of(task_id, 1)

    def finished(self, runs: Sequence[Run]) -> None:
        """Send hints about finished local tasks to the nodes that wait for them."""
        if not self._watchers:
            return
        finished_ids: dict[str, list[TaskId]] = {}
        for run in runs:
            stretch, mask = stretch_of(run.first), mask_of(*run)
            for watcher, bits in list(self._watchers.get(stretch, {}).items()):
                if bits & mask:
                    finished_ids.setdefault(watcher, []).extend(
                        one for part in runs_of(stretch, bits & mask) for one in ids_of(*part)
                    )
                    self._forget(stretch, watcher, bits & ~mask)
        for watcher, ids in finished_ids.items():
            if watcher == self._host.node_id:
                self._hint(ids)
            else:
                self._host.start_soon(self._tell, watcher, ids)

    def _forget(self, stretch: bytes, watcher: str, left: int) -> None:
        watchers = self._watchers[stretch]
        if left:
            watchers[watcher] = left
        else:
            del watchers[watcher]
        if not watchers:
            del self._watchers[stretch]

    async def _tell(self, watcher: str, ids: list[TaskId]) -> None:
        try:
            for start in range(0, len(ids), ASKED_IDS_MAX):
                part = ids[start : start + ASKED_IDS_MAX]
                await self._host.call(watcher, "lead.finished", {"ids": part}, timeout_s=TELL_TIMEOUT_S)
        except OnyxqError as error:
            log.debug("node %s will find finished tasks by its own check: %s", watcher, error.message)
