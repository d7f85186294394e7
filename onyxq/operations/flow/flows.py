"""Flows as a whole: make, read, list, wait for and cancel them.

A flow's state is that of its record, which its leader ends after all tasks (`onyxq.operations.flow.plan`). Until then
the states of the tasks show whether it is running.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, cast

import trio
from msgspec.structs import asdict

from onyxq.core.errors import AlreadyFinished, BadRequest, Conflict, NotFound, OnyxqError, from_map
from onyxq.core.ids import TaskId, ids_of, ms_of, offset_of, partition_of, stretch_of
from onyxq.core.limits import FLOWS_QUEUE, TaskIdBytes
from onyxq.core.queues import settings_of
from onyxq.core.replica import claimed_bits, pieces_of
from onyxq.node.node import Node
from onyxq.node.routing import Router
from onyxq.operations.checks.runs import check_id, check_ids
from onyxq.operations.enqueues import Enqueueing
from onyxq.operations.flow.plan import FlowPlan, Record, check, digest_of, placed, planned, record_of
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.held_tasks import PAGE
from onyxq.operations.table.claim import Count
from onyxq.operations.table.enqueue import Enqueue
from onyxq.operations.table.flow import (
    CANCEL_FLOW,
    GET_FLOW,
    LIST_FLOWS,
    MAKE_FLOW,
    WAIT_FLOW,
    CancelFlow,
    FlowDetails,
    FlowMade,
    FlowPage,
    FlowState,
    FlowView,
    GetFlow,
    ListFlows,
    MakeFlow,
    TaskOfFlow,
    WaitFlow,
)
from onyxq.operations.table.operation import Args, Items, plain
from onyxq.operations.table.task import CancelTasks, GetTask, ItemResults, ListTasks, MakeIds, State, TaskView
from onyxq.operations.task_lists import Listing
from onyxq.operations.task_reads import Reading, partitions_of

STATES = ("scheduled", "waiting", "ready", "claimed", "completed", "failed", "cancelled", "purged")
"""States of a flow's tasks; their places are the bytes of an answer."""
_CODES = [(STATES.index(one), one) for one in ("purged", "claimed", *STATES[4:7], "waiting", "ready", "scheduled")]
"""Places and states; a task has the first of these states whose mask has it."""
UNFINISHED = STATES[:4]
ENDED = ("completed", "failed", "cancelled")
PAGE_S = 1.0
"""Longest search for the flows of a page, in seconds."""
LOOK_AT_LEAST = 50
"""Fewest records that are read at a time."""
LOOK_S = 0.5
"""Pause between two reads of a flow that is waited for and runs again although it ended, in seconds."""


class StatesOf(Args):
    """Runs whose tasks' states the leaders report."""

    runs: list[tuple[TaskIdBytes, Count]]


class Known(NamedTuple):
    """A flow: the task that is its record, and the record."""

    task: TaskView
    record: Record


class Flows:
    """Serves the operations on flows of one node."""

    def __init__(
        self,
        node: Node,
        router: Router,
        reading: Reading,
        listing: Listing,
        cancel: Callable[[CancelTasks], Awaitable[ItemResults]],
        *,
        enqueueing: Enqueueing,
        check_callbacks: Callable[[Iterable[tuple[str, Any]]], Awaitable[None]],
    ) -> None:
        self._node = node
        self._reading = reading
        self._listing = listing
        self._cancel_tasks = cancel
        self._enqueueing = enqueueing
        self._check_callbacks = check_callbacks
        self._states = router.asked("flow.states", StatesOf, Items(argument="runs"), self._lead_states)

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(
            served(MAKE_FLOW, self.make),
            served(GET_FLOW, self.get),
            served(LIST_FLOWS, self.page),
            served(WAIT_FLOW, self.wait),
            served(CANCEL_FLOW, self.cancel),
        )

    async def make(self, args: MakeFlow) -> FlowMade:
        """Store a flow; raises `BadRequest`, `Conflict` if the id belongs to something else, and errors of leaders."""
        check(args)
        await self._check_callbacks((where, plain(one.callback)) for where, one in placed(args) if one.callback)
        partitions = partitions_of(self._node)
        check_ids((one for task in args.tasks for one in task.depends), partitions, "tasks.depends")
        if args.id is None:
            flow_id = (await self._enqueueing.ids(MakeIds())).ids[0]
        else:
            flow_id = args.id
            check_id(flow_id, partitions)
        plan = planned(args, flow_id, partitions)
        if args.id is None or not await self._is_made(args, flow_id):
            await self._check_outside(args, flow_id)
            await self._store(plan)
            if args.id is not None:
                await self._is_made(args, flow_id)  # a simultaneous request may have taken the id
        last = plan.record.on_done
        return FlowMade(id=flow_id, ids=plan.ids, on_done=TaskId(bytes.fromhex(last)) if last else None)

    async def _is_made(self, args: MakeFlow, flow_id: TaskId) -> bool:
        """Return whether the flow of a request is stored already; raises `Conflict` if the id is another's."""
        try:
            task = await self._reading.get(GetTask(id=flow_id))
        except NotFound:
            return False
        found = _known(task)
        if found is None or found.record.digest != digest_of(args):
            raise Conflict(
                f"{flow_id.hex()} is the id of another task, or of a flow with other tasks",
                field="id",
                hint="Use a fresh id for another flow, or repeat the request unchanged.",
            )
        return True

    async def _check_outside(self, args: MakeFlow, flow_id: TaskId) -> None:
        """Raise `BadRequest` for what a leader would refuse, before anything is stored."""
        outside = {one for task in args.tasks for one in task.depends}
        found = await self._node.operations.dependencies.outcomes_for(outside) if outside else {}
        for where, task in placed(args):
            missing = next((one for one in task.depends if found[one] is None), None)
            if missing is not None:
                raise BadRequest(f"there is no task {missing.hex()} to depend on", field=f"{where}.depends")
            grace_ms = settings_of(self._node.replica, task.queue).grace_ms
            if task.at_ms is not None and (late_ms := ms_of(flow_id) - task.at_ms) > grace_ms:
                raise BadRequest(
                    f"{where}.at_ms is {late_ms} ms before the flow's id was made; the queue allows {grace_ms} ms",
                    field=f"{where}.at_ms",
                )

    async def _store(self, plan: FlowPlan) -> None:
        """Store the rows of a flow, the record last; raises the first error."""
        acks = await self._enqueueing.in_waves(Enqueue(runs=plan.runs))
        if refused := next((ack for ack in acks if isinstance(ack, dict)), None):
            raise from_map(refused)

    # --- reading

    async def get(self, args: GetFlow) -> FlowDetails:
        """Return a flow with the states of its tasks; raises `NotFound`."""
        found = await self.flow(args.id)
        (states,) = await self.states_of([found.record])
        tasks: list[TaskOfFlow] = []
        for one, codes in zip(found.record.runs, states, strict=True):
            for task_id, code in zip(ids_of(*one.run), codes, strict=True):
                if len(tasks) == args.limit:
                    break
                tasks.append(TaskOfFlow(task_id, one.queue, STATES[code], one.after))
        return FlowDetails(**asdict(view_of(found, states)), tasks=tasks)

    async def page(self, args: ListFlows) -> FlowPage:
        """Return a page of the flows that match the request, in id order or newest first.

        The search ends after about `PAGE_S`. The page may then have fewer flows than ``limit``, although more follow.
        """
        flows: list[FlowView] = []
        after, until = args.after, trio.current_time() + PAGE_S
        while True:
            found, after = await self._some(args, after)
            flows += found
            if len(flows) > args.limit:
                return FlowPage(flows=flows[: args.limit], after=flows[args.limit - 1].id)
            if after is None or len(flows) == args.limit or trio.current_time() >= until:
                return FlowPage(flows=flows, after=after)

    async def _some(self, args: ListFlows, after: TaskId | None) -> tuple[list[FlowView], TaskId | None]:
        """Return flows after an id that are asked for, and the id up to which this is complete; None: the end."""
        page = await self._listing.page(
            ListTasks(
                queue=FLOWS_QUEUE,
                state=cast(State | None, args.state if args.state in ("completed", "cancelled") else None),
                after=after,
                limit=max(args.limit, LOOK_AT_LEAST),
                newest_first=args.newest_first,
            )
        )
        prefixes = ("",) if args.prefixes is None else tuple(args.prefixes)
        known = [one for task in page.tasks if (one := _known(task)) is not None]
        known = [one for one in known if all(queue.startswith(prefixes) for queue in one.record.queues)]
        states = await self.states_of([one.record for one in known])
        views = (view_of(*one) for one in zip(known, states, strict=True))
        return [one for one in views if args.state in (None, one.state)], page.after

    async def wait(self, args: WaitFlow) -> FlowView:
        """Return a flow once it has ended, or as it is after ``wait_ms``; raises `NotFound`."""
        until = trio.current_time() + args.wait_ms / 1000
        await self.flow(args.id)  # refuses another kind of task now, not when that has ended
        while True:
            left_s = max(0.0, until - trio.current_time())
            found = await self.flow(args.id, wait_ms=int(1000 * left_s))
            (states,) = await self.states_of([found.record])
            view = view_of(found, states)
            left_s = until - trio.current_time()
            if view.state in ENDED or left_s <= 0:
                return view
            await trio.sleep(min(LOOK_S, left_s))

    async def flow(self, flow_id: TaskId, *, wait_ms: int = 0) -> Known:
        """Return a flow as its leader has it, once its record has ended or after ``wait_ms``; raises `NotFound`."""
        found = _known(await self._reading.get(GetTask(id=flow_id, wait_ms=wait_ms)))
        if found is None:
            raise NotFound(f"task {flow_id.hex()} is not a flow", field="id")
        return found

    async def states_of(self, records: Sequence[Record]) -> list[list[bytes]]:
        """Return the states of each run of each record; raises an error if a leader does not answer."""
        runs = [(one.run.first, one.count) for record in records for one in record.runs]
        answers: list[Any] = await self._states.ask(StatesOf(runs=runs)) if runs else []
        if refused := next((one for one in answers if isinstance(one, dict)), None):
            raise from_map(refused)
        left = iter(answers)
        return [[next(left) for _ in record.runs] for record in records]

    async def _lead_states(self, args: StatesOf) -> list[bytes | dict[str, Any]]:
        """Return the states of the tasks of runs in partitions that are led from here."""
        await self._node.settled()
        answers: list[bytes | dict[str, Any]] = []
        seen: dict[TaskId, dict[str, int]] = {}
        for first, count in args.runs:
            try:
                self._node.operations.tokens.leader(partition_of(first))
                if stretch_of(first) not in seen:
                    await trio.lowlevel.checkpoint()
                    seen[stretch_of(first)] = self._states_here(stretch_of(first))
                masks = seen[stretch_of(first)]
                bits = (1 << place for place in range(offset_of(first), offset_of(first) + count))
                answers.append(bytes(next(code for code, state in _CODES if masks[state] & bit) for bit in bits))
            except OnyxqError as error:
                answers.append(error.to_map())
        return answers

    def _states_here(self, stretch: TaskId) -> dict[str, int]:
        """Return the tasks of a stretch by state, as masks; each task is in one of them at least."""
        store, partition = self._node.store, partition_of(stretch)
        before = TaskId((int.from_bytes(stretch, "big") - 1).to_bytes(len(stretch), "big"))
        known, finished = store.known_bits(stretch), store.finished_bits(stretch)
        masks = {"claimed": claimed_bits(pieces_of(self._node.replica, stretch)) & ~finished, "purged": ~known}
        for state in (*ENDED, "waiting", "ready", "scheduled"):
            now_ms = self._node.wall_ms()
            found = store.look(partition, queue=None, state=state, now_ms=now_ms, after=before, limit=1)
            masks[state] = next((bits for one, bits in found if one == stretch), 0)
        masks["waiting"] |= known & ~reduce(or_, masks.values())
        return masks

    # --- cancelling

    async def cancel(self, args: CancelFlow) -> FlowView:
        """Cancel a flow and its unfinished tasks.

        The record is cancelled first, with the task of ``on_done``. The others follow, the last one first: with
        ``on_dependency_failed="run"`` a task may start after an earlier one is cancelled. Raises `NotFound`,
        `AlreadyFinished`, and `Conflict` if a claimed task cannot be cancelled now.
        """
        found = await self.flow(args.id)
        (states,) = await self.states_of([found.record])
        if found.task.state in ("completed", "failed") and not _counts(states).keys() & set(UNFINISHED):
            raise AlreadyFinished(f"flow {args.id.hex()} is {found.task.state}", field="id")
        last = [TaskId(bytes.fromhex(found.record.on_done))] if found.record.on_done else []
        held = await self._cancelled([args.id, *last])
        ids = [one for run in reversed(found.record.runs) for one in reversed(ids_of(*run.run)) if one not in last]
        for start in range(0, len(ids), PAGE):
            held += await self._cancelled(ids[start : start + PAGE])
        if held:
            raise Conflict(
                f"{len(held)} claimed tasks of flow {args.id.hex()} cannot be cancelled now: {held[0].message}",
                hint="All other tasks are cancelled. Repeat the request after the workers have finished these tasks.",
            )
        found = await self.flow(args.id)
        (states,) = await self.states_of([found.record])
        return view_of(found, states)

    async def _cancelled(self, ids: Sequence[TaskId]) -> list[OnyxqError]:
        """Cancel unfinished tasks; return the conflicts, and raise any other error."""
        refused = [
            from_map(one) for one in (await self._cancel_tasks(CancelTasks(ids=[*ids], claimed=True))).results if one
        ]
        left = [one for one in refused if not isinstance(one, (AlreadyFinished, NotFound))]
        for one in left:
            if not isinstance(one, Conflict):
                raise one
        return left


def _known(task: TaskView) -> Known | None:
    record = record_of(task.id, task.data) if task.queue == FLOWS_QUEUE else None
    return None if record is None else Known(task, record)


def _counts(states: Iterable[bytes]) -> dict[str, int]:
    found = Counter(code for codes in states for code in codes)
    return {name: found[code] for code, name in enumerate(STATES) if found[code]}


def view_of(found: Known, states: Iterable[bytes]) -> FlowView:
    """Return a flow as clients see it, from the states of its tasks."""
    task, record = found
    counts = _counts(states)
    state = state_of(task.state, counts)
    return FlowView(
        id=task.id,
        name=record.name,
        state=state,
        counts=counts,
        queues=record.queues,
        on_done=TaskId(bytes.fromhex(record.on_done)) if record.on_done else None,
        created_ms=ms_of(task.id),
        finished_ms=task.finished_ms if state in ENDED else None,
    )


def state_of(recorded: str, counts: dict[str, int]) -> FlowState:
    """Return the state of a flow from that of its record and the number of its tasks by state.

    A flow that ended is running again if one of its tasks was requeued.
    """
    unfinished = any(counts.get(state) for state in UNFINISHED)
    if recorded == "cancelled" or (recorded in ENDED and not unfinished):
        return cast(FlowState, recorded)
    started = any(count for state, count in counts.items() if state not in ("scheduled", "waiting", "ready"))
    return "running" if started else "waiting"
