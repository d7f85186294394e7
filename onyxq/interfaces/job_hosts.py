"""Starting the hosts of jobs with settings of their own, also in processes of users (design: jobs on Spark).

The node's driver of jobs starts a host with the peer's settings. A job with ``own_host`` may add to them
(`onyxq.jobs.host_settings`). Its definition is in the replica, so each start of its host reads them there.

If these settings have a ``submit_wait_ms``, the peer first waits that long for a process that a user has started, such
as with ``spark-submit`` (`onyxq.spark.submit`). The process calls the operation ``job.host`` again and again. Calls
bring its events, and answers its orders. Neither side can know whether the other has ended. So the log fences the
process: before another host follows it, the job gets a new version (`log_entries.supersede_driver`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import evolve

from log_entries import supersede_driver
from onyxq.core.errors import BadRequest, Conflict, LogUnavailable
from onyxq.jobs.encoding import decode
from onyxq.jobs.host_settings import with_settings
from onyxq.jobs.model import Job
from onyxq.node.jobs.driver import HOSTS, LOG_RETRY_S, SparkSettings
from onyxq.node.jobs.hosts import HostEnded, Launch, Link, Message, Plan
from onyxq.node.node import Node
from onyxq.operations.table.job import HostJob, HostOrders
from onyxq.system.signal import Signal

LEASE_S = 15.0
"""Seconds after its last call at which a process from outside has lost its job."""
LAST_WORDS_S = 3.0
"""Time limit for a process from outside to fetch its last orders, in seconds."""
OFFERS_MAX = 100
"""Most processes that wait to serve one job."""


class OutsideHost:
    """A host in a process that a user has started, as its peer calls it (`onyxq.node.jobs.hosts.Link`)."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.name = name
        self.plan = plan
        self._events: deque[Message] = deque()
        self._orders: list[Message] = []
        self._number = 0
        self._answer: list[Message] | None = []
        """Orders in the answer to the last call; None until it is answered."""
        self._heard = trio.current_time()
        self._changed = Signal()
        self._why = ""

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send an order; raises `HostEnded`."""
        await trio.lowlevel.checkpoint()
        if self._why:
            raise HostEnded(self._why)
        self._orders.append(dict(message))
        self._changed.fire()

    async def receive(self) -> Message | None:
        """Return the next event; None once the host has ended, or was not heard for `LEASE_S`."""
        while not self._events:
            left_s = self._heard + LEASE_S - trio.current_time()
            if left_s <= 0:
                self.end(f"the Spark host {self.name}, which a user had started, was not heard for {LEASE_S:g} s")
            if self._why:
                return None
            await self._changed.wait(left_s)
        return self._events.popleft()

    def why(self) -> str:
        """Return how it ended; empty while it serves."""
        return self._why

    def end(self, why: str) -> None:
        """Take the job from it. The first reason counts."""
        self._why = self._why or why
        self._changed.fire()

    async def exchange(self, args: HostJob) -> list[Message]:
        """Take the events of a call, and return the orders for its answer, as soon as there are some.

        A repeat of the last call gets the same answer. Raises `Conflict` for a call that is out of order.
        """
        self._heard = trio.current_time()
        if args.number == self._number + 1:
            self._number, self._answer = args.number, None
            self._events.extend(args.events)
            self._changed.fire()
        elif args.number != self._number:
            raise Conflict(f"call {args.number} does not follow call {self._number}", field="number")
        until = self._heard + args.wait_ms / 1000
        while self._answer is None and not (self._orders or self._why):
            if (left_s := until - trio.current_time()) <= 0:
                break
            await self._changed.wait(left_s)
        if self._answer is None:
            self._answer, self._orders = self._orders, []
            self._changed.fire()
        return self._answer

    async def finish(self) -> None:
        """Wait until it has fetched its orders, for at most `LAST_WORDS_S`."""
        until = trio.current_time() + LAST_WORDS_S
        while self._orders and not self._why and trio.current_time() < until:
            await self._changed.wait(until - trio.current_time())


class JobHosts:
    """Starts the hosts of one node."""

    def __init__(self, node: Node, settings: SparkSettings, launch: Launch) -> None:
        """``launch``: starts a host as its plan says."""
        self._node = node
        self._folder = Path(settings.work) / HOSTS
        self._checkpoints = settings.checkpoints
        self._launch = launch
        self._serving: dict[str, OutsideHost] = {}
        """Job id -> the process of a user that serves it."""
        self._offered: dict[str, dict[str, float]] = {}
        """Job id -> name of each process that waits to serve it, and when it was heard."""
        self._changed = Signal()
        self._used: dict[str, int] = {}
        """Job id -> the last version that a process of a user has had."""

    def launch(self, plan: Plan) -> AbstractAsyncContextManager[Link]:
        """Start a host; see `onyxq.node.jobs.hosts.Launch`."""
        job = self._job(plan)
        if job is None or job.host is None:
            return self._launch(plan)
        plan = evolve(plan, conf=with_settings(plan.conf, job.host))
        if job.host.submit_wait_ms is None:
            return self._launch(plan)
        return self._launch_awaited(plan, job.id, job.host.submit_wait_ms / 1000)

    def _job(self, plan: Plan) -> Job | None:
        """Return the job whose own host is to be started; None for the host of all other jobs."""
        work = Path(plan.work)
        known = self._node.replica.jobs.get(work.name) if work.parent == self._folder else None
        return None if known is None else decode(known.body)

    # --- processes of users

    async def serve(self, args: HostJob) -> HostOrders:
        """Answer a call of a process that serves a job that is driven here, or waits to serve it."""
        for place, event in enumerate(args.events):
            if not isinstance(event.get("event"), str):
                raise BadRequest(f"events[{place}].event must be a text", field=f"events[{place}].event")
        if not args.number and not self._serves(args):
            await self._offer(args)
        if not self._serves(args):
            why = "this process does not serve the job any more" if args.number else ""
            return HostOrders(state="ended" if args.number else "waiting", why=why)
        host = self._serving[args.id]
        if not args.number:
            told = {"slots": host.plan.slots, "checkpoints": self._checkpoints}
            return HostOrders(state="serving", plan={**told, "node": self._node.node_id, "lease_s": LEASE_S})
        orders = await host.exchange(args)
        ended = bool(host.why()) and not orders
        return HostOrders(state="ended" if ended else "serving", orders=orders, why=host.why() if ended else "")

    def _serves(self, args: HostJob) -> bool:
        host = self._serving.get(args.id)
        return host is not None and host.name == args.host

    async def _offer(self, args: HostJob) -> None:
        """Wait until a process serves its job, for at most its ``wait_ms``."""
        until, waiting = trio.current_time() + args.wait_ms / 1000, self._waiting(args.id)
        if args.host not in waiting and len(waiting) >= OFFERS_MAX:
            raise Conflict(
                f"{OFFERS_MAX} processes already wait to serve job {args.id}",
                field="host",
                hint="One is enough: stop the others, then start this one again.",
            )
        self._offered.setdefault(args.id, {})[args.host] = trio.current_time()
        self._changed.fire()
        while not self._serves(args) and (left_s := until - trio.current_time()) > 0:
            await self._changed.wait(left_s)

    def _waiting(self, job: str) -> list[str]:
        """Return the processes that wait to serve a job, the first one first, and forget those that are silent."""
        old = trio.current_time() - LEASE_S
        kept = {name: heard for name, heard in self._offered.pop(job, {}).items() if heard > old}
        if kept:
            self._offered[job] = kept
        return list(kept)

    @asynccontextmanager
    async def _launch_awaited(self, plan: Plan, job: str, wait_s: float) -> AsyncIterator[Link]:
        """Yield a host in a process of a user; if none offers itself in time, start one."""
        jobs = self._node.replica.jobs
        self._used = {name: version for name, version in self._used.items() if name in jobs}
        known = jobs[job]
        if self._used.get(job) == known.version:
            await self._supersede(job, known.version)
        until = trio.current_time() + wait_s
        while not self._waiting(job) and (left_s := until - trio.current_time()) > 0:
            await self._changed.wait(left_s)
        if not self._waiting(job):
            async with self._launch(plan) as started:
                yield started
            return
        host = self._serving[job] = OutsideHost(self._waiting(job)[0], plan)
        del self._offered[job][host.name]
        self._used[job] = known.version
        self._changed.fire()
        try:
            yield host
        finally:
            with trio.CancelScope(shield=True):
                await host.finish()
            host.end("the peer has taken the job from this process")
            if self._serving.get(job) is host:  # The next driver may have another process already.
                del self._serving[job]

    async def _supersede(self, job: str, version: int) -> None:
        """Fence the process that had this version; the driver of the new version starts the next host."""
        while True:
            try:
                await self._node.verdicts([supersede_driver.Args(job, version)])
            except LogUnavailable:
                await trio.sleep(LOG_RETRY_S)
            else:
                await trio.sleep_forever()
