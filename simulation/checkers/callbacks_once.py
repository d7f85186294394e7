"""The end of a task with a callback is reported by exactly one callback, and a callback reports an end.

One callback may have several attempts, all with its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from attrs import define

from onyxq.client.values import Task
from simulation.checkers import Checker
from simulation.checkers.ledger import Ledger
from simulation.world.history import DISCARD
from simulation.world.receiver import Callback

ENDS = ("completed", "failed", "cancelled")


@define(eq=False)
class CallbacksOnce(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "callbacks once"
    ledger: Ledger
    made: Sequence[Callback] = ()
    """All callbacks that the receiver got."""

    def finish(self) -> None:
        """Judge every task that was sent with a callback."""
        found: dict[str, list[Callback]] = {}
        for one in self.made:
            found.setdefault(one.timer, []).append(one)
        for task in self.ledger.read.values():
            if self.ledger.said(task).callback:
                self._judge(task, found.get(task.id.hex(), []))

    def _judge(self, task: Task, made: Sequence[Callback]) -> None:
        keys = sorted({one.key for one in made})
        wanted = 1 if task.state in ENDS or task.id in self.ledger.reopened else 0
        if len(keys) != wanted:
            raise self.broken(f"{task.id.hex()} is {task.state} and has {len(keys)} callbacks: {keys}")
        calls = self.history.operations.get(task.id, ())
        if task.id in self.ledger.reopened or any(call.kind == DISCARD for call in calls):
            return  # attempts before and after that tell different ends
        told = {(one.data["queue"], one.data["state"], one.data["error"]) for one in made}
        if wanted and told != {(task.queue, task.state, task.error)}:
            raise self.broken(f"{task.id.hex()} is {task.state} ({task.error!r}), and its callback told {told}")
