"""A seeded search through transactions at leaders: the workload ``facts_transactions`` (design: simulation).

It is the search of facts with clients that commit transactions. They complete tasks that they claimed, note updates,
require claims and enqueue tasks, in one partition or several. Any node coordinates. Meanwhile the same claims lapse, or
are given back, failed, renewed or cancelled. ``onyxq simulate --workload facts_transactions --seed 7`` plays one run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import ClassVar

from attrs import evolve

from onyxq.core.ids import partition_of
from simulation.checkers import Broken, LogChecker
from simulation.checkers.attempts_counted import AttemptsCounted
from simulation.checkers.one_claim import OneClaim
from simulation.planted.seams import faulty, instead
from simulation.probes import TRANSACTIONS
from simulation.search.facts import FactsPlan, FactsRun, FactsSearch, facts_plan_of
from simulation.search.facts_calm import calm, differing_copies
from simulation.search.facts_clients import Given
from simulation.search.facts_cluster import Facts
from simulation.search.facts_model import Task
from simulation.search.facts_node import FactsNode, SearchClock
from simulation.search.facts_states import PAIRS
from simulation.search.transactions.clients import TransactingClients
from simulation.search.transactions.model import TransactingModel
from simulation.search.transactions.node import TransactingFacts
from simulation.world.history import History

TRANSACT_ODDS = {"transact": 15, "disturbed": 40, "overtaken": 15, "repeat": 6}
FEWER = 0.25
"""How often the moves of `RARE` come, compared with the search of facts."""
RARE = ("unique", "depending", "later", "again", "complete", "late", "renew", "cancel", "burst")
CHOICES = ("replace", "keep", "extend")
"""What a unique key of a transaction may choose: it cannot refuse."""
LOOK_EVERY = 100
"""Steps between looks for rows of transactions that are not committed."""
WAIT = 1 / 250
"""How likely time passes in a step."""
SOON = 1 / 15
"""How likely the next request about a disturbed claim is sent in a step."""
SWEEP_EVERY_S = 0.4
"""Time between sweeps of pending rows, in seconds: short, so that a run has many."""
RECENT = 8
"""Claims and transactions among which clients choose."""


def transactions_plan_of(seed: int) -> FactsPlan:
    """Return the plan of a seed."""
    plan, draw = facts_plan_of(seed), Random(f"transactions plan {seed}")
    bend = (0.3, 1.0, 1.0, 2.0)
    clients = {**plan.clients, **{move: odd * draw.choice(bend) for move, odd in TRANSACT_ODDS.items()}}
    clients |= {move: odd * FEWER for move, odd in clients.items() if move in RARE}
    faults = {**plan.faults, "refuse": 2 * plan.faults["refuse"]}
    return evolve(
        plan,
        partitions=draw.choice((1, 2, 3, 4)),
        clients=clients,
        faults=faults,
        ask=draw.choice((0.08, 0.15)),
        fail=draw.choice((0.0005, 0.002, 0.005)),
        slow=draw.choice((0.0, 0.05, 0.1, 0.2)),
    )


class TransactionsSearch(FactsSearch):
    """The search from one seed."""

    deliver: ClassVar[float] = 0.3
    probed: ClassVar[tuple[str, ...]] = (*PAIRS, *TRANSACTIONS)
    facts: TransactingFacts
    model: TransactingModel
    clients: TransactingClients

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.plan = transactions_plan_of(seed)
        self.draw = Random(f"transactions {seed}")
        self._random = self.draw.random
        self._soon: deque[Callable[[], None]] = deque()
        """Requests that follow others."""
        self._attempts = AttemptsCounted(History(), OneClaim(History()))

    def run(self, steps: int | None = None) -> FactsRun:
        """Make steps, then stop the faults; the run holds what broke."""
        with faulty([("onyxq.leader.transaction_parts:SWEEP_EVERY_S", instead(SWEEP_EVERY_S))]):
            return super().run(steps)

    def _found(self, clock: SearchClock) -> None:
        plan = self.plan
        self.model = model = TransactingModel(
            disks=lambda: {name: node.disk.tables for name, node in facts.nodes.items()}, reached=self.probes.reached
        )
        self.facts = facts = TransactingFacts(
            clock, self.draw, nodes=plan.nodes, partitions=plan.partitions, last_attempt=model.may_be_last
        )
        model.replica = facts.found

    def _new_clients(self) -> TransactingClients:
        return TransactingClients(self.facts, self.model, self.draw, self.plan.partitions)

    def _checkers(self) -> Sequence[LogChecker]:
        return self._attempts.claims, self._attempts

    def _calm(self) -> int:
        return calm(self.facts, self.clients, self.model, differences=unsettled_transactions)

    def _step(self) -> None:
        super()._step()
        if self._random() < WAIT:
            self.facts.wait(0.02 + 0.4 * self._random())
        if self._soon and self._random() < SOON:
            self._soon.popleft()()
        if self.made.steps % LOOK_EVERY == 0:
            self.model.look()
        if self._attempts.postponed:
            raise Broken(f"attempts counted: a failure of {min(self._attempts.postponed).hex()[-8:]} was not counted")

    # --- clients

    def _recent(self) -> list[Given]:
        """Return the newest claims; mostly those only that their workers have not given up."""
        held = self.clients.held
        if self._random() < 0.9:
            held = [one for one in held if one.token not in one.task.given_up and not one.task.completed]
        return held[-RECENT:]

    def _transact(self) -> None:
        self._transact_with([])

    def _transact_with(self, done: list[Given]) -> None:
        """Send a transaction that completes these claims, and others."""
        recent = self._recent()
        self.draw.shuffle(recent)
        tasks = {given.task.id: given for given in (*done, *recent)}
        given = list(tasks.values())
        count = min(len(given), max(len(done), self._below(4)))
        done, rest = given[:count], given[count:]
        noted = [one for one in given[:2] if self._random() < 0.25]
        needed = [one for one in rest[:2] if self._random() < 0.3]
        new = self._new_tasks(1 + self._below(2) if not done or self._random() < 0.7 else 0)
        for one in done:
            if one in self.clients.held and self._random() < 0.5:
                self.clients.held.remove(one)
        self.clients.transact(done, noted, needed, new)

    def _new_tasks(self, count: int) -> list[Task]:
        made: list[Task] = []
        for _ in range(count):
            kind = self._below(10)
            clients, later_ms = self.clients, 50 + self._below(1_500) if kind in (1, 2) else 0
            if kind in (3, 4):
                made.append(clients.new_task(key=f"k{self._below(self.plan.keys)}"))
            elif kind == 5:
                made.append(clients.new_task(unique=self._unique_key(CHOICES)))
            elif kind == 6 and (before := self._before(made)) is not None:
                made.append(clients.new_task(depends=(before,)))
            else:
                made.append(clients.new_task(later_ms=later_ms))
        return made

    def _before(self, made: list[Task]) -> Task | None:
        """Return a task on which a new task may depend: of the same transaction, or a stored one."""
        task = made[-1] if made else self._task()
        return task if task is not None and not task.unique and (made or task.acked) else None

    def _repeat(self) -> None:
        asked = self._one(list(self.model.asked.values())[-RECENT:])
        if asked is not None:
            self.clients.repeat(asked)

    def _disturbed(self) -> None:
        """Send a transaction, and other requests about a claim that it completes."""
        given = self._one(self._recent())
        if given is None:
            return
        self._transact_with([given])
        self._delay(partition_of(given.task.id))
        requests = [self._other_request(given) for _ in range(1 + self._below(2))]
        if self._random() < 0.5:
            requests.pop(0)()
        self._soon.extend(requests)
        self._soon.extend([self._claim] * (1 + self._below(4)))

    def _delay(self, partition: int) -> None:
        """Have the other copies of a partition take long, so that its leader waits while the log moves on."""
        leading = [node.node_id for node in self.facts.living() if partition in node.leaders]
        others = [name for name in self.facts.nodes if name not in leading]
        drawn = self._random()
        if drawn < 0.4:
            self.slow |= {(name, "disk") for name in others}
        elif drawn < 0.6:
            self.slow |= {(name, "fly") for name in leading}

    def _other_request(self, given: Given) -> Callable[[], None]:
        """Return a request of the holder of a claim, or of an operator."""
        clients, asked = self.clients, self._below(6)
        if asked < 2:
            return partial(clients.release, given)
        if asked < 4:
            return partial(clients.cancel, given.task, claimed=self._random() < 0.7)
        return partial(clients.fail if asked == 4 else clients.renew, given)

    def _overtaken(self) -> None:
        """Requeue dead letters that come before a claimed task of their key, which then fails; or let it fail now."""
        given = self._one([one for one in self._recent() if one.task.key])
        if given is None:
            return
        task, fail = given.task, partial(self.clients.fail, given)
        before = [one for one in self.model.keys[task.key] if one.number < task.number]
        dead = [one for one in before if len(one.grants) >= one.attempts and not one.ending]
        if len(task.grants) == 1 or not dead:
            fail()
            return
        for one in dead[-2:]:
            self.clients.requeue(one)
        self._soon.extend([self._claim, self._claim, fail])


def unsettled_transactions(facts: Facts, led: dict[int, FactsNode]) -> list[str]:
    """Return in words which copies differ, and which transactions have not settled."""
    waiting = sorted(facts.course.replica.transactions)
    return differing_copies(facts, led) + [f"transaction {name} never settles" for name in waiting]
