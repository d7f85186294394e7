"""What the leader of a partition does for clients: enqueue, finish, renew, update, expire.

Enqueues, updates, completions and cancels are facts: quorum writes under the epoch, which
go on while the log is away.  Renewals, failures with a retry and returns are entries.
From the moment a newer grant is on its way older tokens are refused; a lapsed token is
taken while nobody newer was granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import trio

from log_entries import release_claims, renew_claims
from onyxq import facts
from onyxq.entry import APPLIED
from onyxq.errors import (
    AlreadyFinished,
    BadRequest,
    Conflict,
    NotFound,
    NotLeader,
    OnyxqError,
    SequenceGap,
    StaleToken,
    Unknown,
)
from onyxq.facts import Completion, History, Row, Update
from onyxq.ids import Run, TaskId, id_at, mask_of, ms_of, offset_of, partition_of, runs_of, stretch_of
from onyxq.partition.cutting import fitting, run_groups, size_of
from onyxq.partition.finishing import (
    Finish,
    completions_of,
    history_of,
    holds_other,
    merged,
    not_ended_by,
    overtaken_bits,
)
from onyxq.partition.granter import Granter, GranterHost
from onyxq.partition.judging import unsure_partitions
from onyxq.partition.leader import PartitionLeader
from onyxq.partition.replication import Vote
from onyxq.replica import claimed_bits, held_bits, pieces_of

BACKOFF_MAX_MS = 3_600_000
RETRIES_DEFAULT = 25
BACKOFF_DEFAULT_MS = 1_000
NOTE_CHARS_MAX = 1_024
EXTRA_ACKS_S = 1.0
"""How long an enqueue that wants more copies than a majority waits for them."""

Refused = list[Any]
"""``[first, count, error map]`` of a part of an item."""


class OperationsHost(GranterHost, Protocol):
    """What these operations need of their node."""

    leaders: dict[int, PartitionLeader]
    granter: Granter

    def random(self) -> float:
        """0 <= x < 1, from the node's generator."""
        ...

    async def verdicts(self, entries: Sequence[Any]) -> tuple[int, Sequence[str]]:
        """Submit entries; position and verdicts. Raises `LogUnavailable`."""
        ...

    async def settled(self) -> None:
        """Return once what the log said of claims so far can be read from the store."""
        ...

    def submit_lazily(self, entry: Any) -> None:
        """Submit an entry that nobody waits for; lost entries are owed again later."""
        ...

    def due_at(self, partition: int, due_ms: int) -> None:
        """Something falls due in a partition then."""
        ...


class Operations:
    """Serves the ``lead.*`` methods of one node."""

    def __init__(self, host: OperationsHost) -> None:
        self._host = host
        self._updates: dict[tuple[bytes, int], int] = {}
        """Next sequence number of updates being written, per (task, token)."""
        self._finished = trio.Event()

    def leader(self, partition: int) -> PartitionLeader:
        """The serving leader of a partition; raises `NotLeader`, `BadRequest`."""
        if partition >= self._host.replica.settings.partitions:
            raise BadRequest(f"there is no partition {partition}", field="id")
        leader = self._host.leaders.get(partition)
        if leader is None:
            raise NotLeader(f"partition {partition} is not led from here")
        leader.check()
        return leader

    # --- tokens that were not heard of yet

    def _judge(self, task_id: TaskId, token: int, unsure: set[int]) -> PartitionLeader:
        """The leader that can say whether a token stands; raises `NotLeader` if it cannot be told here now."""
        leader = self.leader(partition_of(task_id))
        if leader.partition in unsure and token > self._host.replica.position:
            raise NotLeader(f"token {token} lies beyond what this node has read of the log")
        return leader

    # --- enqueue

    async def enqueue(self, runs: Sequence[tuple[TaskId, bytes]], wanted: int | None) -> list[int | dict[str, Any]]:
        """Store task runs; how many nodes have each, or its error map."""
        votes: list[Vote | int | OnyxqError] = []
        leaders: list[PartitionLeader | None] = []
        for first, body in runs:
            leader = None
            try:
                leader = self.leader(partition_of(first))
                votes.append(self._start_enqueue(leader, first, body))
            except OnyxqError as error:
                votes.append(error)
            leaders.append(leader)
        return [await self._ack(vote, leader, wanted) for vote, leader in zip(votes, leaders, strict=True)]

    def _start_enqueue(self, leader: PartitionLeader, first: TaskId, body: bytes) -> Vote | int:
        header, count = facts.task_header(body)
        known = self._host.store.known_bits(stretch_of(first)) & mask_of(first, count)
        new = mask_of(first, count) & ~known
        base = offset_of(first)
        rows = [
            facts.task_row(run.first, facts.slice_task(body, offset_of(run.first) - base, run.count))
            for run in runs_of(stretch_of(first), new)
        ]
        if known:
            # A repeat: what is here already goes to the holders again, so that its ack is honest.
            rows += self._known_rows(first, known)
        if ms_of(first) > self._host.wall_ms():
            self._host.due_at(leader.partition, ms_of(first))
        self._host.count_event(header["queue"], "enqueued", new.bit_count())
        return leader.replicate(rows)

    def _known_rows(self, first: TaskId, known: int) -> list[Row]:
        rows: dict[bytes, Row] = {}
        for run in runs_of(stretch_of(first), known):
            place = run.first
            left = run.count
            while left > 0 and (found := self._host.store.task_row(place)) is not None:
                rows[found[0]] = facts.task_row(*found)
                _, count = facts.task_header(found[1])
                step = offset_of(found[0]) + count - offset_of(place)
                left -= step
                if left > 0:
                    place = id_at(stretch_of(place), offset_of(place) + step)
        return list(rows.values())

    async def _ack(
        self, vote: Vote | int | OnyxqError, leader: PartitionLeader | None, wanted: int | None
    ) -> int | dict[str, Any]:
        if isinstance(vote, OnyxqError):
            return vote.to_map()
        if isinstance(vote, int) or leader is None:
            return 0
        try:
            acks = await leader.decide(vote)
        except OnyxqError as error:
            return error.to_map()
        if wanted is not None and acks < wanted:
            acks = await vote.wait_for(min(wanted, len(leader.holders())), EXTRA_ACKS_S)
        return acks

    # --- complete

    async def complete(
        self, items: Sequence[tuple[TaskId, int, int, int | None, list[bytes | None]]]
    ) -> list[list[Refused]]:
        """Write completions for ``(first, count, token, seq, results)`` items of any partitions."""
        unsure = await unsure_partitions(self._host, ((first, token) for first, _, token, *_ in items))
        await self._turn([Run(first, count) for first, count, *_ in items])
        refused: list[list[Refused]] = [[] for _ in items]
        work: dict[int, list[tuple[int, Finish]]] = {}
        for place, (first, count, token, seq, results) in enumerate(items):
            try:
                leader = self._judge(first, token, unsure)
                taken, refusals = self.standing(Run(first, count), token)
                self._check_sequence(first, count, token, seq)
                refused[place] += refusals
                for run in runs_of(stretch_of(first), taken):
                    part = results[offset_of(run.first) - offset_of(first) :][: run.count] if results else []
                    finish = Finish(run, token, facts.COMPLETED, part)
                    work.setdefault(leader.partition, []).append((place, finish))
                rest = mask_of(first, count) & ~taken
                for part_first, part_count, _ in refusals:
                    rest &= ~mask_of(part_first, part_count)
                for run in runs_of(stretch_of(first), rest):
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

    async def _turn(self, runs: Sequence[Run]) -> None:
        """Return once no completion of these tasks is being written: whether it was must be known for another."""
        finishing = self._host.granter.finishing
        while any(finishing.get(stretch_of(run.first), 0) & mask_of(*run) for run in runs):
            await self._finished.wait()

    def completion_rows_of(self, leader: PartitionLeader, run: Run) -> list[Row]:
        """The completions that count of finished tasks, to be written again under this leader's mark.

        They may be here only: their ack must be honest, and a copy of another leader's must lose to them.
        """
        mark = leader.mark()
        return [
            facts.completion_row(first, done._replace(mark=mark))
            for first, done in completions_of(self._host.store, run)
        ]

    async def finish_all(self, work: dict[int, list[tuple[int, Finish]]], refused: list[list[Refused]]) -> None:
        """Write completions per partition; what could not be written is added to ``refused``."""
        votes = []
        for partition, finishes in sorted(work.items()):
            leader = self._host.leaders[partition]
            rows = self._completion_rows(leader, [finish for _, finish in finishes if finish.rows is None])
            rows += {row.key: row for _, finish in finishes for row in finish.rows or ()}.values()
            self._mark_finishing(finishes, on=True)
            votes.append((leader, finishes, leader.replicate(rows)))
        for leader, finishes, vote in votes:
            try:
                await leader.decide(vote)
            except OnyxqError as error:
                for place, finish in finishes:
                    refused[place].append([*finish.run, error.to_map()])
            else:
                for finish in (finish for _, finish in finishes if finish.rows is None):
                    queue = self._host.granter.queue_of(finish.run.first)
                    self._host.count_event(queue, facts.OUTCOMES[finish.outcome], finish.run.count)
                self.let_go(leader, [finish for _, finish in finishes])
            finally:
                self._mark_finishing(finishes, on=False)
                # Where nothing was stored after all they are to be had again.
                self._host.granter.offer(finish.run for _, finish in finishes)

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
        finishing = self._host.granter.finishing
        for _, finish in finishes:
            stretch = stretch_of(finish.run.first)
            bits = finishing.get(stretch, 0)
            bits = bits | mask_of(*finish.run) if on else bits & ~mask_of(*finish.run)
            if bits:
                finishing[stretch] = bits
            else:
                finishing.pop(stretch, None)
        if not on:
            self._finished.set()
            self._finished = trio.Event()

    def let_go(self, leader: PartitionLeader, finishes: list[Finish]) -> None:
        """The completions are stored: free their claims, at the log's leisure."""
        by_token: dict[int, list[Run]] = {}
        for finish in finishes:
            held = held_bits(self._host.replica, finish.run, finish.token)
            by_token.setdefault(finish.token, []).extend(runs_of(stretch_of(finish.run.first), held))
        releases = [
            release_claims.Release(token, release_claims.COMPLETED_EVENT, 0, 0, "", runs)
            for token, held_runs in sorted(by_token.items())
            for runs in run_groups(held_runs)
        ]
        for group in fitting(releases, lambda one: size_of(one.runs)):
            self._host.submit_lazily(release_claims.Args(leader.partition, leader.epoch, tuple(group)))

    def standing(self, run: Run, token: int) -> tuple[int, list[Refused]]:
        """Mask of the tasks on which ``token`` still stands, and the refused parts.

        A lapsed token stands while nobody newer was granted. Tasks that this very token
        completed already are neither: their repeat is stored again.
        """
        mask = mask_of(*run)
        store = self._host.store
        held = held_bits(self._host.replica, run, token) & ~self._host.granter.is_blocked(run)
        finished = store.finished_bits(stretch_of(run.first)) & mask
        stands = held & ~finished | overtaken_bits(store, run, token, held & finished)
        refused: list[Refused] = []
        rest = mask & ~stands
        for part in runs_of(stretch_of(run.first), rest):
            for task_id in (id_at(stretch_of(part.first), offset_of(part.first) + i) for i in range(part.count)):
                error = self._why_not(task_id, token)
                if error is None and not finished & mask_of(task_id, 1):
                    stands |= mask_of(task_id, 1)
                elif error is not None:
                    refused.append([task_id, 1, error.to_map()])
        return stands, refused

    def _why_not(self, task_id: TaskId, token: int) -> OnyxqError | None:
        """Why ``token`` does not stand on a task that it does not hold; None if it does."""
        run = Run(task_id, 1)
        store = self._host.store
        if store.finished_bits(stretch_of(task_id)) & mask_of(*run):
            done = [facts.unpack_completion(body) for _, body in store.covering(facts.COMPLETION, task_id)]
            newest = max(done, key=lambda one: (one.mark, one.token), default=None)
            if newest is not None and newest.token == token and newest.outcome == facts.COMPLETED:
                # Had it been acknowledged nobody would have been granted the task after it.
                if not self._granted_after(task_id, token):
                    return None
            return AlreadyFinished(f"task {task_id.hex()} is finished already")
        if store.task_row(task_id) is None:
            return NotFound(f"there is no task {task_id.hex()}", field="id")
        if claimed_bits(pieces_of(self._host.replica, task_id)) & mask_of(*run) or self._host.granter.is_blocked(run):
            return StaleToken(f"task {task_id.hex()} is claimed under another token")
        grants = [event.token for event in self.history(task_id) if event.event == facts.GRANTED]
        if not grants or max(grants) != token:
            return StaleToken(f"token {token} is not the last granted on task {task_id.hex()}")
        return None

    def _granted_after(self, task_id: TaskId, token: int) -> bool:
        """Whether somebody has, had or is about to get a task under a newer token."""
        offset = offset_of(task_id)
        held = pieces_of(self._host.replica, task_id)
        if any(at <= offset < at + count and other > token for at, count, other, *_ in held):
            return True
        said = self.history(task_id)
        newer = any(event.event == facts.GRANTED and event.token > token for event in said)
        return newer or bool(self._host.granter.is_blocked(Run(task_id, 1)))

    def history(self, task_id: TaskId) -> list[History]:
        """What the log said about a task's claims, in order."""
        return history_of(self._host.store, task_id)

    # --- fail, release, renew

    async def fail(self, items: Sequence[tuple[TaskId, int, int, str, int | None]]) -> list[list[Refused]]:
        """Retry, or give up, ``(first, count, token, error, retry_in_ms)`` items."""
        unsure = await unsure_partitions(self._host, ((first, token) for first, _, token, *_ in items))
        await self._turn([Run(first, count) for first, count, *_ in items])
        refused: list[list[Refused]] = [[] for _ in items]
        dead: dict[int, list[tuple[int, Finish]]] = {}
        retries: dict[int, list[release_claims.Release]] = {}
        for place, leader, runs in self._held_of(items, refused, unsure, facts.RETRIED):
            first, count, token, error, retry_in_ms = items[place]
            planned = retries.setdefault(leader.partition, [])
            try:
                for run in runs:
                    self._plan_failure(run, token, error, retry_in_ms, place, dead, planned)
            except OnyxqError as problem:
                refused[place].append([first, count, problem.to_map()])
        await self.finish_all(dead, refused)
        await self._release(retries, refused, items)
        return refused

    def _held_of(
        self,
        items: Sequence[tuple[Any, ...]],
        refused: list[list[Refused]],
        unsure: set[int],
        event: int | None = None,
    ) -> Iterator[tuple[int, PartitionLeader, tuple[Run, ...]]]:
        """Per item ``(first, count, token, ...)`` its place, its leader and the runs held; what is not goes to
        ``refused``, unless its claim ended by ``event``: then the answer to an earlier try was lost."""
        for place, (first, count, token, *_) in enumerate(items):
            try:
                leader = self._judge(first, token, unsure)
                held = self._held(Run(first, count), token, refused[place], event)
            except OnyxqError as problem:
                refused[place].append([first, count, problem.to_map()])
                continue
            if held:
                yield place, leader, tuple(runs_of(stretch_of(first), held))

    def _held(self, run: Run, token: int, refused: list[Refused], event: int | None) -> int:
        held = held_bits(self._host.replica, run, token)
        held &= ~self._host.store.finished_bits(stretch_of(run.first))
        known = self._host.store.known_bits(stretch_of(run.first)) | held
        for part in runs_of(stretch_of(run.first), mask_of(*run) & ~known):
            refused.append([*part, NotFound(f"there is no task {part.first.hex()}", field="id").to_map()])
        for part in runs_of(stretch_of(run.first), mask_of(*run) & known & ~held):
            for lost in not_ended_by(self._host.store, part, token, event):
                refused.append([*lost, StaleToken(f"token {token} does not hold task {lost.first.hex()}").to_map()])
        return held

    def _plan_failure(
        self,
        run: Run,
        token: int,
        error: str,
        retry_in_ms: int | None,
        place: int,
        dead: dict[int, list[tuple[int, Finish]]],
        retries: list[release_claims.Release],
    ) -> None:
        for piece in self._host.granter.pieces(run):
            row = self._host.store.task_row(piece.row_first)
            header = facts.task_header(row[1])[0] if row else {}
            attempts = piece.attempts + 1
            limit = header.get("retries", RETRIES_DEFAULT)
            for part in runs_of(stretch_of(run.first), piece.bits):
                if limit is not None and attempts > limit:
                    note = error.encode()[: 64 * 1024]
                    dead.setdefault(partition_of(run.first), []).append(
                        (place, Finish(part, token, facts.FAILED, [note] * part.count))
                    )
                else:
                    wait_ms = retry_in_ms if retry_in_ms is not None else self._backoff_ms(header, attempts)
                    retry_ms = self._host.wall_ms() + wait_ms
                    retries.append(
                        release_claims.Release(
                            token, facts.RETRIED, retry_ms, attempts, error[:NOTE_CHARS_MAX], (part,)
                        )
                    )

    def _backoff_ms(self, header: dict[str, Any], attempts: int) -> int:
        full = min(header.get("backoff_ms", BACKOFF_DEFAULT_MS) << min(attempts - 1, 20), BACKOFF_MAX_MS)
        return int(full / 2 + self._host.random() * full / 2)

    async def release(self, items: Sequence[tuple[TaskId, int, int]]) -> list[list[Refused]]:
        """Give ``(first, count, token)`` items back, uncounted."""
        unsure = await unsure_partitions(self._host, ((first, token) for first, _, token in items))
        refused: list[list[Refused]] = [[] for _ in items]
        work: dict[int, list[release_claims.Release]] = {}
        for place, leader, runs in self._held_of(items, refused, unsure, facts.RELEASED):
            release = release_claims.Release(items[place][2], facts.RELEASED, 0, 0, "", runs)
            work.setdefault(leader.partition, []).append(release)
        await self._release(work, refused, items)
        return refused

    async def _release(
        self,
        work: dict[int, list[release_claims.Release]],
        refused: list[list[Refused]],
        items: Sequence[tuple[Any, ...]],
    ) -> None:
        entries = [
            release_claims.Args(partition, self._host.leaders[partition].epoch, tuple(group))
            for partition, releases in sorted(work.items())
            for group in fitting(releases, lambda one: size_of(one.runs, one.note))
        ]
        if not entries:
            return
        try:
            _, verdicts = await self._host.verdicts(entries)
        except OnyxqError as error:
            verdicts = [error.message] * len(entries)
            failed = error
        else:
            failed = Unknown("the partition's leader changed meanwhile")
            # Who hears that tasks were given back may cancel or count them right away.
            await self._host.settled()
        for entry, verdict in zip(entries, verdicts, strict=True):
            if verdict == APPLIED:
                continue
            lost = {(release.token, stretch_of(run.first)) for release in entry.releases for run in release.runs}
            for place, item in enumerate(items):
                if (item[2], stretch_of(item[0])) in lost and not refused[place]:
                    refused[place].append([item[0], item[1], failed.to_map()])

    async def renew(self, items: Sequence[tuple[TaskId, int, int, int]]) -> list[list[Refused]]:
        """Extend the leases of ``(first, count, token, lease_ms)`` items."""
        unsure = await unsure_partitions(self._host, ((first, token) for first, _, token, _ in items))
        refused: list[list[Refused]] = [[] for _ in items]
        work: dict[int, list[renew_claims.Renewal]] = {}
        for place, leader, runs in self._held_of(items, refused, unsure):
            _, _, token, lease_ms = items[place]
            work.setdefault(leader.partition, []).append(renew_claims.Renewal(token, lease_ms, runs))
        entries = [
            renew_claims.Args(partition, self._host.leaders[partition].epoch, tuple(group))
            for partition, renewals in sorted(work.items())
            for group in fitting(renewals, lambda one: size_of(one.runs))
        ]
        if entries:
            await self._renew(entries, refused, items)
        return refused

    async def _renew(
        self,
        entries: list[renew_claims.Args],
        refused: list[list[Refused]],
        items: Sequence[tuple[TaskId, int, int, int]],
    ) -> None:
        try:
            await self._host.verdicts(entries)
        except OnyxqError as error:
            for place, item in enumerate(items):
                if not refused[place]:
                    refused[place].append([item[0], item[1], error.to_map()])
            return
        for place, (first, count, token, _) in enumerate(items):
            lost = mask_of(first, count) & ~held_bits(self._host.replica, Run(first, count), token)
            if lost and not refused[place]:
                stale = StaleToken(f"token {token} does not hold task {first.hex()} any more")
                refused[place] += [[*run, stale.to_map()] for run in runs_of(stretch_of(first), lost)]

    # --- update, cancel

    async def update(self, items: Sequence[tuple[TaskId, int, int, bytes]]) -> list[dict[str, Any] | None]:
        """Store ``(id, token, seq, data)`` updates; an error map or None each."""
        unsure = await unsure_partitions(self._host, ((task_id, token) for task_id, token, *_ in items))
        started: list[tuple[PartitionLeader, Vote] | OnyxqError | None] = []
        keys = []
        for task_id, token, seq, data in items:
            try:
                started.append(self._start_update(task_id, token, seq, data, unsure))
                keys.append(((task_id, token), seq + 1))
            except OnyxqError as error:
                started.append(error)
        results: list[dict[str, Any] | None] = []
        for one in started:
            if isinstance(one, tuple):
                try:
                    await one[0].decide(one[1])
                    results.append(None)
                except OnyxqError as error:
                    results.append(error.to_map())
            else:
                results.append(one.to_map() if one is not None else None)
        for key, following in keys:
            if self._updates.get(key) == following:  # else later ones are still being written
                del self._updates[key]
        return results

    def _start_update(
        self, task_id: TaskId, token: int, seq: int, data: bytes, unsure: set[int]
    ) -> tuple[PartitionLeader, Vote]:
        leader = self._judge(task_id, token, unsure)
        taken, refused = self.standing(Run(task_id, 1), token)
        if refused or not taken:
            code = refused[0][2]["code"] if refused else AlreadyFinished.code
            raise (StaleToken if code == StaleToken.code else AlreadyFinished)(
                refused[0][2]["message"] if refused else f"task {task_id.hex()} is finished already"
            )
        stored = {one.seq: one for one in self._stored_updates(task_id, token)}
        if seq in stored:
            if stored[seq].data != data:
                raise Conflict(f"update {seq} of this claim holds other data", field="data")
            row = facts.update_row(task_id, stored[seq]._replace(mark=leader.mark()))
        else:
            expected = max(len(stored), self._updates.get((task_id, token), 0))
            if seq != expected:
                raise SequenceGap(f"update {expected} comes next, not {seq}", field="seq")
            self._updates[task_id, token] = seq + 1
            row = facts.update_row(task_id, Update(token, seq, self._host.wall_ms(), data, leader.mark()))
        return leader, leader.replicate([row])

    def _stored_updates(self, task_id: TaskId, token: int) -> list[Update]:
        found = map(facts.unpack_update, (body for _, body in self._host.store.covering(facts.UPDATE, task_id)))
        return [one for one in found if one.token == token]

    def _check_sequence(self, first: TaskId, count: int, token: int, seq: int | None) -> None:
        """A completion that names a sequence number must follow the claim's last update."""
        if seq is None:
            return
        stored = len(self._stored_updates(first, token))
        if count != 1 or seq != stored:
            raise SequenceGap(f"the completion's seq must be {stored}, not {seq}", field="seq")

    async def cancel(self, ids: Sequence[TaskId]) -> list[dict[str, Any] | None]:
        """Finish unclaimed tasks as cancelled; an error map or None each."""
        await self._turn([Run(task_id, 1) for task_id in ids])
        refused: list[list[Refused]] = [[] for _ in ids]
        work: dict[int, list[tuple[int, Finish]]] = {}
        for place, task_id in enumerate(ids):
            run = Run(task_id, 1)
            try:
                leader = self.leader(partition_of(task_id))
                if self._host.store.task_row(task_id) is None:
                    raise NotFound(f"there is no task {task_id.hex()}", field="id")
                if self._host.store.finished_bits(stretch_of(task_id)) & mask_of(*run):
                    raise AlreadyFinished(f"task {task_id.hex()} is finished already")
                if claimed_bits(pieces_of(self._host.replica, task_id)) & mask_of(
                    *run
                ) or self._host.granter.is_blocked(run):
                    raise Conflict(f"task {task_id.hex()} is claimed")
                # Newer than every grant known here, older than any that a later leader makes.
                finish = Finish(run, self._host.replica.position, facts.CANCELLED, [])
                work.setdefault(leader.partition, []).append((place, finish))
            except OnyxqError as error:
                refused[place].append([task_id, 1, error.to_map()])
        self._host.granter.block(finish.run for finishes in work.values() for _, finish in finishes)
        await self.finish_all(work, refused)
        self._host.granter.unblock([finish.run for finishes in work.values() for _, finish in finishes], readd=True)
        return [parts[0][2] if parts else None for parts in refused]
