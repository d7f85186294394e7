"""A task runs only once all that it depends on are done; if one of them fails, as its own policy says."""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from onyxq.client.values import Task
from onyxq.core.ids import TaskId
from onyxq.core.limits import FLOW_JOINS_QUEUE, FLOWS_QUEUE
from simulation.checkers import Checker
from simulation.checkers.ledger import Ledger
from simulation.world.history import COMPLETE, GIVING_UP, REFUSED

JOINS = (FLOWS_QUEUE, FLOW_JOINS_QUEUE)
"""Queues of tasks that are not run; `simulation.checkers.flows_end` judges them."""
ENDED_BADLY = ("failed", "cancelled")


@define(eq=False)
class DependenciesFirst(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "dependencies first"
    ledger: Ledger

    def finish(self) -> None:
        """Judge every task that depends on others."""
        for task in self.ledger.read.values():
            if task.depends and task.queue not in JOINS:
                fate = self.ledger.said(task).on_dependency_failed
                if self.ledger.grants.get(task.id):
                    for one in task.depends:
                        if one in self.ledger.purged:
                            continue
                        self._before(task, self.ledger.read.get(one), fate)
                else:
                    self._unrun(task, fate)

    def _before(self, task: Task, dependency: Task | None, fate: str) -> None:
        """Raise unless a task that ran may have run, for all that one it depends on tells."""
        if dependency is None:
            raise self.broken(f"{task.id.hex()} depends on a task that is gone")
        first = self.ledger.grants[task.id][0]
        if dependency.id in self.ledger.reopened:
            return  # it was done once, whatever it is now
        late = [grant for grant in self.ledger.grants.get(dependency.id, ()) if grant.position > first.position]
        if late:
            raise self.broken(
                f"{task.id.hex()} was granted at {first.position}, and {dependency.id.hex()}, on which it depends, "
                f"at {late[0].position}"
            )
        if dependency.state == "completed" and not self._completing(dependency.id, first.landed_s):
            raise self.broken(f"{task.id.hex()} was granted before {dependency.id.hex()} was completed")
        if dependency.state not in ("completed", *(ENDED_BADLY if fate == "run" else ())):
            raise self.broken(f"{task.id.hex()} ran although {dependency.id.hex()} is {dependency.state}: {fate}")

    def _completing(self, task_id: TaskId, until_s: float) -> bool:
        calls = self.history.operations.get(task_id, ())
        return any(call.kind == COMPLETE and call.outcome != REFUSED and call.invoked_s < until_s for call in calls)

    def _unrun(self, task: Task, fate: str) -> None:
        """Raise unless there is a reason for the state of a task that never ran."""
        asked = {call.kind for call in self.history.operations.get(task.id, ()) if call.outcome != REFUSED}
        if task.state == "cancelled" and asked & GIVING_UP:
            return
        error = task.error or ""
        if task.state == "failed" and error.startswith("expired: "):
            return
        wanted = {"fail": "failed", "cancel": "cancelled"}.get(fate)
        bad = [one for one in task.depends if self._may_have_ended_badly(one)]
        if task.state != wanted or not bad:
            raise self.broken(f"{task.id.hex()} never ran and is {task.state} ({error!r}), policy {fate}")
        if wanted == "failed" and not any(one.hex() in error for one in bad):
            raise self.broken(
                f"{task.id.hex()} failed because of {error!r}; it depends on {[one.hex() for one in bad]}"
            )

    def _may_have_ended_badly(self, task_id: TaskId) -> bool:
        found = self.ledger.read.get(task_id)
        if task_id in self.ledger.purged:
            return True
        return task_id in self.ledger.reopened or (found is not None and found.state in ENDED_BADLY)
