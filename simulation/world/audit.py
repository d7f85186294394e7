"""The audit of a simulated run: an independent replica that steps every record.

It reads the memory of the log and not through a session, so no fault touches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import trio

from log_entries.registry import ENTRIES
from onyxq.client.claims import Claim
from onyxq.client.values import Task
from onyxq.core.entry import Entries
from onyxq.core.errors import Corrupt
from onyxq.core.facts import task_header
from onyxq.core.ids import TaskId
from onyxq.core.replica import Replica
from onyxq.store.memory import MemoryTables
from simulation.checkers import Checker, Course, LogChecker
from simulation.checkers.all_or_nothing import AllOrNothing
from simulation.checkers.attempts_counted import AttemptsCounted
from simulation.checkers.batches_once import BatchesOnce
from simulation.checkers.callbacks_once import CallbacksOnce
from simulation.checkers.checkpoints_found import CheckpointsFound
from simulation.checkers.code_runs_alone import CodeRunsAlone
from simulation.checkers.copies_equal import CopiesEqual
from simulation.checkers.counted_once import CountedOnce
from simulation.checkers.dead_letters import DeadLetters
from simulation.checkers.deadlines_kept import DeadlinesKept
from simulation.checkers.dependencies_first import DependenciesFirst
from simulation.checkers.done_stays_done import DoneStaysDone
from simulation.checkers.enough_copies import DiskReads, EnoughCopies
from simulation.checkers.flows_end import FlowsEnd
from simulation.checkers.handed_back import HandedBack
from simulation.checkers.invariants_hold import InvariantsHold, SnapshotsEqual
from simulation.checkers.keys_in_order import KeysInOrder
from simulation.checkers.leaders_only import LeadersOnly
from simulation.checkers.leases_last import LeasesLast
from simulation.checkers.ledger import Ledger
from simulation.checkers.limits_kept import LimitsKept
from simulation.checkers.linearizable import Linearizable
from simulation.checkers.log_time import LogTime
from simulation.checkers.looks_whole import LooksWhole
from simulation.checkers.made_once import MadeOnce
from simulation.checkers.nothing_hoarded import NothingHoarded
from simulation.checkers.nothing_lost import NothingLost
from simulation.checkers.once_per_period import OncePerPeriod
from simulation.checkers.one_claim import OneClaim
from simulation.checkers.pauses_hold import PausesHold
from simulation.checkers.periodic_once import PeriodicOnce
from simulation.checkers.purged_stays_purged import PurgedStaysPurged
from simulation.checkers.replicas_equal import ReplicasEqual
from simulation.checkers.ring_watched import RingWatched
from simulation.checkers.tokens_increase import TokensIncrease
from simulation.checkers.unique_stands import UniqueStands
from simulation.log_probes import LogWatcher
from simulation.world.clock import SimulatedClock
from simulation.world.history import History, Sent
from simulation.world.log import MemoryBackend
from simulation.world.rule_probes import RuleWatcher


class Audit(Course):
    """See the module's first paragraph."""

    def __init__(
        self,
        backend: MemoryBackend,
        history: History,
        disks: Callable[[], Mapping[str, MemoryTables]] = dict,
        entries: Entries = ENTRIES,
        node_clocks: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        super().__init__(entries)
        self.one_claim = OneClaim(history)
        self.done_stays_done = DoneStaysDone(history)
        self.nothing_lost = NothingLost(history)
        self.copies_equal = CopiesEqual(history)
        self.replicas_equal = ReplicasEqual(history)
        self.leases_last = LeasesLast(history, self.one_claim, backend.landed_s.__getitem__)
        self.enough_copies = EnoughCopies(history, disks)
        self.made_once = MadeOnce(history)
        self.looks_whole = LooksWhole(history)
        self.all_or_nothing = AllOrNothing(history)
        self.batches_once = BatchesOnce(history)
        self.disks = disks
        self.history = history
        self.true_ms = SimulatedClock().wall_ms
        self.ledger = Ledger(history, backend.landed_s.__getitem__, self._header)
        self.flows_end = FlowsEnd(history, self.ledger)
        self.unique_stands = UniqueStands(history, self.ledger)
        self.once_per_period = OncePerPeriod(history, self.ledger)
        self.callbacks_once = CallbacksOnce(history, self.ledger)
        self.pauses_hold = PausesHold(history)
        self.keys_in_order = KeysInOrder(history, self.ledger, self.pauses_hold)
        self.limits_kept = LimitsKept(history, claims=self.one_claim)
        self.deadlines_kept = DeadlinesKept(
            history,
            self.ledger,
            slowest_ms=lambda: min(node_clocks(), default=self.true_ms()),
            true_ms=self.true_ms,
        )
        self.purged = PurgedStaysPurged(history, backend.probes, disks, self.true_ms)
        self.nothing_lost.purged = self.enough_copies.purged = self.unique_stands.purged = self.purged
        self.ledger.purged = self.looks_whole.purged = self.purged
        self.code_runs_alone = CodeRunsAlone(history)
        self.checkpoints_found = CheckpointsFound(history)
        self.nothing_hoarded = NothingHoarded(history)
        self.rule_watcher = RuleWatcher(history, self.ledger, backend.probes)
        self.probes = backend.probes
        self.checkers = self._every_checker()
        self._backend = backend

    def _every_checker(self) -> tuple[LogChecker, ...]:
        """Return all checkers, in the order in which each sees a step."""
        return (
            self.ledger,
            self.purged,
            self.replicas_equal,
            InvariantsHold(),
            SnapshotsEqual(),
            RingWatched(),
            CountedOnce(),
            LeadersOnly(),
            LogTime(),
            self.one_claim,
            self.leases_last,
            TokensIncrease(),
            self.done_stays_done,
            self.nothing_lost,
            self.copies_equal,
            self.enough_copies,
            self.made_once,
            self.looks_whole,
            self.all_or_nothing,
            self.batches_once,
            self.keys_in_order,
            self.unique_stands,
            self.once_per_period,
            self.callbacks_once,
            DependenciesFirst(self.history, self.ledger),
            self.flows_end,
            self.pauses_hold,
            self.limits_kept,
            self.deadlines_kept,
            DeadLetters(self.history, self.ledger),
            PeriodicOnce(self.history, self.ledger),
            AttemptsCounted(self.history, self.one_claim),
            self.code_runs_alone,
            self.checkpoints_found,
            self.nothing_hoarded,
            HandedBack(self.history, self.ledger),
            Linearizable(self.history),
            LogWatcher(self.probes),
            self.rule_watcher,
        )

    def catch_up(self) -> None:
        """Step all new records; raises `simulation.checkers.Broken`."""
        while (record := self._backend.records.get(self._backend.place(self.replica.position + 1))) is not None:
            self.step(record)

    async def run(self, replicas: Callable[[], Iterable[tuple[str, Replica]]]) -> None:
        """Follow the log until cancelled; ``replicas`` gives those of the running nodes."""
        while True:
            self.catch_up()
            found = list(replicas())
            for node, replica in found:
                self.replicas_equal.compare(node, replica)
            positions = [replica.position for _, replica in found]
            self.pauses_hold.looked(positions, trio.current_time())
            self.limits_kept.looked(positions, trio.current_time())
            self.nothing_lost.looked(self.replica.position, positions, trio.current_time())
            await self._backend.wait_grown()

    # --- what clients hear

    def claimed(self, claim: Claim, *, sent_s: float) -> None:
        """Judge the grant of a task to a worker, which sent its request at ``sent_s``."""
        now_s, said, task_id = trio.current_time(), claim.run.header, claim.id
        self.one_claim.heard(task_id, claim.token, now_s)
        self.purged.heard(task_id)
        self.nothing_lost.given(task_id, claim.queue, claim.data)
        self.all_or_nothing.seen(claim.data, self.catch_up)
        self.catch_up()
        queue = claim.queue
        self.pauses_hold.heard(queue, claim.token, sent_s)
        self.limits_kept.heard(queue, task_id, claim.token, sent_s=sent_s, now_s=now_s)
        if "ordering_key" in said:
            self.keys_in_order.heard((queue, said["ordering_key"]), task_id, claim.token, now_s)
        if "unique_period_ms" in said:
            self.once_per_period.heard(said, task_id)
        elif "unique_key" in said:
            self.unique_stands.heard((queue, said["unique_key"]), task_id, claim.data, claim.token, sent_s)
        if "expires_ms" in said:
            waited_ms = round((now_s - sent_s) * 1000)
            self.deadlines_kept.heard(task_id, said["expires_ms"], claim.token, waited_ms)

    def holds_key(self, task_id: TaskId, sent: Sent) -> None:
        """Judge the task that the answer of an enqueue with a unique key named."""
        if sent.said.period_ms is None:
            self.unique_stands.stands(task_id, sent)
        else:
            self.once_per_period.acknowledged(task_id, sent)

    def read_back(self, task: Task) -> None:
        """Judge a task that was read after the faults, whether its enqueue was acknowledged or not."""
        self.ledger.read_back(task)
        self.purged.read_back(task)
        self.done_stays_done.read_back(task)
        self.made_once.read_back(task)
        self.batches_once.read_back(task)
        self.all_or_nothing.read_back(task)
        self.rule_watcher.read_back(task)

    def _header(self, task_id: TaskId) -> dict[str, Any]:
        """Return the header of a task's row; of several rows, of that with the highest rank."""
        found: list[dict[str, Any]] = []
        for tables in self.disks().values():
            try:
                row = DiskReads(tables).task_row(task_id)
            except Corrupt:
                continue
            if row is not None:
                found.append(task_header(row[1])[0])
        return max(found, key=lambda one: (one.get("order") or [0, 0, 0])[1:], default={})

    def finish(self) -> None:
        """Judge the whole run, after the faults."""
        self.catch_up()
        for checker in self.checkers:
            if isinstance(checker, Checker):
                checker.finish()
