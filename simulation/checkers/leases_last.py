"""Log time only rises, and no lease ends early by the simulation's own clock.

Log time may pass more slowly than real time (after an outage, or a jump of some clock), so
a claim may last longer than was agreed. It is never shorter, but for `FAST_PPM`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

from attrs import define, field

from log_entries import expire_claims, release_claims, renew_claims
from log_entries.commit_batch import committed_by
from onyxq.core.entry import APPLIED
from onyxq.core.ids import Run, TaskId, ids_of
from onyxq.core.replica import Replica, claim_of
from onyxq.core.step import Step
from simulation.checkers import GRANTS, Checker

FAST_PPM = 500
"""How much faster than right a monotonic clock may run."""


def least_ms(lease_ms: int) -> float:
    """Return how long a lease lasts at least, by a right clock."""
    return lease_ms - lease_ms * FAST_PPM / 1_000_000 - 1


Lease: TypeAlias = tuple[int, float, int]
"""Token, second of the grant or last renewal, and the lease in milliseconds."""


@define(eq=False)
class LeasesLast(Checker):
    """See the module's first paragraph; ``landed_s`` says when a position of the log was written."""

    name: ClassVar[str] = "leases last"
    landed_s: Callable[[int], float]
    held: dict[TaskId, Lease] = field(factory=dict)
    expired: int = 0
    """Claims that expired."""

    def step(self, before: Replica, step: Step) -> None:
        """Follow the leases of one record.

        What it expires is judged behind all its entries, by what was known before them: a
        claim that one of them names in vain may be released by the next, and one that is
        expired be renewed in vain.
        """
        if step.replica.log_time_ms < before.log_time_ms:
            raise self.broken(f"log time went back at position {step.replica.position}")
        expiring = self._expiring(step)
        for outcome in step.outcomes:
            args = outcome.args
            if outcome.verdict != APPLIED:
                continue
            if isinstance(args, GRANTS):
                for grant in args.grants:
                    self._begin(grant.runs, step.replica.position, grant.lease_ms, step)
            elif isinstance(args, renew_claims.Args):
                for renewal in args.renewals:
                    self._begin(self._under(renewal.runs, renewal.token), renewal.token, renewal.lease_ms, step)
            elif isinstance(args, release_claims.Args):
                for release in args.releases:
                    self._end(release.runs, release.token)
            for committed in committed_by(args):
                for claim in committed.claims:
                    self._end(claim.runs, claim.token)
        for task_id, lease in expiring.items():
            if self.held.get(task_id, (-1,))[0] == lease[0]:
                self._judge(task_id, lease, step)

    def _expiring(self, step: Step) -> dict[TaskId, Lease]:
        """What is known of the tasks that a record would have expire."""
        found: dict[TaskId, Lease] = {}
        for outcome in step.outcomes:
            if outcome.verdict == APPLIED and isinstance(outcome.args, expire_claims.Args):
                for expiry in outcome.args.expirations:
                    ids = [run.first for run in self._under(expiry.runs, expiry.token)]
                    found |= {task_id: self.held[task_id] for task_id in ids}
        return found

    def _under(self, runs: tuple[Run, ...], token: int) -> tuple[Run, ...]:
        ids = [one for run in runs for one in ids_of(*run)]
        return tuple(Run(one, 1) for one in ids if self.held.get(one, (-1, 0.0, 0))[0] == token)

    def _begin(self, runs: tuple[Run, ...], token: int, lease_ms: int, step: Step) -> None:
        now_s = self.landed_s(step.replica.position)
        self.held.update({one: (token, now_s, lease_ms) for run in runs for one in ids_of(*run)})

    def _end(self, runs: tuple[Run, ...], token: int) -> None:
        for run in self._under(runs, token):
            del self.held[run.first]

    def _judge(self, task_id: TaskId, lease: Lease, step: Step) -> None:
        token, since_s, lease_ms = lease
        claim = claim_of(step.replica, task_id)
        if claim is not None and claim[2] == token:
            return  # its deadline had not passed
        del self.held[task_id]
        self.expired += 1
        held_ms = round((self.landed_s(step.replica.position) - since_s) * 1000)
        if held_ms < least_ms(lease_ms):
            raise self.broken(
                f"the claim {token} on {task_id.hex()} expired at position {step.replica.position} "
                f"after {held_ms} ms; its lease was {lease_ms} ms"
            )
