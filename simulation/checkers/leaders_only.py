"""A partition is led by one peer per epoch, and only that peer changes its claims, serves, settles or yields it.

Purging and making transactions visible count as changes of claims: both end what a later leader could still use.

The checker follows leaders and epochs through the log by the verdicts of entries, without the entries' own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from attrs import define

from log_entries import (
    expire_claims,
    force_partition,
    purge,
    ready_partition,
    release_claims,
    renew_claims,
    reopen_tasks,
    settle_partition,
    settle_transactions,
    yield_partition,
)
from onyxq.core.entry import APPLIED
from onyxq.core.replica import Partition, Replica
from onyxq.core.step import NOT_IN_RING, Outcome, Step
from simulation.checkers import GRANTS, LogChecker

CLAIM_ENTRIES = (
    *GRANTS,
    renew_claims.Args,
    release_claims.Args,
    expire_claims.Args,
    reopen_tasks.Args,
    settle_transactions.Args,
    purge.Args,
)
LEADER_ENTRIES = (ready_partition.Args, settle_partition.Args, yield_partition.Args)
WITHOUT_LEADERS = frozenset(
    "grant_claims grant_limited_claims renew_claims release_claims expire_claims reopen_tasks purge commit_transaction "
    "commit_batch settle_transactions set_queue set_periodic pause_periodic remove_periodic fire_periodic "
    "submit_job replay_job replace_job driver_ready supersede_driver seal_input kill_job complete_job fail_job "
    "report_job begin_savepoint keep_savepoint drop_savepoint restore_job".split()
)
"""Entries that do not change which peer leads a partition."""


@define(eq=False)
class LeadersOnly(LogChecker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "leaders only"

    def step(self, before: Replica, step: Step) -> None:
        """Compare entries with the leaders before the record and after it.

        A leader may begin to serve, grant and yield in one record.
        """
        began: set[tuple[int, int]] = set()
        for outcome in step.outcomes:
            args = outcome.args
            if outcome.verdict == APPLIED and isinstance(args, ready_partition.Args):
                began.add((args.partition, args.epoch))
            elif outcome.verdict == APPLIED and isinstance(args, CLAIM_ENTRIES):
                if (args.partition, args.epoch) not in began:
                    self._claims(before, step, outcome)
        self._leads(before, step)
        self._forced(before, step)
        self._epochs(before, step.replica)

    def _claims(self, before: Replica, step: Step, outcome: Outcome) -> None:
        args = outcome.args
        placed = [one.partitions[args.partition] for one in (before, step.replica) if args.partition in one.partitions]
        if not any((one.leader, one.epoch, one.ready) == (step.peer, args.epoch, True) for one in placed):
            raise self.broken(
                f"{outcome.name} of {step.peer} for partition {args.partition} under {args.epoch} was applied "
                f"at position {step.replica.position}, where {placed[-1].leader} leads under {placed[-1].epoch}"
            )

    def _leads(self, before: Replica, step: Step) -> None:
        """Raise unless the leader of the present epoch serves, settles and yields, and settles only what it serves."""
        ready: set[int] = set()
        for outcome in step.outcomes:
            args = outcome.args
            if outcome.verdict != APPLIED or outcome.name in WITHOUT_LEADERS:
                continue
            if not isinstance(args, LEADER_ENTRIES):
                return  # the leader may have changed within the record
            found = before.partitions[args.partition]
            if found.epoch != args.epoch or found.leader != step.peer:
                raise self.broken(f"{outcome.name} of {step.peer} at epoch {args.epoch} applied to {found}")
            if isinstance(args, settle_partition.Args) and not (found.ready or found.epoch in ready):
                raise self.broken(f"{step.peer} settled {found}")
            if not isinstance(args, ready_partition.Args):
                return
            ready.add(found.epoch)

    def _forced(self, before: Replica, step: Step) -> None:
        """Raise unless a partition is forced if, and only if, most of its members are gone and a holder is left.

        A peer that has left the ring forces nothing.
        """
        outcome = step.outcomes[0] if step.outcomes else None
        if outcome is None or not isinstance(outcome.args, force_partition.Args) or outcome.verdict == NOT_IN_RING:
            return
        found = before.partitions.get(outcome.args.partition)
        if found is not None:
            lives = {name for name, node in before.nodes.items() if node.peer}
            lost = 2 * len(lives & set(found.members)) <= len(found.members)
            if (lost and bool(lives & {*found.members, *found.target})) != (outcome.verdict == APPLIED):
                raise self.broken(f"forced: {outcome.verdict!r} for {found} while {sorted(lives)} live")
            if outcome.verdict == APPLIED and len(step.outcomes) == 1:
                self._continued(lives, found, step.replica.partitions[outcome.args.partition].members)

    def _continued(self, lives: set[str], found: Partition, members: Sequence[str]) -> None:
        """Raise unless each live member of a forced partition is needed for a majority, and together they are one."""
        wanted = lives & set(found.members) or lives & set(found.target)
        needed = len(members) // 2 + 1
        if lives & set(members) != wanted or needed != len(wanted):
            raise self.broken(f"forced: {needed} of {members} are a majority of {found} while {sorted(lives)} live")

    def _epochs(self, before: Replica, after: Replica) -> None:
        """Raise if an epoch falls, or stays the same while the leader or the target changes."""
        if after.partitions is before.partitions:
            return
        for number, new in after.partitions.items():
            old = before.partitions.get(number)
            if old is not None and old is not new:
                moved = (new.leader, new.target) != (old.leader, old.target)
                if new.epoch < old.epoch + moved:
                    raise self.broken(f"epochs: partition {number} went from {old} to {new}")
