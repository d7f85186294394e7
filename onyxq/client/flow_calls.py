"""Calls of a client for flows with an id: make, read, list, wait, cancel, requeue."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import anyio

from onyxq.client.flows import Flow, Step, chained
from onyxq.client.pool import RETRYABLE
from onyxq.client.values import as_id
from onyxq.core.errors import OnyxqError, TimedOut
from onyxq.core.ids import TaskId
from onyxq.operations.table.flow import (
    CANCEL_FLOW,
    GET_FLOW,
    LIST_FLOWS,
    MAKE_FLOW,
    REQUEUE_FLOW,
    WAIT_FLOW,
    CancelFlow,
    FlowState,
    GetFlow,
    RequeueFlow,
    WaitFlow,
)
from onyxq.operations.table.operation import A, Operation, R
from onyxq.system.durations import Milliseconds, Timeout, as_milliseconds, exact_span

ONE_WAIT_MS = 20_000
"""Longest wait of one request, in milliseconds; the client then asks again."""
ENDED = ("completed", "failed", "cancelled")


class AsyncFlowHandle:
    """A flow that is stored in the cluster, as `AsyncClient` returns it."""

    def __init__(self, calls: FlowCalls, id: bytes | str, ids: Sequence[TaskId] = ()) -> None:
        self._calls = calls
        self.id = as_id(id)
        self.ids = tuple(ids)
        """Ids of its tasks, in the order in which the steps were written; empty if this client did not make it."""

    async def state(self) -> FlowState:
        """Return ``waiting``, ``running``, ``completed``, ``failed`` or ``cancelled``."""
        return cast(FlowState, (await self._calls.flow(self.id, limit=0))["state"])

    async def wait(self, timeout: Milliseconds | None = None) -> dict[str, Any]:
        """Wait until the flow has ended and return it; see `AsyncClient.wait_flow`."""
        return await self._calls.wait_flow(self.id, timeout)

    async def cancel(self) -> dict[str, Any]:
        """Cancel the flow and its unfinished tasks; see `AsyncClient.cancel_flow`."""
        return await self._calls.cancel_flow(self.id)

    async def requeue(self) -> dict[str, Any]:
        """Run the failed tasks of the flow again; see `AsyncClient.requeue_flow`."""
        return await self._calls.requeue_flow(self.id)


class FlowHandle:
    """A flow that is stored in the cluster, as `Client` returns it."""

    def __init__(self, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any], handle: AsyncFlowHandle) -> None:
        self._run = run
        self._handle = handle
        self.id, self.ids = handle.id, handle.ids

    def state(self) -> FlowState:
        """Return ``waiting``, ``running``, ``completed``, ``failed`` or ``cancelled``."""
        return cast(FlowState, self._run(self._handle.state))

    def wait(self, timeout: Milliseconds | None = None) -> dict[str, Any]:
        """Wait until the flow has ended and return it; see `AsyncClient.wait_flow`."""
        found: dict[str, Any] = self._run(lambda: self._handle.wait(timeout))
        return found

    def cancel(self) -> dict[str, Any]:
        """Cancel the flow and its unfinished tasks; see `AsyncClient.cancel_flow`."""
        found: dict[str, Any] = self._run(self._handle.cancel)
        return found

    def requeue(self) -> dict[str, Any]:
        """Run the failed tasks of the flow again; see `AsyncClient.requeue_flow`."""
        found: dict[str, Any] = self._run(self._handle.requeue)
        return found


class FlowCalls:
    """The calls of `AsyncClient` for flows with an id."""

    async def _outlasts(self, error: OnyxqError, began: float, until: float) -> bool:
        """Pause after a temporary error, and return whether a wait that ``began`` then continues ``until`` its end.

        It does if a peer was reached since: peers come and go during a long wait. It ends with its client. A warning
        tells why it takes longer.
        """
        raise NotImplementedError

    async def _do(self, operation: Operation[A, R], args: A, *, timeout_ms: Timeout = None) -> dict[str, Any]:
        raise NotImplementedError

    async def make_ids(self, count: int) -> list[TaskId]:
        """Return fresh ids."""
        raise NotImplementedError

    async def make_flow(
        self,
        flow: Flow[Any],
        *,
        id: bytes | str | None = None,
        name: str | None = None,
        on_done: Step | tuple[str, bytes] | None = None,
        timeout_ms: Timeout = None,
    ) -> AsyncFlowHandle:
        """Store the tasks of a flow under one id, and return its handle.

        ``on_done``: a step that starts once all others have ended, whatever their outcome. ``name``: shown in lists.
        ``id``: an id from `make_ids`; by default the first call makes one, and the ``flow`` keeps it. So you may repeat
        the call after an error: no task is made twice. Raises `Conflict` if the id belongs to another flow.
        """
        flow.id = flow.id if id is None else as_id(id)
        if flow.id is None:
            (flow.id,) = await self.make_ids(1)
        last = None if on_done is None else tasks_of(chained([on_done]).steps)[0]
        asked = {"id": flow.id, "name": name, "tasks": tasks_of(flow.plan.steps), "on_done": last}
        made = await self._do(MAKE_FLOW, MAKE_FLOW.decode(asked), timeout_ms=timeout_ms)
        return AsyncFlowHandle(self, flow.id, made["ids"])

    def flow_handle(self, id: bytes | str) -> AsyncFlowHandle:
        """Return the handle of a flow that was made elsewhere."""
        return AsyncFlowHandle(self, id)

    async def flow(self, id: bytes | str, limit: int = 1_000) -> dict[str, Any]:
        """Return a flow: ``state``, ``counts`` by state, and the first ``tasks``. Raises `NotFound`."""
        return await self._do(GET_FLOW, GetFlow(id=as_id(id), limit=limit))

    async def flows(
        self,
        state: FlowState | None = None,
        *,
        after: bytes | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> dict[str, Any]:
        """Return a page: ``flows``, and the ``after`` with which to ask for the next page, None at the last one."""
        asked = {"state": state, "after": after, "limit": limit, "newest_first": newest_first}
        return await self._do(LIST_FLOWS, LIST_FLOWS.decode(asked))

    async def wait_flow(self, id: bytes | str, wait_ms: Milliseconds | None = None) -> dict[str, Any]:
        """Wait until a flow is completed, failed or cancelled, and return it.

        Raises `NotFound`, or `TimedOut` if it has not ended within ``wait_ms``; None for no limit.
        """
        limit_ms = None if wait_ms is None else as_milliseconds(wait_ms, "wait_ms")
        began = anyio.current_time()
        until = math.inf if limit_ms is None else began + limit_ms / 1000
        while True:
            left_ms = int(max(0.0, min(1000 * (until - anyio.current_time()), ONE_WAIT_MS)))
            try:
                found = await self._do(WAIT_FLOW, WaitFlow(id=as_id(id), wait_ms=left_ms))
            except RETRYABLE as error:
                if await self._outlasts(error, began, until):
                    continue
                raise
            if found["state"] in ENDED:
                return found
            if left_ms <= 0:
                raise TimedOut(
                    f"flow {as_id(id).hex()} is {found['state']} after {exact_span(round(limit_ms or 0))}",
                    field="wait_ms",
                )

    async def cancel_flow(self, id: bytes | str) -> dict[str, Any]:
        """Cancel a flow and its unfinished tasks, also the claimed ones, and return it.

        After the answer none of its tasks starts. If it raises an error, call it again. Raises `NotFound`,
        `AlreadyFinished`, or `Conflict` if a claimed task cannot be cancelled before its worker ends it.
        """
        return await self._do(CANCEL_FLOW, CancelFlow(id=as_id(id)))

    async def requeue_flow(self, id: bytes | str) -> dict[str, Any]:
        """Run the failed tasks of a flow again, with all their retries, and return it.

        Completed tasks keep their results. A failed task of ``on_done`` waits for the others: call this once more after
        they have ended. If it raises an error, call it again. Raises `NotFound`, or `Conflict` for a flow that is
        completed or cancelled.
        """
        return await self._do(REQUEUE_FLOW, RequeueFlow(id=as_id(id)))


def tasks_of(steps: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the steps of a plan as the tasks of a request."""
    return [_task_of(planned.step, planned.follows) for planned in steps]


def _task_of(step: Step, follows: Sequence[int]) -> dict[str, Any]:
    task = {"format": "bytes", **step.policy(()).header(), "data": step.payload, "after": list(follows)}
    return task | {name: value for name, value in step.when._asdict().items() if value}
