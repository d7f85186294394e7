"""Completions: a leader writes them as facts, also while the log is unavailable.

Completions are quorum writes under the leader's epoch. While the completion of a task is being
written, the task is not granted. Its claim is released some time after the completion is stored.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from onyxq.core import facts
from onyxq.core.errors import Corrupt, NotLeader, OnyxqError
from onyxq.core.facts import Row
from onyxq.core.ids import Run, TaskId, ids_of, partition_of, runs_of
from onyxq.leader.claim_release import ClaimRelease
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.completion_rows import Finish
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.outcomes import Outcomes
from onyxq.leader.state import completion_plan as plan
from onyxq.leader.state.states import State
from onyxq.leader.state.view import Refused
from onyxq.leader.token_check import TokenCheck, unsure_partitions
from onyxq.leader.waiting_runs import WaitingRuns
from onyxq.operations.table.claim import Complete
from onyxq.system.procedures import pause, procedure
from onyxq.system.signal import Signal

SETTLE_EVERY_S = 1.0

log = logging.getLogger(__name__)


class _Sent(NamedTuple):
    """Completions of a partition that were sent to its holders."""

    leader: PartitionLeader
    finishes: list[tuple[int, Finish]]
    vote: Vote


class Completions:
    """Finishes tasks of the partitions that a node leads."""

    def __init__(
        self,
        host: OperationsHost,
        tokens: TokenCheck,
        *,
        outcomes: Outcomes,
        waiting: WaitingRuns,
    ) -> None:
        self._host = host
        self._state = host.leader_state
        self._tokens = tokens
        self._outcomes = outcomes
        self._waiting = waiting
        self._finished = Signal()
        """Wakes the requests that wait in `until_decided`."""
        self._unsettled = Signal()
        self._storing = Counter[int]()
        """Partition -> number of running writes of completions that other nodes have."""
        self.claim_release = ClaimRelease(host)

    @procedure
    async def complete(self, args: Complete) -> list[list[Refused]]:
        """Write completions of any partitions."""
        items = [plan.Completed(*one) for one in args.items]
        unsure = await unsure_partitions(self._host, ((item.first, item.token) for item in items))
        await self.until_decided([Run(item.first, item.count) for item in items])
        refused: list[list[Refused]] = [[] for _ in items]
        work: dict[int, list[tuple[int, Finish]]] = {}
        for place, item in enumerate(items):
            try:
                leader = self._tokens.leader_for(item.first, item.token, unsure)
                finishes, refused[place] = plan.planned(self._host, item, leader.mark)
                if finishes:
                    work.setdefault(leader.partition, []).extend((place, finish) for finish in finishes)
            except OnyxqError as error:
                refused[place].append([item.first, item.count, error.to_map()])
        await self.finish_all(work, refused)
        return refused

    async def until_decided(self, runs: Sequence[Run]) -> None:
        """Wait until no completion of these tasks is being written, so that it is known whether they are finished."""
        while self._state.any_in(State.FINISHING, runs):
            await self._finished.wait()

    @contextmanager
    def marked_finishing(self, tasks: Sequence[Run]) -> Iterator[None]:
        """Treat tasks as being finished while something is written that may complete them later.

        Other requests for the tasks wait in `until_decided`. Tasks that became ready meanwhile could not be
        granted, so they are offered again at the end. Tasks that are still claimed are offered when they are
        released.
        """
        self._state.begin(State.FINISHING, tasks)
        try:
            yield
        finally:
            self._state.end(State.FINISHING, tasks)
            self._finished.fire()
            self._host.granter.offer(plan.unclaimed(self._host, tasks))

    async def finish_all(self, work: dict[int, list[tuple[int, Finish]]], refused: list[list[Refused]]) -> None:
        """Write completions per partition; add those that could not be written to ``refused``."""
        sent: deque[_Sent] = deque()
        try:
            for partition, finishes in sorted(work.items()):
                leader = self._host.leaders.get(partition)
                if leader is None or not leader.ready:  # it was led from here when the request began
                    # A leader that has not taken over yet does not know the ends that were acknowledged meanwhile.
                    lost = NotLeader(f"partition {partition} is no longer led from here").to_map()
                    for place, finish in finishes:
                        refused[place].append([*finish.run, lost])
                    continue
                new = [finish for _, finish in finishes if finish.rows is None]
                rows = plan.new_rows(new, at_ms=self._host.wall_ms(), mark=leader.mark())
                rows += {row.key: row for _, finish in finishes for row in finish.rows or ()}.values()
                sent.append(_Sent(leader, finishes, leader.replicate(rows)))
                self._state.begin(State.FINISHING, [finish.run for _, finish in finishes])
            await self._decide(sent, refused)
        finally:
            if sent:
                self._decide_in_background(sent, refused)

    def _decide_in_background(self, sent: deque[_Sent], refused: list[list[Refused]]) -> None:
        """Decide sent completions although their client no longer waits: other requests for the tasks wait for it."""
        self._host.start_soon(self._decide, sent, refused)

    async def _decide(self, sent: deque[_Sent], refused: list[list[Refused]]) -> None:
        """Wait for the decision of each item of ``sent``, in order, and remove it."""
        while sent:
            error: OnyxqError | None = None
            try:
                await sent[0].leader.decide(sent[0].vote)
            except OnyxqError as failed:
                error = failed
            self._decided(sent.popleft(), refused, error)

    def _decided(self, one: _Sent, refused: list[list[Refused]], error: OnyxqError | None) -> None:
        leader, finishes, vote = one
        runs = [finish.run for _, finish in finishes]
        try:
            if error is None:
                for finish in (finish for _, finish in finishes if finish.rows is None):
                    self._host.granter.metrics.ended(finish.run, finish.token, facts.OUTCOMES[finish.outcome])
                self.claim_release.release_later(leader, [(finish.run, finish.token) for _, finish in finishes])
                self._outcomes.finished(runs)
            else:
                for place, finish in finishes:
                    refused[place].append([*finish.run, error.to_map()])
        finally:
            if error is None:
                self._state.end(State.FINISHING, runs)
                self._state.settle(State.UNSETTLED, runs)
            else:
                self._state.replace(State.FINISHING, State.UNSETTLED, runs)
                self._unsettled.fire()
            self._finished.fire()
            if vote.won:
                self._waiting.look(self._host.granter.finished(runs))
            # If nothing was stored, the tasks can be granted again.
            self._host.granter.offer(runs)

    # --- completions that may be stored or not

    @contextmanager
    def storing(self, leader: PartitionLeader, rows: Iterable[Row]) -> Iterator[None]:
        """Surround the storing of another node's rows; afterwards, write the new completions again for a majority.

        Until then they do not count for other tasks. What a leader finds before it serves counts once it is `backed`.
        """
        store = self._host.store
        completions = [row for row in rows if row.key[2:3] == facts.COMPLETION]
        found = [
            Run(facts.first_of(row.key), facts.completion_head(facts.unseal(*row))[1])
            for row in completions
            if leader.ready and store.get(row.key) != row.value
        ]
        for task_id in (one for run in found for one in ids_of(*run)):
            with suppress(Corrupt):  # the task's key is known once its row is repaired
                if (task := store.task_row(task_id)) is not None:
                    self._state.keys.note(task_id, task[1])
        self._state.begin(State.UNSETTLED, found)
        self._storing[leader.partition] += bool(completions)
        try:
            yield
        finally:
            self._storing[leader.partition] -= bool(completions)
            if found:
                self._unsettled.fire()

    async def run(self) -> None:
        """Replicate completions that may be stored on too few nodes to a majority, until cancelled.

        Until then a next leader might not know of the completion and run the task again. So tasks that must
        start after it wait.
        """
        while True:
            if not self._state.all_in(State.UNSETTLED):
                await self._unsettled.wait()
            await pause(SETTLE_EVERY_S)
            for stretch, bits in self._state.all_in(State.UNSETTLED):
                await self._settle(stretch, bits)

    async def _settle(self, stretch: TaskId, bits: int) -> None:
        leader = self._host.leaders.get(partition_of(stretch))
        if leader is None or leader.deposed or not leader.ready:
            # The takeover finds the completions again, wherever they are stored.
            self._state.settle(State.UNSETTLED, runs_of(stretch, self._state.bits(State.UNSETTLED, stretch)))
            return
        try:
            await leader.write([])  # earlier writes to this node's store have succeeded or failed after this one
            # If a task was granted again meanwhile, the log decides first.
            bits &= ~self._state.bits(State.GRANTING, stretch) & ~self._state.bits(State.UNDECIDED, stretch)
            finished = plan.still_finished(self._host, stretch) & bits
            # If a completion is being stored, a later round finds it.
            unfinished = runs_of(stretch, 0 if self._storing[leader.partition] else bits & ~finished)
            self._state.settle(State.UNSETTLED, unfinished)
            self._host.granter.offer(unfinished)
            await self._repeat(leader, runs_of(stretch, finished))
        except OnyxqError as error:
            log.info("partition %d: completions are still undecided: %s", leader.partition, error.message)

    async def _repeat(self, leader: PartitionLeader, runs: Sequence[Run]) -> None:
        """Write the completions of finished tasks again and release the claims on these tasks."""
        await self.until_decided(runs)
        finishes = [(0, finish) for finish in plan.repeated(self._host, runs, leader.mark)]
        if finishes:
            await self.finish_all({leader.partition: finishes}, [[]])
