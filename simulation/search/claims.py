"""What claims must do, said once more and as simply as can be (design: claims, simulation).

A task is free or has one holder: ``(token, worker, deadline)``.  The model knows tasks one
by one and shares no code with the entries; every claim entry of the log must have the
verdict that the model finds, and leave the claims that the model has.  Limits, transactions
and periodic tasks are `simulation.search.limits`.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

from attrs import define, field

from log_entries import (
    commit_batch,
    commit_transaction,
    expire_claims,
    fire_periodic,
    gc,
    grant_limited_claims,
    pause_periodic,
    purge,
    ready_partition,
    release_claims,
    remove_periodic,
    renew_claims,
    reopen_tasks,
    set_periodic,
    set_queue,
    settle_transactions,
)
from log_entries.commit_batch import committed_by
from onyxq.core.claims import GRACE_MS
from onyxq.core.ids import STRETCH_TASKS
from onyxq.core.replica import Partition, Replica
from onyxq.core.step import NOT_IN_RING, Outcome, Step
from simulation.checkers import GRANTS, Model
from simulation.probes import Probes
from simulation.search.jobs_model import JOB_ENTRIES
from simulation.search.limits import LimitsModel, PeriodicModel, TransactionsModel

Holder: TypeAlias = tuple[int, str, int]
"""Token, worker, deadline in log time."""

CLAIM_ENTRIES = (
    *GRANTS,
    renew_claims.Args,
    release_claims.Args,
    expire_claims.Args,
    reopen_tasks.Args,
    purge.Args,
    settle_transactions.Args,
)
"""Of the leader of a partition."""
PLAIN = (set_queue.Args, set_periodic.Args, pause_periodic.Args, remove_periodic.Args, fire_periodic.Args, gc.Args)
"""Whether any peer may write it, without a word about who leads."""
LEASE_MS_MAX = 86_400_000
HELD_MS = (1 << 63) - 1
"""The deadline of what a transaction holds."""


def tasks_of(runs: Any) -> list[tuple[bytes, int]]:
    """The tasks of runs: (the id without its counter, the counter)."""
    return [
        (run[0][:16], at)
        for run in runs
        for start in [int.from_bytes(run[0][16:], "big")]
        for at in range(start, start + run[1])
    ]


@define(eq=False)
class ClaimsModel(Model):
    """See the module's first paragraph."""

    name: ClassVar[str] = "claims"
    probes: Probes
    held: dict[int, dict[tuple[bytes, int], Holder]] = field(factory=dict)
    """Per partition."""
    marks: dict[int, tuple[int, bool]] = field(factory=dict)
    """Per partition that was purged: the watermark, and whether its tasks were kept below it."""
    limits: LimitsModel = field(factory=LimitsModel)
    transactions: TransactionsModel = field(factory=TransactionsModel)
    periodic: PeriodicModel = field(factory=PeriodicModel)

    def follow(self, before: Replica, done: Step) -> str:
        """See `Model.follow`."""
        touched: dict[int, None] = {}
        ready: set[tuple[int, int]] = set()
        moved = False
        for outcome in done.outcomes:
            args = outcome.args
            if isinstance(args, CLAIM_ENTRIES):
                allowed = self._allowed(before, done, args, ready) if not moved else None
                wrong = self._entry(done, outcome, allowed)
                if wrong:
                    return f"{outcome.name} of {done.peer}: {wrong}"
                touched[args.partition] = None
            elif isinstance(args, (commit_transaction.Args, commit_batch.Args)):
                wrong = self._commit(done, outcome) if isinstance(args, commit_transaction.Args) else ""
                if isinstance(args, commit_batch.Args) and outcome.verdict == "applied":
                    wrong = next(filter(None, (self._committed(one, done.replica) for one in args.transactions)), "")
                if wrong:
                    return f"{outcome.name} of {done.peer}: {wrong}"
                touched |= dict.fromkeys(claim.partition for one in committed_by(args) for claim in one.claims)
            elif isinstance(args, PLAIN):
                wrong = self._plain(done, outcome)
                if wrong:
                    return f"{outcome.name} of {done.peer}: {wrong}"
            elif outcome.verdict == "applied" and not isinstance(args, JOB_ENTRIES):
                if isinstance(args, ready_partition.Args):
                    ready.add((args.partition, args.epoch))
                else:
                    moved = True  # who leads what may have changed within the record: the entry is believed
        return self._compare(done.replica, touched) or self._compare_counts(before, done.replica)

    def _allowed(self, before: Replica, done: Step, args: Any, ready: set[tuple[int, int]]) -> bool:
        found: Partition | None = before.partitions.get(args.partition)
        if found is None or done.peer not in before.ring.members:
            return False
        if found.epoch != args.epoch or found.leader != done.peer:
            if isinstance(args, GRANTS):
                old = found.leader == done.peer
                self.probes.reached("a leader of an old epoch granted" if old else "a deposed leader granted")
            return False
        if not found.ready and (args.partition, args.epoch) not in ready:
            if isinstance(args, GRANTS):
                self.probes.reached("a leader granted before it was ready")
            return False
        return True

    def _entry(self, done: Step, outcome: Outcome, allowed: bool | None) -> str:
        """Follow one claim entry; ``allowed`` None: only the log knows whether its writer might."""
        applied = outcome.verdict == "applied"
        if allowed is False:
            return "applied although its writer did not lead" if applied else ""
        if allowed is None and not applied:
            return ""
        args, replica = outcome.args, done.replica
        held = self.held.setdefault(args.partition, {})
        if isinstance(args, (*GRANTS, reopen_tasks.Args)) and self._names_purged(args):
            self.probes.reached("what is purged was to be granted")
            wanted, changes = False, dict[Any, Holder | None]()
        elif isinstance(args, GRANTS):
            wanted, changes = self._grant(held, args, replica)
        elif isinstance(args, purge.Args):
            wanted, changes = self._purge(held, args), {}
        elif isinstance(args, reopen_tasks.Args):
            wanted, changes = not any(task in held for one in args.runs for task in tasks_of([one.run])), {}
        elif isinstance(args, settle_transactions.Args):
            wanted, changes = self._settle(held, args, replica)
        elif isinstance(args, renew_claims.Args):
            wanted, changes = self._renew(held, args, replica)
        else:
            wanted, changes = self._end(held, args, replica)
        if wanted != applied:
            return f"{outcome.verdict} although it {'holds' if wanted else 'does not hold'}"
        for task, holder in changes.items():
            if holder is None:
                held.pop(task, None)
                self.limits.queue_of.pop((args.partition, task), None)
            else:
                held[task] = holder
        return ""

    def _names_purged(self, args: Any) -> bool:
        """Return whether a grant or a reopening names purged tasks; only the first stretch is ever kept."""
        if args.partition not in self.marks:
            return False
        parts = getattr(args, "grants", None)
        runs = [one.run for one in args.runs] if parts is None else [run for one in parts for run in one.runs]
        return not self.marks[args.partition][1] or any(at >= STRETCH_TASKS for _, at in tasks_of(runs))

    def _purge(self, held: dict[Any, Holder], args: purge.Args) -> bool:
        """Follow a watermark; all tasks lie below any that is ever asked for, and above the first one."""
        before_ms, kept = self.marks.get(args.partition, (0, True))
        keeps = bool(args.keep)
        if args.before_ms < before_ms:
            self.probes.reached("a watermark was to sink")
            return False
        if keeps and not kept:
            self.probes.reached("what is purged was to be kept")
            return False
        if (args.before_ms, keeps) == (before_ms, kept):
            return False
        if any(not keeps or at >= STRETCH_TASKS for _, at in held):
            self.probes.reached("what is claimed was to be purged")
            return False
        self.marks[args.partition] = args.before_ms, keeps
        return True

    def _grant(self, held: dict[Any, Holder], args: Any, replica: Replica) -> tuple[bool, dict[Any, Holder | None]]:
        changes: dict[Any, Holder | None] = {}
        token = replica.position
        for worker, lease_ms, runs in args.grants:
            if not 1 <= lease_ms <= LEASE_MS_MAX:
                return False, {}
            for task in tasks_of(runs):
                if task in held or task in changes:
                    self.probes.reached("a grant of what was taken")
                    return False, {}
                changes[task] = (token, worker, replica.log_time_ms + lease_ms)
        if isinstance(args, grant_limited_claims.Args):
            problem = self.limits.allows(args.queue, len(changes), replica.clock_ms)
            if problem:
                return False, {}
            self.limits.granted(args.queue, args.partition, list(changes), replica.clock_ms)
        return bool(changes), changes

    def _renew(self, held: dict[Any, Holder], args: Any, replica: Replica) -> tuple[bool, dict[Any, Holder | None]]:
        changes: dict[Any, Holder | None] = {}
        for token, lease_ms, runs in args.renewals:
            if not 1 <= lease_ms <= LEASE_MS_MAX:
                return False, {}
            for task in tasks_of(runs):
                holder = held.get(task)
                if holder is not None and holder[2] == HELD_MS:
                    self.probes.reached("what a transaction held was to be changed")
                elif holder is not None and holder[0] == token:
                    if holder[2] < replica.log_time_ms:
                        self.probes.reached("a lease was renewed after its deadline")
                    changes[task] = (token, holder[1], replica.log_time_ms + lease_ms)
        if not changes:
            self.probes.reached("a claim was changed under a token that had gone")
        return bool(changes), changes

    def _end(self, held: dict[Any, Holder], args: Any, replica: Replica) -> tuple[bool, dict[Any, Holder | None]]:
        changes: dict[Any, Holder | None] = {}
        expiring = isinstance(args, expire_claims.Args)
        found = False
        for item in args.expirations if expiring else args.releases:
            for task in tasks_of(item.runs):
                holder = held.get(task)
                if holder is not None and holder[2] == HELD_MS:
                    self.probes.reached("what a transaction held was to be changed")
                    continue
                if holder is None or holder[0] != item.token:
                    continue
                found = True
                over = holder[2] + GRACE_MS < replica.log_time_ms if expiring else item.token != replica.position
                if over:
                    changes[task] = None
        if expiring and found and not changes:
            self.probes.reached("a claim was declared over before its deadline")
        if not found:
            self.probes.reached("a claim was changed under a token that had gone")
        return bool(changes), changes

    def _commit(self, done: Step, outcome: Outcome) -> str:
        """Follow a commit: it holds if the name is new, in time, and every token stands."""
        applied = outcome.verdict == "applied"
        if outcome.verdict == NOT_IN_RING:
            return ""
        wrong = self._committed(outcome.args, done.replica)
        if bool(wrong) == applied:
            return f"{outcome.verdict} although {wrong or 'it holds'}"
        return ""

    def _committed(self, args: Any, replica: Replica) -> str:
        """Follow a transaction of a commit that may hold; why it does not, or ""."""
        if self.transactions.knows(args.name):
            self.probes.reached("the name of a transaction came again")
            return "its name is known"
        if replica.log_time_ms > args.deadline_ms:
            self.probes.reached("a transaction came too late")
            return "it is too late"
        if not self._stand((*args.claims, *args.require), replica.position):
            self.probes.reached("a claim of a transaction did not stand")
            return "a claim of it does not stand"
        if len(args.parts) > 1:
            self.probes.reached("a transaction over several partitions")
        for claim in args.claims:
            for task in tasks_of(claim.runs):
                holder = replica.position, f"transaction {args.name}", HELD_MS
                self.held.setdefault(claim.partition, {})[task] = holder
        self.transactions.committed(args, replica)
        return ""

    def _stand(self, claims: Any, position: int) -> bool:
        for claim in claims:
            held = self.held.get(claim.partition, {})
            for task in tasks_of(claim.runs):
                holder = held.get(task)
                if holder is None or holder[0] != claim.token or holder[2] == HELD_MS or claim.token == position:
                    return False
        return True

    def _settle(self, held: dict[Any, Holder], args: Any, replica: Replica) -> tuple[bool, dict[Any, Holder | None]]:
        if not self.transactions.may_settle(args.names, args.partition, replica.position):
            return False, {}
        names = [name for name in args.names if self.transactions.is_left(name, args.partition)]
        ended = [(f"transaction {name}", HELD_MS) for name in names]
        changes: dict[Any, Holder | None] = {task: None for task, holder in held.items() if holder[1:] in ended}
        for name in names:
            self.transactions.settled(name, args.partition, replica)
        return True, changes

    def _plain(self, done: Step, outcome: Outcome) -> str:
        """Follow an entry that any peer may write."""
        args, applied = outcome.args, outcome.verdict == "applied"
        if isinstance(args, fire_periodic.Args):
            if outcome.verdict != NOT_IN_RING and self.periodic.fire(args) != applied:
                return f"{outcome.verdict}, so a time was fired twice or never"
        elif not applied:
            return ""
        elif isinstance(args, set_queue.Args):
            self.limits.set(args)
        elif isinstance(args, set_periodic.Args):
            self.periodic.set(args)
        elif isinstance(args, pause_periodic.Args):
            self.periodic.pause(args)
        elif isinstance(args, remove_periodic.Args):
            del self.periodic.due[args.name]
        else:
            self.transactions.collected(done.replica)
        return ""

    def _compare_counts(self, before: Replica, after: Replica) -> str:
        """Limits and transactions of the replica against the models'."""
        if after.limited is not before.limited or after.rates is not before.rates:
            wrong = self.limits.compare(after)
            if wrong:
                return wrong
        return self.transactions.compare(after) if after.transactions is not before.transactions else ""

    def _compare(self, replica: Replica, touched: dict[int, None]) -> str:
        """The claims of the partitions that a record was about, against the model's."""
        for partition in touched:
            there: dict[Any, Holder] = {}
            for stretch, pieces in replica.claims.get(partition, {}).items():
                start = int.from_bytes(stretch[16:], "big")
                for offset, count, token, worker, deadline in pieces:
                    for at in range(start + offset, start + offset + count):
                        if (stretch[:16], at) in there:
                            return f"two claims on task {at} of partition {partition}"
                        there[stretch[:16], at] = (token, worker, deadline)
            if there != self.held.get(partition, {}):
                return f"the claims of partition {partition} are not what the entries amount to"
        return ""
