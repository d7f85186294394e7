"""Chains and groups of an application's calls, and handles of the flows that it made (design: interfaces).

flow = app.chain(fetch.s(url), index.s(url)).make("nightly", on_done=report.s())
flow.wait(timeout="10m")    # in async code: await flow.wait_async(timeout="10m")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from onyxq.client import AsyncClient, Enqueued, Flow, Step
from onyxq.client.flows import Part, Plan, chained
from onyxq.client.values import as_id
from onyxq.core.ids import TaskId
from onyxq.operations.table.flow import FlowState
from onyxq.system.durations import Seconds
from onyxq.worker.handles import Reach, wait_ms


class AppFlow(Flow[Enqueued]):
    """A chain or a group of an application's calls; see `Client.chain` and `Client.group`."""

    def __init__(self, reach: Reach, plan: Plan) -> None:
        super().__init__(lambda flow: reach.call(AsyncClient.enqueue_flow, flow), plan)
        self._reach = reach

    def then(self, *parts: Part) -> AppFlow:
        """Return the flow with further parts, each after all of the part before."""
        return AppFlow(self._reach, chained(parts, after=self.plan))

    async def enqueue_async(self) -> Enqueued:
        """Store the tasks from async code; see `Flow.enqueue`."""
        return await self._reach.call_async(AsyncClient.enqueue_flow, self)

    def make(self, name: str | None = None, *, on_done: Step | None = None) -> AppFlowHandle:
        """Store the tasks under one id, and return the flow's handle; you may call it again after an error.

        ``name``: shown in lists. ``on_done``: a call, such as ``report.s()``, that starts once all others have ended,
        whatever their outcome.
        """
        made = self._reach.call(AsyncClient.make_flow, self, name=name, on_done=on_done)
        return AppFlowHandle(self._reach, made.id, made.ids)

    async def make_async(self, name: str | None = None, *, on_done: Step | None = None) -> AppFlowHandle:
        """Store the tasks under one id from async code; see `make`."""
        made = await self._reach.call_async(AsyncClient.make_flow, self, name=name, on_done=on_done)
        return AppFlowHandle(self._reach, made.id, made.ids)


class AppFlowHandle:
    """A flow that is stored in the cluster: its state, its end, its cancellation."""

    def __init__(self, reach: Reach, id: bytes | str, ids: Sequence[TaskId] = ()) -> None:
        self._reach = reach
        self.id = as_id(id).hex()
        """The flow's id: 40 hex digits, as the command line and the dashboard show it."""
        self.ids = tuple(ids)
        """Ids of its tasks, in the order in which the steps were written; empty if this handle was made of an id."""

    def state(self) -> FlowState:
        """Return ``waiting``, ``running``, ``completed``, ``failed`` or ``cancelled``."""
        return cast(FlowState, self._reach.call(AsyncClient.flow, self.id, limit=0)["state"])

    async def state_async(self) -> FlowState:
        """Return the flow's state from async code; see `state`."""
        return cast(FlowState, (await self._reach.call_async(AsyncClient.flow, self.id, limit=0))["state"])

    def wait(self, timeout: Seconds | None = None) -> dict[str, Any]:
        """Wait until the flow has ended and return it: its ``state``, and its ``counts`` of tasks by state.

        ``timeout``: the longest wait, in seconds, as a `timedelta` or as text such as ``"10s"``; None for no limit.
        Raises `TimedOut` after it.
        """
        return self._reach.call(AsyncClient.wait_flow, self.id, wait_ms(timeout))

    async def wait_async(self, timeout: Seconds | None = None) -> dict[str, Any]:
        """Wait for the end of the flow from async code; see `wait`."""
        return await self._reach.call_async(AsyncClient.wait_flow, self.id, wait_ms(timeout))

    def cancel(self) -> None:
        """Cancel the flow and its unfinished tasks; see `AsyncClient.cancel_flow`."""
        self._reach.call(AsyncClient.cancel_flow, self.id)

    async def cancel_async(self) -> None:
        """Cancel the flow and its unfinished tasks from async code; see `cancel`."""
        await self._reach.call_async(AsyncClient.cancel_flow, self.id)

    def requeue(self) -> None:
        """Run the failed tasks of the flow again; see `AsyncClient.requeue_flow`."""
        self._reach.call(AsyncClient.requeue_flow, self.id)

    async def requeue_async(self) -> None:
        """Run the failed tasks of the flow again from async code; see `requeue`."""
        await self._reach.call_async(AsyncClient.requeue_flow, self.id)

    def __repr__(self) -> str:
        return f"<flow {self.id}>"
