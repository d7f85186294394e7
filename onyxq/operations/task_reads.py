"""Reading of tasks and counts from the nodes that have them.

One task is read at its partition's leader, whose store is complete; without a leader it is read from a majority of
the members.  Counts and lists (`onyxq.operations.task_lists`) ask the leaders of all partitions
(`onyxq.node.all_leaders`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from onyxq.core import facts
from onyxq.core.diff import plain
from onyxq.core.errors import OnyxqError, Unavailable
from onyxq.core.ids import TaskId, callback_of, id_at, mask_of, partition_of
from onyxq.core.placement import holders
from onyxq.core.queues import settings_of
from onyxq.core.replica import claim_of, majority
from onyxq.leader.missing_tasks import missing
from onyxq.node.all_leaders import READ_TIMEOUT_S, AllLeaders
from onyxq.node.node import Node
from onyxq.node.routing import is_passing, leader_of
from onyxq.node.task_ends import TaskEnds
from onyxq.operations.checks.runs import check_id
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.table.log import GET_LOG, EntryView, GetLog, Log, RecordView
from onyxq.operations.table.operation import converted
from onyxq.operations.table.queue import LIST_QUEUES, Depth, ListQueues, Queues, QueueView, shown_settings
from onyxq.operations.table.task import (
    COUNT_TASKS,
    GET_TASK,
    GET_TASK_HISTORY,
    GET_TASK_LOG,
    Counts,
    CountTasks,
    GetTask,
    GetTaskHistory,
    GetTaskLog,
    TaskHistory,
    TaskLog,
    TaskView,
)
from onyxq.operations.task_view import history_of, of_list, placed_by_keys, task_view, updates_of, with_delivery

SEEN_TIMEOUT_S = 2.0
"""Longest wait of a read for what its reader has seen elsewhere, in seconds."""
SEEN_PAUSE_S = 0.1
QUEUES_PER_TURN = 500
"""Number of queues after which other tasks of the event loop run."""
COUNT_NAMES = ("total", "completed", "failed", "cancelled", "scheduled", "waiting", "claimed")


class Reading:
    """Serves the reading methods of one node."""

    def __init__(self, node: Node, leaders: AllLeaders) -> None:
        self._node = node
        self._counts = leaders.question("counts", self._look)
        self._ends = TaskEnds(node)

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(
            served(GET_TASK, self.get),
            served(GET_TASK_LOG, self.task_log),
            served(GET_TASK_HISTORY, self.task_history),
            served(COUNT_TASKS, self.count),
            served(LIST_QUEUES, self.queues),
            served(GET_LOG, self.log),
        )

    # --- one task

    async def get(self, args: GetTask) -> TaskView:
        """Return one task, never older than what was seen before; raises `NotFound`, `Unavailable`."""
        task_id, seen, seen_seq = self._task_id(args.id), args.seen_token, args.seen_seq
        until = trio.current_time() + args.wait_ms / 1000
        found = await self._read(task_id)
        while found["completion"] is None and found["view"] is not None and trio.current_time() < until:
            del found  # A task may be large, and many requests may wait for it.
            await self._ends.wait(task_id, until - trio.current_time())
            found = await self._read(task_id)
        if seen is not None or seen_seq is not None:
            found = await self._caught_up(task_id, found, seen, seen_seq)
        return converted(TaskView, self._there(task_id, found))

    async def _caught_up(
        self, task_id: TaskId, found: dict[str, Any], seen: int | None, seen_seq: int | None
    ) -> dict[str, Any]:
        """Return the task as of what was seen, or later; raises `Unavailable` if no reached node knows that in time.

        A majority is asked too, because a deposed leader may not know yet that it is deposed.
        """
        until = trio.current_time() + SEEN_TIMEOUT_S
        while found["view"] is not None and (what := _lacking(found, seen, seen_seq)):
            if trio.current_time() >= until:
                raise Unavailable(f"this peer knows only what is older than {what}")
            found = await self._read_majority(task_id)
            if _lacking(found, seen, seen_seq):
                with trio.move_on_after(SEEN_PAUSE_S):
                    await self._node.moved()
                found = await self._read(task_id)
        return found

    async def task_log(self, args: GetTaskLog) -> TaskLog:
        """Return updates of one task; raises `NotFound`, `Unavailable`."""
        task_id = self._task_id(args.id)
        found = await self._read(task_id)
        self._there(task_id, found)
        return converted(TaskLog, {"updates": found["updates"]})

    async def task_history(self, args: GetTaskHistory) -> TaskHistory:
        """Return all that the store has of one task; raises `NotFound`, `Unavailable`."""
        task_id = self._task_id(args.id)
        found = await self._read(task_id)
        task, void_below = self._there(task_id, found), self._node.replica.void_below
        return converted(TaskHistory, {**found, "task": task, "void_below": void_below})

    def _there(self, task_id: TaskId, found: dict[str, Any]) -> dict[str, Any]:
        if found["view"] is None:
            raise missing(self._node.store, task_id)
        return dict(found["view"])

    def _task_id(self, task_id: TaskId) -> TaskId:
        check_id(task_id, partitions_of(self._node))
        return task_id

    async def _read(self, task_id: TaskId) -> dict[str, Any]:
        leader = leader_of(self._node, partition_of(task_id))
        try:
            if not leader:
                raise Unavailable("no node leads the partition now")
            if leader == self._node.node_id:
                return await self.lead_view(task_id)
            answer = await self._node.call(leader, "lead.view", {"id": task_id}, timeout_s=READ_TIMEOUT_S)
            return dict(answer)
        except OnyxqError as error:
            if not is_passing(error):
                raise
            return await self._read_majority(task_id)

    async def lead_view(self, task_id: TaskId) -> dict[str, Any]:
        """Return the task as this leader knows it; raises `NotLeader`."""
        self._node.operations.tokens.leader(partition_of(task_id))
        await self._node.settled()
        return self._seen_here(task_id)

    def view_here(self, task_id: TaskId) -> dict[str, Any] | None:
        """Return a task of a partition that is led from here, as lists answer it."""
        view: dict[str, Any] | None = self._seen_here(task_id)["view"]
        return None if view is None else of_list(view)

    def _seen_here(self, task_id: TaskId) -> dict[str, Any]:
        """Return a task as this node's store has it. The task's callback is in the same partition."""
        found = self._view(task_id, self._node.cohort.covering(task_id))
        if _calls_back(found):
            other = callback_of(task_id)
            callback = self._view(other, self._node.cohort.covering(other))["view"]
            found["view"] = with_delivery(found["view"], callback)
        return found

    def _view(self, task_id: TaskId, found: Sequence[Sequence[Any]]) -> dict[str, Any]:
        rows = [(kind, first, body) for kind, first, body in found]
        store, replica = self._node.store, self._node.replica
        view = task_view(task_id, rows, claim_of(replica, task_id), replica=replica, now_ms=self._node.wall_ms())
        if view is not None:
            view = placed_by_keys(view, store)
        updates = [
            {"token": one.token, "seq": one.seq, "data": one.data, "at_ms": one.at_ms} for one in updates_of(rows)
        ]
        return {"view": view, "updates": updates, **history_of(task_id, rows)}

    async def _read_majority(self, task_id: TaskId) -> dict[str, Any]:
        placed = self._node.replica.partitions[partition_of(task_id)]
        rows: set[tuple[bytes, bytes, bytes]] = set()
        heard: set[str] = set()

        async def ask(node_id: str) -> None:
            try:
                if node_id == self._node.node_id:
                    found = self._node.cohort.covering(task_id)
                else:
                    found = await self._node.call(
                        node_id, "cohort.covering", {"id": task_id}, timeout_s=READ_TIMEOUT_S / 2
                    )
            except OnyxqError:
                return  # counted as silent
            rows.update((kind, first, body) for kind, first, body in found)
            heard.add(node_id)

        async with trio.open_nursery() as nursery:
            for node_id in holders(placed):
                nursery.start_soon(ask, node_id)
        if not heard or not majority(placed.members, heard):
            raise Unavailable(f"partition {partition_of(task_id)}: no leader, and no majority of its nodes answers")
        if self._node.store.watermark(partition_of(task_id)).covers(task_id):
            rows.clear()  # a node that was away may still have some
        found = self._view(task_id, sorted(rows))
        if _calls_back(found):
            callback = (await self._read_majority(callback_of(task_id)))["view"]
            found["view"] = with_delivery(found["view"], callback)
        return found

    # --- counts

    async def count(self, args: CountTasks) -> Counts:
        """Return the number of tasks by queue and state."""
        totals, _ = await self.depths(args.queue)
        if args.queue is not None:
            totals.setdefault(args.queue, [0] * len(COUNT_NAMES))
        return Counts(counts={name: named(counts) for name, counts in sorted(totals.items())})

    async def queues(self, args: ListQueues) -> Queues:
        """Return every queue that has tasks or settings."""
        totals, oldest = await self.depths()
        names = sorted(totals.keys() | self._node.replica.queues.keys())
        return Queues(queues=[self._queue(name, totals, oldest) for name in names])

    async def queue(self, name: str) -> QueueView:
        """Return one queue, even if it has neither tasks nor settings."""
        return self._queue(name, *await self.depths(name))

    async def depths(self, queue: str | None = None) -> tuple[dict[str, list[int]], dict[str, int]]:
        """Return the counts per queue, and per queue with ready tasks the due time of the first one."""
        totals: dict[str, list[int]] = {}
        oldest: dict[str, int] = {}
        for page in await self._counts.ask({"queue": queue}):
            for name, (counts, due_ms) in page.items():
                old = totals.setdefault(name, [0] * len(COUNT_NAMES))
                totals[name] = [a + b for a, b in zip(old, counts, strict=True)]
                if due_ms is not None:
                    oldest[name] = min(due_ms, oldest.get(name, due_ms))
        return totals, oldest

    def _queue(self, name: str, totals: dict[str, list[int]], oldest: dict[str, int]) -> QueueView:
        return QueueView(
            queue=name,
            depth=Depth(**named(totals.get(name, [0] * len(COUNT_NAMES)))),
            oldest_ready_ms=max(0, self._node.wall_ms() - oldest[name]) if name in oldest else None,
            settings=shown_settings(settings_of(self._node.replica, name)),
        )

    async def _look(self, args: dict[str, Any], partitions: Sequence[int]) -> dict[str, Any]:
        """Return counts and the first ready task's due time, per queue, in some of the partitions led from here."""
        queue, totals = COUNT_TASKS.decode(args).queue, dict[str, list[int]]()
        for partition in partitions:
            for name, counts in self.local_counts(queue, [partition]).items():
                old = totals.get(name)
                totals[name] = counts if old is None else [a + b for a, b in zip(old, counts, strict=True)]
            await trio.lowlevel.checkpoint()
        heads, out = self._node.granter.heads, {}
        for place, (name, counts) in enumerate(totals.items()):
            out[name] = [counts, heads.oldest_due_ms(name)]
            if place % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await trio.lowlevel.checkpoint()
        return out

    def local_counts(self, queue: str | None, partitions: Sequence[int]) -> dict[str, list[int]]:
        """Return counts per queue, in the order of COUNT_NAMES, in some of the partitions led from here."""
        totals: dict[str, list[int]] = {}
        for partition in partitions:
            for name, counts in self._node.store.counts(partition, queue).items():
                old = totals.setdefault(name, [0] * len(COUNT_NAMES))
                totals[name] = [a + b for a, b in zip(old, (*counts, 0), strict=True)]
            for name, claimed in self._claimed(partition).items():
                if name in totals:
                    totals[name][-1] += claimed
        return totals

    def _claimed(self, partition: int) -> dict[str, int]:
        """Return the number of unfinished claimed tasks per queue."""
        store = self._node.store
        totals: dict[str, int] = {}
        for stretch, pieces in (self._node.replica.claims.get(partition) or {}).items():
            finished = store.finished_bits(stretch)
            for offset, count, *_ in pieces:
                bits = ((1 << count) - 1) << offset & ~finished
                while bits:  # a piece may belong to several task rows
                    row = store.task_row(id_at(stretch, (bits & -bits).bit_length() - 1))
                    if row is None:
                        bits &= bits - 1
                        continue
                    header, tasks = facts.task_header(row[1])
                    covered = bits & mask_of(row[0], tasks)
                    totals[header["queue"]] = totals.get(header["queue"], 0) + covered.bit_count()
                    bits &= ~covered
        return totals

    # --- the log

    async def log(self, args: GetLog) -> Log:
        """Return records that this node applied recently, with verdicts."""
        start, recent = args.from_, list(self._node.recent)
        if start is None:
            recent = recent[-args.limit :]
        else:
            recent = [one for one in recent if one.position >= start][: args.limit]
        return Log(
            position=self._node.replica.position,
            records=[
                RecordView(
                    position=record.position,
                    at_ms=record.at_ms,
                    peer=record.peer,
                    problem=record.problem or None,
                    entries=[EntryView(one.name, plain(one.args), one.verdict) for one in record.outcomes],
                )
                for record in recent
            ],
        )


def _calls_back(found: dict[str, Any]) -> bool:
    return found["view"] is not None and found["view"]["callback"] is not None


def _lacking(found: dict[str, Any], seen: int | None, seen_seq: int | None) -> str:
    """Return which of the two is missing in the answer; empty if neither is."""
    if found["view"] is None:
        return ""
    updates = [update["token"] for update in found["updates"]]
    newest = max([-1, *(claim["token"] for claim in found["view"]["claims"]), *updates])
    if seen is not None and newest < seen:
        return "seen_token"
    if seen_seq is not None:
        counts = [updates.count(token) for token in ({seen} if seen is not None else set(updates))]
        if max([0, *counts]) <= seen_seq:
            return "seen_seq"
    return ""


def partitions_of(node: Node) -> int:
    """Return the number of partitions; raises `Unavailable` until the cluster is known."""
    if node.replica.cluster is None:
        raise Unavailable("the cluster is not known here yet")
    return node.replica.settings.partitions


def named(counts: list[int]) -> dict[str, int]:
    """Return counts by name, with the number of ready tasks."""
    named = dict(zip(COUNT_NAMES, counts, strict=True))
    finished = named["completed"] + named["failed"] + named["cancelled"]
    named["ready"] = max(0, named["total"] - finished - named["scheduled"] - named["waiting"] - named["claimed"])
    return named
