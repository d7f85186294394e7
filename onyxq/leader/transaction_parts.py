"""Transactions at the leaders of their parts: prepared, then made visible (design: transactions).

To *prepare* a part, the leader checks its tokens. A majority of the partition's holders stores its
items as pending rows, under the leader's epoch like any write. No reader sees them. The *commit* is
a log entry. `onyxq.leader.transaction_apply` does what follows it.

Pending rows are deleted once their part has settled, or once no commit of them can come any more.
That is so in these cases:

* log time has passed the transaction's deadline,
* the transaction belongs to a batch of a job, and another transaction was committed for the batch,
  the job's driver was replaced, or the job has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from log_entries import settle_transactions
from log_entries.commit_batch import committed_by
from onyxq.core.entry import APPLIED
from onyxq.core.errors import Conflict, OnyxqError, SequenceGap, StaleToken, StoreFailed, Unavailable
from onyxq.core.facts import Row
from onyxq.core.ids import Run, TaskId, ids_of, mask_of, partition_of, runs_of, stretch_of
from onyxq.core.replica import Replica, Transaction, held_bits
from onyxq.core.step import Step
from onyxq.core.transactions import known_as
from onyxq.leader.cohort import pending_facts
from onyxq.leader.cohort.pending_facts import Part, is_over, key_in
from onyxq.leader.completion_rows import overtaken_bits
from onyxq.leader.completions import Completions
from onyxq.leader.enqueues import Enqueues
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.outcomes import Outcomes
from onyxq.leader.state.token_rules import valid_tasks
from onyxq.leader.task_updates import check_room, updates_of
from onyxq.leader.token_check import TokenCheck, unsure_partitions
from onyxq.leader.transaction_apply import TransactionApplier
from onyxq.store.interface import Batch, PendingRow
from onyxq.system import failures
from onyxq.system.procedures import Wait, beside, pause
from onyxq.system.signal import Signal

SWEEP_EVERY_S = 5.0
DROP_PAUSE_S = 0.2
"""Delay before pending rows are deleted, in seconds, so that several are deleted together."""
REPEAT = "repeat"

log = logging.getLogger(__name__)

HeldClaim = tuple[TaskId, int, int]
"""(first, count, token)."""


class PartRequest(NamedTuple):
    """Request to a leader to prepare one part of a transaction."""

    name: str
    deadline_ms: int
    partition: int
    items: list[Any]
    """Items of `onyxq.leader.cohort.pending_facts`; may be empty if claims are only checked."""
    require: list[HeldClaim]
    """Claims that must be valid in addition to those of the items."""


class TransactionParts:
    """Prepares and finishes parts of transactions in the partitions that a node leads; one per node."""

    def __init__(
        self,
        host: OperationsHost,
        *,
        tokens: TokenCheck,
        completions: Completions,
        outcomes: Outcomes,
        enqueues: Enqueues,
    ) -> None:
        self._host = host
        self._outcomes = outcomes
        self._tokens = tokens
        self._completions = completions
        self.applier = TransactionApplier(host, completions=completions, enqueues=enqueues, outcomes=outcomes)
        self._over: dict[tuple[int, str], None] = {}
        """Settled parts whose pending rows can be deleted."""
        self._over_wake = Wait()
        self._waiting: dict[str, Signal] = {}
        """Wakes those that wait for the decision of a transaction, by name."""
        self.wants_time = False
        """Whether pending rows here wait until log time has passed their deadline."""

    async def run(self) -> None:
        """Run the background work until cancelled."""
        async with beside() as start:
            start(self.applier.run())
            start(self._drop_settled())
            start(self._sweep())

    # --- the log moves on

    def note(self, before: Replica, step: Step) -> None:
        """Take the events about transactions of a step of the log."""
        for outcome in step.outcomes:
            args: Any = outcome.args
            if outcome.verdict != APPLIED:
                continue
            for committed in committed_by(args):
                for part in committed.parts:
                    self.applier.owe(part.partition, committed.name)
                self._tell(committed.name)
            if isinstance(args, settle_transactions.Args):
                self._note_settled(before, step.replica, args)

    def _note_settled(self, before: Replica, after: Replica, args: settle_transactions.Args) -> None:
        """Drop pending rows of parts that settled, and wake those that wait for their transactions."""
        for name in args.names:
            found = before.transactions.get(name)
            if found is not None and args.partition in found.parts:
                self._over[args.partition, key_in(found, name, args.partition)] = None
                self._tell_dependents(found, args.partition)
            if name not in after.transactions:
                self._tell(name)
        self._over_wake.end()

    def look(self) -> None:
        """Check all transactions of a new replica, because steps before it were not seen here."""
        for name, found in sorted(self._host.replica.transactions.items()):
            for partition in found.parts:
                self.applier.owe(partition, name)
        for name in list(self._waiting):
            self._tell(name)

    def lead(self, leader: PartitionLeader) -> None:
        """Make committed transactions visible in a partition that serves from here now."""
        unstored = self._outcomes.unstored
        unstored -= {one for one in unstored if partition_of(one) == leader.partition}  # these are tried again
        self.applier.lead(leader.partition)
        for name, found in sorted(self._host.replica.transactions.items()):
            if leader.partition in found.parts:
                self.applier.owe(leader.partition, name)

    def _tell_dependents(self, found: Transaction, partition: int) -> None:
        """Report tasks as finished for good, now that the transaction's claims on them have ended."""
        if partition in self._host.leaders:
            held = [runs for number, _, runs in found.claims if number == partition]
            self._outcomes.finished([Run(TaskId(first), count) for runs in held for first, count in runs])

    def _tell(self, name: str) -> None:
        if (heard := self._waiting.pop(name, None)) is not None:
            heard.fire()

    async def heard_of(self, name: str, timeout_s: float) -> None:
        """Wait until the log commits a transaction or it is settled everywhere, up to ``timeout_s``."""
        heard = self._waiting.setdefault(name, Signal())
        try:
            await heard.wait(timeout_s)
        finally:
            if self._waiting.get(name) is heard and not heard.awaited:
                del self._waiting[name]

    # --- prepare

    async def prepare(self, asked: Sequence[PartRequest]) -> list[Any]:
        """Store parts of transactions; return ``[rows, digest]``, ``["repeat", position]`` or an error map for each."""
        named = [(first, token) for one in asked for first, _, token in _claims(one)]
        unsure = await unsure_partitions(self._host, named)
        await self._completions.until_decided([Run(first, n) for one in asked for first, n, _ in _claims(one)])
        answers: list[Any] = []
        rows: dict[int, list[Row]] = {}
        for one in asked:
            try:
                answer, kept = self._prepared(one, unsure)
                answers.append(answer)
                rows.setdefault(one.partition, []).extend(map(pending_facts.as_row, kept))
            except OnyxqError as error:
                answers.append(error.to_map())
        prepared = [one for one, answer in zip(asked, answers, strict=True) if isinstance(answer, list)]
        with self._completions.marked_finishing(_completed_runs(prepared)):
            failed = await self._keep(rows)
        return [
            failed[one.partition] if one.partition in failed and isinstance(answer, list) else answer
            for one, answer in zip(asked, answers, strict=True)
        ]

    async def _keep(self, rows: dict[int, list[Row]]) -> dict[int, dict[str, Any]]:
        """Store pending rows on majorities, per partition; return an error map for each partition that failed."""
        votes = []
        failed: dict[int, dict[str, Any]] = {}
        for partition, part in sorted(rows.items()):
            if part:
                leader = self._host.leaders[partition]
                votes.append((leader, leader.replicate(part)))
                failures.refused()  # pending rows have no effect before the commit
        for leader, vote in votes:
            try:
                await leader.decide(vote)
            except OnyxqError as error:
                failed[leader.partition] = error.to_map()
        return failed

    def _prepared(self, asked: PartRequest, unsure: set[int]) -> tuple[list[Any], list[PendingRow]]:
        leader = self._tokens.leader(asked.partition)
        known = known_as(self._host.replica, asked.name)
        if known is not None:
            return [REPEAT, known[0]], []
        if self._host.replica.log_time_ms > asked.deadline_ms:
            raise Unavailable("the transaction took too long: its deadline has passed")
        for kind, *item in asked.items:
            if kind == "T":
                leader.check_new(item[0])
        self._check_claims(asked, unsure)
        self._check_updates(asked)
        bodies = pending_facts.pack_items(asked.items)
        part = Part(asked.deadline_ms, pending_facts.digest_of(bodies), asked.name)
        return [len(bodies), part.digest], pending_facts.pending_rows(asked.partition, part, bodies)

    def _check_claims(self, asked: PartRequest, unsure: set[int]) -> None:
        """Raise `StaleToken` that names every claim that is not valid."""
        gone: list[list[Any]] = []
        for first, count, token in _claims(asked):
            self._tokens.leader_for(first, token, unsure)
            why = self._invalid_claims(first, count, token)
            gone += [[task_id, token, error["code"], error["message"]] for task_id, error in why]
        if gone:
            raise stale_token(gone)

    def _invalid_claims(self, first: TaskId, count: int, token: int) -> Iterable[tuple[TaskId, dict[str, Any]]]:
        run = Run(first, count)
        host, store, mask = self._host, self._host.store, mask_of(*run)
        held = held_bits(host.replica, run, token) & ~host.leader_state.blocked(run)
        finished = store.finished_bits(stretch_of(first)) & mask
        valid = held & ~finished | overtaken_bits(store, run, token, held & finished)
        if valid == mask:
            return
        _, refused = valid_tasks(self._host, run, token)
        why = {task_id: error for task_id, _, error in refused}
        for task_id in (one for part in runs_of(stretch_of(first), mask & ~valid) for one in ids_of(*part)):
            # The task of an expired claim may still be completed alone. A commit needs a valid claim.
            lapsed = StaleToken(f"token {token} no longer holds task {task_id.hex()}")
            yield task_id, why.get(task_id) or lapsed.to_map()

    def _check_updates(self, asked: PartRequest) -> None:
        following: dict[tuple[TaskId, int], int] = {}
        more: dict[TaskId, int] = {}
        for kind, *item in asked.items:
            if kind != "U":
                continue
            task_id, token, seq, data = item
            found = updates_of(self._host.store, task_id)
            stored = {one.seq: one.data for one in found if one.token == token}
            expected = following.get((task_id, token), len(stored))
            if seq in stored and stored[seq] != data:
                raise Conflict(f"update {seq} of this claim holds other data", field="update")
            if seq not in stored and seq != expected:
                raise SequenceGap(f"update {expected} comes next on {task_id.hex()}, not {seq}", field="update")
            if seq not in stored:
                more[task_id] = more.get(task_id, 0) + len(data)
                check_room(found, more[task_id], "update")
            following[task_id, token] = max(expected, seq + 1)

    # --- what is over

    async def _drop_settled(self) -> None:
        while True:
            await self._over_wake.wait()
            await pause(DROP_PAUSE_S)
            self._over_wake = Wait()
            over, self._over = tuple(self._over), {}
            await self._drop(over)

    async def _drop(self, over: tuple[tuple[int, str], ...]) -> None:
        if over:
            try:
                await self._host.store.write(Batch(drop_pending=over))
            except StoreFailed as error:
                log.info("pending rows cannot be deleted now: %s", error.message)  # until the next sweep

    async def _sweep(self) -> None:
        """Delete pending rows of transactions that were abandoned, or that settled while this node was away."""
        before: set[tuple[int, str]] = set()
        while True:
            await pause(SWEEP_EVERY_S)
            replica = self._host.replica
            dead: list[tuple[int, str]] = []
            left: set[tuple[int, str]] = set()
            for partition in range(replica.settings.partitions if replica.cluster else 0):
                for key in self._host.store.pending_transactions(partition):
                    if is_over(replica, partition, key):
                        dead.append((partition, key))
                    else:
                        left.add((partition, key))
            self.wants_time = bool(left)
            # Under load some transactions are always on their way. Only those of an earlier sweep show a fault.
            self._host.metrics.prepared_transactions.set(len(left & before))
            before = left
            await self._drop(tuple(dead))
            if any(leader.ready for leader in self._host.leaders.values()):
                self.look()


def stale_token(gone: list[list[Any]]) -> StaleToken:
    """Return the error that names claims which are not valid, each as ``[id, token, code, message]``."""
    first = gone[0]
    more = f", and {len(gone) - 1} more" if len(gone) > 1 else ""
    return StaleToken(
        f"nothing was done: the claim on task {first[0].hex()} under token {first[1]} is not valid{more}",
        details=gone,
    )


def _claims(asked: PartRequest) -> list[HeldClaim]:
    """Return every claim that must be valid for a part."""
    claims = list(asked.require)
    for kind, *item in asked.items:
        if kind == "C":
            claims.append((item[0], item[1], item[2]))
        elif kind == "U":
            claims.append((item[0], 1, item[1]))
    return claims


def _completed_runs(parts: Iterable[PartRequest]) -> list[Run]:
    """Return the tasks that parts of transactions complete."""
    return [run for one in parts for run in pending_facts.completed_runs(one.items)]
