"""Dead letters: failed tasks that wait until a user requeues or discards them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from log_entries import reopen_tasks
from onyxq.core import facts
from onyxq.core.entry import APPLIED
from onyxq.core.errors import Conflict, LogUnavailable, OnyxqError, Unavailable, Unknown
from onyxq.core.facts import Completion
from onyxq.core.ids import Run, TaskId, mask_of, partition_of, stretch_of
from onyxq.core.replica import claim_of
from onyxq.leader.cohort import pending_facts
from onyxq.leader.completion_rows import Finish, completions_of, history_of, token_now
from onyxq.leader.completions import Completions
from onyxq.leader.entry_chunks import fitting, size_of
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.missing_tasks import missing
from onyxq.leader.state.completion_plan import repeated_cancel
from onyxq.leader.state.leader_state import HeldRun
from onyxq.leader.state.states import State
from onyxq.leader.state.view import Refused
from onyxq.leader.task_updates import reports_of
from onyxq.leader.token_check import TokenCheck
from onyxq.operations.table.dead import DiscardDead, RequeueDead
from onyxq.system.procedures import Wait, procedure

PAGE_TASKS = 64
PATIENCE_S = 4.0
"""Longest wait of a requeue request for the log, in seconds."""

RUN_AGAIN = "To run it again, enqueue a task with the same data: its page on the dashboard has a button for that."
WAIT_OR_CANCEL = "A retry that is left comes automatically. To call the task off, cancel it."

Group = tuple[PartitionLeader, list[tuple[int, reopen_tasks.Reopened]]]
"""The tasks that one entry requeues, each with its place in the request."""


class DeadLetters:
    """Serves dead letters of the partitions that a node leads."""

    def __init__(self, host: OperationsHost, tokens: TokenCheck, completions: Completions) -> None:
        self._host = host
        self._tokens = tokens
        self._completions = completions
        self._state = host.leader_state

    def find(self, partition: int, *, queue: str | None, after: bytes, newest_first: bool = False) -> Iterator[TaskId]:
        """Yield the dead letters of a queue (None: of all) after ``after``, in id order or in reverse."""
        while True:
            page = self._host.store.failed(partition, queue, after=after, limit=PAGE_TASKS, newest_first=newest_first)
            yield from page
            if len(page) < PAGE_TASKS:
                return
            after = page[-1]

    def says(self, task_id: TaskId, text: str) -> bool:
        """Return whether a text is in the error of a failed task, or in a traceback that is kept of it."""
        done = self._done(task_id)
        error = b"".join(one or b"" for one in done.results).decode(errors="replace") if done else ""
        return text in error or any(text in one.traceback for one in reports_of(self._host.store, task_id).values())

    def _done(self, task_id: TaskId) -> Completion | None:
        found = completions_of(self._host.store, Run(task_id, 1))
        return found[0][1] if found else None

    @procedure
    async def requeue(self, args: RequeueDead) -> list[dict[str, Any] | None]:
        """Make dead letters ready again with all their retries; return an error map or None for each.

        A task that was requeued and is unfinished stays so, so a client that got no answer may repeat the
        request.
        """
        ids = args.ids or []
        results: list[dict[str, Any] | None] = [None] * len(ids)
        work: dict[int, list[tuple[int, reopen_tasks.Reopened]]] = {}
        await self._completions.until_decided([Run(task_id, 1) for task_id in ids])
        for place, task_id in enumerate(ids):
            try:
                leader = self._tokens.leader(partition_of(task_id))
                self._check_requeueing(task_id)
                if self._is_reopened(task_id):
                    continue
                self._check_dead(task_id, "retried")
                leader.check_new(task_id)
                reopened = reopen_tasks.Reopened(Run(task_id, 1), self._attempts(task_id))
                work.setdefault(leader.partition, []).append((place, reopened))
                self._state.begin(State.REOPENING, [Run(task_id, 1)])
            except OnyxqError as error:
                results[place] = error.to_map()
        groups = [
            (self._host.leaders[partition], group)
            for partition, part in sorted(work.items())
            for group in fitting(part, lambda one: size_of((one[1].run,)))
        ]
        if groups:
            await self._reopen(groups, results)
        return results

    def _attempts(self, task_id: TaskId) -> int:
        """Return the number of counted attempts of a dead letter, the last one included."""
        said, done = history_of(self._host.store, task_id), self._done(task_id)
        last = done is not None and any((one.event, one.token) == (facts.GRANTED, done.token) for one in said)
        return max((one.attempts for one in said), default=0) + last

    async def _reopen(self, groups: list[Group], results: list[dict[str, Any] | None]) -> None:
        verdicts: list[str] = []
        decided = Wait()
        failed: OnyxqError = LogUnavailable("the log did not answer in time; the tasks may still be requeued")

        def heard(_: int, found: Sequence[str] | None) -> None:
            if decided.over:  # The outbox took the entries and then failed: they may be in the log all the same.
                return
            verdicts.extend(found[-len(groups) :] if found is not None else ())
            if verdicts or not outbox.closed:
                self._decided(groups, verdicts)
            decided.end()

        try:
            outbox = self._host.outbox_now()
            outbox.submit(self._entries(groups), heard)
            await decided.wait(PATIENCE_S)
        except OnyxqError as error:
            decided.end()
            self._not_sent(groups)
            failed = error
        if verdicts:
            failed = Unknown("the partition's leader changed meanwhile")
            # The client may claim or cancel the requeued tasks as soon as it has the answer.
            await self._host.settled()
        for (_, group), verdict in zip_longest(groups, verdicts):
            for place, _ in group if verdict != APPLIED else ():
                results[place] = failed.to_map()

    def _not_sent(self, groups: list[Group]) -> None:
        """Allow the dead letters to be requeued or discarded again."""
        self._decided(groups, ())

    def _decided(self, groups: list[Group], verdicts: Sequence[str]) -> None:
        """Take the log's verdicts on a requeue.

        Without verdicts, the entries will never be applied, or this node has already read past them.
        """
        for (leader, group), verdict in zip_longest(groups, verdicts):
            runs = [one.run for _, one in group]
            if verdict == APPLIED:
                self._host.start_soon(self._reopened, leader, runs)
            else:
                self._end(leader, runs)

    async def _reopened(self, leader: PartitionLeader, runs: Sequence[Run]) -> None:
        """Report tasks as requeued once the store has recorded it."""
        await self._host.recorded()
        self._end(leader, runs)

    def _end(self, leader: PartitionLeader, runs: Sequence[Run]) -> None:
        """Allow other requests for these tasks again, unless that ended with the leadership."""
        if self._host.leaders.get(leader.partition) is leader:
            self._state.end(State.REOPENING, runs)

    def _entries(self, groups: list[Group]) -> list[Any]:
        """Return one entry for each group, after entries that release the claims under which its tasks failed.

        Claims of finished tasks are released some time later. A task can be requeued only when its claim is
        gone.
        """
        releases = [
            release
            for leader, group in groups
            for release in self._completions.claim_release.releases(leader, [self._held(one.run) for _, one in group])
        ]
        now_ms = self._host.wall_ms()
        return releases + [
            reopen_tasks.Args(leader.partition, leader.epoch, now_ms, tuple(one for _, one in group))
            for leader, group in groups
        ]

    def _held(self, run: Run) -> HeldRun:
        claim = claim_of(self._host.replica, run.first)
        return run, claim[2] if claim is not None else -1

    @procedure
    async def discard(self, args: DiscardDead) -> list[dict[str, Any] | None]:
        """Cancel dead letters, so that tasks waiting for them continue; return an error map or None for each.

        A task that is already cancelled stays cancelled, so a client that got no answer may repeat the request.
        """
        ids = args.ids or []
        refused: list[list[Refused]] = [[] for _ in ids]
        work: dict[int, list[tuple[int, Finish]]] = {}
        await self._completions.until_decided([Run(task_id, 1) for task_id in ids])
        for place, task_id in enumerate(ids):
            try:
                leader = self._tokens.leader(partition_of(task_id))
                work.setdefault(leader.partition, []).append((place, self._discarded(leader, task_id)))
            except OnyxqError as error:
                refused[place].append([task_id, 1, error.to_map()])
        await self._completions.finish_all(work, refused)
        return [parts[0][2] if parts else None for parts in refused]

    def _discarded(self, leader: PartitionLeader, task_id: TaskId) -> Finish:
        if (again := repeated_cancel(self._host.store, task_id, leader.mark)) is not None:
            return again
        self._check_requeueing(task_id)
        self._check_dead(task_id, "discarded")
        if pending_facts.is_completed(self._host.store, self._host.replica, task_id):
            raise Unavailable(f"a transaction may be completing task {task_id.hex()}")
        row = self._host.store.task_row(task_id)
        if row is not None:
            self._state.keys.note(task_id, row[1])
        token = token_now(self._host.store, task_id, self._host.replica.position)
        return Finish(Run(task_id, 1), token, facts.CANCELLED, [])

    def _check_requeueing(self, task_id: TaskId) -> None:
        """Raise `Unavailable` while a dead letter is being requeued, or while that is unknown.

        If the log is lost, only the next leader learns the outcome.
        """
        if self._state.any_in(State.REOPENING, [Run(task_id, 1)]):
            raise Unavailable(f"task {task_id.hex()} is being requeued")

    def _is_reopened(self, task_id: TaskId) -> bool:
        """Return whether a task was requeued and is still unfinished."""
        return not self._finished(task_id) and self._was_reopened(task_id)

    def _finished(self, task_id: TaskId) -> bool:
        return bool(self._host.store.finished_bits(stretch_of(task_id)) & mask_of(task_id, 1))

    def _was_reopened(self, task_id: TaskId) -> bool:
        return any(one.event == facts.REOPENED for one in history_of(self._host.store, task_id))

    def _check_dead(self, task_id: TaskId, verb: str) -> None:
        """Raise `NotFound` or `Conflict` unless a task is a dead letter; ``verb``: what is done only to these."""
        if self._host.store.task_row(task_id) is None:
            raise missing(self._host.store, task_id, "ids")
        partition, before = partition_of(task_id), (int.from_bytes(task_id, "big") - 1).to_bytes(len(task_id), "big")
        if task_id not in self._host.store.failed(partition, after=before, limit=1):
            done = self._done(task_id) if self._finished(task_id) else None
            state = "not finished" if done is None else facts.OUTCOMES[done.outcome]
            since = " since it was requeued" if done is not None and self._was_reopened(task_id) else ""
            problem = f"task {task_id.hex()} is {state}{since}: only failed tasks can be {verb}"
            raise Conflict(problem, field="ids", hint=RUN_AGAIN if done else WAIT_OR_CANCEL)
