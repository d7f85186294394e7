"""Requeueing a failed flow: its failed tasks first, then its joins, then its record (design: dependencies).

A task that was requeued looks at the tasks before it again. If one of them is still failed, the task fails again. So
each task is requeued after those on which it depends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain

from onyxq.core.errors import Conflict, NotFound, OnyxqError, from_map
from onyxq.core.ids import TaskId, ids_of, partition_of
from onyxq.core.limits import FLOW_JOINS_QUEUE
from onyxq.operations.flow.flows import STATES, UNFINISHED, Flows, Known, view_of
from onyxq.operations.flow.plan import Record
from onyxq.operations.handlers import Handler, served
from onyxq.operations.held_tasks import PAGE
from onyxq.operations.table.dead import DeadResults, RequeueDead
from onyxq.operations.table.flow import REQUEUE_FLOW, FlowView, RequeueFlow
from onyxq.operations.table.task import GetTask, TaskView
from onyxq.operations.task_reads import Reading


class FlowRequeue:
    """Serves ``flow.requeue`` of one node."""

    def __init__(
        self, flows: Flows, reading: Reading, requeue_dead: Callable[[RequeueDead], Awaitable[DeadResults]]
    ) -> None:
        self._flows = flows
        self._reading = reading
        self._requeue_dead = requeue_dead

    def handlers(self) -> dict[str, Handler]:
        """Return the function that serves the operation."""
        return served(REQUEUE_FLOW, self.requeue)

    async def requeue(self, args: RequeueFlow) -> FlowView:
        """Requeue a flow; raises `NotFound`, and `Conflict` unless the flow failed or still runs."""
        found = await self._flows.flow(args.id)
        if found.task.state in ("completed", "cancelled"):
            problem = f"flow {args.id.hex()} is {found.task.state}: only failed flows can be requeued"
            raise Conflict(problem, field="id", hint="Make a new flow to run its tasks again.")
        tasks, last = _with_states(found.record, (await self._flows.states_of([found.record]))[0])
        for wave in waves(tasks):
            await self._requeue(wave)
        # A requeued task of on_done is due at once: it no longer waits for the others.
        if not last or last[0][1] != "failed" or all(state not in ("failed", *UNFINISHED) for _, state, _ in tasks):
            for level in await self._joins(found):
                await self._requeue(level)
            await self._requeue([task_id for task_id, state, _ in last if state == "failed"])
            await self._requeue([args.id])
        found = await self._flows.flow(args.id)
        return view_of(found, (await self._flows.states_of([found.record]))[0])

    async def _joins(self, found: Known) -> list[list[TaskId]]:
        """Return the failed joins between the tasks and the record, in levels: each after those on which it depends."""
        tasks = {one for run in found.record.runs for one in ids_of(*run.run)}
        joins: list[list[TaskId]] = []
        level: Sequence[TaskView] = [found.task]
        while level:
            ids = [
                one for one in dict.fromkeys(chain.from_iterable(task.depends for task in level)) if one not in tasks
            ]
            level = [task for one in ids if (task := await self._join(one)) is not None]
            joins.append([task.id for task in level if task.state == "failed"])
        return joins[::-1]

    async def _join(self, task_id: TaskId) -> TaskView | None:
        """Return a join; None for a task from outside the flow, and for a purged one."""
        try:
            task = await self._reading.get(GetTask(id=task_id))
        except NotFound:
            return None
        return task if task.queue == FLOW_JOINS_QUEUE else None

    async def _requeue(self, ids: Sequence[TaskId]) -> None:
        """Requeue those of the tasks that are dead letters; raises errors of leaders."""
        for start in range(0, len(ids), PAGE):
            for one in (await self._requeue_dead(RequeueDead(ids=[*ids[start : start + PAGE]]))).results or ():
                if not one.ok:
                    _raise_unless_gone(from_map({"code": one.code, "message": one.detail, "hint": one.hint}))


Stated = tuple[TaskId, str, Sequence[int]]
"""A task of a flow, its state, and the places of the tasks that it follows."""


def _with_states(record: Record, states: Sequence[bytes]) -> tuple[list[Stated], list[Stated]]:
    """Return the tasks of a flow in order, and apart from them the task of ``on_done`` if there is one."""
    found: list[Stated] = [
        (task_id, STATES[code], run.after)
        for run, codes in zip(record.runs, states, strict=True)
        for task_id, code in zip(ids_of(*run.run), codes, strict=True)
    ]
    return (found[:-1], found[-1:]) if record.on_done else (found, [])


def waves(tasks: Sequence[Stated]) -> Iterator[list[TaskId]]:
    """Yield the failed tasks in lists, each after the lists with the failed tasks on which it depends.

    Tasks of one partition may share a list, because one leader requeues them in this order. Most flows have few
    partitions, so a long chain needs few requests.
    """
    wave: dict[int, TaskId] = {}
    for place, (task_id, state, after) in enumerate(tasks):
        if state != "failed":
            continue
        there = partition_of(task_id)
        if any(one in wave and partition_of(wave[one]) != there for one in after):
            yield [*wave.values()]
            wave = {}
        wave[place] = task_id
    yield [*wave.values()]


def _raise_unless_gone(error: OnyxqError) -> None:
    """Raise an error, unless the task need not be requeued any more: it runs, has ended or is purged."""
    if not isinstance(error, (Conflict, NotFound)):
        raise error
