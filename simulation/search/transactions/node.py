"""Nodes that make transactions in the search of facts (design: simulation, transactions).

Coordinators and leaders run the code of `onyxq.operations.transactions` and `onyxq.leader`. Only deadlines are shorter,
so that log time passes them within a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

from log_entries import commit_transaction, expire_claims
from onyxq.core.claims import lapsed
from onyxq.core.ids import Run, TaskId, id_at, ids_of, mask_of, stretch_of
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.state.states import State
from onyxq.node.membership import QUIET_MAX_MS
from onyxq.operations.checks import peers
from onyxq.operations.checks.transactions import Contents
from onyxq.operations.table.enqueue import NewRun
from onyxq.operations.transactions import Transactions
from simulation.checkers import Broken
from simulation.search.facts_cluster import Facts
from simulation.search.facts_node import FactsNode, Machine, SearchClock, SearchDisk

DEADLINES_MS = (150, 600, 2_500, 2_500, 10_000)
"""Log time that a prepared transaction may wait for its commit."""
EXCHANGE_TIMEOUT_S = 2.0


async def _no_callbacks(runs: Sequence[NewRun], name: str) -> None:
    """Check no callbacks, because the tasks of this search have none."""


class SearchTransactions(Transactions):
    """Coordinates transactions whose deadlines the search draws."""

    def __init__(self, node: FactsNode, random: Callable[[], float]) -> None:
        super().__init__(node, _no_callbacks)
        self._random = random

    async def _attempt(self, wanted: Contents) -> None:
        """Prepare and commit as a real coordinator does, with a shorter deadline."""
        ready = await self.prepared(wanted, DEADLINES_MS[int(self._random() * len(DEADLINES_MS))])
        if ready is not None:
            await self._commit(commit_transaction.Args(*ready))


class TransactingNode(FactsNode):
    """See the module's first paragraph."""

    def __init__(
        self, name: str, disk: SearchDisk, machine: Machine, *, random: Callable[[], float], post: Callable[..., Any]
    ) -> None:
        super().__init__(name, disk, machine, random=random, post=post)
        self.transactions = SearchTransactions(self, random)
        self.left_out: Callable[[TaskId], None] = lambda _: None
        """Takes a task whose lapsed claim an expiry leaves for later."""
        self._comparisons: set[tuple[PartitionLeader, str]] = set()
        """Leaders with the holders that they compare their copies with now."""
        parts = self.operations.transaction_parts
        self.handlers |= {
            "lead.prepare": peers.taking(peers.Parts, lambda asked: parts.prepare(asked.asked())),
            "cohort.pending": self._pending,
        }

    async def _pending(self, args: dict[str, Any]) -> Any:
        return self.cohort.pending(args["partition"], args["known"], args["want"])

    async def _share_pending(self, leader: PartitionLeader, other: str) -> None:
        await leader._share_pending(other, partial(self.call, other, timeout_s=EXCHANGE_TIMEOUT_S))

    def behind(self, leader: PartitionLeader) -> list[str]:
        """Return the holders that the leader has to compare with its own copy, and does not now."""
        return [node for node in super().behind(leader) if (leader, node) not in self._comparisons]

    async def follow(self, leader: PartitionLeader, other: FactsNode) -> None:
        """Bring a holder up to date, unless that is being done, so that messages of clients are not held up."""
        pair = leader, other.node_id
        if pair not in self._comparisons:
            self._comparisons.add(pair)
            try:
                await super().follow(leader, other)
            finally:
                self._comparisons.discard(pair)

    def keep_time(self) -> None:
        """Submit an empty record where `Membership` does: claims or pending rows wait for log time to pass."""
        outbox = self.sends
        if outbox is None or self.peer_id not in self.replica.ring.members:
            return
        waited_for = any(number in self.replica.claims for number in self.granter.led())
        if waited_for or self.operations.transaction_parts.wants_time:
            if self.log_quiet_ms() > QUIET_MAX_MS or self.log_clock.lags():
                outbox.submit_empty()

    # --- expiry

    async def verdicts(self, entries: Sequence[Any]) -> tuple[int, Sequence[str]]:
        """Submit entries; an expiry must name the lapsed claims of all partitions that serve here."""
        expired = [one for args in entries if isinstance(args, expire_claims.Args) for one in args.expirations]
        if expired:
            named = {task_id for one in expired for run in one.runs for task_id in ids_of(*run)}
            for task_id in self._lapsed():
                if task_id not in named:
                    self.left_out(task_id)
        return await super().verdicts(entries)

    def _lapsed(self) -> Iterator[TaskId]:
        """Yield tasks with lapsed claims in the partitions that serve here, if nothing else decides about them."""
        log_time_ms = self.log_clock.now_ms(self.clock.own.monotonic_ns())
        for number in self.granter.led():
            for stretch, pieces in self.replica.claims.get(number, {}).items():
                for offset, count, _, _, deadline_ms in pieces:
                    if lapsed(deadline_ms, log_time_ms):
                        yield from filter(self._is_open, ids_of(id_at(stretch, offset), count))

    def _is_open(self, task_id: TaskId) -> bool:
        """Return whether a task is stored and unfinished, and is neither being finished nor renewed."""
        stretch, bit, state = stretch_of(task_id), mask_of(task_id, 1), self.leader_state
        busy = state.any_in(State.FINISHING, [Run(task_id, 1)]) or state.any_in(State.RENEWING, [Run(task_id, 1)])
        return not busy and bool(self.store.known_bits(stretch) & ~self.store.finished_bits(stretch) & bit)


class TransactingFacts(Facts):
    """A cluster of such nodes; ``last_attempt`` returns whether a task may be in its last attempt."""

    def __init__(
        self,
        clock: SearchClock,
        draw: Random,
        *,
        nodes: int,
        partitions: int,
        last_attempt: Callable[[TaskId], bool],
    ) -> None:
        self.last_attempt = last_attempt
        super().__init__(clock, draw, nodes=nodes, partitions=partitions)

    def _node(self, name: str, disk: SearchDisk) -> FactsNode:
        machine = Machine(self.clock, self.start_ms)
        node = self.nodes[name] = TransactingNode(name, disk, machine, random=self.draw.random, post=self.post)
        node.left_out = partial(self._left_out, name)
        return node

    def _left_out(self, name: str, task_id: TaskId) -> None:
        """Break the run if a lapsed claim is not taken back with those of other partitions."""
        if not self.last_attempt(task_id):
            what = f"expiry: {name} takes lapsed claims back, and leaves that of {task_id.hex()[-8:]} for later"
            self.broken = self.broken or Broken(what)

    def wait(self, seconds: float) -> None:
        """Time passes, and members keep log time moving where something waits for it."""
        super().wait(seconds)
        for node in self.living():
            assert isinstance(node, TransactingNode)
            node.keep_time()
