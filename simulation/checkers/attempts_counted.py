"""Attempts are counted: each failure and each expiry adds one, a task given back adds none.

From the log the checker counts by itself, and compares with what leaders wrote; from the
clients' history it checks that nobody is told of fewer attempts than were acknowledged to
have failed.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from log_entries import expire_claims, release_claims, renew_claims, reopen_tasks
from onyxq.core.claims import lapsed
from onyxq.core.entry import APPLIED
from onyxq.core.facts import RETRIED
from onyxq.core.ids import Run, TaskId, ids_of
from onyxq.core.replica import Replica, claim_of
from onyxq.core.step import Step
from simulation.checkers import Checker
from simulation.world.history import CLAIM, FAIL, OK


@define(eq=False)
class AttemptsCounted(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "attempts counted"
    counted: dict[TaskId, int] = field(factory=dict)

    def step(self, before: Replica, step: Step) -> None:
        """Count the attempts that a record ended; what one of its entries ended the next ones name in vain."""
        over: set[tuple[TaskId, int]] = set()
        for outcome in step.outcomes:
            args = outcome.args
            if outcome.verdict != APPLIED:
                continue
            if isinstance(args, renew_claims.Args):
                for renewal in args.renewals:
                    over |= {(one, -renewal.token) for run in renewal.runs for one in ids_of(*run)}
            elif isinstance(args, release_claims.Args):
                for release in args.releases:
                    ended = self._ended(before, release.runs, release.token, step, over)
                    if release.event == RETRIED:
                        self._count(ended, release.attempts, step)
            elif isinstance(args, expire_claims.Args):
                for expiry in args.expirations:
                    ended = self._ended(before, expiry.runs, expiry.token, step, over, lapsed_only=True)
                    self._count(ended, expiry.attempts, step)
            elif isinstance(args, reopen_tasks.Args):
                for run, attempts in args.runs:
                    self._reopen(run, attempts, step)

    def _ended(
        self,
        before: Replica,
        runs: tuple[Run, ...],
        token: int,
        step: Step,
        over: set[tuple[TaskId, int]],
        *,
        lapsed_only: bool = False,
    ) -> list[TaskId]:
        """Tasks whose claim this part of an entry ended."""
        found = []
        for task_id in (one for run in runs for one in ids_of(*run)):
            held, holds = claim_of(before, task_id), claim_of(step.replica, task_id)
            if held is None or held[2] != token or (holds is not None and holds[2] == token):
                continue
            late = lapsed(held[4], step.replica.log_time_ms) and (task_id, -token) not in over
            if (task_id, token) in over or (lapsed_only and not late):
                continue
            over.add((task_id, token))
            found.append(task_id)
        return found

    def _count(self, ended: list[TaskId], attempts: int, step: Step) -> None:
        for task_id in ended:
            expected = self.counted.get(task_id, 0) + 1
            if attempts != expected:
                raise self.broken(
                    f"attempt {expected} of {task_id.hex()} was counted as {attempts} at {step.replica.position}"
                )
            self.counted[task_id] = expected

    def _reopen(self, run: Run, attempts: int, step: Step) -> None:
        """A dead letter's last attempt is no entry: its reopening may say one more."""
        for task_id in ids_of(*run):
            if not 0 <= attempts - self.counted.get(task_id, 0) <= 1:
                raise self.broken(f"{task_id.hex()} was reopened after {attempts} attempts at {step.replica.position}")
            self.counted[task_id] = attempts

    def finish(self) -> None:
        """Compare what claimers were told with the failures that were acknowledged before."""
        for task_id, calls in self.history.operations.items():
            for claim in (call for call in calls if call.kind == CLAIM):
                failed = [
                    call
                    for call in calls
                    if call.kind == FAIL and call.outcome == OK and call.answered_s < claim.invoked_s
                ]
                if claim.attempts < len(failed):
                    raise self.broken(f"{task_id.hex()} failed {len(failed)} times before {claim}: {claim.attempts}")
