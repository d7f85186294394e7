"""Expiry: leaders end claims whose lease is over in log time.

A task without attempts left becomes a dead letter. Claims on finished tasks are released. A
completion that is older than the claim does not count: its worker may have learned that it was
refused.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field

from log_entries import expire_claims
from onyxq.core import facts
from onyxq.core.claims import lapsed as may_expire
from onyxq.core.ids import Run, id_at, mask_of, runs_of, stretch_of
from onyxq.core.task_headers import policy_of
from onyxq.leader.claim_updates import PendingRenewals
from onyxq.leader.completion_rows import Finish, overtaken_bits
from onyxq.leader.completions import Completions
from onyxq.leader.entry_chunks import fitting, size_of
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader


@define
class _Due:
    """The work that expired claims require."""

    lapsed: list[expire_claims.Args] = field(factory=list)
    over: dict[int, list[tuple[int, Finish]]] = field(factory=dict)
    """Finishes to write, per partition: dead letters, and completions whose claims were not released."""
    overtaken: list[Run] = field(factory=list)
    """Tasks of ``lapsed`` whose only completions are older than their claims."""


class Expiry:
    """Expires claims in the partitions that a node leads."""

    def __init__(self, host: OperationsHost, completions: Completions, pending_renewals: PendingRenewals) -> None:
        self._host = host
        self._completions = completions
        self._pending_renewals = pending_renewals

    async def expire(self) -> None:
        """End the expired claims of all led partitions together.

        A node that takes over many partitions may find some in each of them. Together they need one log record.
        """
        due = self._due()
        if due.lapsed:
            await self._let_lapse(due)
        if due.over:
            over = self._due().over if due.lapsed else due.over  # the wait for the log took time, so look again
            await self._completions.finish_all(over, [[]])

    def _due(self) -> _Due:
        """Return the work that claims require which are expired now."""
        due = _Due()
        for partition in self._host.granter.led():
            claims = self._host.replica.claims.get(partition)
            leader = self._host.leaders.get(partition)
            if claims is not None and leader is not None and leader.ready:
                self._plan(leader, claims, due)
        return due

    def _plan(self, leader: PartitionLeader, claims: Any, due: _Due) -> None:
        log_time_ms = self._host.replica.log_time_ms
        lapsed: list[expire_claims.Expiry] = []
        over: list[Finish] = []
        late = (
            (stretch, found)
            for stretch, pieces in claims.items()
            if (found := [piece for piece in pieces if may_expire(piece[4], log_time_ms)])
        )
        for stretch, pieces in sorted(late):
            finished = self._host.store.finished_bits(stretch)
            for offset, count, token, _, _ in pieces:
                run = Run(id_at(stretch, offset), count)
                # A renewal that is on its way is decided first, because an expiry may fail the task for good.
                bits = (
                    mask_of(*run)
                    & ~self._host.granter.finishing.get(stretch, 0)
                    & ~self._pending_renewals.bits(stretch)
                )
                done = bits & finished
                void = overtaken_bits(self._host.store, run, token, done)
                due.overtaken += runs_of(stretch, void)
                done &= ~void
                for part in runs_of(stretch, done):
                    # Its release was lost. The completion may be stored only here, so it is written again first.
                    rows = self._completions.completion_rows_of(leader, part)
                    over.append(Finish(part, token, facts.COMPLETED, [], rows))
                for part in runs_of(stretch, bits & ~done):
                    self._plan_expiry(part, token, lapsed, over)
        if over:
            due.over[leader.partition] = [(0, finish) for finish in over]
        for group in fitting(lapsed, lambda one: size_of(one.runs)):
            due.lapsed.append(expire_claims.Args(leader.partition, leader.epoch, tuple(group)))

    async def _let_lapse(self, due: _Due) -> None:
        # Until the store knows that these tasks are unfinished, their old completions must not be reported.
        with self._completions.marked_finishing(due.overtaken):
            await self._host.verdicts(due.lapsed)
            if due.overtaken:
                await self._host.settled()

    def _plan_expiry(self, run: Run, token: int, lapsed: list[expire_claims.Expiry], dead: list[Finish]) -> None:
        for piece in self._host.granter.pieces(run, token):
            row = self._host.store.task_row(piece.row_first)
            policy = policy_of(self._host.replica, facts.task_header(row[1])[0] if row else {"retries": None})
            attempts = piece.attempts + 1
            for part in runs_of(stretch_of(run.first), piece.bits):
                if policy.is_spent(attempts, piece.base):
                    note = f"the lease expired in attempt {attempts}".encode()
                    dead.append(Finish(part, token, policy.failure, [note] * part.count))
                else:
                    lapsed.append(expire_claims.Expiry(token, attempts, (part,)))
