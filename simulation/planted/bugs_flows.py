"""Planted bugs of flows: their joins, their states and their cancels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from onyxq.core.errors import OnyxqError
from onyxq.core.facts import COMPLETED
from onyxq.core.ids import TaskId
from onyxq.core.task_headers import JOINS
from onyxq.leader.dependencies import Dependencies, Outcome
from onyxq.leader.outcomes import ENDS
from onyxq.operations.flow.flows import Flows
from simulation.planted.planted import Planted

_Verdict = Callable[[Dependencies, dict[str, Any], dict[TaskId, Outcome]], str]
_Ending = Callable[[Dependencies, dict[str, Any], dict[TaskId, Outcome], str], tuple[int, list[bytes]]]
_Cancelled = Callable[[Flows, Sequence[TaskId]], Awaitable[list[OnyxqError]]]
WORKLOAD = "flows_as_a_whole"


def _first_end(original: _Verdict) -> _Verdict:
    def verdict(dependencies: Dependencies, header: dict[str, Any], found: dict[TaskId, Outcome]) -> str:
        if header.get(JOINS):  # as other tasks that depend on a failed one
            return original(dependencies, {name: value for name, value in header.items() if name != JOINS}, found)
        return original(dependencies, header, found)

    return verdict


def _last_at_once(original: _Verdict) -> _Verdict:
    def verdict(dependencies: Dependencies, header: dict[str, Any], found: dict[TaskId, Outcome]) -> str:
        ended = [one for one in header["depends"] if found.get(one) in ENDS]
        if header.get("on_dependency_failed") == "run" and ended:
            return "run"
        return original(dependencies, header, found)

    return verdict


def _always_completed(original: _Ending) -> _Ending:
    def ending(
        dependencies: Dependencies, header: dict[str, Any], found: dict[TaskId, Outcome], verdict: str
    ) -> tuple[int, list[bytes]]:
        return (COMPLETED, []) if verdict == "end" else original(dependencies, header, found, verdict)

    return ending


def _one_of_a_page(original: _Cancelled) -> _Cancelled:
    async def cancelled(flows: Flows, ids: Sequence[TaskId]) -> list[OnyxqError]:
        return await original(flows, ids[:1])

    return cancelled


FLOW_BUGS = (
    Planted(
        "a join ends as soon as one of its tasks failed",
        "onyxq.leader.dependencies:Dependencies._verdict",
        _first_end,
        "a flow is shown as failed while its tasks run; one whose tasks are all completed never ends",
        WORKLOAD,
        runs=20,
    ),
    Planted(
        "a join is completed whatever its tasks' outcomes",
        "onyxq.leader.dependencies:Dependencies._ending",
        _always_completed,
        "a flow with failed tasks is shown as completed",
        WORKLOAD,
        runs=20,
        quick=3,
    ),
    Planted(
        "a cancel of a flow cancels one task of each page",
        "onyxq.operations.flow.flows:Flows._cancelled",
        _one_of_a_page,
        "tasks of a cancelled flow start after the answer",
        WORKLOAD,
        runs=20,
        quick=3,
    ),
    Planted(
        "the last task of a flow does not wait for its tasks",
        "onyxq.leader.dependencies:Dependencies._verdict",
        _last_at_once,
        "the last task starts while others run",
        WORKLOAD,
        runs=20,
    ),
)
