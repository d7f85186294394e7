"""Attempts are counted: each failure and each expiry adds one, a released or postponed task adds none.

The checker counts the attempts in the log and compares them with the numbers of the leaders. By the history of the
clients, no claim reports fewer attempts than the number of acknowledged failures. Clients that write a history fail
and release, but never postpone.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from log_entries import reopen_tasks
from onyxq.core.entry import APPLIED
from onyxq.core.ids import Run, TaskId, ids_of
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import Checker
from simulation.checkers.one_claim import EXPIRED, FAILED, OneClaim
from simulation.world.history import CLAIM, FAIL, OK


@define(eq=False)
class AttemptsCounted(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "attempts counted"
    claims: OneClaim
    counted: dict[TaskId, int] = field(factory=dict)
    postponed: set[TaskId] = field(factory=set)
    """Tasks that were given back for a time, which the log does not distinguish from an uncounted failure."""

    def step(self, before: Replica, step: Step) -> None:
        """Count the attempts that a record ended."""
        for ended in self.claims.ended:
            if ended.how in (FAILED, EXPIRED):
                expected = self.counted.get(ended.task_id, 0) + 1
                if ended.how == FAILED and ended.attempts == expected - 1:
                    self.postponed.add(ended.task_id)
                    continue
                if ended.attempts != expected:
                    raise self.broken(
                        f"attempt {expected} of {ended.task_id.hex()} was counted as {ended.attempts} "
                        f"at {step.replica.position}"
                    )
                self.counted[ended.task_id] = expected
        for outcome in step.outcomes:
            if outcome.verdict == APPLIED and isinstance(outcome.args, reopen_tasks.Args):
                for run, attempts in outcome.args.runs:
                    self._reopen(run, attempts, step)

    def _reopen(self, run: Run, attempts: int, step: Step) -> None:
        """Follow a reopening; it may count one attempt more, as the last one of a dead letter has no entry."""
        for task_id in ids_of(*run):
            if not 0 <= attempts - self.counted.get(task_id, 0) <= 1:
                raise self.broken(f"{task_id.hex()} was reopened after {attempts} attempts at {step.replica.position}")
            self.counted[task_id] = attempts

    def finish(self) -> None:
        """Compare the attempts of claims with the failures that were acknowledged before them."""
        for task_id, calls in self.history.operations.items():
            if task_id in self.postponed:
                raise self.broken(f"a failed attempt of {task_id.hex()} was not counted")
            for claim in (call for call in calls if call.kind == CLAIM):
                failed = [
                    call
                    for call in calls
                    if call.kind == FAIL and call.outcome == OK and call.answered_s < claim.invoked_s
                ]
                if claim.attempts < len(failed):
                    raise self.broken(f"{task_id.hex()} failed {len(failed)} times before {claim}: {claim.attempts}")
