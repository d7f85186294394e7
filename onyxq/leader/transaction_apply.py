"""Makes committed transactions visible: their pending rows become facts (design: transactions).

The replica says in which partitions a committed transaction has not settled. The leader of such a
partition writes the part's items like all other facts, and then submits ``settle_transactions``.
This leader or the next one may repeat all of it. The next leader gets the pending rows in its
takeover.
"""

from __future__ import annotations

import logging
from typing import Any

from log_entries import settle_transactions
from onyxq.core import facts
from onyxq.core.errors import Corrupt, NotLeader, OnyxqError, Unavailable, from_map
from onyxq.core.facts import Row, Update
from onyxq.core.ids import Run, TaskId, partition_of
from onyxq.core.replica import Transaction
from onyxq.core.task_headers import UNIQUE_KEY, may_say
from onyxq.leader.cohort import pending_facts
from onyxq.leader.cohort.pending_facts import key_in
from onyxq.leader.completion_rows import Finish
from onyxq.leader.completions import Completions
from onyxq.leader.enqueues import Enqueues
from onyxq.leader.entry_chunks import fitting, size_of
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.outcomes import Outcomes
from onyxq.leader.task_updates import updates_of
from onyxq.operations.table.enqueue import Enqueue, NewRun
from onyxq.system.procedures import Wait, beside, gather, now, pause

AT_ONCE_MAX = 512
"""Most transactions that one partition makes visible together."""
DEPENDS_PATIENCE_S = 120.0
"""How long a task may be refused because a task on which it depends does not exist, in seconds.

Leaders do not deny the tasks of committed transactions. So the other task was lost, or its leader reads the log late.
"""
RETRY_PAUSE_S = 0.25
FETCH_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class TransactionApplier:
    """Makes transactions visible in the partitions that a node leads; one per node."""

    def __init__(
        self, host: OperationsHost, *, completions: Completions, enqueues: Enqueues, outcomes: Outcomes
    ) -> None:
        self._host = host
        self._completions = completions
        self._enqueues = enqueues
        self._outcomes = outcomes
        self._todo: dict[int, dict[str, None]] = {}
        """Transactions to make visible, per partition led from here."""
        self._busy: set[int] = set()
        self._wake = Wait()
        self._refused: dict[TaskId, float] = {}
        """First id of a run -> when it was first refused because of its dependencies."""
        self.lost = 0
        """Number of parts whose pending rows no holder had, although all were asked."""

    async def run(self) -> None:
        """Make transactions visible until cancelled."""
        async with beside() as start:
            while True:
                await self._wake.wait()
                self._wake = Wait()
                for partition in sorted(self._todo.keys() - self._busy):
                    leader = self._host.leaders.get(partition)
                    if leader is None or not self._leads(leader):
                        del self._todo[partition]  # the next leader checks all transactions again
                        continue
                    self._busy.add(partition)
                    start(self._serve(leader))

    def lead(self, partition: int) -> None:
        """Forget when tasks of a partition were refused for their dependencies under an earlier leadership."""
        self._refused = {first: since for first, since in self._refused.items() if partition_of(first) != partition}

    def owe(self, partition: int, name: str) -> None:
        """Make a committed transaction visible in a partition, if this node leads the partition."""
        if partition in self._host.leaders:
            self._todo.setdefault(partition, {})[name] = None
            self._wake.end()

    async def _serve(self, leader: PartitionLeader) -> None:
        """Make the transactions of a partition visible while it is led from here and has any."""
        partition = leader.partition
        try:
            while self._leads(leader) and (names := self._todo.pop(partition, None)):
                now, later = list(names)[:AT_ONCE_MAX], list(names)[AT_ONCE_MAX:]
                failed = await self._finish(leader, now)
                if failed:
                    await pause(RETRY_PAUSE_S)
                for name in [*later, *failed]:
                    self.owe(partition, name)
        finally:
            self._busy.discard(partition)
            if partition in self._todo:
                self._wake.end()

    def _leads(self, leader: PartitionLeader) -> bool:
        return self._host.leaders.get(leader.partition) is leader and leader.ready and not leader.deposed

    async def _finish(self, leader: PartitionLeader, names: list[str]) -> list[str]:
        """Make parts of transactions visible and settle them; return the names of those that must be tried again."""
        items: dict[str, list[Any]] = {}
        failed: list[str] = []
        for name in names:
            found = self._host.replica.transactions.get(name)
            if found is None or leader.partition not in found.parts:
                continue
            try:
                items[name] = await self._items(leader, name, found)
            except OnyxqError as error:
                log.info("transaction %s waits in partition %d: %s", name, leader.partition, error.message)
                failed.append(name)
        if not items or await self._done(leader, items):
            return failed
        if len(items) == 1:
            return failed + list(items)
        # One of them may fail and delay the others.
        return failed + [name for name, own in items.items() if not await self._done(leader, {name: own})]

    async def _done(self, leader: PartitionLeader, items: dict[str, list[Any]]) -> bool:
        """Make all of these parts visible and settle them; return whether that succeeded."""
        try:
            await self._make_visible(leader, [item for own in items.values() for item in own])
            self._settle(leader, list(items))
        except OnyxqError as error:
            log.info("transactions wait in partition %d: %s", leader.partition, error.message)
            return False
        return True

    def _settle(self, leader: PartitionLeader, names: list[str]) -> None:
        entries = [
            settle_transactions.Args(tuple(group), leader.partition, leader.epoch)
            for group in fitting(names, lambda name: size_of((), name))
        ]
        if entries:  # if the session ends first, the leader of the next epoch submits them again
            self._host.outbox_now().submit(entries)

    async def _items(self, leader: PartitionLeader, name: str, found: Transaction) -> list[Any]:
        """Return the items of a part, from this node or, if they are incomplete here, from another holder."""
        _, digest = found.parts[leader.partition]
        key = key_in(found, name, leader.partition)
        bodies = self._bodies(leader.partition, key, digest)
        asked = answered = 0
        if bodies is None:
            for node in leader.holders():
                if node == self._host.node_id:
                    continue
                asked += 1
                answered += await self._fetched(leader, node, key)
                bodies = self._bodies(leader.partition, key, digest)
                if bodies is not None:
                    break
        if bodies is None:
            if answered < asked:
                raise Unavailable("its pending rows are not here, and not every holder answers")
            # Every holder was asked, so a majority of them was lost and an operator accepted that. The log still
            # shows which tasks are completed. Results, updates and new tasks are lost.
            self.lost += 1
            log.error("partition %d lost the results, updates and new tasks of transaction %s", leader.partition, name)
            mine = [(token, runs) for number, token, runs in found.claims if number == leader.partition]
            return [["C", first, count, token, None] for token, runs in mine for first, count in runs]
        return pending_facts.unpack_items(bodies)

    def _bodies(self, partition: int, key: str, digest: bytes) -> list[bytes] | None:
        try:
            bodies = [row.body for row in self._host.store.pending(partition, key)]
        except Corrupt as error:
            log.error("partition %d: %s", partition, error.message)
            return None
        return bodies if pending_facts.digest_of(bodies) == digest else None

    async def _fetched(self, leader: PartitionLeader, node: str, key: str) -> int:
        async def call(method: str, args: dict[str, Any]) -> Any:
            return await self._host.call(node, method, args, timeout_s=FETCH_TIMEOUT_S)

        try:
            await pending_facts.pull(self._host.store, call, leader.partition, want=key)
        except OnyxqError:
            return 0
        return 1

    async def _make_visible(self, leader: PartitionLeader, items: list[Any]) -> None:
        """Write items as facts; raises if a majority does not have them."""
        if not items:
            return
        if not self._leads(leader):
            raise NotLeader(f"partition {leader.partition} is no longer led from here")
        runs = [one[1:] for one in items if one[0] == "T"]
        finishes = [
            Finish(Run(TaskId(first), count), token, facts.COMPLETED, results or [])
            for _, first, count, token, results in (one for one in items if one[0] == "C")
        ]
        updates = self._update_rows(leader, items)
        vote = leader.replicate(updates) if updates else None
        try:
            if finishes and any(may_say(body, UNIQUE_KEY) for _, body, _ in runs):
                await self._complete_all(leader, finishes)  # a task that ends here may hold the key of a new one
                finishes = []
            work = [self._complete_all(leader, finishes)] if finishes else []
            work += [self._enqueue_all(runs)] if runs else []
            await gather(work)
        finally:
            if vote is not None:
                await leader.decide(vote)

    async def _complete_all(self, leader: PartitionLeader, finishes: list[Finish]) -> None:
        if not self._leads(leader):
            raise NotLeader(f"partition {leader.partition} is no longer led from here")
        refused: list[list[Any]] = [[] for _ in finishes]
        await self._completions.finish_all({leader.partition: list(enumerate(finishes))}, refused)
        for part in (part for parts in refused for part in parts):
            raise from_map(part[2])

    async def _enqueue_all(self, runs: list[Any]) -> None:
        """Write task runs; those that depend on others of their transaction follow once these are stored."""
        wall_ms, unstored = self._host.wall_ms(), self._outcomes.unstored
        left = [
            NewRun(first, body, at_ms if at_ms and at_ms > wall_ms else None)
            for first, body, at_ms in runs
            if first not in unstored
        ]
        while left:
            acks = await self._enqueues.enqueue(Enqueue(runs=left))
            refused = [(run, from_map(ack)) for run, ack in zip(left, acks, strict=True) if isinstance(ack, dict)]
            keyed = [(run, ack) for run, ack in zip(left, acks, strict=True) if isinstance(ack, list)]
            unstored.update(run.id for run, ack in keyed if ack[1] != run.id)  # another task holds the unique key
            # Runs that are refused for good are dropped even if others must wait, which may wait for these.
            passing = [error for _, error in refused if isinstance(error, Unavailable)]
            again = [run for run, error in refused if isinstance(error, Unavailable) or self._may_come(run.id, error)]
            for run in left if self._refused and not refused else ():
                self._refused.pop(run.id, None)
            if again and len(refused) == len(left):
                raise passing[0] if passing else Unavailable("a task depends on tasks that are not stored yet")
            left = again
        unstored.difference_update(first for first, *_ in runs)

    def _may_come(self, first: TaskId, error: OnyxqError) -> bool:
        """Return whether a refused run may be accepted later, because its dependency may be in another partition."""
        at_s = now()
        since = self._refused.setdefault(first, at_s)
        if error.field == "depends" and at_s - since < DEPENDS_PATIENCE_S:
            return True
        del self._refused[first]
        self._outcomes.unstored.add(first)
        log.error("task %s of a committed transaction was refused: %s", first.hex(), error.message)
        return False

    def _update_rows(self, leader: PartitionLeader, items: list[Any]) -> list[Row]:
        """Return the rows of updates; skips numbers that other updates of the same claim took meanwhile."""
        rows: list[Row] = []
        taken: dict[tuple[TaskId, int], dict[int, bytes]] = {}
        for _, task_id, token, seq, data in (one for one in items if one[0] == "U"):
            stored = taken.get((task_id, token))
            if stored is None:
                stored = {one.seq: one.data for one in updates_of(self._host.store, task_id) if one.token == token}
                taken[task_id, token] = stored
            while stored.get(seq, data) != data:
                seq += 1
            stored[seq] = data
            rows.append(facts.update_row(task_id, Update(token, seq, self._host.wall_ms(), data, leader.mark())))
        return rows
