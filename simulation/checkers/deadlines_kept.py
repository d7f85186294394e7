"""A task that expires is granted in time or never: then it fails, with that as the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from attrs import define

from onyxq.core.ids import TaskId
from simulation.checkers import Checker
from simulation.checkers.ledger import Ledger
from simulation.world.history import GIVING_UP, REFUSED

EXPIRED = "expired: "


@define(eq=False)
class DeadlinesKept(Checker):
    """See the module's first paragraph; ``slowest_ms`` is what the slowest of the nodes' clocks shows,
    ``true_ms`` the true time.
    """

    name: ClassVar[str] = "deadlines kept"
    ledger: Ledger
    slowest_ms: Callable[[], int]
    true_ms: Callable[[], int]
    behind_ms: int = 0
    """Largest lag of a node's clock that was seen, in milliseconds."""

    def heard(self, task_id: TaskId, expires_ms: int, token: int, waited_ms: int) -> None:
        """A worker was given a task for which it had asked ``waited_ms`` ago."""
        self.behind_ms = max(self.behind_ms, self.true_ms() - self.slowest_ms())
        first = self.ledger.grants.get(task_id)
        if first is None or first[0].position != token:
            return  # who has had it in time may have it again
        late_ms = self.true_ms() - waited_ms - expires_ms - self.behind_ms
        if late_ms > 0:
            raise self.broken(f"{task_id.hex()} was granted first to who asked {late_ms} ms after it had expired")

    def finish(self) -> None:
        """Judge the tasks that never ran."""
        for task in self.ledger.read.values():
            if task.expires_ms is None:
                continue
            granted = self.ledger.grants.get(task.id)
            expired = task.state == "failed" and (task.error or "").startswith(EXPIRED)
            if granted and expired and task.id not in self.ledger.reopened:
                raise self.broken(f"{task.id.hex()} expired although it was granted at {granted[0].position}")
            if not granted and not expired and not self._otherwise(task.id, task.state, task.error or ""):
                raise self.broken(f"{task.id.hex()} was never granted and is {task.state} ({task.error!r})")

    def _otherwise(self, task_id: TaskId, state: str, error: str) -> bool:
        """Whether something else ended the task."""
        asked = {call.kind for call in self.history.operations.get(task_id, ()) if call.outcome != REFUSED}
        if state == "cancelled" and asked & GIVING_UP:
            return True
        depends = self.ledger.said(self.ledger.read[task_id]).depends
        return bool(depends) and (state == "cancelled" or "on which it depended" in error)
