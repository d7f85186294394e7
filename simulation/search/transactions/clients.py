"""Clients of transactions in the search of facts: what they ask for, and what they make of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from attrs import define, field

from onyxq.core import facts
from onyxq.core.ids import TaskId
from onyxq.operations.table.claim import Held, NewUpdate
from onyxq.operations.table.enqueue import NewRun
from onyxq.operations.table.transaction import CommittedTransaction, CompletedRun, Transact
from simulation.search.facts_clients import Clients, Given
from simulation.search.facts_model import QUEUE, Task, UniqueKey
from simulation.search.facts_node import FactsNode
from simulation.search.transactions.model import Asked, TransactingModel
from simulation.search.transactions.node import TransactingNode


@define(eq=False)
class TransactingClients(Clients):
    """See the module's first paragraph.

    A worker reports one result under each claim, alone or in transactions: the leader does not order two results.
    """

    attempts_max: ClassVar[int] = 3
    leases_ms: ClassVar[tuple[int, ...]] = (300, 1_000, 3_000, 10_000)
    results: dict[tuple[TaskId, int], bytes] = field(factory=dict)
    """The result of each claim that was reported."""
    seqs: dict[tuple[TaskId, int], int] = field(factory=dict)
    """Number of the next update of each claim, as far as its worker heard."""

    @property
    def known(self) -> TransactingModel:
        """The model, which also knows transactions."""
        assert isinstance(self.model, TransactingModel)
        return self.model

    def complete(self, given: Given, result: bytes) -> None:
        """Complete a task under the token of a claim."""
        super().complete(given, self._result(given, result))

    def _result(self, given: Given, result: bytes) -> bytes:
        return self.results.setdefault((given.task.id, given.token), result)

    def _partition_of(self, key: str) -> int:
        return facts.partition_of_keys(QUEUE, key, self.partitions)

    def leader_of(self, partition: int) -> FactsNode | None:
        """Return the node that a client takes for the leader; once the faults have stopped, it is the leader.

        A lost completion costs a lease, and the tasks of a key wait for each other.
        """
        node, living = super().leader_of(partition), self.around.living()
        leading = [one for one in living if (leader := one.leaders.get(partition)) and leader.ready]
        return leading[0] if leading and self.heard == 1.0 else node

    def again(self, task: Task) -> None:
        """Repeat an enqueue, or the transaction that it was part of."""
        asked = self.known.made_by.get(task.id)
        if asked is None:
            super().again(task)
        else:
            self.repeat(asked)

    # --- transactions

    def transact(
        self, done: Sequence[Given], noted: Sequence[Given], needed: Sequence[Given], tasks: Sequence[Task]
    ) -> None:
        """Complete tasks, note updates, require claims and enqueue new tasks in one transaction."""
        number = self.model.count()
        completes = tuple((one.task, one.token, self._result(one, b"t%d" % number)) for one in done)
        updates = tuple((one.task, one.token, b"u%d" % number) for one in noted)
        request = Transact(
            name=f"t{number}",
            complete=[CompletedRun(task.id, 1, token, [result]) for task, token, result in completes],
            update=[NewUpdate(task.id, token, self._seq(task, token), data) for task, token, data in updates],
            require=[Held(one.task.id, 1, one.token) for one in needed],
            enqueue=[NewRun(task.id, task.body, task.at_ms) for task in tasks],
        )
        requires = tuple((one.task, one.token) for one in needed)
        asked = Asked(request, number, completes, requires, updates, tuple(tasks))
        self.known.wants(asked)
        self.repeat(asked)

    def _seq(self, task: Task, token: int) -> int:
        return self.seqs.get((task.id, token), 0)

    def new_task(
        self,
        key: str = "",
        unique: UniqueKey | None = None,
        depends: tuple[Task, ...] = (),
        later_ms: int = 0,
    ) -> Task:
        """Return a task for a transaction; it may be stored at any time until the transaction is settled."""
        task = self._new_task(key, unique, depends, later_ms)
        task.open = 1
        return task

    def repeat(self, asked: Asked) -> None:
        """Send a transaction to any node, once more or for the first time."""
        living = self.around.living()
        if not living:
            return
        node = living[self._below(len(living))]
        assert isinstance(node, TransactingNode)
        asked.sends += 1
        steps, sent = node.transactions.transact(asked.request), self.model.count()
        self.ask(node, steps, partial(self._heard, asked), lambda error: self.known.denied(asked, error, sent))

    def _heard(self, asked: Asked, answer: CommittedTransaction) -> None:
        self.known.answered(asked, answer.token, settled=answer.settled)
        for update in asked.request.update:
            self.seqs[update.id, update.token] = update.seq + 1
