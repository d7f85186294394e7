"""No queue has more tasks claimed at a time, or granted in a time, than its limits allow.

From the log the checker counts what is claimed and refills a bucket of its own; and workers
must not believe that they hold more.  Once all nodes know of a queue's limits its grants are
of the kind that keeps to them.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from log_entries import grant_claims, grant_limited_claims
from onyxq.core.ids import TaskId
from onyxq.core.replica import Replica
from onyxq.core.step import Outcome, Step
from simulation.checkers import granted_by
from simulation.checkers.one_claim import OneClaim
from simulation.checkers.queues_followed import NEVER_S, QueuesFollowed

SLACK = 1e-6


@define
class Bucket:
    """What may be granted of a queue: full at first."""

    rate: int
    """Tasks in 1,000 s."""
    level: float
    at_ms: int


@define(eq=False)
class LimitsKept(QueuesFollowed):
    """See the module's first paragraph."""

    name: ClassVar[str] = "limits kept"
    claims: OneClaim = field(kw_only=True)
    held: dict[str, set[tuple[TaskId, int]]] = field(factory=dict)
    """Claims of limited grants that stand, by queue."""
    queue_of: dict[tuple[TaskId, int], str] = field(factory=dict)
    buckets: dict[str, Bucket] = field(factory=dict)
    plain: set[tuple[TaskId, int]] = field(factory=set)
    """Grants that kept to no limit."""
    believed: dict[str, set[TaskId]] = field(factory=dict)
    """Tasks of limited queues that workers were given."""

    def step(self, before: Replica, step: Step) -> None:
        """Count the claims that a record ended, and those that it began."""
        for ended in self.claims.ended:
            queue = self.queue_of.pop((ended.task_id, ended.token), None)
            if queue is not None:
                self.held[queue].discard((ended.task_id, ended.token))
        super().step(before, step)

    def applied(self, outcome: Outcome, step: Step) -> None:
        """Count the grants of one entry."""
        args = outcome.args
        if isinstance(args, grant_limited_claims.Args):
            self._grant(args, step)
        elif isinstance(args, grant_claims.Args):
            self.plain |= {(one, step.replica.position) for one in granted_by(args)}

    def _grant(self, args: grant_limited_claims.Args, step: Step) -> None:
        new = {(one, step.replica.position) for one in granted_by(args)}
        held = self.held.setdefault(args.queue, set())
        held |= new
        self.queue_of |= dict.fromkeys(new, args.queue)
        most = self.settings.get(args.queue, {}).get("concurrency", 0)
        if most and len(held) > most:
            raise self.broken(f"{len(held)} tasks of {args.queue} are claimed at {step.replica.position}, not {most}")
        rate = self.settings.get(args.queue, {}).get("rate", 0)
        if rate:
            self._take(args.queue, rate, len(new), step)

    def _take(self, queue: str, rate: int, count: int, step: Step) -> None:
        now_ms, full = step.replica.clock_ms, max(1.0, rate / 1000)
        bucket = self.buckets.get(queue)
        if bucket is None or bucket.rate != rate:
            bucket = self.buckets[queue] = Bucket(rate, full, now_ms)
        bucket.level = min(full, bucket.level + rate * max(0, now_ms - bucket.at_ms) / 1_000_000) - count
        bucket.at_ms = now_ms
        if bucket.level < -SLACK:
            raise self.broken(f"{count} tasks of {queue} were granted at {step.replica.position}, too soon for {rate}")

    def heard(self, queue: str, task_id: TaskId, token: int, *, sent_s: float, now_s: float) -> None:
        """A worker was given a task for which it had asked then; the log is caught up with."""
        settings = self.settings.get(queue, {})
        if not settings.get("concurrency") and not settings.get("rate"):
            self.believed.pop(queue, None)
            return
        known = self.known_s.get(queue, NEVER_S) < sent_s
        if known and (task_id, token) in self.plain and self.set_at[queue] < token:
            raise self.broken(f"{task_id.hex()} of {queue} was granted under {token} without regard to its limits")
        believed = self.believed.setdefault(queue, set())
        believed.add(task_id)
        most = settings.get("concurrency", 0)
        if known and most:
            holding = [one for one in believed if self._counts(one, now_s)]
            if len(holding) > most:
                raise self.broken(f"workers hold {len(holding)} tasks of {queue} at a time, not {most}")

    def _counts(self, task_id: TaskId, now_s: float) -> bool:
        """Whether a worker holds a task under a claim that the limit counts: not one of a leader that had not
        read of it yet."""
        holders = self.history.holders(task_id, now_s)
        return any((task_id, token) not in self.plain for token, _ in holders)
