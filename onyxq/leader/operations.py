"""The operations of a partition's leader for clients: enqueue, complete, renew, update, cancel and others.

Enqueues, updates, completions and cancels are facts: quorum writes under the epoch, which continue
while the log is unavailable. Renewals, failures with a retry and releases are log entries. Each
operation has its own module; this one combines them.
"""

from __future__ import annotations

from onyxq.leader.cancellations import Cancellations
from onyxq.leader.claim_updates import ClaimUpdates
from onyxq.leader.completions import Completions
from onyxq.leader.dead_letters import DeadLetters
from onyxq.leader.deadlines import Deadlines
from onyxq.leader.dependencies import Dependencies
from onyxq.leader.dependents import Dependents
from onyxq.leader.enqueues import Enqueues
from onyxq.leader.grants.keyed_rows import KeyedRows
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.outcomes import Outcomes
from onyxq.leader.purge import Purger, PurgingHost
from onyxq.leader.task_keys import TaskKeys
from onyxq.leader.task_updates import TaskUpdates
from onyxq.leader.timers import Timers
from onyxq.leader.token_check import TokenCheck
from onyxq.leader.transaction_parts import TransactionParts
from onyxq.leader.waiting_runs import WaitingRuns
from onyxq.system.procedures import beside


class Operations:
    """What serves the operations in the partitions that a node leads; one per node."""

    def __init__(self, host: PurgingHost) -> None:
        self.tokens = TokenCheck(host)
        self.task_updates = TaskUpdates(host, self.tokens)
        waiting = self.waiting = WaitingRuns()
        outcomes = Outcomes(host, waiting.hint)
        self.completions = Completions(host, self.tokens, outcomes=outcomes, waiting=waiting)
        self.dependencies = Dependencies(host, self.completions, outcomes=outcomes, waiting=waiting)
        self.dead_letters = DeadLetters(host, self.tokens, self.completions)
        self.dependents = Dependents(host)
        self.purger = Purger(host, self.dependents)
        self.deadlines = Deadlines(host, self.completions)
        self.claim_updates = ClaimUpdates(host, self.tokens, self.completions)
        self.cancellations = Cancellations(host, self.tokens, self.completions)
        self.keyed_rows = KeyedRows(host)
        keys = TaskKeys(host, self.keyed_rows, completions=self.completions, dependencies=self.dependencies)
        self.enqueues = Enqueues(
            host, self.tokens, dependencies=self.dependencies, keys=keys, keyed_rows=self.keyed_rows
        )
        self.transaction_parts = TransactionParts(
            host, tokens=self.tokens, completions=self.completions, outcomes=outcomes, enqueues=self.enqueues
        )
        self.timers = Timers(
            host,
            self.tokens,
            keys=keys,
            keyed_rows=self.keyed_rows,
            completions=self.completions,
            cancellations=self.cancellations,
        )

    async def run(self) -> None:
        """Run the background work of the operations until cancelled."""
        async with beside() as start:
            start(self.completions.run())
            start(self.completions.claim_release.run())
            start(self.dependencies.run())
            start(self.deadlines.run())
            start(self.keyed_rows.run())
            start(self.transaction_parts.run())

    def backed(self, leader: PartitionLeader) -> None:
        """Continue with a partition whose finished tasks will stay finished under any next leader."""
        self.completions.claim_release.release_finished(leader)
        self.dependencies.lead(leader.partition)
