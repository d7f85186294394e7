"""Dead letters: failed tasks, until somebody has them run again or gives them up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from log_entries import reopen_tasks
from onyxq import facts
from onyxq.entry import APPLIED
from onyxq.errors import Conflict, OnyxqError, Unknown
from onyxq.facts import Completion
from onyxq.ids import Run, TaskId, partition_of, stretch_of
from onyxq.partition.completing import Completing
from onyxq.partition.cutting import fitting, size_of
from onyxq.partition.finishing import Finish, completions_of, history_of, token_now
from onyxq.partition.host import OperationsHost, Refused
from onyxq.partition.leader import PartitionLeader
from onyxq.partition.missing import missing
from onyxq.partition.standing import Standing
from onyxq.replica import claim_of

PAGE_TASKS = 64


class Dead:
    """Serves dead letters of the partitions that a node leads."""

    def __init__(self, host: OperationsHost, standing: Standing, completing: Completing) -> None:
        self._host = host
        self._standing = standing
        self._completing = completing
        self._opening: dict[TaskId, tuple[PartitionLeader, int]] = {}
        """Dead letters that are being requeued: what else is asked for them meanwhile could count or not.
        Each with its leader, and the position at which it was opened before."""

    def find(self, partition: int, *, queue: str | None, after: bytes) -> Iterator[TaskId]:
        """Dead letters of a queue, or of all, in id order behind ``after``."""
        while True:
            page = self._host.store.failed(partition, queue, after=after, limit=PAGE_TASKS)
            yield from page
            if len(page) < PAGE_TASKS:
                return
            after = page[-1]

    def opens(self, leader: PartitionLeader, stretch: bytes) -> bool:
        """Whether a dead letter of a stretch is, or may be, about to be requeued."""
        return any(stretch_of(one) == stretch and found[0] is leader for one, found in self._opening.items())

    def error_of(self, task_id: TaskId) -> str:
        """Why a task failed."""
        done = self._done(task_id)
        return b"".join(one or b"" for one in done.results).decode(errors="replace") if done else ""

    def _done(self, task_id: TaskId) -> Completion | None:
        found = completions_of(self._host.store, Run(task_id, 1))
        return found[0][1] if found else None

    async def requeue(self, ids: Sequence[TaskId]) -> list[dict[str, Any] | None]:
        """Have dead letters run again, with all their retries; an error map or None each."""
        results: list[dict[str, Any] | None] = [None] * len(ids)
        work: dict[int, list[tuple[int, reopen_tasks.Reopened]]] = {}
        await self._completing.turn([Run(task_id, 1) for task_id in ids])
        for place, task_id in enumerate(ids):
            try:
                leader = self._standing.leader(partition_of(task_id))
                self._check_dead(task_id)
                leader.check_new(task_id)
                reopened = reopen_tasks.Reopened(Run(task_id, 1), self._attempts(task_id))
                work.setdefault(leader.partition, []).append((place, reopened))
                self._opening[task_id] = leader, self._host.store.counts_from(task_id)
            except OnyxqError as error:
                results[place] = error.to_map()
        groups = [
            (partition, group)
            for partition, part in sorted(work.items())
            for group in fitting(part, lambda one: size_of((one[1].run,)))
        ]
        await self._reopen(groups, results)
        return results

    def _attempts(self, task_id: TaskId) -> int:
        """How many counted attempts a dead letter had, the last one included."""
        said, done = history_of(self._host.store, task_id), self._done(task_id)
        last = done is not None and any((one.event, one.token) == (facts.GRANTED, done.token) for one in said)
        return max((one.attempts for one in said), default=0) + last

    async def _reopen(
        self, groups: list[tuple[int, list[tuple[int, reopen_tasks.Reopened]]]], results: list[dict[str, Any] | None]
    ) -> None:
        if not groups:
            return
        now_ms = self._host.wall_ms()
        # The claims under which they failed are let go at leisure: they must be gone before.
        first = [
            release
            for partition, group in groups
            for release in self._completing.releases(
                self._host.leaders[partition], [self._held(one.run) for _, one in group]
            )
        ]
        entries = [
            reopen_tasks.Args(partition, self._host.leaders[partition].epoch, now_ms, tuple(one for _, one in group))
            for partition, group in groups
        ]
        failed: OnyxqError = Unknown("the partition's leader changed meanwhile")
        try:
            _, verdicts = await self._host.verdicts([*first, *entries])
            verdicts = verdicts[len(first) :]
            # Who hears that tasks are open again may claim or cancel them right away.
            await self._host.settled()
        except OnyxqError as error:
            failed, verdicts = error, [""] * len(entries)
        for (_, group), verdict in zip(groups, verdicts, strict=True):
            for place, one in group:
                if verdict != APPLIED:
                    results[place] = failed.to_map()
                if verdict:  # else it may be in the log, or get there
                    self._opening.pop(one.run.first, None)

    def _held(self, run: Run) -> Finish:
        claim = claim_of(self._host.replica, run.first)
        return Finish(run, claim[2] if claim is not None else -1, facts.FAILED, [])

    async def discard(self, ids: Sequence[TaskId]) -> list[dict[str, Any] | None]:
        """Give dead letters up: they are cancelled, and what stopped behind them goes on; an error map or None each.

        Those that are cancelled already stay so: whoever was not answered may ask again.
        """
        refused: list[list[Refused]] = [[] for _ in ids]
        work: dict[int, list[tuple[int, Finish]]] = {}
        await self._completing.turn([Run(task_id, 1) for task_id in ids])
        for place, task_id in enumerate(ids):
            try:
                leader = self._standing.leader(partition_of(task_id))
                work.setdefault(leader.partition, []).append((place, self._given_up(leader, task_id)))
            except OnyxqError as error:
                refused[place].append([task_id, 1, error.to_map()])
        await self._completing.finish_all(work, refused)
        return [parts[0][2] if parts else None for parts in refused]

    def _given_up(self, leader: PartitionLeader, task_id: TaskId) -> Finish:
        if (again := self._completing.cancelled(leader, task_id)) is not None:
            return again
        self._check_dead(task_id)
        row = self._host.store.task_row(task_id)
        if row is not None:
            self._host.granter.keys.note(task_id, row[1])
        token = token_now(self._host.store, task_id, self._host.replica.position)
        return Finish(Run(task_id, 1), token, facts.CANCELLED, [])

    def _check_dead(self, task_id: TaskId) -> None:
        """Raise unless a task is a dead letter, and nobody is about to have it run again."""
        if (found := self._opening.get(task_id)) is not None:
            leader, opened = found
            if self._host.leaders.get(leader.partition) is leader and self._host.store.counts_from(task_id) == opened:
                raise Conflict(f"task {task_id.hex()} is being requeued", field="ids")
            del self._opening[task_id]
        if self._host.store.task_row(task_id) is None:
            raise missing(self._host.store, task_id, "ids")
        partition, before = partition_of(task_id), (int.from_bytes(task_id, "big") - 1).to_bytes(len(task_id), "big")
        if task_id not in self._host.store.failed(partition, after=before, limit=1):
            raise Conflict(f"task {task_id.hex()} is no dead letter", field="ids")
