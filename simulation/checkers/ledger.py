"""The book of a run that several checkers read: which record granted, reopened or read back which task.

It judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, ClassVar, NamedTuple

from attrs import define, field

from log_entries import reopen_tasks
from onyxq.client.values import Task
from onyxq.core.entry import APPLIED
from onyxq.core.ids import TaskId, ids_of, is_callback
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import Checker, granted_in
from simulation.world.history import Said


class Event(NamedTuple):
    """A record that did something to a task."""

    position: int
    landed_s: float
    epoch: int
    """Of the task's partition."""


class Placed(NamedTuple):
    """Where a task stands in its ordering key."""

    order: tuple[int, int, int]
    scheduled: bool


@define(eq=False)
class Ledger(Checker):
    """See the module's first paragraph; ``landed_s`` says when a position was written, ``headers`` what rows say."""

    name: ClassVar[str] = "ledger"
    landed_s: Callable[[int], float]
    headers: Callable[[TaskId], dict[str, Any]]
    grants: dict[TaskId, list[Event]] = field(factory=dict)
    reopened: dict[TaskId, list[Event]] = field(factory=dict)
    purged: Container[TaskId] = ()
    """Tasks that were to go."""
    read: dict[TaskId, Task] = field(factory=dict)
    """All tasks as they were read back after the faults."""

    def step(self, before: Replica, step: Step) -> None:
        """Note what a record granted and reopened."""
        for task_id in granted_in(step):
            self.grants.setdefault(task_id, []).append(self._event(task_id, step))
        for outcome in step.outcomes:
            if outcome.verdict == APPLIED and isinstance(outcome.args, reopen_tasks.Args):
                for run, _ in outcome.args.runs:
                    for task_id in ids_of(*run):
                        self.reopened.setdefault(task_id, []).append(self._event(task_id, step))

    def _event(self, task_id: TaskId, step: Step) -> Event:
        position, partition = step.replica.position, int.from_bytes(task_id[6:8], "big")
        return Event(position, self.landed_s(position), step.replica.partitions[partition].epoch)

    def read_back(self, task: Task) -> None:
        """A task was read after the faults."""
        self.read[task.id] = task

    def said(self, task: Task) -> Said:
        """What a task was sent with, acknowledged or not."""
        sent = self.history.sent.get(task.data)
        if sent is not None:
            return sent.said
        fate = "run" if is_callback(task.id) else "fail"
        return Said(task.ordering_key, task.unique_key, depends=task.depends, on_dependency_failed=fate)

    def seen_s(self, task: Task) -> float:
        """When a task's enqueue was acknowledged; infinite if it never was."""
        known = self.history.enqueued.get(task.id)
        sent = self.history.sent.get(known.data if known is not None else task.data)
        return sent.answered_s if sent is not None else float("inf")

    def placed(self, task: Task) -> Placed | None:
        """Where a task stands in its key, as its row says; None if no row does."""
        header = self.headers(task.id)
        order = header.get("order")
        return Placed(tuple(order), bool(header.get("scheduled"))) if order else None
