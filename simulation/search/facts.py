"""A seeded search through what leaders decide about tasks: the explorer of facts (design: simulation).

Several real nodes share a pure log. A seed draws every step: which procedure continues, which record lands and who has
read it, which disk has written, which message arrives or is lost, what clients ask for, who dies and who leads. At the
end the faults stop, and everything must come to rest. ``onyxq simulate --workload facts --seed 7`` plays one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import ClassVar, TypeVar

import trio
from attrs import define, field, frozen

from onyxq.leader.cohort.replication import Sender
from onyxq.leader.leader import PartitionLeader
from simulation.checkers import Broken, Course, LogChecker
from simulation.checkers.tokens_increase import TokensIncrease
from simulation.probes import Probes
from simulation.search.facts_calm import calm, settle
from simulation.search.facts_clients import Clients
from simulation.search.facts_cluster import Facts
from simulation.search.facts_model import Model, Task, UniqueKey
from simulation.search.facts_node import FactsNode, SearchClock
from simulation.search.facts_states import PAIRS, counted_states
from simulation.search.run import told_as_broken

T = TypeVar("T")

CLIENT_ODDS = {
    "enqueue": 20,
    "keyed": 12,
    "unique": 9,
    "depending": 6,
    "later": 3,
    "again": 4,
    "claim": 40,
    "complete": 40,
    "late": 8,
    "fail": 8,
    "release": 5,
    "renew": 8,
    "cancel": 5,
    "requeue": 8,
    "burst": 6,
}
FAULT_ODDS = {
    "crash": 4,
    "expire": 2,
    "give-up": 3,
    "lose": 10,
    "refuse": 6,
    "doubt": 6,
    "ghost": 2,
    "idle": 8,
    "stall": 4,
}


UNTIL = ("finished", "started", "finished", "purged")
"""When unique keys are free again, by their number."""
CHOICES = ("replace", "replace", "keep", "extend", "refuse")
PERIOD_MS = 4
"""Length of a period of some unique keys; the ids of a partition span some milliseconds."""
PHASE = 120
"""Mean number of steps until others are slow."""
KINDS = ("turn", "read", "send", "land", "commit", "disk", "fly", "follow")
"""What a node may be slow in."""


@frozen
class FactsPlan:
    """What a seed draws before its first step."""

    nodes: int
    partitions: int
    clients: dict[str, float]
    faults: dict[str, float]
    ask: float
    """How likely a step is one of a client."""
    fail: float
    """How likely a step is a fault."""
    keys: int
    """Number of ordering keys."""
    slow: float
    """How likely a node is slow in one thing, and a connection is slow, for some time."""


def facts_plan_of(seed: int) -> FactsPlan:
    """Return the plan of a seed; some runs lack some kinds of moves altogether."""
    draw = Random(f"facts plan {seed}")
    bend = (0.0, 0.3, 1.0, 1.0, 1.0, 3.0)
    always = ("enqueue", "claim", "complete", "idle")
    clients = {move: odd * (1.0 if move in always else draw.choice(bend)) for move, odd in CLIENT_ODDS.items()}
    faults = {move: odd * (1.0 if move in always else draw.choice(bend)) for move, odd in FAULT_ODDS.items()}
    for often in (draw.choice(list(CLIENT_ODDS)) for _ in range(2)):
        clients[often] = 3 * CLIENT_ODDS[often]
    return FactsPlan(
        nodes=draw.choice((2, 3, 3)),
        partitions=draw.choice((1, 2)),
        clients=clients,
        faults=faults,
        ask=draw.choice((0.03, 0.06, 0.12)),
        fail=draw.choice((0.001, 0.003, 0.006, 0.012)),
        keys=draw.choice((1, 2, 4)),
        slow=draw.choice((0.0, 0.05, 0.1, 0.2)),
    )


@define(eq=False)
class FactsRun:
    """One run: how far it came and what broke."""

    seed: int
    plan: FactsPlan
    course: Course
    probes: Probes
    steps: int = 0
    broken: Broken | None = None
    actions: list[str] = field(factory=list)
    """The moves of clients and the faults, in words."""


class FactsSearch:
    """The search from one seed."""

    steps: ClassVar[int] = 4_000
    """Steps of a run before it calms down."""
    deliver: ClassVar[float] = 0.12
    """How likely a step of the nodes is a message that arrives."""
    probed: ClassVar[tuple[str, ...]] = PAIRS
    """Names of the probes."""
    facts: Facts
    model: Model

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.plan = facts_plan_of(seed)
        self.draw = Random(f"facts {seed}")
        self._random = self.draw.random
        self.slow: set[tuple[str, str]] = set()
        """Nodes with what they do not do now, and pairs of nodes: the second does not hear the first now."""

    def run(self, steps: int | None = None) -> FactsRun:
        """Make steps, then stop the faults; the run holds what broke. ``steps``: another number of steps."""
        clock, self.probes = SearchClock(), Probes(self.probed)

        async def main() -> FactsRun:
            return self._run(clock, self.steps if steps is None else steps)

        with counted_states(self.probes):
            return trio.run(main, clock=clock)

    def _run(self, clock: SearchClock, steps: int) -> FactsRun:
        self._found(clock)
        facts = self.facts
        facts.course.checkers = (TokensIncrease(), *self._checkers(), self.model)
        self.clients = self._new_clients()
        self.model.wall_ms = self.clients.now_ms
        self.made = made = FactsRun(self.seed, self.plan, facts.course, self.probes)
        try:
            with told_as_broken():
                for _ in range(steps):
                    made.steps += 1
                    self._step()
                    if facts.broken is not None:
                        raise facts.broken
                self.clients.heard = 1.0
                made.steps += self._calm()
        except Broken as broken:
            made.broken = broken
        for node in facts.living():
            node.alive = False
            node.procedures.end()
        return made

    def _found(self, clock: SearchClock) -> None:
        """Make the cluster, and the model of its clients."""
        self.facts = Facts(clock, self.draw, nodes=self.plan.nodes, partitions=self.plan.partitions)
        self.model = Model()

    def _new_clients(self) -> Clients:
        """Return the clients."""
        return Clients(self.facts, self.model, self.draw, self.plan.partitions)

    def _checkers(self) -> Sequence[LogChecker]:
        """Return the checkers of the log besides the model."""
        return ()

    def _calm(self) -> int:
        """Stop the faults; return the number of steps until all is at rest."""
        return calm(self.facts, self.clients, self.model)

    # --- drawing

    def _below(self, limit: int) -> int:
        return int(self._random() * limit)

    def _one(self, of: list[T]) -> T | None:
        return of[self._below(len(of))] if of else None

    def _step(self) -> None:
        drawn = self._random()
        if drawn < self.plan.ask:
            self._act(self.plan.clients)
        elif drawn < self.plan.ask + self.plan.fail:
            self._act(self.plan.faults)
        else:
            self._progress()
        self.facts.clock.now_s += 0.0005

    def _act(self, odds: dict[str, float]) -> None:
        move = self.draw.choices(list(odds), list(odds.values()))[0]
        self.made.actions.append(move)
        act: Callable[[], None] = getattr(self, f"_{move.replace('-', '_')}")
        act()

    # --- what goes on by itself

    def _progress(self) -> None:
        """Let a node that is drawn do something."""
        facts = self.facts
        if self._random() < 1 / PHASE:
            self._new_phase()
        if self._random() < self.deliver:
            message = self._one(facts.mail)
            if message is not None and (message.answered or not message.begun):
                way = (message.source.node_id, message.target)
                if (way[::-1] if message.answered else way) not in self.slow:
                    facts.deliver(message)
            return
        nodes = list(facts.nodes.values())
        self.draw.shuffle(nodes)
        for node in nodes:
            if not node.alive:
                if self._random() < 0.1:
                    facts.restart(node)
            elif (node.node_id, "turn") not in self.slow and self._go_on(node):
                return

    def _go_on(self, node: FactsNode) -> bool:
        """Let a node do one thing; return whether there was one."""
        if self._random() < 0.7:
            settle(self.facts, node)
        one = self._one([act for kind, act in self._due(node) if (node.node_id, kind) not in self.slow])
        if one is not None:
            one()
        elif node.sends is not None and self._random() < 0.1:
            self.facts.react(node)
        return one is not None

    def _new_phase(self) -> None:
        names, slow = list(self.facts.nodes), self.plan.slow
        things = [(one, other) for one in names for other in (*KINDS, *names) if one != other]
        self.slow = {thing for thing in things if self._random() < slow}

    def _due(self, node: FactsNode) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield what a node can do now, each with its kind."""
        facts, sends = self.facts, node.sends
        if facts.behind(node):
            yield "read", lambda: facts.read(node)
            yield "read", lambda: facts.react(node)
        if sends is not None and sends.due:
            yield "send", sends.send
        if sends is not None and sends.flying:
            yield "land", lambda: sends.land(heard=True)
        if node.commit_due:
            yield "commit", node.commit
        if node.disk.pending is not None:
            yield "disk", node.disk.end
        for sender in node.senders.values():
            if sender.node != node.node_id and sender._waiting:
                yield "fly", partial(self._fly, node, sender)
        if sends is None and self._random() < 0.1:
            yield "send", lambda: facts.rejoin(node)
        leader = self._one(list(node.leaders.values()))
        if leader is not None and self._random() < (0.05 if leader.ready else 0.4):
            yield "follow", lambda: self._follow(node, leader)

    @staticmethod
    def _fly(node: FactsNode, sender: Sender) -> None:
        node.procedures.start(sender.send_waiting())

    def _follow(self, node: FactsNode, leader: PartitionLeader) -> None:
        nodes = [self.facts.nodes[name] for name in node.behind(leader)]
        other = self._one([one for one in nodes if one.alive])
        if other is not None:
            node.procedures.start(node.follow(leader, other))

    # --- faults

    def _crash(self) -> None:
        node = self._one(self.facts.living())
        if node is not None:
            self.facts.crash(node, lands=self._random() < 0.5)

    def _expire(self) -> None:
        peer = self._one(list(self.facts.pulses))
        if peer is not None:
            self.facts.expire(peer)

    def _give_up(self) -> None:
        node = self._one(self.facts.living())
        leader = self._one(list(node.leaders.values())) if node is not None else None
        if node is not None and leader is not None:
            self.facts.give_up(node, leader)

    def _lose(self) -> None:
        message = self._one(self.facts.mail)
        if message is not None:
            self.facts.lose(message)

    def _refuse(self) -> None:
        node = self._one([peer for peer in self.facts.living() if peer.disk.pending is not None])
        if node is not None:
            node.disk.end(refused=True, lands=self._random() < 0.5)

    def _doubt(self) -> None:
        flying = [sends for node in self.facts.living() if (sends := node.sends) is not None and sends.flying]
        sends = self._one(flying)
        if sends is not None:
            sends.land(heard=False)

    def _ghost(self) -> None:
        if self.facts.ghosts:
            _, data = self.facts.ghosts.pop(0)
            self.facts.land(data)

    def _idle(self) -> None:
        self.facts.wait(0.02 + 0.6 * self._random())

    def _stall(self) -> None:
        self.facts.wait(1.0 + 6.0 * self._random())

    # --- clients

    def _task(self) -> Task | None:
        return self._one(list(self.model.tasks.values())[-40:])

    def _enqueue(self) -> None:
        self.clients.enqueue()

    def _later(self) -> None:
        self.clients.enqueue(later_ms=50 + self._below(2_000))

    def _keyed(self) -> None:
        self.clients.enqueue(key=f"k{self._below(self.plan.keys)}")

    def _unique_key(self, choices: tuple[str, ...] = CHOICES) -> UniqueKey:
        number = self._below(4 * self.plan.keys)
        return UniqueKey(
            f"u{number}",
            until=UNTIL[number % len(UNTIL)],
            choice=choices[self._below(len(choices))],
            period_ms=PERIOD_MS if number % 5 == 4 else 0,
        )

    def _unique(self) -> None:
        unique = self._unique_key()
        self.clients.enqueue(unique=unique, later_ms=50 + self._below(2_000) if self._random() < 0.5 else 0)

    def _depending(self) -> None:
        found = [task for task in (self._task(), self._task()) if task is not None and task.acked]
        depends = tuple({task.id: task for task in found}.values())
        if depends:
            self.clients.enqueue(key=depends[0].key if self._random() < 0.5 else "", depends=depends)

    def _again(self) -> None:
        task = self._task()
        if task is not None:
            self.clients.again(task)

    def _claim(self) -> None:
        self.clients.claim(1 + self._below(4))

    def _complete(self) -> None:
        held = self.clients.held
        if held:
            given = held.pop(max(0, len(held) - 1 - self._below(4)))
            self.clients.complete(given, b"r%d" % self._below(3))
            if self._random() < 0.3:
                held.append(given)

    def _late(self) -> None:
        given = self._one(self.clients.held)
        if given is not None:
            self.clients.complete(given, b"r%d" % self._below(3))

    def _fail(self) -> None:
        given = self._one(self.clients.held[-6:])
        if given is not None:
            self.clients.fail(given)

    def _release(self) -> None:
        given = self._one(self.clients.held[-6:])
        if given is not None:
            self.clients.release(given)

    def _renew(self) -> None:
        given = self._one(self.clients.held[-6:])
        if given is not None:
            self.clients.renew(given)

    def _burst(self) -> None:
        """Several requests about one task at once."""
        given = self._one(self.clients.held[-6:])
        if given is None:
            return
        for _ in range(2 + self._below(3)):
            clients, asked, result = self.clients, self._below(6), b"r%d" % self._below(3)
            if asked == 0:
                clients.complete(given, result)
            elif asked == 1:
                clients.fail(given)
            elif asked == 2:
                clients.cancel(given.task, claimed=self._random() < 0.7)
            elif asked == 3:
                clients.requeue(given.task)
            else:
                clients.renew(given)

    def _cancel(self) -> None:
        task = self._task()
        if task is not None:
            self.clients.cancel(task, claimed=self._random() < 0.5)

    def _requeue(self) -> None:
        dead = [task for task in self.model.tasks.values() if len(task.grants) >= task.attempts and not task.ending]
        task = self._one(dead[-6:]) if self._random() < 0.9 else self._task()
        if task is not None:
            self.clients.requeue(task)
