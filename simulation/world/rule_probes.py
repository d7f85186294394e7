"""Probes of keys, dependencies, limits, deadlines, dead letters, transactions, periodic tasks (design: simulation)."""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from log_entries import (
    expire_claims,
    fire_periodic,
    settle_transactions,
)
from log_entries.commit_batch import committed_by
from onyxq.client.values import Task
from onyxq.core.entry import APPLIED
from onyxq.core.ids import TaskId, id_at, partition_of
from onyxq.core.replica import Replica, claimed_bits
from onyxq.core.step import Outcome, Step
from simulation.checkers import GRANTS, Checker, granted_by
from simulation.checkers.ledger import Ledger
from simulation.probes import Probes


@define(eq=False)
class RuleWatcher(Checker):
    """Counts what the log and what is read back tell."""

    name: ClassVar[str] = "probes of rules"
    ledger: Ledger
    probes: Probes
    leaders: dict[tuple[str, str], str] = field(factory=dict)
    """Who granted last of each ordering key."""
    committed: dict[str, dict[int, str]] = field(factory=dict)
    """Who led each part's partition when a transaction was committed."""
    fired_by: dict[str, str] = field(factory=dict)

    def step(self, before: Replica, step: Step) -> None:
        """Count what one record shows."""
        for outcome in step.outcomes:
            if outcome.verdict == APPLIED:
                self._applied(before, step, outcome)
        if before.partitions is not step.replica.partitions:
            for number, now in step.replica.partitions.items():
                then = before.partitions.get(number)
                if then is not None and now.ready and not then.ready:
                    self._takeover(number, step.replica)

    def _applied(self, before: Replica, step: Step, outcome: Outcome) -> None:
        args, reached = outcome.args, self.probes.reached
        if isinstance(args, GRANTS):
            for task_id in granted_by(args):
                self._granted(task_id, args.epoch, step.peer)
        elif isinstance(args, expire_claims.Args):
            for queue, count in before.running.items():
                limit = before.queues[queue].concurrency if queue in before.queues else 0
                if limit and count >= limit > step.replica.running.get(queue, 0):
                    reached("a limit was freed by an expiry")
        for one in committed_by(args):
            self.committed[one.name] = {part.partition: before.partitions[part.partition].leader for part in one.parts}
        if isinstance(args, settle_transactions.Args):
            if any(self.committed.get(name, {}).get(args.partition, step.peer) != step.peer for name in args.names):
                reached("a transaction was settled by a successor")
        elif isinstance(args, fire_periodic.Args):
            if self.fired_by.setdefault(args.name, step.peer) != step.peer:
                reached("a periodic task was fired by a successor")
            self.fired_by[args.name] = step.peer

    def _granted(self, task_id: TaskId, epoch: int, peer: str) -> None:
        known = self.history.enqueued.get(task_id)
        if known is not None and known.said.ordering_key is not None:
            key = known.queue, known.said.ordering_key
            if self.leaders.setdefault(key, peer) != peer:
                self.probes.reached("a key's tasks were granted by one leader after the other")
            self.leaders[key] = peer
        opened = self.ledger.reopened.get(task_id)
        if opened and opened[-1].epoch < epoch:
            self.probes.reached("a reopened task was granted by a successor")

    def _takeover(self, number: int, after: Replica) -> None:
        for stretch, pieces in (after.claims.get(number) or {}).items():
            bits = claimed_bits(pieces)
            while bits:
                offset = (bits & -bits).bit_length() - 1
                known = self.history.enqueued.get(id_at(stretch, offset))
                if known is not None and known.said.ordering_key is not None:
                    self.probes.reached("a key's task was with a worker at a takeover")
                bits &= bits - 1

    def finished(self, task_id: TaskId, replica: Replica) -> None:
        """A completion was acknowledged."""
        for dependent in self.history.dependents.get(task_id, ()):
            if not replica.partitions[partition_of(dependent)].ready:
                self.probes.reached("a dependency finished during a takeover")

    def read_back(self, task: Task) -> None:
        """A task was read after the faults."""
        error = task.error or ""
        if error.startswith("expired: "):
            self.probes.reached("a task expired that nobody ran")
        elif "on which it depended" in error:
            self.probes.reached("a task failed with one that it depended on")
        known = self.history.enqueued.get(task.id)
        if known is not None and known.data != task.data:
            self.probes.reached("a unique task got other data")

    def finish(self) -> None:
        """Count what only all tasks together tell."""
        for task in self.ledger.read.values():
            found = [self.ledger.read[one].state for one in task.depends if one in self.ledger.read]
            if self.ledger.grants.get(task.id) and {*found} & {"failed", "cancelled"}:
                self.probes.reached("a task ran although one that it depended on had failed")
