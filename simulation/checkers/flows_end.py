"""A flow's state follows from its tasks, and its last task runs once, after all others.

After the cancel of a flow was answered, no task of the flow starts.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from onyxq.client.values import Task
from onyxq.core.ids import TaskId
from simulation.checkers import Checker
from simulation.checkers.ledger import Ledger

ENDED = ("completed", "failed", "cancelled")


@define(eq=False)
class MadeFlow:
    """A flow whose making was acknowledged."""

    ids: tuple[TaskId, ...]
    """Its tasks, without the last one."""
    last: TaskId | None
    """The task that starts once all others have ended."""
    cancelled: int | None = None
    """First free position of the log at the time at which its cancel was answered."""
    told: str = ""
    """The state with which it had ended, as a client read it."""


@define(eq=False)
class FlowsEnd(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "flows end"
    ledger: Ledger
    flows: dict[TaskId, MadeFlow] = field(factory=dict)

    def finish(self) -> None:
        """Judge every flow."""
        for flow_id, flow in self.flows.items():
            tasks = [self._read(flow_id, one) for one in flow.ids]
            last = None if flow.last is None else self._read(flow_id, flow.last)
            self._state(flow_id, flow, [*tasks, *([last] if last else [])])
            if flow.cancelled is not None:
                self._cancelled(flow_id, flow)
            elif last is not None:
                self._last(flow_id, flow, last)

    def _read(self, flow_id: TaskId, task_id: TaskId) -> Task:
        found = self.ledger.read.get(task_id)
        if found is None:
            raise self.broken(f"{task_id.hex()} of flow {flow_id.hex()} is gone")
        return found

    def _state(self, flow_id: TaskId, flow: MadeFlow, tasks: list[Task]) -> None:
        """Raise unless the record ended as the tasks did."""
        state, states = self._read(flow_id, flow_id).state, {task.state for task in tasks}
        wanted = next((one for one in ("failed", "cancelled") if one in states), "completed")
        wanted = "cancelled" if flow.cancelled is not None else wanted
        if not states <= set(ENDED) or state != wanted or flow.told not in ("", state):
            raise self.broken(
                f"flow {flow_id.hex()} is {state}, was told {flow.told!r}; its tasks are {sorted(states)}"
            )

    def _cancelled(self, flow_id: TaskId, flow: MadeFlow) -> None:
        for task_id in (*flow.ids, *([flow.last] if flow.last else [])):
            late = [one for one in self.ledger.grants.get(task_id, ()) if one.position >= (flow.cancelled or 0)]
            if late:
                raise self.broken(
                    f"{task_id.hex()} was granted at {late[0].position}; flow {flow_id.hex()} was cancelled before "
                    f"{flow.cancelled}"
                )

    def _last(self, flow_id: TaskId, flow: MadeFlow, last: Task) -> None:
        """Raise unless the last task ran, and after all others."""
        grants = self.ledger.grants.get(last.id, [])
        if not grants:
            raise self.broken(f"the last task of flow {flow_id.hex()} never ran and is {last.state}")
        for task_id in flow.ids:
            late = [one for one in self.ledger.grants.get(task_id, ()) if one.position > grants[0].position]
            if late:
                raise self.broken(
                    f"the last task of flow {flow_id.hex()} was granted at {grants[0].position}, and {task_id.hex()} "
                    f"at {late[0].position}"
                )
