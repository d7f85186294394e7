"""Expiry: leaders end claims whose lease is over in log time.

The earliest deadline wakes the leader. The record that expires a claim also moves log time to the deadline.

A task without attempts left becomes a dead letter. If a transaction that may still be committed
completes it, it waits until the commit has been read or none can follow. Claims on finished tasks are
released. A completion that is older than the claim does not count: its worker may have learned that
it was refused.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import define, field

from log_entries import expire_claims, grant_claims, grant_limited_claims, renew_claims
from onyxq.core import facts
from onyxq.core.claims import GRACE_MS
from onyxq.core.claims import lapsed as may_expire
from onyxq.core.entry import APPLIED
from onyxq.core.errors import Corrupt, OnyxqError
from onyxq.core.ids import Run, id_at, mask_of, runs_of, stretch_of
from onyxq.core.step import Outcome
from onyxq.core.task_headers import UNSTORED, policy_of
from onyxq.leader.cohort import pending_facts
from onyxq.leader.completion_rows import Finish, overtaken_bits
from onyxq.leader.completions import Completions
from onyxq.leader.entry_chunks import fitting, size_of
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.state.completion_plan import stored_rows
from onyxq.leader.state.states import State
from onyxq.leader.state.view import Refused
from onyxq.system.procedures import Wait, pause

RETRY_S, RETRY_MAX_S = 0.01, 0.5
"""First and longest pause before claims that could not be ended are tried again, in seconds.

If another record was on its way, log time is a few milliseconds short of the deadline: the first pause covers that.
"""

log = logging.getLogger(__name__)


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

    def __init__(
        self,
        host: OperationsHost,
        completions: Completions,
        *,
        log_time_now_ms: Callable[[], int],
    ) -> None:
        """Prepare; ``log_time_now_ms`` returns the log time that a record written now would have."""
        self._host = host
        self._completions = completions
        self._log_time_now_ms = log_time_now_ms
        self._next_ms: float = math.inf
        """Earliest deadline of a claim in the led partitions, in log time."""
        self._wake = Wait()

    async def run(self) -> None:
        """End each claim when its lease is over, until cancelled."""
        retry_s = RETRY_S
        while True:
            wait_s = self._wait_s()
            if wait_s <= 0:
                try:
                    await self.expire()
                except OnyxqError as error:
                    log.info("expiry waits: %s", error.message)
                wait_s = self._wait_s()
                if wait_s <= 0:
                    await pause(retry_s)
                    retry_s = min(2 * retry_s, RETRY_MAX_S)
                    continue
            retry_s = RETRY_S
            await self._wake.wait(wait_s)

    def _wait_s(self) -> float:
        """Find the earliest deadline; return the seconds until its claim may expire."""
        self._wake = Wait()
        deadlines = (piece[4] for _, claims in self._led() for pieces in claims.values() for piece in pieces)
        self._next_ms = min(deadlines, default=math.inf)
        return (self._next_ms + GRACE_MS + 1 - self._log_time_now_ms()) / 1000

    def look(self) -> None:
        """Look at all claims again: this node leads another partition, or has read another replica."""
        self._wake.end()

    def note(self, outcomes: Sequence[Outcome], log_time_ms: int) -> None:
        """Note the deadlines that a record set, and that log time may have moved."""
        deadlines = (
            log_time_ms + one.lease_ms
            for outcome in outcomes
            if outcome.verdict == APPLIED
            for one in _leases(outcome.args)
            if outcome.args.partition in self._host.leaders
        )
        next_ms = min(deadlines, default=math.inf)
        if next_ms < self._next_ms or may_expire(self._next_ms, self._log_time_now_ms()):
            self._wake.end()

    def _led(self) -> Iterator[tuple[PartitionLeader, Any]]:
        """Yield the partitions that serve here, and their claims."""
        for partition in self._host.granter.led():
            claims = self._host.replica.claims.get(partition)
            leader = self._host.leaders.get(partition)
            if claims is not None and leader is not None and leader.ready:
                yield leader, claims

    async def expire(self) -> None:
        """End the expired claims of all led partitions together.

        A node that takes over many partitions may find some in each of them. Together they need one log record.
        """
        due = self._due(self._log_time_now_ms())
        if due.lapsed or due.over:
            await self._let_lapse(due)
        # A finish needs no log, but in an outage of the log no claim ends. So a record must have reached the deadline.
        over = self._due(self._host.replica.log_time_ms).over
        if over:
            await self._finish(over)

    async def _finish(self, over: dict[int, list[tuple[int, Finish]]]) -> None:
        """Write finishes; those that are not written are planned again."""
        refused: list[list[Refused]] = [[]]
        await self._completions.finish_all(over, refused)
        lost = {first for first, *_ in refused[0]}
        for _, finish in (one for finishes in over.values() for one in finishes):
            if finish.rows is None and finish.run.first not in lost:
                self._host.granter.metrics.expired(finish.run, finish.token)

    def _due(self, log_time_ms: int) -> _Due:
        """Return the work that claims require which are expired at a log time."""
        due = _Due()
        for leader, claims in self._led():
            self._plan(leader, claims, log_time_ms, due)
        return due

    def _plan(self, leader: PartitionLeader, claims: Any, log_time_ms: int, due: _Due) -> None:
        state = self._host.leader_state
        lapsed: list[expire_claims.Expiry] = []
        over: list[Finish] = []
        dead: list[Finish] = []
        late = (
            (stretch, found)
            for stretch, pieces in claims.items()
            if (found := [piece for piece in pieces if may_expire(piece[4], log_time_ms)])
        )
        for stretch, pieces in sorted(late):
            finished = self._host.store.finished_bits(stretch)
            for offset, count, token, worker, _ in pieces:
                run = Run(id_at(stretch, offset), count)
                # A renewal that is on its way is decided first, because an expiry may fail the task for good.
                bits = mask_of(*run) & ~state.bits(State.FINISHING, stretch) & ~state.bits(State.RENEWING, stretch)
                done = bits & finished
                try:
                    void = overtaken_bits(self._host.store, run, token, done)
                except Corrupt:  # the claims on finished tasks end once the completion is repaired
                    bits, done, void = bits & ~finished, 0, 0
                due.overtaken += runs_of(stretch, void)
                done &= ~void
                for part in runs_of(stretch, done):
                    # Its release was lost. The completion may be stored only here, so it is written again first.
                    rows = stored_rows(self._host.store, part, leader.mark())
                    over.append(Finish(part, token, facts.COMPLETED, [], rows))
                for part in runs_of(stretch, bits & ~done):
                    self._plan_expiry(part, token, worker, lapsed, dead)
        if dead:
            over += self._without_commits(leader.partition, dead)
        if over:
            due.over[leader.partition] = [(0, finish) for finish in over]
        for group in fitting(lapsed, lambda one: size_of(one.runs)):
            due.lapsed.append(expire_claims.Args(leader.partition, leader.epoch, tuple(group)))

    async def _let_lapse(self, due: _Due) -> None:
        # Until the store knows that these tasks are unfinished, their old completions must not be reported.
        with self._completions.marked_finishing(due.overtaken):
            await self._host.verdicts(due.lapsed or [self._nothing(min(due.over))])
            if due.overtaken:
                await self._host.settled()

    def _nothing(self, partition: int) -> expire_claims.Args:
        """Return an entry that changes nothing; its record moves log time."""
        return expire_claims.Args(partition, self._host.leaders[partition].epoch, ())

    def _plan_expiry(
        self, run: Run, token: int, worker: str, lapsed: list[expire_claims.Expiry], dead: list[Finish]
    ) -> None:
        for piece in self._host.granter.pieces(run, token):
            try:
                row = self._host.store.task_row(piece.row_first)
            except Corrupt:
                continue  # its claim ends once the row is repaired
            policy = policy_of(self._host.replica, facts.task_header(row[1])[0] if row else UNSTORED)
            attempts = piece.attempts + 1
            for part in runs_of(stretch_of(run.first), piece.bits):
                if policy.is_spent(attempts, piece.base):
                    who = f"worker {worker or '(unnamed)'}"
                    note = f"{who} stopped answering in attempt {attempts} (its lease ended); no retry left"
                    dead.append(Finish(part, token, policy.failure, [note.encode()] * part.count))
                else:
                    lapsed.append(expire_claims.Expiry(token, attempts, (part,)))

    def _without_commits(self, partition: int, dead: list[Finish]) -> list[Finish]:
        """Return dead letters of a partition without tasks that a transaction may still complete.

        The log does not decide between a dead letter and a commit, which needs only a claim that has not ended.
        """
        try:
            completed = pending_facts.completed_bits(self._host.store, self._host.replica, partition)
        except Corrupt as error:
            log.info("partition %d: last attempts do not fail yet: %s", partition, error.message)
            return []
        left: list[Finish] = []
        for finish in dead:
            stretch = stretch_of(finish.run.first)
            for part in runs_of(stretch, mask_of(*finish.run) & ~completed.get(stretch, 0)):
                left.append(finish._replace(run=part, results=finish.results[: part.count]))
        return left


def _leases(args: Any) -> Sequence[grant_claims.Grant | renew_claims.Renewal]:
    """Return the parts of an entry that set deadlines."""
    if isinstance(args, (grant_claims.Args, grant_limited_claims.Args)):
        return args.grants
    return args.renewals if isinstance(args, renew_claims.Args) else ()
