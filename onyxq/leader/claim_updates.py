"""Requests of a claim's holder other than completions: fail, postpone, release, renew. All become log entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from log_entries import release_claims, renew_claims
from onyxq.core import facts
from onyxq.core.claims import NOTHING_HELD
from onyxq.core.entry import APPLIED
from onyxq.core.errors import Corrupt, NotLeader, OnyxqError, StaleToken, Unknown
from onyxq.core.ids import Run, TaskId, mask_of, runs_of, stretch_of
from onyxq.core.queues import settings_of
from onyxq.core.replica import held_bits
from onyxq.core.task_headers import UNSTORED, Policy, policy_of
from onyxq.leader.completion_rows import Finish, completions_of, not_ended_by, overtaken_bits
from onyxq.leader.completions import Completions
from onyxq.leader.entry_chunks import fitting, size_of
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.missing_tasks import missing
from onyxq.leader.state.states import State
from onyxq.leader.state.view import Refused
from onyxq.leader.task_updates import Reports
from onyxq.leader.token_check import TokenCheck, unsure_partitions
from onyxq.operations.table.claim import Fail, Failure, GiveUp, Release, Renew
from onyxq.system.procedures import procedure

BACKOFF_MAX_MS = 3_600_000
NOTE_CHARS_MAX = 1_024


class ClaimUpdates:
    """Ends and extends claims in the partitions that a node leads."""

    def __init__(self, host: OperationsHost, tokens: TokenCheck, completions: Completions) -> None:
        self._host = host
        self._tokens = tokens
        self._completions = completions

    @procedure
    async def fail(self, args: Fail) -> list[list[Refused]]:
        """Retry items, or fail those without retries left for good."""
        return await self._fail(args.items, counted=True)

    @procedure
    async def postpone(self, items: Sequence[Failure]) -> list[list[Refused]]:
        """Give items back that were not started; like `fail`, but no attempt is counted and no task fails for good."""
        return await self._fail(items, counted=False)

    @procedure
    async def give_up(self, args: GiveUp) -> list[list[Refused]]:
        """Fail items for good, whatever retries they have left."""
        failures = [
            Failure(first, count, token, error, None, traceback) for first, count, token, error, traceback in args.items
        ]
        return await self._fail(failures, counted=True, final=True)

    async def _fail(self, items: Sequence[Failure], *, counted: bool, final: bool = False) -> list[list[Refused]]:
        unsure = await unsure_partitions(self._host, ((first, token) for first, _, token, *_ in items))
        await self._completions.until_decided([Run(first, count) for first, count, *_ in items])
        refused: list[list[Refused]] = [[] for _ in items]
        dead: dict[int, list[tuple[int, Finish]]] = {}
        retries: dict[PartitionLeader, list[release_claims.Release]] = {}
        reports = Reports(self._host)
        for place, leader, runs in self._held_of(items, refused, unsure, facts.RETRIED):
            first, count, token, error, retry_in_ms, traceback = items[place]
            try:
                ends = [
                    end
                    for run in runs
                    for end in self._failure_ends(run, token, error, retry_in_ms, counted=counted, final=final)
                ]
            except OnyxqError as problem:
                refused[place].append([first, count, problem.to_map()])
                continue
            for end in ends:
                if isinstance(end, Finish):
                    dead.setdefault(leader.partition, []).append((place, end))
                else:
                    retries.setdefault(leader, []).append(end)
            for run in runs:
                reports.add(leader, run, token, facts.Report(final, traceback))
        reports.send()
        await self._completions.finish_all(dead, refused)
        await reports.decide()
        await self._release(retries, refused, items)
        return refused

    def _held_of(
        self,
        items: Sequence[tuple[Any, ...]],
        refused: list[list[Refused]],
        unsure: set[int],
        event: int | None = None,
    ) -> Iterator[tuple[int, PartitionLeader, tuple[Run, ...]]]:
        """Yield the place, leader and held runs of each ``(first, count, token, ...)`` item.

        Parts that the token does not hold are added to ``refused``, unless ``event`` ended their claim: then
        the answer to an earlier request was lost.
        """
        for place, (first, count, token, *_) in enumerate(items):
            try:
                leader = self._tokens.leader_for(first, token, unsure)
                held = self._held(Run(first, count), token, refused[place], event)
            except OnyxqError as problem:
                refused[place].append([first, count, problem.to_map()])
                continue
            if held:
                yield place, leader, tuple(runs_of(stretch_of(first), held))

    def _held(self, run: Run, token: int, refused: list[Refused], event: int | None) -> int:
        held = held_bits(self._host.replica, run, token)
        done = held & self._host.store.finished_bits(stretch_of(run.first))
        held &= ~done | overtaken_bits(self._host.store, run, token, done)
        known = self._host.store.known_bits(stretch_of(run.first)) | held
        for part in runs_of(stretch_of(run.first), mask_of(*run) & ~known):
            refused.append([*part, missing(self._host.store, part.first).to_map()])
        for part in runs_of(stretch_of(run.first), mask_of(*run) & known & ~held):
            for lost in not_ended_by(self._host.store, part, token, event):
                refused.append([*lost, self._lost(lost.first, token).to_map()])
        return held

    def _lost(self, task_id: TaskId, token: int) -> StaleToken:
        """Return the error for a token that does not hold an existing task."""
        done = completions_of(self._host.store, Run(task_id, 1))
        if done and done[0][1].outcome == facts.CANCELLED:
            return StaleToken(f"task {task_id.hex()} was cancelled", hint="Stop working on the task.")
        return StaleToken(f"token {token} does not hold task {task_id.hex()}")

    def _failure_ends(
        self, run: Run, token: int, error: str, retry_in_ms: int | None, *, counted: bool, final: bool
    ) -> Iterator[Finish | release_claims.Release]:
        """Yield how the claims of a failed run end: a finish if there is no retry, otherwise a release for the retry.

        ``final``: there is none, whatever the policy says. Raises `Corrupt` at the end if a task of the run cannot be
        read.
        """
        unread = mask_of(*run)
        for piece in self._host.granter.pieces(run, token):
            unread &= ~piece.bits
            row = self._host.store.task_row(piece.row_first)
            header = facts.task_header(row[1])[0] if row else UNSTORED
            attempts = piece.attempts + counted
            policy = policy_of(self._host.replica, header)
            for part in runs_of(stretch_of(run.first), piece.bits):
                if counted and (final or policy.is_spent(attempts, piece.base)):
                    note = error.encode()[: 64 * 1024]
                    yield Finish(part, token, policy.failure, [note] * part.count)
                else:
                    wait_ms = (
                        retry_in_ms if retry_in_ms is not None else self._backoff_ms(policy, attempts - piece.base)
                    )
                    retry_ms = self._host.wall_ms() + wait_ms
                    yield release_claims.Release(
                        token, facts.RETRIED, retry_ms, attempts, error[:NOTE_CHARS_MAX], (part,)
                    )
        if unread:
            lost = runs_of(stretch_of(run.first), unread)[0].first
            raise Corrupt(f"a row of task {lost.hex()} is damaged here, so the failure was not recorded")

    def _backoff_ms(self, policy: Policy, attempts: int) -> int:
        """Return the pause before the next attempt: doubled after each attempt, and up to half of it random.

        The result is recorded in the log, so it is computed only once.
        """
        full = min(policy.backoff_ms << min(attempts - 1, 20), BACKOFF_MAX_MS)
        return int(full / 2 + self._host.random() * full / 2)

    @procedure
    async def release(self, args: Release) -> list[list[Refused]]:
        """Release items without counting an attempt."""
        items = args.items
        unsure = await unsure_partitions(self._host, ((first, token) for first, _, token in items))
        refused: list[list[Refused]] = [[] for _ in items]
        work: dict[PartitionLeader, list[release_claims.Release]] = {}
        for place, leader, runs in self._held_of(items, refused, unsure, facts.RELEASED):
            release = release_claims.Release(items[place][2], facts.RELEASED, 0, 0, "", runs)
            work.setdefault(leader, []).append(release)
        await self._release(work, refused, items)
        return refused

    async def _release(
        self,
        work: dict[PartitionLeader, list[release_claims.Release]],
        refused: list[list[Refused]],
        items: Sequence[tuple[Any, ...]],
    ) -> None:
        entries = [
            release_claims.Args(leader.partition, leader.epoch, tuple(group))
            for leader, releases in sorted(work.items(), key=lambda one: one[0].partition)
            for group in fitting(releases, lambda one: size_of(one.runs, one.note))
        ]
        if not entries:
            return
        overtaken = [part for entry in entries for one in entry.releases for part in self._overtaken(one)]
        # Until the store knows that these tasks are unfinished, their old completions must not be reported.
        with self._completions.marked_finishing(overtaken):
            try:
                _, verdicts = await self._host.verdicts(entries)
            except OnyxqError as error:
                verdicts = [error.message] * len(entries)
                failed = error
            else:
                failed = Unknown("the partition's leader changed meanwhile")
                # The client may cancel or count the released tasks as soon as it has the answer.
                await self._host.settled()
        for entry, verdict in zip(entries, verdicts, strict=True):
            if verdict != APPLIED:
                _refuse(refused, items, entry.releases, failed)

    def _overtaken(self, release: release_claims.Release) -> Iterator[Run]:
        """Yield the tasks of a release whose completions are older than their claims."""
        store = self._host.store
        for run in release.runs:
            done = store.finished_bits(stretch_of(run.first)) & mask_of(*run)
            yield from runs_of(stretch_of(run.first), overtaken_bits(store, run, release.token, done))

    @procedure
    async def renew(self, args: Renew) -> list[list[Refused]]:
        """Extend the leases of items; one that names no lease gets that of its queue."""
        items = args.items
        unsure = await unsure_partitions(self._host, ((first, token) for first, _, token, _ in items))
        await self._completions.until_decided([Run(first, count) for first, count, *_ in items])
        refused: list[list[Refused]] = [[] for _ in items]
        work: dict[int, list[renew_claims.Renewal]] = {}
        for place, leader, runs in self._held_of(items, refused, unsure):
            _, _, token, lease_ms = items[place]
            leases = {lease_ms: runs} if lease_ms is not None else self._leases(runs, token, refused[place])
            renewals = (renew_claims.Renewal(token, lease, parts) for lease, parts in leases.items())
            work.setdefault(leader.partition, []).extend(renewals)
        entries = [
            renew_claims.Args(partition, self._host.leaders[partition].epoch, tuple(group))
            for partition, asked in sorted(work.items())
            for group in fitting(asked, lambda one: size_of(one.runs))
        ]
        if entries:
            renewing = [run for entry in entries for one in entry.renewals for run in one.runs]
            self._host.leader_state.begin(State.RENEWING, renewing)
            try:
                await self._renew(entries, refused, items)
            finally:
                self._host.leader_state.end(State.RENEWING, renewing)
        return refused

    def _leases(self, runs: Sequence[Run], token: int, refused: list[Refused]) -> dict[int, tuple[Run, ...]]:
        """Return the parts of held runs by the lease of their queue; refuse those whose rows are damaged here.

        Consecutive ids may be of several queues.
        """
        found: dict[int, list[Run]] = {}
        for run in runs:
            unread = mask_of(*run)
            for piece in self._host.granter.pieces(run, token):
                unread &= ~piece.bits
                lease_ms = settings_of(self._host.replica, piece.queue).lease_ms
                found.setdefault(lease_ms, []).extend(runs_of(stretch_of(run.first), piece.bits))
            for part in runs_of(stretch_of(run.first), unread):
                problem = Corrupt(f"a row of task {part.first.hex()} is damaged here, so its queue is not known")
                refused.append([*part, problem.to_map()])
        return {lease_ms: tuple(parts) for lease_ms, parts in found.items()}

    async def _renew(
        self,
        entries: list[renew_claims.Args],
        refused: list[list[Refused]],
        items: Sequence[tuple[TaskId, int, int, int | None]],
    ) -> None:
        try:
            _, verdicts = await self._host.verdicts(entries)
        except OnyxqError as error:
            _refuse(refused, items, [one for entry in entries for one in entry.renewals], error)
            return
        for entry, verdict in zip(entries, verdicts, strict=True):
            if verdict not in (APPLIED, NOTHING_HELD):
                # The claims may still be valid, but not for longer than before.
                _refuse(refused, items, entry.renewals, NotLeader("the partition's leader changed meanwhile"))
        for place, (first, count, token, _) in enumerate(items):
            lost = _accepted(items[place], refused[place]) & ~held_bits(self._host.replica, Run(first, count), token)
            if lost:
                stale = StaleToken(f"token {token} no longer holds task {first.hex()}")
                refused[place] += [[*run, stale.to_map()] for run in runs_of(stretch_of(first), lost)]


def _refuse(
    refused: list[list[Refused]],
    items: Sequence[tuple[Any, ...]],
    parts: Iterable[release_claims.Release | renew_claims.Renewal],
    error: OnyxqError,
) -> None:
    """Refuse the tasks of ``(first, count, token, ...)`` items that are in these parts of an entry.

    Other tasks of an item may be refused already, for another reason.
    """
    about: dict[tuple[int, bytes], int] = {}
    for part in parts:
        for run in part.runs:
            key = part.token, stretch_of(run.first)
            about[key] = about.get(key, 0) | mask_of(*run)
    for place, item in enumerate(items):
        bits = about.get((item[2], stretch_of(item[0])), 0) & _accepted(item, refused[place])
        refused[place] += [[*run, error.to_map()] for run in runs_of(stretch_of(item[0]), bits)]


def _accepted(item: tuple[Any, ...], refused: list[Refused]) -> int:
    """Return the mask of the tasks of a ``(first, count, ...)`` item that are not refused."""
    bits = mask_of(item[0], item[1])
    for first, count, _ in refused:
        bits &= ~mask_of(first, count)
    return bits
