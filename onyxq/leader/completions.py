"""Completing: a leader writes completions as facts, while the log is away too.

They are quorum writes under the epoch.  Nobody gets a task while its completion is being
written, and its claim is freed, at the log's leisure, once that is stored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import trio

from onyxq.core import facts
from onyxq.core.errors import AlreadyFinished, NotLeader, OnyxqError
from onyxq.core.facts import Completion, Row
from onyxq.core.ids import Run, TaskId, mask_of, offset_of, partition_of, runs_of, stretch_of
from onyxq.core.replica import claimed_bits, pieces_of
from onyxq.leader.claim_release import Freeing
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.completion_rows import Finish, completions_of, holds_other, merged
from onyxq.leader.freshness import unsure_partitions
from onyxq.leader.host import OperationsHost, Refused
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.task_updates import Updating
from onyxq.leader.token_check import Standing

SETTLE_EVERY_S = 1.0

log = logging.getLogger(__name__)


class _Sent(NamedTuple):
    """Completions of a partition on their way to its holders."""

    leader: PartitionLeader
    finishes: list[tuple[int, Finish]]
    vote: Vote


class Completing:
    """Finishes tasks of the partitions that a node leads."""

    def __init__(self, host: OperationsHost, standing: Standing, updating: Updating) -> None:
        self._host = host
        self._standing = standing
        self._updating = updating
        self._finished = trio.Event()
        self.on_finished: Callable[[Sequence[Run]], None] = lambda runs: None
        """Told of tasks that are finished for good."""
        self._unsettled = trio.Event()
        self.freeing = Freeing(host)

    async def complete(
        self, items: Sequence[tuple[TaskId, int, int, int | None, list[bytes | None] | None]]
    ) -> list[list[Refused]]:
        """Write completions for ``(first, count, token, seq, results)`` items of any partitions."""
        unsure = await unsure_partitions(self._host, ((first, token) for first, _, token, *_ in items))
        await self.turn([Run(first, count) for first, count, *_ in items])
        refused: list[list[Refused]] = [[] for _ in items]
        work: dict[int, list[tuple[int, Finish]]] = {}
        for place, (first, count, token, seq, results) in enumerate(items):
            try:
                leader = self._standing.judge(first, token, unsure)
                taken, refusals = self._standing.standing(Run(first, count), token)
                self._updating.check_sequence(first, count, token, seq)
                refused[place] += refusals
                stretch = stretch_of(first)
                for run in runs_of(stretch, taken):
                    part = results[offset_of(run.first) - offset_of(first) :][: run.count] if results else []
                    finish = Finish(run, token, facts.COMPLETED, part)
                    work.setdefault(leader.partition, []).append((place, finish))
                rest = mask_of(first, count) & ~taken
                for part_first, part_count, _ in refusals:
                    rest &= ~mask_of(part_first, part_count)
                for run in runs_of(stretch, rest):
                    part = results[offset_of(run.first) - offset_of(first) :][: run.count] if results else []
                    if holds_other(self._host.store, run, part):
                        other = AlreadyFinished(f"task {run.first.hex()} was completed with another result")
                        refused[place].append([*run, other.to_map()])
                        continue
                    finish = Finish(run, token, facts.COMPLETED, [], self.completion_rows_of(leader, run))
                    work.setdefault(leader.partition, []).append((place, finish))
            except OnyxqError as error:
                refused[place].append([first, count, error.to_map()])
        await self.finish_all(work, refused)
        return refused

    async def turn(self, runs: Sequence[Run]) -> None:
        """Return once no completion of these tasks is being written: whether it was must be known for another."""
        finishing = self._host.granter.finishing
        while finishing and any(finishing.get(stretch_of(run.first), 0) & mask_of(*run) for run in runs):
            await self._finished.wait()

    @contextmanager
    def begun(self, tasks: Sequence[Run]) -> Iterator[None]:
        """While something is written that may complete these tasks later: others wait for their `turn`.

        What came back meanwhile was looked at in vain: it is offered once more.  What is claimed
        still is offered when it comes back.
        """
        _mark(self._host.granter.finishing, tasks, on=True)
        try:
            yield
        finally:
            _mark(self._host.granter.finishing, tasks, on=False)
            self._told()
            self._host.granter.offer(self._unclaimed(tasks))

    def _unclaimed(self, tasks: Sequence[Run]) -> Iterator[Run]:
        """What of some tasks nobody has claimed."""
        for run in tasks:
            stretch, claimed = stretch_of(run.first), claimed_bits(pieces_of(self._host.replica, run.first))
            yield from runs_of(stretch, mask_of(*run) & ~claimed)

    def completion_rows_of(self, leader: PartitionLeader, run: Run) -> list[Row]:
        """The completions that count of finished tasks, to be written again under this leader's mark.

        They may be here only: their ack must be honest, and a copy of another leader's must lose to them.
        """
        mark = leader.mark()
        return [
            facts.completion_row(first, done._replace(mark=mark))
            for first, done in completions_of(self._host.store, run)
        ]

    def cancelled(self, leader: PartitionLeader, task_id: TaskId) -> Finish | None:
        """The cancel of a task once more; None if it is not cancelled."""
        run = Run(task_id, 1)
        done = completions_of(self._host.store, run)
        if not done or done[0][1].outcome != facts.CANCELLED:
            return None
        return Finish(run, done[0][1].token, facts.CANCELLED, [], self.completion_rows_of(leader, run))

    async def finish_all(self, work: dict[int, list[tuple[int, Finish]]], refused: list[list[Refused]]) -> None:
        """Write completions per partition; what could not be written is added to ``refused``."""
        sent: deque[_Sent] = deque()
        try:
            for partition, finishes in sorted(work.items()):
                leader = self._host.leaders.get(partition)
                if leader is None:  # it was led from here when this began
                    lost = NotLeader(f"partition {partition} is not led from here any more").to_map()
                    for place, finish in finishes:
                        refused[place].append([*finish.run, lost])
                    continue
                rows = self._completion_rows(leader, [finish for _, finish in finishes if finish.rows is None])
                rows += {row.key: row for _, finish in finishes for row in finish.rows or ()}.values()
                sent.append(_Sent(leader, finishes, leader.replicate(rows)))
                self._mark_finishing(finishes, on=True)
            await self._decide(sent, refused)
        finally:
            if sent:
                self._decide_alone(sent, refused)

    def _decide_alone(self, sent: deque[_Sent], refused: list[list[Refused]]) -> None:
        """Decide what is written although its client waits no longer: until then no other client is served."""
        self._host.start_soon(self._decide, sent, refused)

    async def _decide(self, sent: deque[_Sent], refused: list[list[Refused]]) -> None:
        """Take what was sent from ``sent``, one after the other, as it is decided."""
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
            self._note_unsettled(finishes, on=error is not None)
            if error is None:
                for finish in (finish for _, finish in finishes if finish.rows is None):
                    queue = self._host.granter.queue_of(finish.run.first)
                    self._host.count_event(queue, facts.OUTCOMES[finish.outcome], finish.run.count)
                self.freeing.let_go(leader, [finish for _, finish in finishes])
                self.on_finished(runs)
            else:
                for place, finish in finishes:
                    refused[place].append([*finish.run, error.to_map()])
        finally:
            self._mark_finishing(finishes, on=False)
            if vote.won:
                self._host.granter.finished(runs)
            # Where nothing was stored after all they are to be had again.
            self._host.granter.offer(runs)

    def _completion_rows(self, leader: PartitionLeader, finishes: Iterable[Finish]) -> list[Row]:
        at_ms, mark = self._host.wall_ms(), leader.mark()
        return [
            facts.completion_row(
                finish.run.first,
                Completion(finish.token, finish.run.count, finish.outcome, at_ms, finish.results, mark),
            )
            for finish in merged(finishes)
        ]

    def _mark_finishing(self, finishes: Iterable[tuple[int, Finish]], *, on: bool) -> None:
        _mark(self._host.granter.finishing, (finish.run for _, finish in finishes), on=on)
        if not on:
            self._told()

    def _told(self) -> None:
        """Those who wait for their turn look again."""
        self._finished.set()
        self._finished = trio.Event()

    # --- completions that may be stored or not

    def _note_unsettled(self, finishes: Iterable[tuple[int, Finish]], *, on: bool) -> None:
        unsettled = self._host.granter.unsettled
        if on or unsettled:
            _mark(unsettled, (finish.run for _, finish in finishes), on=on)
            self._unsettled.set()

    async def run(self) -> None:
        """Until cancelled: have what may be stored on this node only stored on a majority.

        Nothing that comes after such a task may start before: whoever leads next might run it again.
        """
        while True:
            if not self._host.granter.unsettled:
                self._unsettled = trio.Event()
                await self._unsettled.wait()
            await trio.sleep(SETTLE_EVERY_S)
            for stretch, bits in sorted(self._host.granter.unsettled.items()):
                await self._settle(TaskId(stretch), bits)

    async def _settle(self, stretch: TaskId, bits: int) -> None:
        granter = self._host.granter
        leader = self._host.leaders.get(partition_of(stretch))
        if leader is None or leader.deposed or not leader.ready:
            granter.unsettled.pop(stretch, None)  # found again by the takeover, wherever it is
            return
        try:
            await leader.write([])  # what was sent to this node's store before has been written, or has failed
            finished = self._host.store.finished_bits(stretch) & bits
            unfinished = runs_of(stretch, bits & ~finished)
            _mark(granter.unsettled, unfinished, on=False)
            granter.offer(unfinished)
            await self.repeat(leader, runs_of(stretch, finished))
        except OnyxqError as error:
            log.info("what became of completions in partition %d is not known yet: %s", leader.partition, error.message)

    async def repeat(self, leader: PartitionLeader, runs: Sequence[Run]) -> None:
        """Write the completions of finished tasks again and free what claims there are on them."""
        await self.turn(runs)
        finishes = [
            (0, Finish(part, token, facts.COMPLETED, [], self.completion_rows_of(leader, part)))
            for run in runs
            for part, token in self._claimed_parts(run)
        ]
        if finishes:
            await self.finish_all({leader.partition: finishes}, [[]])

    def _claimed_parts(self, run: Run) -> list[tuple[Run, int]]:
        """A run cut where its claims differ, each part with its token; -1: not claimed."""
        stretch = stretch_of(run.first)
        rest = mask_of(*run)
        parts = []
        for offset, count, token, *_ in pieces_of(self._host.replica, run.first):
            mine = rest & (((1 << count) - 1) << offset)
            parts += [(part, token) for part in runs_of(stretch, mine)]
            rest &= ~mine
        return parts + [(part, -1) for part in runs_of(stretch, rest)]


def _mark(masks: dict[bytes, int], runs: Iterable[Run], *, on: bool) -> None:
    """Set, or clear, the tasks of some runs in masks of stretches."""
    for run in runs:
        stretch = stretch_of(run.first)
        bits, mask = masks.get(stretch, 0), mask_of(*run)
        bits = bits | mask if on else bits & ~mask
        if bits:
            masks[stretch] = bits
        else:
            masks.pop(stretch, None)
