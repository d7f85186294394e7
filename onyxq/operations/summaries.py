"""Summaries for the dashboard: pages of queues, workers, and rates of tasks.

Counting many queues in many partitions takes long.  So counting runs beside the requests, seldom enough to cost
little. A page comes from the last count and has its age.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import trio
from attrs import field, frozen

from onyxq.core.errors import OnyxqError
from onyxq.core.replica import Replica
from onyxq.node.node import Node
from onyxq.operations.claims import Claiming, Waiting
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.table.cluster import (
    GET_RATE_HISTORY,
    GET_RATES,
    GET_WORKERS,
    WAITS_FOR_MAX,
    GetRateHistory,
    GetRates,
    GetWorkers,
    RateHistory,
    Rates,
    Workers,
    WorkerView,
)
from onyxq.operations.table.operation import converted
from onyxq.operations.table.queue import PAGE_QUEUES, PageQueues, QueuePage, QueueRow
from onyxq.operations.task_reads import COUNT_NAMES, QUEUES_PER_TURN, Reading, named
from onyxq.system import rate_history
from onyxq.system.metrics import TASK_EVENTS

PATIENCE_S = 0.05
"""Longest wait of an answer for a new count before the last one is used, in seconds."""
FRESH_S = 2.0
"""Age up to which a count is not repeated, in seconds."""
SHARE = 10
"""Multiple of the time of a count that passes before the next one."""
WORKERS_MAX = 1_000
"""Most workers of an answer."""
PIECES_PER_TURN = 2_000
TOLD_TIMEOUT_S = 1.0
"""Longest wait for the part of another node, in seconds."""
RECORD_S = 5.0
"""Pause between two checks whether a minute is over, in seconds."""

Depth: TypeAlias = dict[str, int]


@frozen
class Count:
    """The result of one count of all queues."""

    at: float
    """Time of the end of the count, by trio's clock."""
    took_s: float
    depths: Mapping[str, Depth]
    """Queue -> tasks by state; the names are sorted."""
    due_ms: Mapping[str, int]
    """Queue with ready tasks -> due time of the first one."""
    sums: Depth
    """Tasks by state in all queues together."""
    _orders: dict[str, list[str]] = field(factory=dict, init=False)

    def order(self, name: str) -> list[str]:
        """Return the queues' names in an order."""
        if name not in self._orders:
            key = ORDERS[name]
            self._orders[name] = sorted(self.depths, key=lambda queue: key(self, queue))
        return self._orders[name]


def unfinished(depth: Depth) -> int:
    """Return the number of tasks that are neither done nor failed for good."""
    return depth["total"] - depth["completed"] - depth["failed"] - depth["cancelled"]


ORDERS: Mapping[str, Callable[[Count, str], Any]] = {
    "name": lambda _, queue: queue,
    "unfinished": lambda count, queue: (-unfinished(count.depths[queue]), queue),
    "failed": lambda count, queue: (-count.depths[queue]["failed"], queue),
    "oldest": lambda count, queue: (count.due_ms.get(queue, 1 << 62), queue),
}
"""Order of queues -> its sort key."""


@frozen
class Held:
    """Claims of a worker."""

    claimed: int = 0
    token: int = -1
    """Newest fencing token."""
    deadline_ms: int = 0
    """Earliest end of a lease, in log time."""


NOTHING = Held()
NO_WAITING = Waiting(0, 0, [])


async def held_by(replica: Replica) -> dict[str, Held]:
    """Return the claims of each worker."""
    out: dict[str, Held] = {}
    looked = 0
    for stretches in replica.claims.values():
        for pieces in stretches.values():
            for _, count, token, worker, deadline_ms in pieces:
                known = out.get(worker)
                out[worker] = (
                    Held(count, token, deadline_ms)
                    if known is None
                    else Held(known.claimed + count, max(known.token, token), min(known.deadline_ms, deadline_ms))
                )
            looked += len(pieces)
            if looked >= PIECES_PER_TURN:
                looked = 0
                await trio.lowlevel.checkpoint()
    return out


class Summaries:
    """Serves ``queues.page``, ``workers``, ``rates`` and ``rates.history`` of one node."""

    def __init__(self, node: Node, reading: Reading, claiming: Claiming) -> None:
        self._node = node
        self._claiming = claiming
        self._reading = reading
        self._count: Count | None = None
        self._error: OnyxqError | None = None
        self._counting: trio.Event | None = None
        self._history = rate_history.RateHistory(node.metrics, node.wall_ms())

    async def run(self) -> None:
        """Record the minutes until cancelled."""
        while True:
            await trio.sleep(RECORD_S)
            self._history.record(self._node.wall_ms())

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(
            served(PAGE_QUEUES, self.queues),
            served(GET_WORKERS, self.workers),
            served(GET_RATES, self.rates),
            served(GET_RATE_HISTORY, self.rate_history),
        )

    # --- queues

    async def queues(self, args: PageQueues) -> QueuePage:
        """Return some of the queues; none if nothing was counted in ``wait_ms``. Raises `Unavailable`."""
        count = await self._latest(args.wait_ms / 1000)
        if count is None:
            return QueuePage(counted_ms_ago=None, queues=[], found=0, all=0, sums=None)
        names = count.order(args.order)
        names = [name for name in names if args.like in name] if args.like else names
        return QueuePage(
            counted_ms_ago=int((trio.current_time() - count.at) * 1000),
            queues=[self._row(count, name) for name in names[args.skip : args.skip + args.limit]],
            found=len(names),
            all=len(count.depths),
            sums=count.sums,
        )

    def _row(self, count: Count, name: str) -> QueueRow:
        due_ms, settings = count.due_ms.get(name), self._node.replica.queues.get(name)
        return QueueRow(
            queue=name,
            depth=count.depths[name],
            unfinished=unfinished(count.depths[name]),
            oldest_ready_ms=None if due_ms is None else max(0, self._node.wall_ms() - due_ms),
            paused=settings is not None and settings.paused,
        )

    async def _latest(self, patience_s: float) -> Count | None:
        """Return the last count, or a new one if it comes soon; raises the error that prevented the first one.

        ``patience_s``: longest wait for the first one.
        """
        now, last = trio.current_time(), self._count
        if last is not None and now - last.at < max(FRESH_S, SHARE * last.took_s):
            return last
        if self._counting is None:
            self._counting = trio.Event()
            self._node.start_soon(self._counted, self._counting)
        with trio.move_on_after(patience_s if last is None else PATIENCE_S):
            await self._counting.wait()
        if self._count is None and self._error is not None:
            raise self._error
        return self._count

    async def _counted(self, done: trio.Event) -> None:
        """Count all queues once."""
        started = trio.current_time()
        try:
            totals, due_ms = await self._reading.depths()
            depths: dict[str, Depth] = {}
            sums: Depth = dict.fromkeys((*COUNT_NAMES, "ready"), 0)
            for place, name in enumerate(sorted(totals.keys() | self._node.replica.queues.keys())):
                depths[name] = named(totals.get(name, [0] * len(COUNT_NAMES)))
                for state, tasks in depths[name].items():
                    sums[state] += tasks
                if place % QUEUES_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
            now = trio.current_time()
            self._count, self._error = Count(now, now - started, depths, due_ms, sums), None
        except OnyxqError as error:
            self._error = error
        finally:
            self._counting = None
            done.set()

    # --- workers

    async def workers(self, args: GetWorkers) -> Workers:
        """Return the workers that hold claims or wait for some, those with the most claims first."""
        replica = self._node.replica
        held = await held_by(replica)
        told, silent = await self._everywhere("lead.waiting", self._waiting_here())
        waits: dict[str, Waiting] = {}
        for one in told:
            for worker, found in one["workers"].items():
                here = Waiting(*found)
                known = waits.get(worker, NO_WAITING)
                queues = sorted({*known.queues, *here.queues})
                waits[worker] = Waiting(known.claims + here.claims, known.tasks + here.tasks, queues)
        most = sorted(held.keys() | waits.keys(), key=lambda worker: (-held.get(worker, NOTHING).claimed, worker))
        return Workers(
            position=replica.position,
            all=len(most),
            silent=silent,
            workers=[
                WorkerView(
                    worker=worker,
                    claimed=(mine := held.get(worker, NOTHING)).claimed,
                    newest_token=mine.token if mine.claimed else None,
                    next_deadline_in_ms=max(0, mine.deadline_ms - replica.log_time_ms) if mine.claimed else None,
                    waits=(waiting := waits.get(worker, NO_WAITING)).claims,
                    waits_for=waiting.queues[:WAITS_FOR_MAX],
                    free=waiting.tasks,
                )
                for worker in most[:WORKERS_MAX]
            ],
        )

    async def lead_waiting(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the workers that wait for tasks at this node."""
        return self._waiting_here()

    def _waiting_here(self) -> dict[str, Any]:
        found = self._claiming.waiting(WORKERS_MAX)
        return {
            "workers": {worker: (one.claims, one.tasks, one.queues[:WAITS_FOR_MAX]) for worker, one in found.items()}
        }

    async def _everywhere(self, method: str, here: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the answers of this node and of all others that answer soon, and the names of silent nodes."""
        node, answers, silent = self._node, [here], list[str]()

        async def ask(other: str) -> None:
            try:
                answers.append(await node.call(other, method, {}, timeout_s=TOLD_TIMEOUT_S))
            except OnyxqError:
                silent.append(other)

        async with trio.open_nursery() as nursery:
            for one in sorted(node.replica.nodes.values(), key=lambda one: one.id):
                if one.peer and one.id != node.node_id:
                    nursery.start_soon(ask, one.id)
        return answers, sorted(silent)

    # --- rates

    async def rates(self, args: GetRates) -> Rates:
        """Return sums over all nodes that answer, since each started; they grow until one restarts."""
        answers, silent = await self._everywhere("lead.rates", self._here())
        return Rates(
            events={event: sum(one["events"].get(event, 0) for one in answers) for event in TASK_EVENTS},
            waited=_added([one["waited"] for one in answers]),
            ran=_added([one["ran"] for one in answers]),
            bounds_s=answers[0]["bounds_s"],
            nodes=sorted(one["node"] for one in answers),
            silent=silent,
        )

    async def lead_rates(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the sums of this node alone."""
        return self._here()

    async def rate_history(self, args: GetRateHistory) -> RateHistory:
        """Return the last minutes of all nodes that answer, added."""
        answers, silent = await self._everywhere("lead.rates.history", await self.lead_rate_history({}))
        points = rate_history.added(one["points"] for one in answers)
        bounds = self._node.metrics.task_wait_seconds.bounds
        minutes = [rate_history.shown(minute, counts, bounds) for minute, counts in points]
        return converted(RateHistory, {"minutes": minutes, "silent": silent})

    async def lead_rate_history(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the last minutes of this node alone."""
        self._history.record(self._node.wall_ms())
        return {"points": self._history.points()}

    def _here(self) -> dict[str, Any]:
        metrics = self._node.metrics
        return {
            "node": self._node.node_id,
            "events": metrics.tasks.sums(1),
            "waited": list(metrics.task_wait_seconds.counts),
            "ran": list(metrics.task_run_seconds.counts),
            "bounds_s": list(metrics.task_wait_seconds.bounds),
        }


def _added(rows: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]
