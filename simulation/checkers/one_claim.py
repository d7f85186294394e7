"""Never two valid claims on a task at once, as the log says and as workers believe.

The log's side keeps its own table of claims from the verdicts alone, without asking the
replica.  The workers' side trusts nothing but what workers heard and their own clocks.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import define, field

from log_entries import commit_transaction, expire_claims, release_claims, renew_claims, settle_transaction
from log_entries.commit_batch import committed_by
from onyxq.core.claims import lapsed
from onyxq.core.entry import APPLIED
from onyxq.core.ids import Run, TaskId, ids_of
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from onyxq.core.transactions import Prepared
from simulation.checkers import GRANTS, Checker


@define(eq=False)
class OneClaim(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "one claim at a time"
    holders: dict[TaskId, int] = field(factory=dict)
    """Token under which each task is claimed."""
    deadlines: dict[TaskId, int] = field(factory=dict)
    """Log time, in ms, until which who holds a task has it, by what granted or renewed it last."""
    granted: set[tuple[TaskId, int]] = field(factory=set)
    transactions: dict[str, dict[int, list[TaskId]]] = field(factory=dict)
    """Tasks that committed transactions hold, by name and partition."""

    def step(self, before: Replica, step: Step) -> None:
        """Follow the claims of one record."""
        replica = step.replica
        for outcome in step.outcomes:
            args = outcome.args
            if outcome.verdict != APPLIED:
                continue
            if isinstance(args, GRANTS):
                for grant in args.grants:
                    self._grant(grant.runs, replica.position, replica.log_time_ms + grant.lease_ms)
            else:
                self._move_or_end(args, replica.log_time_ms)
            for committed in committed_by(args):
                self._commit(committed, replica.position)
            if isinstance(args, settle_transaction.Args):
                for task_id in self.transactions.get(args.name, {}).pop(args.partition, []):
                    del self.holders[task_id]

    def _move_or_end(self, args: Any, log_time_ms: int) -> None:
        """Renew or end claims; an entry may name more: what was renewed, or ended by an entry before it."""
        if isinstance(args, renew_claims.Args):
            for renewal in args.renewals:
                for task_id in self._held(renewal.runs, renewal.token):
                    self.deadlines[task_id] = log_time_ms + renewal.lease_ms
        elif isinstance(args, release_claims.Args):
            for release in args.releases:
                for task_id in self._held(release.runs, release.token):
                    del self.holders[task_id]
        elif isinstance(args, expire_claims.Args):
            for expiry in args.expirations:
                for task_id in self._held(expiry.runs, expiry.token):
                    if lapsed(self.deadlines[task_id], log_time_ms):
                        del self.holders[task_id]

    def _grant(self, runs: tuple[Run, ...], token: int, deadline_ms: int) -> None:
        for task_id in (one for run in runs for one in ids_of(*run)):
            if task_id in self.holders:
                raise self.broken(f"{task_id.hex()} was granted under {token} while held under {self.holders[task_id]}")
            self.holders[task_id] = token
            self.deadlines[task_id] = deadline_ms
            self.granted.add((task_id, token))

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
                self.holders[task_id] = position
                held.setdefault(claim.partition, []).append(task_id)

    def _held(self, runs: tuple[Run, ...], token: int) -> list[TaskId]:
        """Those of the runs' tasks that are held under the token."""
        return [task_id for run in runs for task_id in ids_of(*run) if self.holders.get(task_id) == token]

    def heard(self, task_id: TaskId, token: int, now_s: float) -> None:
        """A worker was told that it holds a task."""
        others = [(other, grant) for other, grant in self.history.holders(task_id, now_s) if other != token]
        if others and self.history.heard[task_id][token].valid_until_s > now_s:
            other, grant = others[0]
            raise self.broken(
                f"a worker was given {task_id.hex()} under {token} while {grant.worker} holds it under {other} "
                f"for another {grant.valid_until_s - now_s:.3f} s"
            )

    def superseded(self, task_id: TaskId, token: int) -> bool:
        """Whether somebody has been given the task under a newer token; its holder may do nothing more."""
        return max(self.history.heard.get(task_id, {}), default=-1) > token

    def finish(self) -> None:
        """Whatever workers were given was granted by the log."""
        heard = [(task_id, token) for task_id, grants in self.history.heard.items() for token in grants]
        for task_id, token in heard:
            if (task_id, token) not in self.granted:
                raise self.broken(f"a worker was given {task_id.hex()} under {token}, which the log never granted")
