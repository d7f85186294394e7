"""The node's methods, as clients, HTTP and other peers call them.

Any node serves client methods: it splits the work by leader and merges the answers (`onyxq.node.routing`,
`onyxq.node.all_leaders`, `onyxq.operations.claims`).  ``lead.*`` and ``cohort.*`` are for peers only, and need only
what this node itself leads and holds.  ``lead.`` and an operation's name is that operation at the leaders here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio

from onyxq.core.errors import Forbidden, NotFound, OnyxqError, Unavailable
from onyxq.core.ids import IdMaker, TaskId
from onyxq.core.log.interface import LogBackend
from onyxq.core.replica import Replica
from onyxq.leader.cohort.member import checked_rows
from onyxq.leader.grants.claims_here import claim_here
from onyxq.leader.grants.granter import Granted
from onyxq.node.all_leaders import AllLeaders
from onyxq.node.extension_duties import Extending
from onyxq.node.jobs.driver import Driving
from onyxq.node.log_check import confirm_leader, testimony
from onyxq.node.log_view import LogView
from onyxq.node.membership import Peer
from onyxq.node.node import Node
from onyxq.node.routing import LEAD, Router
from onyxq.operations import cluster_views
from onyxq.operations.admission import URGENT, Admission, admitted
from onyxq.operations.backup_rows import BackingUp
from onyxq.operations.bulk_reads import BulkReading
from onyxq.operations.checks import peers
from onyxq.operations.checks.access import check_size
from onyxq.operations.checks.peers import taking
from onyxq.operations.claims import Claiming, pack_answer
from onyxq.operations.cluster_changes import Operating
from onyxq.operations.dead.segments import JobLetters
from onyxq.operations.dead.tasks import DeadLetters
from onyxq.operations.enqueues import Enqueueing
from onyxq.operations.flow.flows import Flows
from onyxq.operations.flow.requeue import FlowRequeue
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.health import Health
from onyxq.operations.held_tasks import HeldTasks
from onyxq.operations.job_batches import JobBatches
from onyxq.operations.jobs import Jobs, ServeHost
from onyxq.operations.settings import Settings
from onyxq.operations.summaries import Summaries
from onyxq.operations.table.claim import CLAIM, RELEASE, Held, Release
from onyxq.operations.table.cluster import (
    GET_CLUSTER,
    GET_HEALTH,
    GET_METRICS,
    GET_PEERS,
    GET_RING,
    GET_ROUTES,
    GetRoutes,
    Routes,
)
from onyxq.operations.table.everything import BY_NAME, decoded
from onyxq.operations.table.log import (
    GC,
    GET_EXTENSION,
    GET_ORIGIN,
    GET_RAW_LOG,
    GET_REPLICA,
    GET_REPLICA_PART,
    SUBMIT_ENTRY,
    Gc,
    GcReport,
)
from onyxq.operations.table.operation import A, Operation, R, converted, plain
from onyxq.operations.table.task import LIST_TASKS
from onyxq.operations.table.transaction import COMMIT_BATCH, PREPARE_BATCH, TRANSACT
from onyxq.operations.task_lists import Listing, NextTasks
from onyxq.operations.task_reads import Reading, partitions_of
from onyxq.operations.taskstore import TaskStore
from onyxq.operations.timers import Timers
from onyxq.operations.transactions import Transactions
from onyxq.system.failures import serving
from onyxq.system.procedures import is_procedure
from onyxq.wire.server import Request

log = logging.getLogger(__name__)

READS = frozenset(
    """
    cohort.covering cohort.hours cohort.keys cohort.leaves cohort.log cohort.pending cohort.position cohort.rows
    job.told
    lead.bodies lead.counts lead.dead lead.depended lead.flow.states lead.head lead.list lead.outcomes lead.rates
    lead.rates.history lead.rows lead.timer.find lead.told lead.view lead.waiting
    """.split()
)
"""Methods that change nothing, besides those of the table of operations."""


def changes_nothing(method: str) -> bool:
    """Return whether a method changes nothing."""
    return BY_NAME[method].reads if method in BY_NAME else method in READS


class Service:
    """The methods of one node; see the module's first paragraph."""

    def __init__(
        self,
        node: Node,
        *,
        random_64: Callable[[], int],
        backend: LogBackend | None = None,
        driver: Driving | None = None,
        serve_host: ServeHost | None = None,
    ) -> None:
        self.node = node
        self.peer: Peer | None = None
        self.admission = Admission(trio.current_time)
        """Bound on the writes that clients request from this node, directly or through other nodes."""
        self.operating = Operating(node)
        ids = IdMaker(node.wall_ms, random_64)
        self._router, self._leaders = Router(node), AllLeaders(node)
        self._reading = Reading(node, self._leaders)
        self._listing = Listing(node, self._reading, self._leaders)
        self._next = NextTasks(node, self._reading, self._leaders)
        self.timers = Timers(node, self._router, self._reading, listing=self._listing, ids=ids)
        check, first = self.timers.check_callbacks, random_64() % 64
        self._enqueueing = Enqueueing(node, self._router, self._partitions, check, maker=ids, partition=first)
        self._held_tasks = HeldTasks(node, self._router, self._leaders, self._listing)
        self._flows = Flows(
            node,
            self._router,
            self._reading,
            self._listing,
            self._held_tasks.cancel,
            enqueueing=self._enqueueing,
            check_callbacks=self.timers.check_each,
        )
        self._dead = DeadLetters(node, self._router, self._reading, self._leaders)
        self._flow_requeue = FlowRequeue(self._flows, self._reading, self._dead.requeue)
        self.transactions = Transactions(node, check)
        self._batches, self._bulk = JobBatches(node, self.transactions), BulkReading(node)
        self._extending, self._settings = Extending(node), Settings(node, self._reading)
        self._backing_up, self._taskstore = BackingUp(node), TaskStore(node, random_64)
        node.enqueue, node.ask = self._enqueueing.enqueue, self.call
        self.log_view = LogView(node, backend)
        self._jobs = Jobs(node, driver, self.log_view, serve_host)
        self._letters = JobLetters(
            node, self._jobs, self._reading, self._listing, self._enqueueing, cancel=self._held_tasks.cancel, ids=ids
        )
        self.claiming = Claiming(node, self._give_back)
        self._summaries = Summaries(node, self._reading, self.claiming)
        self._health = Health(node, self._reading, self._leaders, self.admission, driver)
        self._methods = self._client_methods()
        self.peer_methods = merged(
            {one.name: one.handler for one in self._router.routed},
            {one.name: one.serve for one in self._leaders.questions},
            self._lead_methods(),
            self._lead_view_methods(),
            self._cohort_methods(),
        )
        """Methods that only peers may call."""

    # --- the methods, by family

    def _client_methods(self) -> dict[str, Handler]:
        return merged(
            self._enqueueing.handlers(),
            self._held_tasks.handlers(),
            self._flows.handlers(),
            self._flow_requeue.handlers(),
            served(CLAIM, self.claiming.claim),
            served(LIST_TASKS, self._listing.page),
            self._next.handlers(),
            self._transaction_methods(),
            self._reading.handlers(),
            self._dead.handlers(),
            self._summaries.handlers(),
            self._settings.handlers(),
            self.timers.handlers(),
            self._jobs.handlers(),
            self._letters.handlers(),
            self._bulk.handlers(),
            self._backing_up.handlers(),
            self._taskstore.handlers(),
            self._log_methods(),
            self._cluster_methods(),
        )

    def _transaction_methods(self) -> dict[str, Handler]:
        return merged(
            served(TRANSACT, self.transactions.transact),
            served(PREPARE_BATCH, self._batches.prepare),
            served(COMMIT_BATCH, self._batches.commit),
        )

    def _log_methods(self) -> dict[str, Handler]:
        return merged(
            served(GC, self._gc),
            served(GET_RAW_LOG, self.log_view.raw),
            served(GET_ORIGIN, self.log_view.origin),
            served(GET_REPLICA, self.log_view.replica),
            served(GET_REPLICA_PART, self.log_view.replica_part),
            served(SUBMIT_ENTRY, self._extending.submit),
            served(GET_EXTENSION, self._extending.extension),
        )

    def _cluster_methods(self) -> dict[str, Handler]:
        return merged(
            served(GET_ROUTES, self._routes),
            self._view(GET_CLUSTER, cluster_views.cluster),
            self._view(GET_RING, cluster_views.ring),
            self._view(GET_PEERS, cluster_views.peers),
            self.operating.handlers(),
            served(GET_HEALTH, self._health.health),
            served(GET_METRICS, self._health.metrics),
        )

    def _lead_methods(self) -> dict[str, Handler]:
        """Return the methods by which a node uses the leaders of another node, besides those that are routed."""
        operations, dependencies = self.node.operations, self.node.operations.dependencies
        return {
            "lead.claim": taking(peers.Claims, self._lead_claim),
            "lead.head": taking(peers.Head, self._lead_head),
            "lead.outcomes": taking(peers.Watched, lambda asked: dependencies.outcomes(asked.ids, asked.watcher)),
            "lead.finished": taking(peers.Ids, lambda asked: dependencies.heard(asked.ids)),
            "lead.depended": taking(peers.Stretches, lambda asked: operations.dependents.depended(asked.stretches)),
            "lead.prepare": taking(peers.Parts, lambda asked: operations.transaction_parts.prepare(asked.asked())),
            "lead.offer": self._lead_offer,
        }

    def _lead_view_methods(self) -> dict[str, Handler]:
        """Return the methods by which a node reads from leaders, or from the peer that drives a job."""
        return {
            "lead.view": taking(peers.OneTask, lambda asked: self._reading.lead_view(asked.id)),
            "lead.bodies": self._bulk.lead_read,
            "lead.rows": self._backing_up.lead_rows,
            "lead.rates": self._summaries.lead_rates,
            "lead.rates.history": self._summaries.lead_rate_history,
            "lead.waiting": self._summaries.lead_waiting,
            "lead.told": _sync(lambda _: self.node.told_here()),
            "job.told": self._jobs.told_here,
            "job.host.here": self._jobs.host_here,
        }

    def _cohort_methods(self) -> dict[str, Handler]:
        """Return the methods by which the leader of a partition calls the nodes that hold its copies."""
        node, cohort = self.node, self.node.cohort
        return {
            "cohort.write": cohort.write_received,
            "cohort.reach": self._cohort_reach,
            "cohort.log": _sync(lambda a: testimony(node, a["position"])),
            "cohort.push": self._cohort_push,
            "cohort.pending": _sync(lambda a: cohort.pending(a["partition"], a["known"], a["want"])),
            "cohort.hours": _sync(lambda a: cohort.hours(a["partition"])),
            "cohort.leaves": _sync(lambda a: cohort.leaves(a["partition"], a["hour"])),
            "cohort.keys": _sync(lambda a: cohort.keys(a["partition"], a["hour"], a["leaves"])),
            "cohort.rows": _sync(lambda a: cohort.rows(a["keys"])),
            "cohort.covering": _sync(lambda a: cohort.covering(converted(peers.OneTask, a).id)),
            "cohort.position": self._cohort_position,
            "peer.leave": self.operating.told_to_leave,
        }

    async def run(self) -> None:
        """Run the background work until cancelled."""
        claiming = self.node.procedures.start(self.claiming.run())
        try:
            await self._summaries.run()
        finally:
            claiming.withdraw()

    # --- calls

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Call a client method in this process; raises `OnyxqError`."""
        handler = self._methods.get(method)
        if handler is None:
            raise NotFound(f"there is no method {method[:100]!r}", field="method")
        return plain(await self._perform(method, handler, decoded(method, args)))

    async def do(self, operation: Operation[A, R], args: A) -> R:
        """Return the result of an operation with valid arguments; raises `OnyxqError`."""
        result: R = await self._perform(operation.name, self._methods[operation.name], args)
        return result

    def dispatch(self, request: Request) -> None:
        """Serve a request that came over the wire."""
        handler = self._methods.get(request.method) or self.peer_methods.get(request.method)
        if handler is None:
            raise NotFound(f"there is no method {request.method[:100]!r}", field="method")
        if request.method in self.peer_methods and request.peer.role != "peer":
            raise Forbidden(f"{request.method[:100]} is for peers only")
        request.args = decoded(request.method, request.args)
        if is_procedure(handler):
            request.on_cancel = self.node.procedures.start(self._answer(request, handler)).withdraw
        else:
            self.node.start_soon(self._serve, request, handler)

    async def _serve(self, request: Request, handler: Handler) -> None:
        with trio.CancelScope() as scope:
            request.on_cancel = scope.cancel
            await self._answer(request, handler)

    async def _answer(self, request: Request, handler: Handler) -> None:
        method = request.method.removeprefix(LEAD)
        try:
            if admitted(method):
                with self.admission.admitted(request.caller, request.size, urgent=method in URGENT):
                    answer = await self._perform(request.method, handler, request.args)
            else:
                answer = await self._perform(request.method, handler, request.args)
            request.reply(answer)
        except OnyxqError as error:
            request.fail(error)

    def screen(self, method: str, size: int) -> None:
        """Judge a request before its arguments are decoded; raises `TooLarge`, `Overloaded`."""
        check_size(method, size)
        if admitted(method):
            self.admission.check(size)

    async def _perform(self, method: str, handler: Handler, args: Any) -> Any:
        """Return the answer of a method; raises only `OnyxqError`, and `BadRequest` only if nothing was changed."""
        # Another node may be able to answer a peer's read.
        failed = Unavailable if method in self.peer_methods else OnyxqError
        with serving(method, reads=changes_nothing(method), failed=failed):
            return await handler(args)

    def _partitions(self) -> int:
        return partitions_of(self.node)

    # --- claims

    def _give_back(self, granted: Sequence[Granted]) -> None:
        if granted:
            work = [Held(TaskId(one.first), int.from_bytes(one.body[4:8], "little"), one.token) for one in granted]
            self.node.start_soon(self._release, Release(items=work))

    async def _release(self, args: Release) -> None:
        try:
            await self.do(RELEASE, args)
        except OnyxqError as error:
            log.info("unwanted claims expire instead: %s", error.message)

    async def _lead_claim(self, asked: peers.Claims) -> dict[str, Any]:
        answers, heads = await claim_here(self.node, asked.requests, asked.wanted)
        return {"claims": [pack_answer(one) for one in answers], "heads": heads}

    async def _lead_head(self, asked: peers.Head) -> Any:
        return await self.node.granter.heads.wait_head(
            asked.queue, asked.known, asked.timeout_ms / 1000, wanted=asked.wanted, ahead=asked.ahead
        )

    # --- the cohort

    async def _cohort_reach(self, args: dict[str, Any]) -> None:
        await confirm_leader(self.node, *args["log"])
        await self.node.cohort.reach(args["partition"], args["epoch"])

    async def _cohort_position(self, args: dict[str, Any]) -> int:
        await self.node.history.reached(self.node.replica.position)
        return self.node.history.stored

    async def _cohort_push(self, args: dict[str, Any]) -> None:
        await self.node.cohort.push(args["partition"], args["epoch"], args["rows"])
        await self.node.taking.took(sum(len(value) for _, value in args["rows"]))

    async def _lead_offer(self, args: dict[str, Any]) -> None:
        asked = converted(peers.Offer, args)
        leader = self.node.operations.tokens.leader(asked.partition)
        await leader.take_offer(checked_rows(asked.rows, asked.partition))

    # --- the cluster

    def _view(self, operation: Operation[A, R], view: Callable[[Replica], dict[str, Any]]) -> dict[str, Handler]:
        async def look(args: A) -> R:
            return converted(operation.result, view(self.node.replica))

        return served(operation, look)

    async def _routes(self, args: GetRoutes) -> Routes:
        replica = self.node.replica
        return Routes(
            cluster=self.node.cluster_name,
            cluster_id=replica.cluster.id if replica.cluster else None,
            partitions=self._partitions(),
            leaders=cluster_views.leader_addresses(replica),
            peers=sorted({replica.peers[peer].address for peer in replica.ring.members}),
            position=replica.position,
            now_ms=self.node.wall_ms(),
        )

    async def _gc(self, args: Gc) -> GcReport:
        if self.peer is None:
            raise Unavailable(
                "this node cannot collect the log yet: its peer has not started",
                hint="Ask another peer, or try again in a moment.",
            )
        return converted(GcReport, await self.peer.collector.collect())


def _sync(function: Callable[[dict[str, Any]], Any]) -> Handler:
    async def handler(args: dict[str, Any]) -> Any:
        return function(args)

    return handler
