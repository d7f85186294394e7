"""Claims are changed by the leader that serves a partition, under the epoch it leads with, and by nobody else.

The checker follows leaders and epochs through the log by what entries were applied to,
and does not ask the entries that change claims.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from log_entries import expire_claims, release_claims, renew_claims, reopen_tasks
from onyxq.core.entry import APPLIED
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import GRANTS, Checker

CLAIM_ENTRIES = (*GRANTS, renew_claims.Args, release_claims.Args, expire_claims.Args, reopen_tasks.Args)


@define(eq=False)
class LeadersOnly(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "leaders only"

    def step(self, before: Replica, step: Step) -> None:
        """Compare the entries about claims with who led before the record, or leads after it."""
        for outcome in step.outcomes:
            args = outcome.args
            if outcome.verdict != APPLIED or not isinstance(args, CLAIM_ENTRIES):
                continue
            placed = [
                one.partitions[args.partition] for one in (before, step.replica) if args.partition in one.partitions
            ]
            if not any((one.leader, one.epoch, one.ready) == (step.peer, args.epoch, True) for one in placed):
                raise self.broken(
                    f"{outcome.name} of {step.peer} for partition {args.partition} under {args.epoch} was applied "
                    f"at position {step.replica.position}, where {placed[-1].leader} leads under {placed[-1].epoch}"
                )
