"""Never two valid claims on a task at once, by the log and by what workers believe.

The log's side keeps its own table of claims from the verdicts alone, without the replica; other checkers read from it
which claims a record began and ended. The workers' side uses only what workers heard, and their own clocks.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from attrs import define, field

from log_entries import commit_transaction, expire_claims, release_claims, renew_claims, settle_transactions
from log_entries.commit_batch import committed_by
from onyxq.core.claims import lapsed
from onyxq.core.entry import APPLIED
from onyxq.core.facts import RETRIED
from onyxq.core.ids import Run, TaskId, ids_of
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from onyxq.core.transactions import Prepared
from simulation.checkers import GRANTS, Checker

RELEASED, FAILED, EXPIRED, COMMITTED = "released", "failed", "expired", "committed"


class Begun(NamedTuple):
    """A claim that was granted or renewed."""

    task_id: TaskId
    token: int
    lease_ms: int


class Ended(NamedTuple):
    """A claim that ended."""

    task_id: TaskId
    token: int
    how: str
    attempts: int = 0
    """Number of attempts so far, as the entry says, if the attempt failed or expired."""


@define(eq=False)
class OneClaim(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "one claim at a time"
    holders: dict[TaskId, int] = field(factory=dict)
    """Token under which each task is claimed."""
    deadlines: dict[TaskId, int] = field(factory=dict)
    """Log time, in ms, until which each claim is valid, by its grant or last renewal."""
    granted: set[tuple[TaskId, int]] = field(factory=set)
    transactions: dict[str, dict[int, list[TaskId]]] = field(factory=dict)
    """Tasks that committed transactions hold, by name and partition."""
    begun: list[Begun] = field(factory=list)
    """Claims that the last record granted or renewed."""
    ended: list[Ended] = field(factory=list)
    """Claims that the last record ended."""

    def step(self, before: Replica, step: Step) -> None:
        """Follow the claims of one record."""
        replica = step.replica
        self.begun, self.ended = [], []
        for outcome in step.outcomes:
            args = outcome.args
            if outcome.verdict != APPLIED:
                continue
            if isinstance(args, GRANTS):
                for grant in args.grants:
                    self._grant(grant.runs, replica.position, grant.lease_ms, replica.log_time_ms)
            else:
                self._move_or_end(args, replica.log_time_ms)
            for committed in committed_by(args):
                self._commit(committed, replica.position)
            if isinstance(args, settle_transactions.Args):
                for name in args.names:
                    for task_id in self.transactions.get(name, {}).pop(args.partition, []):
                        del self.holders[task_id]

    def _move_or_end(self, args: Any, log_time_ms: int) -> None:
        """Renew or end claims; an entry may name claims that an earlier one has renewed or ended."""
        if isinstance(args, renew_claims.Args):
            for renewal in args.renewals:
                for task_id in self._held(renewal.runs, renewal.token):
                    self.deadlines[task_id] = log_time_ms + renewal.lease_ms
                    self.begun.append(Begun(task_id, renewal.token, renewal.lease_ms))
        elif isinstance(args, release_claims.Args):
            for release in args.releases:
                how = FAILED if release.event == RETRIED else RELEASED
                for task_id in self._held(release.runs, release.token):
                    self._end(Ended(task_id, release.token, how, release.attempts))
        elif isinstance(args, expire_claims.Args):
            for expiry in args.expirations:
                for task_id in self._held(expiry.runs, expiry.token):
                    if lapsed(self.deadlines[task_id], log_time_ms):
                        self._end(Ended(task_id, expiry.token, EXPIRED, expiry.attempts))

    def _end(self, ended: Ended) -> None:
        del self.holders[ended.task_id]
        self.ended.append(ended)

    def _grant(self, runs: tuple[Run, ...], token: int, lease_ms: int, log_time_ms: int) -> None:
        for task_id in (one for run in runs for one in ids_of(*run)):
            if task_id in self.holders:
                raise self.broken(f"{task_id.hex()} was granted under {token} while held under {self.holders[task_id]}")
            self.holders[task_id] = token
            self.deadlines[task_id] = log_time_ms + lease_ms
            self.granted.add((task_id, token))
            self.begun.append(Begun(task_id, token, lease_ms))

    def _commit(self, args: commit_transaction.Args | Prepared, position: int) -> None:
        for claim in (*args.claims, *args.require):
            for task_id in (one for run in claim.runs for one in ids_of(*run)):
                if self.holders.get(task_id) != claim.token:
                    raise self.broken(
                        f"transaction {args.name} was committed although {claim.token} does not hold {task_id.hex()}"
                    )
        held = self.transactions.setdefault(args.name, {})
        for claim in args.claims:
            for task_id in (one for run in claim.runs for one in ids_of(*run)):
                self._end(Ended(task_id, claim.token, COMMITTED))
                self.holders[task_id] = position
                held.setdefault(claim.partition, []).append(task_id)

    def _held(self, runs: tuple[Run, ...], token: int) -> list[TaskId]:
        """Return the tasks of the runs that are held under the token."""
        return [task_id for run in runs for task_id in ids_of(*run) if self.holders.get(task_id) == token]

    def heard(self, task_id: TaskId, token: int, now_s: float) -> None:
        """Judge a grant that a worker heard of."""
        others = [(other, grant) for other, grant in self.history.holders(task_id, now_s) if other != token]
        if others and self.history.heard[task_id][token].valid_until_s > now_s:
            other, grant = others[0]
            raise self.broken(
                f"a worker was given {task_id.hex()} under {token} while {grant.worker} holds it under {other} "
                f"for another {grant.valid_until_s - now_s:.3f} s"
            )

    def superseded(self, task_id: TaskId, token: int) -> bool:
        """Return whether a worker heard of a newer claim on the task; then this one is void."""
        return max(self.history.heard.get(task_id, {}), default=-1) > token

    def finish(self) -> None:
        """Raise if the log never granted what a worker heard."""
        heard = [(task_id, token) for task_id, grants in self.history.heard.items() for token in grants]
        for task_id, token in heard:
            if (task_id, token) not in self.granted:
                raise self.broken(f"a worker was given {task_id.hex()} under {token}, which the log never granted")
