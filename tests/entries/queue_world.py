"""Helpers of tests of queues and transactions: a cluster of one node, and the entries of its leader."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from pyrsistent import pmap

from log_entries import commit_transaction, grant_claims, grant_limited_claims, release_claims, set_queue
from onyxq.core.entry import APPLIED, Verdict
from onyxq.core.facts import RELEASED
from onyxq.core.ids import Run, make_id
from onyxq.core.invariants.queues import violations
from onyxq.core.replica import Replica
from onyxq.core.transactions import Claim, Part
from tests.entries import cohorts

PARTITIONS = 4
DEADLINE_MS = 60_000


class QueueWorld:
    """One node that leads all partitions; the test sets the clocks."""

    def __init__(self) -> None:
        self.replica: Replica = cohorts.cluster("a", partitions=PARTITIONS, replicas=1)
        self.peer = self.replica.partitions[0].leader

    def submit(self, args: Any, *, after_ms: int = 0) -> Verdict:
        """Submit one entry in a record of its own, ``after_ms`` later; return its verdict."""
        self.replica = evolve(self.replica, clock_ms=self.replica.clock_ms + after_ms)
        self.replica, verdict = cohorts.submit(self.replica, args, self.peer, rise_ms=after_ms)
        assert violations(self.replica) == []
        return verdict

    def done(self, args: Any, *, after_ms: int = 0) -> int:
        """Submit one entry that must apply; return the position of its record."""
        assert self.submit(args, after_ms=after_ms) == APPLIED
        return self.replica.position

    def epoch(self, partition: int) -> int:
        """The partition's epoch."""
        return self.replica.partitions[partition].epoch

    def limit(self, queue: str = "q", **numbers: int) -> None:
        """Set limits of a queue."""
        self.done(setting(queue, **numbers))

    def limited(self, first: int, count: int, *, queue: str = "q", partition: int = 0) -> grant_limited_claims.Args:
        """Grant a number of tasks of a limited queue."""
        grant = grant_claims.Grant("w", 30_000, (tasks(first, count, partition=partition),))
        return grant_limited_claims.Args(partition, self.epoch(partition), queue, (grant,))

    def granted(self, *runs: Run) -> int:
        """Grant runs of one partition; the token."""
        partition = int.from_bytes(runs[0].first[6:8], "big")
        grant = grant_claims.Grant("w", 30_000, runs)
        return self.done(grant_claims.Args(partition, self.epoch(partition), (grant,)))

    def release(self, run: Run, token: int, event: int = RELEASED) -> release_claims.Args:
        """The end of a claim."""
        partition = int.from_bytes(run.first[6:8], "big")
        return release_claims.Args(
            partition, self.epoch(partition), (release_claims.Release(token, event, 0, 0, "", (run,)),)
        )


def tasks(first: int, count: int, *, partition: int = 0) -> Run:
    """Consecutive tasks of a partition."""
    return Run(make_id(1, partition, 7, first), count)


def setting(queue: str, **settings: Any) -> set_queue.Args:
    """Return settings of a queue, by their types."""
    kinds: dict[type, dict[str, Any]] = {int: {}, str: {}, bool: {}}
    for name, value in settings.items():
        kinds[type(value)][name] = value
    return set_queue.Args(queue, pmap(kinds[int]), pmap(kinds[str]), pmap(kinds[bool]), (), "ops", "because")


def commit(name: str, *claims: Claim, require: tuple[Claim, ...] = (), **changes: Any) -> commit_transaction.Args:
    """Commit a transaction with a part in every partition of its claims."""
    parts = tuple(Part(partition, 1, b"d") for partition in sorted({claim.partition for claim in claims}))
    return evolve(commit_transaction.Args(name, DEADLINE_MS, claims, require, parts), **changes)
