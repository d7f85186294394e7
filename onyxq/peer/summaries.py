"""What the dashboard shows beside what clients ask for: queues by the page, who works, how fast tasks come and go.

Counting all queues takes long where there are many in many partitions.  So it is done beside the
requests and seldom enough to cost little; a page is answered from the last count and says how old it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import trio
from attrs import field, frozen

from onyxq.errors import BadRequest, OnyxqError
from onyxq.peer import arguments as check
from onyxq.peer.node import Node
from onyxq.peer.reading import COUNT_NAMES, QUEUES_PER_TURN, Reading, named

PATIENCE_S = 0.05
"""How long an answer waits for a new count before the last one is taken."""
WAIT_MS, WAIT_MS_MAX = 2_000, 60_000
"""The same where there is no last one: by default, and at most."""
FRESH_S = 2.0
"""A count that is not older is not repeated."""
SHARE = 10
"""Nor is one before so many times have passed as it took."""
LIKE_CHARS_MAX = 1_000
PAGE_MAX = 1_000
WORKERS_MAX = 1_000
"""Workers that are shown."""
PIECES_PER_TURN = 2_000
RATES_TIMEOUT_S = 1.0
EVENTS = ("enqueued", "claimed", "completed", "failed", "retried", "released", "expired", "cancelled")

Depth: TypeAlias = dict[str, int]


@frozen
class Count:
    """All queues, as they were counted once."""

    at: float
    """Of trio's clock, when the counting was done."""
    took_s: float
    depths: Mapping[str, Depth]
    """Queue -> tasks by state; the names are sorted."""
    due_ms: Mapping[str, int]
    """Queue -> since when what is ready first is due, where something is."""
    sums: Depth
    """Tasks by state in all queues together."""
    _orders: dict[str, list[str]] = field(factory=dict, init=False)

    def order(self, name: str) -> list[str]:
        """The queues' names in an order."""
        if name not in self._orders:
            key = ORDERS[name]
            self._orders[name] = sorted(self.depths, key=lambda queue: key(self, queue))
        return self._orders[name]


def unfinished(depth: Depth) -> int:
    """Tasks that are neither done nor failed for good."""
    return depth["total"] - depth["completed"] - depth["failed"] - depth["cancelled"]


ORDERS: Mapping[str, Callable[[Count, str], Any]] = {
    "name": lambda _, queue: queue,
    "unfinished": lambda count, queue: (-unfinished(count.depths[queue]), queue),
    "failed": lambda count, queue: (-count.depths[queue]["failed"], queue),
    "oldest": lambda count, queue: (count.due_ms.get(queue, 1 << 62), queue),
}
"""How queues can be sorted."""


class Summaries:
    """Serves ``queues.page``, ``workers`` and ``rates`` of one node."""

    def __init__(self, node: Node, reading: Reading) -> None:
        self._node = node
        self._reading = reading
        self._count: Count | None = None
        self._error: OnyxqError | None = None
        self._counting: trio.Event | None = None

    # --- queues

    async def queues(self, args: dict[str, Any]) -> dict[str, Any]:
        """Some of the queues, none if nothing was counted in ``wait_ms``; raises `BadRequest`, `Unavailable`."""
        check.only(args, ("like", "order", "skip", "limit", "wait_ms"))
        like = check.text(args.get("like", ""), "like", LIKE_CHARS_MAX)
        order = args.get("order", "name")
        if order not in ORDERS:
            raise BadRequest(f"order must be one of {', '.join(ORDERS)}", field="order")
        skip = check.integer(args.get("skip", 0), "skip", 0, 1 << 31)
        limit = check.integer(args.get("limit", 100), "limit", 1, PAGE_MAX)
        wait_ms = check.integer(args.get("wait_ms", WAIT_MS), "wait_ms", 0, WAIT_MS_MAX)
        count = await self._latest(wait_ms / 1000)
        if count is None:
            return {"counted_ms_ago": None, "queues": [], "found": 0, "all": 0, "sums": None}
        names = [name for name in count.order(order) if like in name] if like else count.order(order)
        return {
            "counted_ms_ago": int((trio.current_time() - count.at) * 1000),
            "queues": [self._row(count, name) for name in names[skip : skip + limit]],
            "found": len(names),
            "all": len(count.depths),
            "sums": count.sums,
        }

    def _row(self, count: Count, name: str) -> dict[str, Any]:
        due_ms, settings = count.due_ms.get(name), self._node.replica.queues.get(name)
        return {
            "queue": name,
            "depth": count.depths[name],
            "unfinished": unfinished(count.depths[name]),
            "oldest_ready_ms": None if due_ms is None else max(0, self._node.wall_ms() - due_ms),
            "paused": settings is not None and settings.paused,
        }

    async def _latest(self, patience_s: float) -> Count | None:
        """The last count, a new one if it comes soon; raises what kept the first from being made.

        ``patience_s``: how long the first may take.
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
        """Count once."""
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

    async def workers(self, args: dict[str, Any]) -> dict[str, Any]:
        """Who holds claims, and how many: ``{"workers", "all", "position"}``, those with the most first."""
        check.only(args, ())
        replica = self._node.replica
        found: dict[str, list[int]] = {}
        looked = 0
        for number, stretches in sorted(replica.claims.items()):
            for pieces in stretches.values():
                for _, count, token, worker, deadline_ms in pieces:
                    known = found.setdefault(worker, [0, token, deadline_ms, number, 0])
                    known[0] += count
                    known[1] = max(known[1], token)
                    known[2] = min(known[2], deadline_ms)
                    if known[3] != number or not known[4]:
                        known[3:] = number, known[4] + 1
                looked += len(pieces)
                if looked >= PIECES_PER_TURN:
                    looked = 0
                    await trio.lowlevel.checkpoint()
        most = sorted(found, key=lambda worker: (-found[worker][0], worker))
        return {
            "position": replica.position,
            "all": len(found),
            "workers": [
                {
                    "worker": worker,
                    "claimed": found[worker][0],
                    "newest_token": found[worker][1],
                    "next_deadline_in_ms": max(0, found[worker][2] - replica.log_time_ms),
                    "partitions": found[worker][4],
                }
                for worker in most[:WORKERS_MAX]
            ],
        }

    # --- rates

    async def rates(self, args: dict[str, Any]) -> dict[str, Any]:
        """Sums of what happened at all nodes that answer, since each started; they grow until one restarts."""
        check.only(args, ())
        node = self._node
        answers = [self._here()]
        silent: list[str] = []

        async def ask(other: str) -> None:
            try:
                answers.append(await node.call(other, "lead.rates", {}, timeout_s=RATES_TIMEOUT_S))
            except OnyxqError:
                silent.append(other)

        async with trio.open_nursery() as nursery:
            for one in sorted(node.replica.nodes.values(), key=lambda one: one.id):
                if one.peer and one.id != node.node_id:
                    nursery.start_soon(ask, one.id)
        return {
            "events": {event: sum(one["events"].get(event, 0) for one in answers) for event in EVENTS},
            **{name: _added([one[name] for one in answers]) for name in ("waited", "ran")},
            "bounds_s": answers[0]["bounds_s"],
            "nodes": sorted(one["node"] for one in answers),
            "silent": sorted(silent),
        }

    async def lead_rates(self, args: dict[str, Any]) -> dict[str, Any]:
        """The same of this node alone."""
        return self._here()

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
