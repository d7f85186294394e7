"""A transaction applies completely or not at all, and each input counts once.

From the log the checker knows which transactions were committed. At the end of the run all of their
effects must be found, and none of the others'. Clients must have got the same answers. No task of a
transaction may be granted before its commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from attrs import define, field

from log_entries.commit_batch import committed_by
from onyxq.client.values import Task
from onyxq.core.entry import APPLIED
from onyxq.core.ids import TaskId
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import Checker
from simulation.world.history import OK, REFUSED, Transacted


@define(eq=False)
class AllOrNothing(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "all or nothing"
    committed: dict[str, int] = field(factory=dict)
    """Position of each commit."""
    made: dict[bytes, int] = field(factory=dict)
    """How many tasks of each payload were read back."""
    read: dict[TaskId, Task] = field(factory=dict)

    def step(self, before: Replica, step: Step) -> None:
        """Note what is committed."""
        for outcome in step.outcomes:
            for name in [one.name for one in committed_by(outcome.args) if outcome.verdict == APPLIED]:
                if name in self.committed:
                    again = f"committed at {self.committed[name]} and again at {step.replica.position}"
                    raise self.broken(f"transaction {name} was {again}")
                self.committed[name] = step.replica.position

    def seen(self, payload: bytes, catch_up: Callable[[], None]) -> None:
        """A worker got a task."""
        asked = self.history.transaction_of.get(payload)
        if asked is None or asked.name in self.committed:
            return
        catch_up()
        if asked.name not in self.committed:
            raise self.broken(f"a worker was given {payload!r} of transaction {asked.name}, which is not committed")

    def read_back(self, task: Task) -> None:
        """A task was read after the faults."""
        self.read[task.id] = task
        self.made[task.data] = self.made.get(task.data, 0) + 1

    def finish(self) -> None:
        """Judge every transaction that was asked for."""
        counted: dict[TaskId, str] = {}
        for asked in self.history.transactions.values():
            position = self.committed.get(asked.name)
            if asked.outcome == OK and asked.token != position:
                raise self.broken(f"{asked.name} was told to be committed at {asked.token}; that was at {position}")
            if asked.outcome == REFUSED and position is not None:
                raise self.broken(f"{asked.name} was refused, and committed at {position}")
            self._judge(asked, happened=position is not None)
            for task_id in asked.completes if position is not None else ():
                if task_id in counted:
                    raise self.broken(f"{task_id.hex()} was counted by {counted[task_id]} and by {asked.name}")
                counted[task_id] = asked.name

    def _judge(self, asked: Transacted, *, happened: bool) -> None:
        there = {payload: self.made.get(payload, 0) for payload in asked.payloads}
        if set(there.values()) - {int(happened)}:
            what = "was committed" if happened else "was not committed"
            raise self.broken(f"{asked.name} {what}, and of its tasks there are {there}")
        for task_id, (_, result) in asked.completes.items():
            task = self.read.get(task_id)
            done = task is not None and task.state == "completed" and task.result == result
            if done != happened:
                what = "was committed" if happened else "was not committed"
                raise self.broken(f"{asked.name} {what}, and {task_id.hex()} is {task}")
