"""The search of transactions at leaders: they keep their promises, and planted bugs are found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest
import trio

from onyxq.core.errors import BadRequest, LogUnavailable, NotLeader, StaleToken, Unavailable
from onyxq.core.facts import CANCELLED, pack_task
from onyxq.core.ids import Run, make_id, mask_of, stretch_of
from onyxq.leader.completion_rows import Finish
from onyxq.leader.completions import SETTLE_EVERY_S
from onyxq.leader.transaction_apply import DEPENDS_PATIENCE_S
from onyxq.node.node import Node
from onyxq.operations.table.claim import Renew, Renewal
from onyxq.operations.table.dead import DiscardDead
from onyxq.store.store import Store
from onyxq.system.procedures import pause
from simulation.planted.bugs_facts_transactions import FACT_TRANSACTION_BUGS
from simulation.planted.planted import Planted
from simulation.planted.seams import Fault, faulty
from simulation.probes import TRANSACTIONS, Probes
from simulation.search.facts_calm import calm, settle, work
from simulation.search.facts_clients import Given
from simulation.search.facts_cluster import Facts
from simulation.search.facts_model import Task, UniqueKey
from simulation.search.facts_node import FactsNode, SearchClock, SearchOutbox
from simulation.search.transactions.clients import TransactingClients
from simulation.search.transactions.model import TransactingModel
from simulation.search.transactions.node import TransactingFacts
from simulation.search.transactions.search import TransactionsSearch, unsettled_transactions


@pytest.mark.long
def test_transactions_are_done_as_a_whole_or_not_at_all() -> None:
    """``onyxq simulate --workload facts_transactions --seed N`` plays one of the runs again."""
    probes = Probes(TransactionsSearch.probed)
    for seed in range(1, 41):
        run = TransactionsSearch(seed).run()
        assert run.broken is None, f"seed {seed}: {run.broken}"
        probes.add(run.probes)
    assert not {*TRANSACTIONS} & {*probes.unreached()}, probes.table()


@pytest.mark.parametrize("planted", FACT_TRANSACTION_BUGS, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found_soon(planted: Planted) -> None:
    """A few runs find it, in seconds."""
    with faulty(planted.faults):
        assert any(TransactionsSearch(seed).run().broken for seed in range(1, planted.quick + 1))


class Once(TransactingClients):
    """Clients whose tasks fail for good at once."""

    attempts_max = 1


class Transacting:
    """A cluster of two nodes with one partition, and its clients."""

    def __init__(self, clock: SearchClock) -> None:
        self.model = model = TransactingModel(
            disks=lambda: {name: node.disk.tables for name, node in self.facts.nodes.items()}
        )
        self.facts = TransactingFacts(clock, Random(1), nodes=2, partitions=1, last_attempt=model.may_be_last)
        model.replica = self.facts.found
        self.facts.course.checkers = (model,)
        self.clients = Once(self.facts, model, Random(1), 1, heard=1.0)
        model.wall_ms = self.clients.now_ms
        self.rest()

    def rest(self) -> None:
        """Let all nodes do what there is to do, and workers finish all tasks."""
        calm(self.facts, self.clients, self.model, differences=unsettled_transactions)

    @property
    def leader(self) -> FactsNode:
        """The node that leads the partition."""
        (node,) = [node for node in self.facts.living() if node.leaders]
        return node

    def claimed(self) -> Given:
        """Return the claim of a task that is ready."""
        before = len(self.clients.held)
        for _ in range(20):
            self.clients.claim(1, self.leader)
            work(self.facts)
            if len(self.clients.held) > before:
                return self.clients.held[-1]
            self.facts.wait(0.05)
        raise AssertionError("no task is granted")

    def enqueue(self, unique: UniqueKey | None = None) -> Task:
        """Return a new task that is sent."""
        self.clients.enqueue(unique=unique)
        *_, task = self.model.tasks.values()
        for _ in range(20):
            work(self.facts)
            if task.acked:
                break
            self.clients.again(task)
        return task


def play(scene: Callable[[Transacting], None]) -> None:
    """Play a scene."""
    clock = SearchClock()

    async def main() -> None:
        scene(Transacting(clock))

    trio.run(main, clock=clock)


STARTED = UniqueKey("u1", until="started")


def _unsettled(transacting: Transacting) -> Fault:
    """Return the fault that lets no record be sent while a committed transaction has not settled."""

    def fault(original: Callable[[SearchOutbox], bool]) -> Callable[[SearchOutbox], bool]:
        return lambda outbox: not transacting.facts.course.replica.transactions and original(outbox)

    return fault


def test_a_unique_key_is_free_while_a_transaction_that_completes_its_task_has_not_settled() -> None:
    """The task released its key as it started. No worker has the claim that the transaction holds."""

    def scene(transacting: Transacting) -> None:
        clients, facts = transacting.clients, transacting.facts
        transacting.enqueue(STARTED)
        clients.transact([transacting.claimed()], [], [], [])
        with faulty([("simulation.search.facts_node:SearchOutbox.due", _unsettled(transacting))]):
            work(facts)
            assert facts.course.replica.transactions
            task = transacting.enqueue(UniqueKey("u1", until="started", choice="refuse"))
            assert task.outcome == "new" and facts.broken is None
        transacting.rest()
        assert task.grants

    play(scene)


def test_a_requeued_task_is_granted_although_another_node_read_of_it_first() -> None:
    """The leader stores the other node's row and looks at the task. Only then it reads that the claim has ended."""

    def scene(transacting: Transacting) -> None:
        clients, facts, leader = transacting.clients, transacting.facts, transacting.leader
        task = transacting.enqueue()
        clients.fail(transacting.claimed())
        with faulty([("simulation.search.facts_cluster:Facts.behind", _except(leader))]):
            work(facts)
            clients.requeue(task)
            work(facts)
            for other in facts.living():
                if other is not leader:
                    leader.procedures.start(leader.follow(leader.leaders[0], other))
            for _ in range(4):
                work(facts)
                facts.wait(0.1)
            clients.claim(1, leader)
            work(facts)
            assert len(task.grants) == 1
        work(facts)
        assert transacting.claimed().task is task

    play(scene)


def _except(leader: FactsNode) -> Fault:
    """Return the fault that lets a node read no record."""

    def fault(original: Callable[[Facts, FactsNode], bool]) -> Callable[[Facts, FactsNode], bool]:
        return lambda facts, node: node is not leader and original(facts, node)

    return fault


def _later(original: Callable[[Node], Awaitable[None]]) -> Callable[[Node], Awaitable[None]]:
    """Let a disk take its time."""

    async def settled(node: Node) -> None:
        await pause(0.1)
        await original(node)

    return settled


def test_a_new_task_of_a_unique_key_is_granted_although_the_last_one_changed_while_it_waited() -> None:
    """It waits until another request has changed that task, which then starts. The later row has the later mark."""

    def scene(transacting: Transacting) -> None:
        clients, facts = transacting.clients, transacting.facts
        first = transacting.enqueue(STARTED)
        with faulty([("onyxq.node.node:Node.settled", _later)]):
            clients.enqueue(unique=STARTED, later_ms=250)
            _pass(facts, 0.11)  # it looks at the first task
            clients.enqueue(unique=UniqueKey("u1", until="started", choice="refuse"))
            _pass(facts, 0.11)  # the first task is changed
            _pass(facts, 0.05)  # it is due
            clients.claim(1, transacting.leader)
            _pass(facts, 0.06)
        *_, changing, last = transacting.model.tasks.values()
        assert (changing.outcome, last.outcome) == ("replaced", "new") and first.grants
        transacting.rest()
        assert last.grants

    play(scene)


def _pass(facts: Facts, seconds: float) -> None:
    """Let nodes work, then time pass, then nodes work again."""
    work(facts)
    facts.wait(seconds)
    work(facts)


def test_a_leader_that_gives_up_changes_no_task_of_a_unique_key_afterwards() -> None:
    """The state of the task would stay there, and would keep it from being granted under a later leadership."""

    def scene(transacting: Transacting) -> None:
        clients, facts = transacting.clients, transacting.facts
        transacting.enqueue(STARTED)
        with faulty([("onyxq.node.node:Node.settled", _later)]):
            clients.enqueue(unique=STARTED)
            _pass(facts, 0.11)  # it looks whether the first task has started
            facts.give_up(transacting.leader, transacting.leader.leaders[0])
            _pass(facts, 0.11)
        transacting.rest()

    play(scene)


def _is_finished(store: Store, task: Task) -> bool:
    return bool(store.finished_bits(stretch_of(task.id)) & mask_of(task.id, 1))


def _held_back(_: Callable[[SearchOutbox], bool]) -> Callable[[SearchOutbox], bool]:
    """Let no record be sent."""
    return lambda outbox: False


def test_a_dependent_hears_of_no_failure_while_a_commit_may_complete_the_task() -> None:
    """The worker's request failed, so it reports a failure. The commit and the end of the claim are on their way."""

    def scene(transacting: Transacting) -> None:
        clients, facts = transacting.clients, transacting.facts
        transacting.enqueue()
        given = transacting.claimed()
        clients.enqueue(depends=(given.task,))
        work(facts)
        *_, dependent = transacting.model.tasks.values()
        assert dependent.acked
        with faulty([("simulation.search.facts_node:SearchOutbox.due", _held_back)]):
            clients.transact([given], [], [], [])
            work(facts)
            clients.fail(given)
            _pass(facts, 0.1)
            store = transacting.leader.store
            assert [_is_finished(store, one) for one in (given.task, dependent)] == [True, False]
            discard, answers = DiscardDead(ids=[given.task.id]), list[list[dict[str, Any] | None]]()
            clients.ask(transacting.leader, transacting.leader.operations.dead_letters.discard(discard), answers.append)
            work(facts)
            ((refused,),) = answers
            assert refused is not None and refused["code"] == Unavailable.code
        transacting.rest()
        assert dependent.grants

    play(scene)


def test_a_leader_that_gives_up_replaces_no_timer_afterwards() -> None:
    """Nothing would end the state of the new task, so a later leadership on that node would not grant it."""

    def scene(transacting: Transacting) -> None:
        facts, leader = transacting.facts, transacting.leader
        timers, now_ms = leader.operations.timers, transacting.clients.now_ms()
        tasks = [(make_id(now_ms + 60_000, 0, 0xBEEF, number), _timer(b"%d" % number)) for number in range(2)]
        leader.procedures.start(timers.set(*tasks[0], replace=False))
        work(facts)
        assert timers.current_task(0, "timers", "t") == tasks[0][0]
        with faulty([("onyxq.node.node:Node.settled", _later)]):
            leader.procedures.start(timers.set(*tasks[1], replace=True), lambda answer, error: None)
            work(facts)  # it looks whether the first task has ended
            facts.give_up(leader, leader.leaders[0])
            _pass(facts, 0.11)
        transacting.rest()

    play(scene)


def _timer(data: bytes) -> bytes:
    return pack_task({"queue": "timers", "retries": 0, "unique_key": "t"}, [data])


def test_a_leader_finishes_no_task_before_it_has_taken_over() -> None:
    """A request began under an earlier leadership of the node. Another leader may have ended the task meanwhile."""

    def scene(transacting: Transacting) -> None:
        node, task = transacting.leader, transacting.enqueue()
        node.leaders[0].ready = False
        finish, refused = Finish(Run(task.id, 1), task.number, CANCELLED, []), list[list[Any]]([[]])
        node.procedures.start(node.operations.completions.finish_all({0: [(0, finish)]}, refused))
        work(transacting.facts)
        assert not _is_finished(node.store, task)
        assert [error["code"] for _, _, error in refused[0]] == [NotLeader.code]
        node.leaders[0].ready = True
        transacting.rest()

    play(scene)


def test_a_renewal_that_fails_is_refused_for_each_task_that_was_not_refused_before() -> None:
    """One of two tasks with one token is completed. The worker must hear that the lease of the other is not longer."""

    def scene(transacting: Transacting) -> None:
        clients, facts, leader = transacting.clients, transacting.facts, transacting.leader
        tasks = transacting.enqueue(), transacting.enqueue()
        clients.claim(2, leader)
        work(facts)
        first, second = sorted(clients.held, key=lambda one: one.task.id)
        assert first.token == second.token and stretch_of(first.task.id) == stretch_of(tasks[1].id)
        clients.complete(first, b"done")
        work(facts)
        answers: list[list[list[list[Any]]]] = []
        renew = Renew(items=[Renewal(first.task.id, 2, first.token, 10_000)])
        with faulty([("simulation.search.transactions.node:TransactingNode.verdicts", _no_log)]):
            clients.ask(leader, leader.operations.claim_updates.renew(renew), answers.append)
            work(facts)
        (((*refused,),),) = answers
        said = {task_id: error["code"] for task_id, _, error in refused}
        assert said == {first.task.id: StaleToken.code, second.task.id: LogUnavailable.code}
        transacting.rest()

    play(scene)


def _no_log(_: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Let the log take no entries."""

    async def verdicts(node: FactsNode, entries: Sequence[Any]) -> Any:
        raise LogUnavailable("the log is away")

    return verdicts


def test_a_new_leadership_waits_again_for_what_a_committed_task_depends_on() -> None:
    """The last one waited a little and ended. Its patience is not over because much time has passed since."""

    def scene(transacting: Transacting) -> None:
        node, task = transacting.leader, transacting.enqueue()
        parts, refusal = node.operations.transaction_parts, BadRequest("there is no such task", field="depends")
        assert parts.applier._may_come(task.id, refusal)
        transacting.facts.wait(2 * DEPENDS_PATIENCE_S)
        parts.lead(node.leaders[0])
        assert parts.applier._may_come(task.id, refusal)

    play(scene)


def test_a_dead_letter_that_comes_from_another_node_is_not_reported_while_a_commit_may_come() -> None:
    """The leader's disk refused it, so a transaction could prepare the task. Then a comparison brings it back."""

    def scene(transacting: Transacting) -> None:
        clients, facts, leader = transacting.clients, transacting.facts, transacting.leader
        task = transacting.enqueue()
        given = transacting.claimed()
        clients.enqueue(depends=(task,))
        work(facts)
        *_, dependent = transacting.model.tasks.values()
        (other,) = (node for node in facts.living() if node is not leader)
        with faulty([("simulation.search.facts_node:SearchOutbox.due", _held_back)]):
            clients.fail(given)
            settle(facts, leader)
            leader.procedures.start(leader.senders[other.node_id].send_waiting())
            facts.deliver(facts.mail[-1])
            leader.commit()
            settle(facts, leader)
            leader.disk.end(refused=True, lands=False)
            _pass(facts, 0.0)
            assert [_is_finished(node.store, task) for node in (leader, other)] == [False, True]
            clients.transact([given], [], [], [])
            work(facts)
            leader.procedures.start(leader.follow(leader.leaders[0], other))
            for _ in range(5):
                _pass(facts, SETTLE_EVERY_S / 2)
            assert [_is_finished(leader.store, one) for one in (task, dependent)] == [True, False]
        transacting.rest()
        assert dependent.grants

    play(scene)
