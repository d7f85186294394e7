"""The audit of a simulated run: an independent replica that steps every record.

It reads the log's memory, not through any session, so no fault touches it, and hands
each step to the checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from log_entries.registry import ENTRIES
from onyxq.entry import APPLIED, Entries
from onyxq.log.interface import Record
from onyxq.replica import EMPTY, Replica
from onyxq.step import step
from onyxq.store.memory import MemoryTables
from simulation.checkers import Checker
from simulation.checkers.attempts_counted import AttemptsCounted
from simulation.checkers.copies_equal import CopiesEqual
from simulation.checkers.counted_once import CountedOnce
from simulation.checkers.done_stays_done import DoneStaysDone
from simulation.checkers.enough_copies import EnoughCopies
from simulation.checkers.invariants_hold import InvariantsHold
from simulation.checkers.leaders_only import LeadersOnly
from simulation.checkers.leases_last import LeasesLast
from simulation.checkers.linearizable import Linearizable
from simulation.checkers.made_once import MadeOnce
from simulation.checkers.nothing_lost import NothingLost
from simulation.checkers.one_claim import OneClaim
from simulation.checkers.replicas_equal import ReplicasEqual
from simulation.checkers.tokens_increase import TokensIncrease
from simulation.history import History
from simulation.log import MemoryBackend
from simulation.world_probes import Watcher


class Audit:
    """See the module's first paragraph."""

    def __init__(
        self,
        backend: MemoryBackend,
        history: History,
        disks: Callable[[], Mapping[str, MemoryTables]] = dict,
        entries: Entries = ENTRIES,
    ) -> None:
        self.entries = entries
        self.replica: Replica = EMPTY
        self.one_claim = OneClaim(history)
        self.done_stays_done = DoneStaysDone(history)
        self.nothing_lost = NothingLost(history)
        self.copies_equal = CopiesEqual(history)
        self.replicas_equal = ReplicasEqual(history)
        self.leases_last = LeasesLast(history, backend.landed_s.__getitem__)
        self.enough_copies = EnoughCopies(history, disks)
        self.made_once = MadeOnce(history)
        self.watcher = Watcher(history, backend.probes)
        self.probes = backend.probes
        self.applied = 0
        """Entries that changed something."""
        self.checkers: tuple[Checker, ...] = (
            self.replicas_equal,
            InvariantsHold(history),
            CountedOnce(history),
            LeadersOnly(history),
            self.one_claim,
            self.leases_last,
            TokensIncrease(history),
            self.done_stays_done,
            self.nothing_lost,
            self.copies_equal,
            self.enough_copies,
            self.made_once,
            AttemptsCounted(history),
            Linearizable(history),
            self.watcher,
        )
        self.records: list[Record] = []
        self._backend = backend

    def catch_up(self) -> None:
        """Step what was written since; raises `simulation.checkers.Broken`."""
        while (record := self._backend.records.get(self._backend.place(self.replica.position + 1))) is not None:
            before = self.replica
            done = step(before, record, self.entries)
            self.replica = done.replica
            self.records.append(record)
            self.applied += sum(outcome.verdict == APPLIED for outcome in done.outcomes)
            for checker in self.checkers:
                checker.step(before, done)

    async def run(self, replicas: Callable[[], Iterable[tuple[str, Replica]]]) -> None:
        """Follow the log until cancelled; ``replicas`` gives the running nodes' own."""
        while True:
            self.catch_up()
            for node, replica in replicas():
                self.replicas_equal.compare(node, replica)
            await self._backend.wait_grown()

    def finish(self) -> None:
        """Judge the whole run."""
        self.catch_up()
        for checker in self.checkers:
            checker.finish()
