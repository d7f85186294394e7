"""Cancels of tasks, claimed ones included.

A cancel is a completion without a result. If a cancel and a completion race, the one that the
leader stores first counts. A claimed task is cancelled under the token of its claim, which ends the
claim: every later request of its holder is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onyxq.core import facts
from onyxq.core.errors import AlreadyFinished, Conflict, OnyxqError, Unavailable
from onyxq.core.ids import Run, TaskId, mask_of, partition_of, stretch_of
from onyxq.core.queues import settings_of
from onyxq.core.replica import HELD_MS, claim_of
from onyxq.core.task_headers import ORDERING_KEY, may_say
from onyxq.leader.cohort import pending_facts
from onyxq.leader.completion_rows import Finish, overtaken_bits, token_now
from onyxq.leader.completions import Completions
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.missing_tasks import missing
from onyxq.leader.state.completion_plan import repeated_cancel
from onyxq.leader.state.view import Refused
from onyxq.leader.token_check import TokenCheck
from onyxq.operations.table.task import CancelTasks
from onyxq.system.procedures import procedure


class Cancellations:
    """Cancels tasks of the partitions that a node leads."""

    def __init__(self, host: OperationsHost, tokens: TokenCheck, completions: Completions) -> None:
        self._host = host
        self._tokens = tokens
        self._completions = completions

    @procedure
    async def cancel(self, args: CancelTasks) -> list[dict[str, Any] | None]:
        """Finish tasks as cancelled; return an error map or None for each.

        A task that is already cancelled stays cancelled, so a client that got no answer may repeat the request.
        """
        ids = args.ids
        await self._until_decided(ids)
        refused: list[list[Refused]] = [[] for _ in ids]
        work: dict[int, list[tuple[int, Finish]]] = {}
        for place, task_id in enumerate(ids):
            try:
                leader = self._tokens.leader(partition_of(task_id))
                if (row := self._host.store.task_row(task_id)) is None:
                    raise missing(self._host.store, task_id)
                finish = self._repeated_cancel(leader, task_id) or self._new_cancel(
                    task_id, row[1], claimed=args.claimed
                )
                self._host.leader_state.keys.note(task_id, row[1])
                work.setdefault(leader.partition, []).append((place, finish))
            except OnyxqError as error:
                refused[place].append([task_id, 1, error.to_map()])
        await self._completions.finish_all(work, refused)
        return [parts[0][2] if parts else None for parts in refused]

    async def _until_decided(self, ids: Sequence[TaskId]) -> None:
        """Wait until earlier writes of these tasks are readable and no completion of them is undecided."""
        await self._host.unflushed_writes.readable()
        await self._completions.until_decided([Run(task_id, 1) for task_id in ids])

    def _repeated_cancel(self, leader: PartitionLeader, task_id: TaskId) -> Finish | None:
        """Return the repeated cancel of a task that is already cancelled, or None."""
        again = repeated_cancel(self._host.store, task_id, leader.mark) if self.finished(task_id) else None
        if again is not None:
            self._check_transactions(task_id)
        return again

    def _new_cancel(self, task_id: TaskId, body: bytes, *, claimed: bool) -> Finish:
        """Return the cancel of a task that is not cancelled yet; raises the reason if it cannot be cancelled."""
        if claimed:
            self._check_next_task(task_id, body)
        token, results = self._token_and_results(task_id, claimed=claimed)
        return Finish(Run(task_id, 1), token, facts.CANCELLED, results)

    def finished(self, task_id: TaskId) -> int:
        """Return whether a task is finished; a completion that is older than the current claim does not count."""
        store, run = self._host.store, Run(task_id, 1)
        finished = store.finished_bits(stretch_of(task_id)) & mask_of(*run)
        claim = claim_of(self._host.replica, task_id)
        return finished if claim is None else finished & ~overtaken_bits(store, run, claim[2], finished)

    def _check_transactions(self, task_id: TaskId) -> None:
        """Raise `Unavailable` if a transaction that may still be committed completes a claimed task."""
        if pending_facts.is_completed(self._host.store, self._host.replica, task_id):
            raise Unavailable(f"a transaction may be completing task {task_id.hex()}")

    def _check_next_task(self, task_id: TaskId, body: bytes) -> None:
        """Raise `Conflict` if cancelling a claimed task would let two tasks run where one is allowed.

        The worker of a claimed task learns later that it was cancelled and runs until then. Meanwhile the next
        task of the same ordering key, or of a queue with a concurrency limit, would start.
        """
        replica = self._host.replica
        if claim_of(replica, task_id) is None or not (replica.queues or may_say(body, ORDERING_KEY)):
            return
        header = facts.task_header(body)[0]
        if ORDERING_KEY in header:
            why = "has an ordering key: the next task of the key"
        elif settings_of(replica, header["queue"]).concurrency:
            why = "its queue limits how many tasks run at a time: the next task of the queue"
        else:
            return
        raise Conflict(
            f"task {task_id.hex()} is claimed, and {why} must wait until its worker stops",
            hint="Let its worker release the task, or wait until its lease expires.",
        )

    def _token_and_results(self, task_id: TaskId, *, claimed: bool) -> tuple[int, list[bytes | None]]:
        """Return the token under which to cancel a task, and the results; raises the reason if that is impossible."""
        store, replica = self._host.store, self._host.replica
        claim = claim_of(replica, task_id)
        if self.finished(task_id) or (claim is not None and claimed and claim[4] == HELD_MS):
            raise AlreadyFinished(f"task {task_id.hex()} is finished already")
        if claim is not None and not claimed:
            raise Conflict(
                f"task {task_id.hex()} is claimed",
                hint="Cancel with claimed=true: its worker then learns that it must stop.",
            )
        if self._host.leader_state.blocked(Run(task_id, 1)):
            raise Unavailable(f"task {task_id.hex()} is being granted or released right now")
        if claim is None:
            return token_now(store, task_id, replica.position), []
        if claim[2] < store.counts_from(task_id):
            raise Unavailable(f"task {task_id.hex()} was requeued, but this node has not read that in the log yet")
        self._check_transactions(task_id)
        return claim[2], [facts.CLAIMED]
