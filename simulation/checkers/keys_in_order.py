"""Tasks of an ordering key run one after the other, in the order of due time and then of enqueueing.

During a run, workers must not believe that they hold two tasks of a key at a time.
At its end the order of the grants is compared with the order that the rows say, and, for
tasks due at once, with the order in which clients had them acknowledged.  A task that was
not acknowledged yet when a later one was granted may come later, and so may a dead letter
that was opened again.  Where dead letters stop their keys, only a task that is done, or given
up, lets the next one go.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import ClassVar

from attrs import define, field

from onyxq.client.values import Task
from onyxq.core.ids import TaskId
from simulation.checkers import Checker
from simulation.checkers.ledger import Ledger, Placed
from simulation.checkers.queues_followed import QueuesFollowed
from simulation.world.history import COMPLETE, GIVING_UP, REFUSED

Key = tuple[str, str]
"""Queue and ordering key."""


@define(eq=False)
class KeysInOrder(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "keys in order"
    ledger: Ledger
    queues: QueuesFollowed
    members: dict[Key, list[TaskId]] = field(factory=dict)
    """Tasks of each key that workers were given."""

    def heard(self, key: Key, task_id: TaskId, token: int, now_s: float) -> None:
        """Judge a grant of a task of a key that a worker heard of."""
        members = self.members.setdefault(key, [])
        if task_id not in members:
            members.append(task_id)
        if self.history.heard[task_id][token].valid_until_s <= now_s:
            return
        for other in members:
            held = self.history.holders(other, now_s) if other != task_id else []
            if held:
                raise self.broken(
                    f"a worker was given {task_id.hex()} of key {key} under {token} while {held[0][1].worker} holds "
                    f"{other.hex()} of that key under {held[0][0]} for another {held[0][1].valid_until_s - now_s:.3f} s"
                )

    def finish(self) -> None:
        """Compare the grants of each key with its order."""
        keys: dict[Key, list[Task]] = {}
        for task in self.ledger.read.values():
            if task.ordering_key is not None:
                keys.setdefault((task.queue, task.ordering_key), []).append(task)
        for key, tasks in sorted(keys.items()):
            self._judge(key, tasks)

    def _judge(self, key: Key, tasks: Iterable[Task]) -> None:
        placed = [(found, task) for task in tasks if (found := self.ledger.placed(task)) is not None]
        placed.sort(key=lambda one: (one[0].order, one[1].id))
        for one, other in combinations(placed, 2):
            self._in_turn(key, one[1], other[1], "the order of their rows")
            for (first, earlier), (second, later) in ((one, other), (other, one)):
                if self._came_before(first, earlier, second, later):
                    self._in_turn(key, earlier, later, "the order in which they were enqueued")

    def _came_before(self, first: Placed, earlier: Task, second: Placed, later: Task) -> bool:
        """Whether one task was acknowledged before the other one was sent, both due at once."""
        sent = self.history.sent.get(later.data)
        if first.scheduled or second.scheduled or sent is None:
            return False
        return self.ledger.seen_s(earlier) < sent.invoked_s and later.unique_key is None

    def _in_turn(self, key: Key, earlier: Task, later: Task, what: str) -> None:
        """Raise if the task that comes first was granted after the other one without an excuse."""
        grants = self.ledger.grants
        behind = grants.get(later.id)
        if not behind or self.ledger.seen_s(earlier) >= behind[0].landed_s:
            return
        if self.queues.settings.get(key[0], {}).get("on_dead") == "stops" and not self._over(
            earlier, behind[0].landed_s
        ):
            raise self.broken(
                f"{later.id.hex()} of key {key} was granted at {behind[0].position}; {earlier.id.hex()}, which comes "
                f"first, was neither done nor given up then"
            )
        if earlier.id in self.ledger.reopened:
            return
        late = [grant for grant in grants.get(earlier.id, ()) if grant.position > behind[0].position]
        if late:
            raise self.broken(
                f"{earlier.id.hex()} of key {key} was granted at {late[0].position}, behind {later.id.hex()} at "
                f"{behind[0].position}: not {what}"
            )

    def _over(self, task: Task, until_s: float) -> bool:
        """Return whether a client had begun to complete or discard a task by then."""
        return any(
            call.kind in (COMPLETE, *GIVING_UP) and call.outcome != REFUSED and call.invoked_s < until_s
            for call in self.history.operations.get(task.id, ())
        )
