"""Clients and workers of the search of facts: what they ask for, and what they make of the answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, ClassVar

from attrs import define, field, frozen

from onyxq.core import facts
from onyxq.core.errors import KeyTaken, OnyxqError, StaleToken
from onyxq.core.ids import TaskId, make_id, partition_of, with_counter
from onyxq.leader.grants.claims_here import claim_here
from onyxq.operations.table.claim import Complete, Completion, Fail, Failure, Held, Release, Renew, Renewal
from onyxq.operations.table.dead import RequeueDead
from onyxq.operations.table.enqueue import Enqueue, NewRun
from onyxq.operations.table.task import CancelTasks
from onyxq.system.procedures import Withdrawn
from simulation.checkers import Broken
from simulation.search.facts_cluster import Facts
from simulation.search.facts_model import QUEUE, Model, Task, UniqueKey
from simulation.search.facts_node import FactsNode

MAKER = 7
STRETCH = 12
"""Tasks of a partition before the ids continue in another stretch."""


@frozen
class Given:
    """A claim that a worker heard of."""

    task: Task
    token: int


@define(eq=False)
class Clients:
    """See the module's first paragraph."""

    attempts_max: ClassVar[int] = 2
    """Most attempts of a task."""
    leases_ms: ClassVar[tuple[int, ...]] = (300, 300, 900, 3_000)
    around: Facts
    model: Model
    draw: Random
    partitions: int
    open: int = 0
    """Requests without an answer at nodes that live."""
    heard: float = 0.93
    """How likely an answer reaches its client."""
    held: list[Given] = field(factory=list)
    counters: dict[int, int] = field(factory=dict)

    # --- asking

    def ask(
        self,
        node: FactsNode,
        steps: Coroutine[Any, Any, Any],
        hear: Callable[[Any], None],
        refused: Callable[[OnyxqError], None] | None = None,
    ) -> None:
        """Send a request to a node; ``refused`` takes the error if the whole request is refused."""
        self.open += 1
        node.procedures.start(steps, partial(self._over, node, hear, refused))

    def _over(
        self,
        node: FactsNode,
        hear: Callable[[Any], None],
        refused: Callable[[OnyxqError], None] | None,
        answer: Any,
        error: BaseException | None,
    ) -> None:
        self.open -= 1
        if isinstance(error, Withdrawn) and not node.alive:
            return
        try:
            if error is None:
                if self.draw.random() < self.heard:
                    hear(answer)
            elif not isinstance(error, OnyxqError):
                self.around.blame(error, node)
            elif refused is not None and self.draw.random() < self.heard:
                refused(error)
        except Broken as broken:
            self.around.broken = self.around.broken or broken

    def leader_of(self, partition: int) -> FactsNode | None:
        """Return the node that a client takes for the leader of a partition."""
        living = self.around.living()
        found = [
            node for node in living if (leader := node.leaders.get(partition)) and leader.ready and not leader.deposed
        ]
        if found and self.draw.random() < 0.95:
            return found[int(self.draw.random() * len(found))]
        if not living or self.draw.random() > 0.2:
            return None
        return living[int(self.draw.random() * len(living))]

    # --- enqueues

    def enqueue(
        self,
        key: str = "",
        unique: UniqueKey | None = None,
        depends: tuple[Task, ...] = (),
        later_ms: int = 0,
    ) -> None:
        """Enqueue a new task."""
        self._send(self._new_task(key, unique, depends, later_ms))

    def _new_task(self, key: str, unique: UniqueKey | None, depends: tuple[Task, ...], later_ms: int) -> Task:
        """Make a task that is about to be sent."""
        named = key or (unique.key if unique else "")
        partition = self._partition_of(named) if named else self._below(self.partitions)
        number, attempts = self.model.count(), 1 + self._below(self.attempts_max)
        header: dict[str, Any] = {"queue": QUEUE, "retries": attempts - 1, "backoff_ms": 50}
        header |= {"depends": [one.id for one in depends]} if depends else {}
        header |= {"ordering_key": key} if key else {}
        header |= unique.header() if unique else {}
        body = facts.pack_task(dict(sorted(header.items())), [b"%d" % number])
        at_ms = self.now_ms() + later_ms if later_ms else None
        task = Task(self._new_id(partition, at_ms), number, body, attempts, at_ms, key, unique, depends)
        self.model.sent(task)
        return task

    def _partition_of(self, key: str) -> int:
        """Return the partition of the tasks of a key."""
        return int(key[1:]) % self.partitions

    def again(self, task: Task) -> None:
        """Repeat an enqueue."""
        self._send(task)

    def _send(self, task: Task) -> None:
        node = self.leader_of(partition_of(task.id))
        if node is not None:
            task.open += 1
            request = Enqueue(runs=[NewRun(task.id, task.body, task.at_ms)])
            self.ask(node, node.operations.enqueues.enqueue(request), partial(self._stored, task))

    def _stored(self, task: Task, acks: list[Any]) -> None:
        ack = acks[0]
        if isinstance(ack, int) and ack:
            self.model.acked(task)
        elif isinstance(ack, list):
            self.model.told(task, ack[1], ack[2])
        elif isinstance(ack, dict) and ack["code"] == KeyTaken.code:
            self.model.told(task, TaskId(bytes.fromhex(ack["details"][0][0])), "refused")

    def _new_id(self, partition: int, at_ms: int | None) -> TaskId:
        count = self.counters[partition] = self.counters.get(partition, -1) + 1
        ms = at_ms if at_ms is not None else self.around.start_ms + count // STRETCH
        return with_counter(make_id(ms, partition, MAKER, 0), count)

    def now_ms(self) -> int:
        """Return the wall clock of all nodes."""
        return self.around.start_ms + int(self.around.clock.now_s * 1000)

    def _below(self, limit: int) -> int:
        return int(self.draw.random() * limit)

    # --- workers

    def claim(self, most: int, node: FactsNode | None = None) -> None:
        """Claim tasks at the leaders of a node."""
        node = node or self.leader_of(self._below(self.partitions))
        if node is not None:
            lease_ms = self.leases_ms[self._below(len(self.leases_ms))]
            self.ask(node, claim_here(node, [([QUEUE], most, lease_ms, "w", 0)], 0), self._given)

    def _given(self, answer: Any) -> None:
        for granted in () if isinstance(answer[0][0], OnyxqError) else answer[0][0]:
            run = facts.unpack_task(granted.body)
            count = int.from_bytes(granted.body[4:8], "little")
            for place in range(count):
                task = self.model.tasks[with_counter(granted.first, int.from_bytes(granted.first[-4:], "big") + place)]
                self.model.given(task, granted.token, run.payload(place))
                self.held.append(Given(task, granted.token))

    def complete(self, given: Given, result: bytes) -> None:
        """Complete a task under the token of a claim."""
        task, token = given.task, given.token
        node = self.leader_of(partition_of(task.id))
        if node is None:
            return
        task.ending.add(token)
        request = Complete(items=[Completion(task.id, 1, token, None, [result])])

        def hear(refused: Any) -> None:
            if not refused[0]:
                self.model.completed(task, token, result)
            else:
                self._refused(given, refused, completing=True)

        self.ask(node, node.operations.completions.complete(request), hear)

    def _refused(self, given: Given, refused: Any, *, completing: bool = False) -> None:
        for _, _, error in refused[0]:
            if error["code"] == StaleToken.code:
                self.model.stale(given.task, given.token, self.around.course.replica, completing=completing)

    def fail(self, given: Given) -> None:
        """Report that a task failed."""
        node = self.leader_of(partition_of(given.task.id))
        if node is not None:
            given.task.given_up.add(given.token)
            request = Fail(items=[Failure(given.task.id, 1, given.token, "no", None)])
            self.ask(node, node.operations.claim_updates.fail(request), partial(self._refused, given))

    def release(self, given: Given) -> None:
        """Give a task back."""
        node = self.leader_of(partition_of(given.task.id))
        if node is not None:
            given.task.given_up.add(given.token)
            request = Release(items=[Held(given.task.id, 1, given.token)])
            self.ask(node, node.operations.claim_updates.release(request), partial(self._refused, given))

    def renew(self, given: Given) -> None:
        """Extend a lease."""
        node = self.leader_of(partition_of(given.task.id))
        if node is not None:
            lease_ms = self.leases_ms[self._below(len(self.leases_ms))]
            request = Renew(items=[Renewal(given.task.id, 1, given.token, lease_ms)])
            self.ask(node, node.operations.claim_updates.renew(request), partial(self._refused, given))

    # --- operators

    def cancel(self, task: Task, *, claimed: bool) -> None:
        """Cancel a task."""
        node = self.leader_of(partition_of(task.id))
        if node is None:
            return
        task.ending.add(-1)

        def hear(answers: Any) -> None:
            if answers[0] is None:
                self.model.cancelled(task)

        self.ask(node, node.operations.cancellations.cancel(CancelTasks(ids=[task.id], claimed=claimed)), hear)

    def requeue(self, task: Task) -> None:
        """Requeue a task, which is a dead letter or not."""
        node = self.leader_of(partition_of(task.id))
        if node is not None:
            task.reopened = True
            request = RequeueDead(ids=[task.id])
            self.ask(node, node.operations.dead_letters.requeue(request), lambda _: None)
