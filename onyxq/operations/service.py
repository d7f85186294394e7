"""The node's methods, as clients, HTTP and other peers call them.

Client methods are served by any node: it splits the work by leader and puts the answers
together (`onyxq.node.routing`, `onyxq.operations.claims`).  ``lead.*`` and ``cohort.*`` are
for peers only and are served from what this node itself leads and holds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import trio

from onyxq.core.claims import AHEAD_MS_MAX
from onyxq.core.errors import Forbidden, NotFound, OnyxqError, Unavailable
from onyxq.core.ids import PARTITIONS_MAX, IdMaker, TaskId, ids_of
from onyxq.core.log.interface import LogBackend
from onyxq.core.replica import live_nodes, unserved
from onyxq.leader.cohort.member import checked_rows
from onyxq.leader.grants.granter import Granted
from onyxq.node import arguments as check
from onyxq.node.all_leaders import AllLeaders
from onyxq.node.extension_duties import Extending
from onyxq.node.jobs.driver import Driving
from onyxq.node.log_check import confirm_leader, step_of
from onyxq.node.log_view import LogView
from onyxq.node.membership import Peer
from onyxq.node.node import Node
from onyxq.node.routing import Router, passing_map, passing_parts
from onyxq.operations import cluster_views, guarantees
from onyxq.operations.access.check import check_size
from onyxq.operations.admission import Admission
from onyxq.operations.arguments.transactions import asked_parts
from onyxq.operations.backup_rows import BackingUp
from onyxq.operations.bulk_reads import BulkReading
from onyxq.operations.claims import WANTED_MAX, Claimer, Claiming, claim_here, pack_answer
from onyxq.operations.cluster_changes import Operating
from onyxq.operations.dead_letters import DeadLetters
from onyxq.operations.enqueues import Enqueueing
from onyxq.operations.job_batches import JobBatches
from onyxq.operations.jobs import Jobs
from onyxq.operations.settings import Settings
from onyxq.operations.summaries import Summaries
from onyxq.operations.task_lists import Listing
from onyxq.operations.task_reads import Reading, named
from onyxq.operations.taskstore import TaskStore
from onyxq.operations.timers import Timers
from onyxq.operations.transactions import Transactions
from onyxq.system.failures import serving
from onyxq.wire.bounds import OWNER
from onyxq.wire.server import Request

HEAD_TIMEOUT_MS_MAX = 10_000
IDS_MAX = 100_000

log = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any]], Awaitable[Any]]

READS = frozenset(
    """
    backup.rows cluster count dead extension get health ids job.get job.list job.wait list log log.raw metrics origin
    partition partitions peers periodic.get periodic.list queue.get queues queues.page rates replica ring routes
    task_history task_log taskstore.group taskstore.groups taskstore.tasks tasks.bodies timer.get timer.list workers
    cohort.covering cohort.hours cohort.keys cohort.leaves cohort.pending cohort.position cohort.rows
    cohort.step job.told
    lead.bodies lead.counts lead.dead lead.depended lead.head lead.list lead.outcomes lead.rates lead.rows
    lead.timer.find lead.told lead.view lead.waiting
    """.split()
)
"""Methods that change nothing."""
URGENT = frozenset("complete fail release renew cancel".split())
"""Writes that end or extend claims."""
ADMITTED = URGENT | frozenset(
    """
    enqueue update transact prepare jobs.prepare jobs.commit job.submit dead.requeue requeue periodic.set queue.set
    submit taskstore.update taskstore.claim timer.set timer.cancel
    """.split()
)
"""Writes that are refused while too many are in progress; peers ask for some with ``lead.`` before the name."""


class Service:
    """See the module's first paragraph."""

    def __init__(
        self,
        node: Node,
        *,
        random_64: Callable[[], int],
        backend: LogBackend | None = None,
        driver: Driving | None = None,
    ) -> None:
        self.node = node
        self._driver = driver
        self.peer: Peer | None = None
        self.admission = Admission(trio.current_time)
        """Bound on the writes that clients, directly or through other nodes, ask this node for."""
        self.operating = Operating(node)
        self._ids = IdMaker(node.wall_ms, random_64)
        self._next_partition = random_64() % 64
        self._router = Router(node)
        self._leaders = leaders = AllLeaders(node)
        self._reading = Reading(node, leaders)
        listing = Listing(node, self._reading, leaders)
        enqueueing = Enqueueing(node, self._router, self._partitions)
        dead = DeadLetters(node, self._router, self._reading, listing)
        dependencies = node.operations.dependencies
        self.transactions = Transactions(node)
        batches, bulk = JobBatches(node, self.transactions), BulkReading(node)
        backing_up = BackingUp(node)
        extending, settings, jobs = Extending(node), Settings(node, self._reading), Jobs(node, driver)
        store = TaskStore(node, random_64)
        self.timers = Timers(node, self._router, self._reading, listing=listing, ids=self._ids)
        node.enqueue, node.ask = enqueueing.enqueue, self.call
        self.log_view = LogView(node, backend)
        self.claiming = Claiming(node, self._give_back)
        summaries = Summaries(node, self._reading, self.claiming)
        self._methods: dict[str, Handler] = {
            "enqueue": enqueueing.enqueue,
            "complete": self._complete,
            "fail": self._fail,
            "renew": self._renew,
            "release": self._release,
            "update": self._update,
            "cancel": self._cancel,
            "dead": dead.page,
            "dead.requeue": dead.requeue,
            "dead.discard": dead.discard,
            "ids": self._make_ids,
            "routes": self._routes,
            "get": self._reading.get,
            "task_log": self._reading.task_log,
            "list": listing.page,
            "count": self._reading.count,
            "queues": self._reading.queues,
            "queues.page": summaries.queues,
            "workers": summaries.workers,
            "rates": summaries.rates,
            "task_history": self._reading.task_history,
            "log": self._reading.log,
            "log.raw": self.log_view.raw,
            "origin": self.log_view.origin,
            "replica": self.log_view.replica,
            "cluster": self._view(cluster_views.cluster),
            "ring": self._view(cluster_views.ring),
            "partitions": self.operating.partitions,
            "peers": self._view(cluster_views.peers),
            "partition": self.operating.partition,
            "partition.force": self.operating.force,
            "transact": self.transactions.transact,
            "tasks.bodies": bulk.read,
            "jobs.prepare": batches.prepare,
            "jobs.commit": batches.commit,
            "queue.set": settings.set_queue,
            "queue.get": settings.get_queue,
            "periodic.set": settings.set_periodic,
            "periodic.get": settings.get_periodic,
            "periodic.list": settings.list_periodic,
            "periodic.remove": settings.remove_periodic,
            "periodic.pause": settings.pause_periodic,
            "timer.set": self.timers.set,
            "timer.get": self.timers.get,
            "timer.cancel": self.timers.cancel,
            "timer.list": self.timers.list,
            "job.submit": jobs.submit,
            "job.kill": jobs.kill,
            "job.seal": jobs.seal,
            "job.list": jobs.list,
            "job.get": jobs.get,
            "job.wait": jobs.wait,
            "gc": self._gc,
            "backup.hold": backing_up.hold,
            "backup.rows": backing_up.rows,
            "leave": self.operating.leave,
            "submit": extending.submit,
            "extension": extending.extension,
            "taskstore.update": store.update,
            "taskstore.claim": store.claim,
            "taskstore.tasks": store.tasks,
            "taskstore.group": store.group,
            "taskstore.groups": store.groups,
            "taskstore.set_limits": store.set_limits,
            "health": self._health,
            "metrics": self._metrics,
        }
        self.peer_methods: dict[str, Handler] = {
            "lead.enqueue": enqueueing.lead_enqueue,
            "lead.complete": self._lead(check.completions, node.operations.complete),
            "lead.fail": self._lead(check.failures, node.operations.fail),
            "lead.renew": self._lead(check.renewals, node.operations.renew),
            "lead.release": self._lead(check.releases, node.operations.release),
            "lead.update": self._lead_update,
            "lead.cancel": self._lead(check.cancels, lambda asked: node.operations.cancel(asked[0], claimed=asked[1])),
            "lead.dead": leaders.serving(dead.look),
            "lead.requeue": self._lead(check.task_ids, node.operations.dead.requeue),
            "lead.discard": self._lead(check.task_ids, node.operations.dead.discard),
            "lead.outcomes": self._lead(check.outcomes, lambda asked: dependencies.outcomes(*asked)),
            "lead.finished": self._lead(check.task_ids, dependencies.heard),
            "lead.depended": lambda a: node.operations.depended.depended(check.stretches(a)),
            "lead.timer.set": self.timers.lead_set,
            "lead.timer.find": self.timers.lead_find,
            "lead.timer.cancel": self.timers.lead_cancel,
            "lead.prepare": self._lead(asked_parts, node.operations.transacting.prepare),
            "lead.claim": self._lead_claim,
            "lead.head": self._lead_head,
            "lead.view": self._reading.lead_view,
            "lead.bodies": bulk.lead_read,
            "lead.rows": backing_up.lead_rows,
            "lead.list": leaders.serving(listing.look),
            "lead.counts": leaders.serving(self._reading.look),
            "lead.rates": summaries.lead_rates,
            "lead.waiting": summaries.lead_waiting,
            "lead.offer": self._lead_offer,
            "cohort.write": lambda a: node.cohort.write(a["writes"], early=a.get("early", False)),
            "cohort.reach": self._cohort_reach,
            "cohort.step": _sync(lambda a: step_of(node.replica, a["position"])),
            "cohort.push": self._cohort_push,
            "cohort.pending": _sync(lambda a: node.cohort.pending(a["partition"], a["known"], a["want"])),
            "cohort.hours": _sync(lambda a: node.cohort.hours(a["partition"])),
            "cohort.leaves": _sync(lambda a: node.cohort.leaves(a["partition"], a["hour"])),
            "cohort.keys": _sync(lambda a: node.cohort.keys(a["partition"], a["hour"], a["leaves"])),
            "cohort.rows": _sync(lambda a: node.cohort.rows(a["keys"])),
            "cohort.covering": _sync(lambda a: node.cohort.covering(self._task_id(a["id"]))),
            "cohort.position": self._cohort_position,
            "lead.told": _sync(lambda _: node.told_here()),
            "job.told": jobs.told_here,
            "peer.leave": self.operating.told_to_leave,
        }
        """What only peers may call."""

    async def run(self) -> None:
        """Background work until cancelled."""
        await self.claiming.run()

    # --- calls

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Call a client method in this process; raises `OnyxqError`."""
        if method == "claim":
            return await self._claim(args)
        handler = self._methods.get(method)
        if handler is None:
            raise NotFound(f"there is no method {method[:100]!r}", field="method")
        return await self._perform(method, handler, args)

    def dispatch(self, request: Request) -> None:
        """Serve a request that came over the wire."""
        if request.method == "claim":
            with serving("claim"):
                claimer = self._claimer(request.args, request.reply, request.fail)

            def withdrawn() -> None:
                claimer.gone = True

            request.on_cancel = withdrawn
            self.claiming.submit(claimer)
            return
        handler = self._methods.get(request.method) or self.peer_methods.get(request.method)
        if handler is None:
            raise NotFound(f"there is no method {request.method[:100]!r}", field="method")
        if request.method in self.peer_methods and request.peer.role != "peer":
            raise Forbidden(f"{request.method} is for peers")
        self.node.start_soon(self._serve, request, handler)

    async def _serve(self, request: Request, handler: Handler) -> None:
        with trio.CancelScope() as scope:
            request.on_cancel = scope.cancel
            try:
                with self._admitted(request):
                    request.reply(await self._perform(request.method, handler, request.args))
            except OnyxqError as error:
                request.fail(error)

    def screen(self, method: str, size: int) -> None:
        """Judge a request before its arguments are decoded; raises `TooLarge`, `Overloaded`."""
        check_size(method, size)
        if method in ADMITTED:
            self.admission.check(size)

    @contextmanager
    def _admitted(self, request: Request) -> Iterator[None]:
        """Count a write that came over the wire while it is served; raises `Overloaded`."""
        method = request.method.removeprefix("lead.")
        if method not in ADMITTED:
            yield
            return
        with self.admission.admitted(request.caller, request.size, urgent=method in URGENT):
            yield

    async def _perform(self, method: str, handler: Handler, args: dict[str, Any]) -> Any:
        """The answer of a method; raises `OnyxqError` only, and `BadRequest` only if nothing was changed."""
        # Another node may be able to answer a peer's read.
        failed = Unavailable if method in self.peer_methods else OnyxqError
        with serving(method, reads=method in READS, failed=failed):
            return await handler(args)

    def _partitions(self) -> int:
        if self.node.replica.cluster is None:
            raise Unavailable("the cluster is not known here yet")
        return self.node.replica.settings.partitions

    # --- tasks

    async def _items(
        self, method: str, work: Sequence[Any], local: Callable[[list[Any]], Awaitable[list[Any]]]
    ) -> dict[str, Any]:
        refused = await self._router.each(
            work,
            method=f"lead.{method}",
            pack=lambda part: {"items": [list(one) for one in part]},
            unpack=lambda answer: list(answer),
            local=local,
            passing=passing_parts,
            failed=lambda item, error: [[item[0], item[1], error.to_map()]],
        )
        return {"results": refused}

    async def _complete(self, args: dict[str, Any]) -> dict[str, Any]:
        work = check.completions(args, self._partitions())
        return await self._items("complete", work, self.node.operations.complete)

    async def _fail(self, args: dict[str, Any]) -> dict[str, Any]:
        work = check.failures(args, self._partitions())
        return await self._items("fail", work, self.node.operations.fail)

    async def _renew(self, args: dict[str, Any]) -> dict[str, Any]:
        work = check.renewals(args, self._partitions())
        return await self._items("renew", work, self.node.operations.renew)

    async def _release(self, args: dict[str, Any]) -> dict[str, Any]:
        work = check.releases(args, self._partitions())
        return await self._items("release", work, self.node.operations.release)

    async def _update(self, args: dict[str, Any]) -> dict[str, Any]:
        work, wanted = self._checked_updates(args)
        acks = await self._router.each(
            work,
            method="lead.update",
            pack=lambda part: {"items": [list(one) for one in part], "w": wanted},
            unpack=lambda answer: list(answer),
            local=lambda part: self.node.operations.update(part, wanted),
            passing=passing_map,
            failed=lambda _, error: error.to_map(),
        )
        answer: dict[str, Any] = {"results": [ack if isinstance(ack, dict) else None for ack in acks]}
        if wanted is not None:
            answer["acks"] = [0 if isinstance(ack, dict) else ack for ack in acks]
            stored = ((item[0], ack) for item, ack in zip(work, acks, strict=True))
            if lacking := guarantees.few(self.node.replica, stored):
                answer["guarantee"] = lacking
        return answer

    async def _lead_update(self, args: dict[str, Any]) -> Any:
        return await self.node.operations.update(*self._checked_updates(args))

    def _checked_updates(self, args: dict[str, Any]) -> tuple[list[tuple[TaskId, int, int, bytes]], int | None]:
        return check.updates(args, self._partitions(), self.node.replica.settings.replicas)

    async def _cancel(self, args: dict[str, Any]) -> dict[str, Any]:
        ids, claimed = check.cancels(args, self._partitions())
        more = {"claimed": True} if claimed else {}  # peers of an older version do not know the word
        results = await self._router.each(
            [(one,) for one in ids],
            method="lead.cancel",
            pack=lambda part: {"ids": [one[0] for one in part], **more},
            unpack=lambda answer: list(answer),
            local=lambda part: self.node.operations.cancel([one[0] for one in part], claimed=claimed),
            passing=passing_map,
            failed=lambda _, error: error.to_map(),
        )
        return {"results": results}

    def _lead(self, checked: Callable[[dict[str, Any], int], Any], work: Callable[[Any], Awaitable[Any]]) -> Handler:
        async def handler(args: dict[str, Any]) -> Any:
            return await work(checked(args, self._partitions()))

        return handler

    def _task_id(self, value: Any) -> bytes:
        return check.task_id(value, "id", self._partitions())

    # --- claims

    def _claimer(
        self, args: dict[str, Any], reply: Callable[[Any], None], fail: Callable[[OnyxqError], None]
    ) -> Claimer:
        check.only(args, ("queues", "max", "lease_ms", "wait_ms", "worker", "ahead_ms"))
        ahead_ms = check.integer(args.get("ahead_ms", 0), "ahead_ms", 0, AHEAD_MS_MAX)
        wait_ms = check.integer(args.get("wait_ms", 0), "wait_ms", 0, check.WAIT_MS_MAX)
        worker = args.get("worker")
        queues, maximum, lease_ms, worker = check.claim_terms(
            args.get("queues"), args.get("max", 1), args.get("lease_ms"), "" if worker is None else worker
        )
        return Claimer(
            queues=queues,
            maximum=maximum,
            lease_ms=lease_ms,
            worker=worker,
            owner=OWNER.get(),
            deadline=trio.current_time() + wait_ms / 1000,
            ahead_ms=ahead_ms,
            reply=lambda granted: reply(_claims(granted, told=not lease_ms)),
            fail=fail,
        )

    async def _claim(self, args: dict[str, Any]) -> Any:
        done = trio.Event()
        found: list[Any] = []
        errors: list[OnyxqError] = []

        def reply(result: Any) -> None:
            found.append(result)
            done.set()

        def fail(error: OnyxqError) -> None:
            errors.append(error)
            done.set()

        claimer = self._claimer(args, reply, fail)
        self.claiming.submit(claimer)
        try:
            await done.wait()
        except trio.Cancelled:
            claimer.gone = True
            if found:
                self._give_back([Granted(*one) for one in found[0]["claims"]])
            raise
        if errors:
            raise errors[0]
        return found[0]

    def _give_back(self, granted: Sequence[Granted]) -> None:
        work = [[one.first, int.from_bytes(one.body[4:8], "little"), one.token] for one in granted]

        async def release() -> None:
            try:
                await self._release({"items": work})
            except OnyxqError as error:
                log.info("claims that nobody waited for expire instead: %s", error.message)

        self.node.start_soon(release)

    async def _lead_claim(self, args: dict[str, Any]) -> dict[str, Any]:
        answers, heads = await claim_here(self.node, *check.claims(args))
        return {"claims": [pack_answer(one) for one in answers], "heads": heads}

    async def _lead_head(self, args: dict[str, Any]) -> Any:
        queue = check.name(args["queue"], "queue", check.QUEUE_CHARS_MAX, least=1)
        timeout_ms = check.integer(args["timeout_ms"], "timeout_ms", 0, HEAD_TIMEOUT_MS_MAX)
        known = args["known"]
        if known is not None:
            priority, due_ms = (check.integer(one, "known", -(1 << 63), 1 << 63) for one in known)
            known = (priority, due_ms)
        wanted = check.integer(args.get("wanted", 1), "wanted", 0, WANTED_MAX)
        ahead = args.get("ahead") is True
        return await self.node.granter.heads.wait_head(queue, known, timeout_ms / 1000, wanted=wanted, ahead=ahead)

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
        leader = self.node.operations.leader(check.integer(args["partition"], "partition", 0, PARTITIONS_MAX - 1))
        await leader.write(checked_rows(args["rows"], args["partition"]))

    # --- the cluster

    def _view(self, view: Callable[..., dict[str, Any]]) -> Handler:
        async def handler(args: dict[str, Any]) -> dict[str, Any]:
            check.only(args, ())
            return view(self.node.replica)

        return handler

    async def _make_ids(self, args: dict[str, Any]) -> dict[str, Any]:
        check.only(args, ("count",))
        count = check.integer(args.get("count", 1), "count", 1, IDS_MAX)
        partitions = self._partitions()
        ids: list[bytes] = []
        while count:
            part = min(count, 1024)
            self._next_partition = (self._next_partition + 1) % partitions
            run = self._ids.run(self._next_partition, part)
            ids += ids_of(*run)
            count -= part
        return {"ids": ids}

    async def _routes(self, args: dict[str, Any]) -> dict[str, Any]:
        check.only(args, ())
        replica = self.node.replica
        # New tasks go where a leader is named: not to where one lives whose majority is gone, or takes over.
        away = set(unserved(replica, live_nodes(replica)))
        leaders = {}
        for number, placed in replica.partitions.items():
            peer = replica.peers.get(placed.leader)
            if peer is not None and number not in away:
                leaders[number] = peer.address
        return {
            "cluster": self.node.cluster_name,
            "cluster_id": replica.cluster.id if replica.cluster else None,
            "partitions": self._partitions(),
            "leaders": leaders,
            "peers": sorted({replica.peers[peer].address for peer in replica.ring.members}),
            "position": replica.position,
            "now_ms": self.node.wall_ms(),
        }

    async def _gc(self, args: dict[str, Any]) -> dict[str, int]:
        check.only(args, ())
        if self.peer is None:
            raise Unavailable("this node has no peer in the ring now")
        return await self.peer.collector.collect()

    async def _health(self, args: dict[str, Any]) -> dict[str, Any]:
        check.only(args, ())
        node = self.node
        reasons = []
        if node.replica.cluster is None or not node.peer_id:
            reasons.append("no peer of this node is in the log")
        elif node.peer_id not in node.replica.ring.members:
            reasons.append("the peer is joining the ring")
        if node.went_back is not None:
            reasons = [f"{node.went_back.message}; nothing is granted. {node.went_back.advice.rstrip('.')}"]
        elif not node.log_connected:
            reasons.append("the log cannot be reached")
        if refusal := node.store.condition.refusal:
            reasons.append(f"the store cannot be written: {refusal}")
        return {
            "live": True,
            "ready": not reasons,
            "reasons": reasons,
            "log_connected": node.log_connected,
            "log_went_back": node.went_back is not None,
            "log_lag": node.log_lag,
            "position": node.replica.position,
        }

    async def _metrics(self, args: dict[str, Any]) -> dict[str, str]:
        check.only(args, ())
        node, metrics = self.node, self.node.metrics
        metrics.log_position.set(node.replica.position)
        metrics.log_lag_entries.set(node.log_lag)
        metrics.log_went_back.set(int(node.went_back is not None))
        metrics.writes_refused.set(self.admission.refused)
        self._sync_metrics()
        metrics.store_writable.set(int(not node.store.condition.refusal))
        if self._driver is not None:
            metrics.spark_host_up.set(int(self._driver.host_state == "up"))
            metrics.jobs_driven.replace({(state,): n for state, n in self._driver.states().items()})
        metrics.partition_leader.replace({(str(number),): int(one.ready) for number, one in node.leaders.items()})
        depths: dict[tuple[str, ...], float] = {}
        oldest: dict[tuple[str, ...], float] = {}
        for queue, counts in self._reading.local_counts(None, self._leaders.led()).items():
            for state, count in named(counts).items():
                if state != "total":
                    depths[queue, state] = count
            head = node.granter.heads.head(queue)
            if head is not None:
                oldest[queue,] = max(0, node.wall_ms() - head[1]) / 1000
        metrics.queue_depth.replace(depths)
        metrics.queue_oldest_seconds.replace(oldest)
        return {"text": metrics.text()}

    def _sync_metrics(self) -> None:
        """How much other nodes lack of the partitions that are led here."""
        rows: dict[tuple[str, ...], float] = {}
        partitions: dict[tuple[str, ...], float] = {}
        waits = Counter(self.node.operations.purging.waits.values())
        self.node.metrics.purge_waits.replace({(why,): count for why, count in waits.items()})
        for transfers in self.node.transfers_here().values():
            for one in transfers:
                node = (one["node"],)
                rows[node] = rows.get(node, 0) + (one["rows_left"] or 0)
                partitions[node] = partitions.get(node, 0) + 1
        self.node.metrics.sync_rows_left.replace(rows)
        self.node.metrics.sync_partitions_left.replace(partitions)


def _claims(granted: Sequence[Granted], *, told: bool) -> dict[str, Any]:
    """The answer to a claim; ``told``: with the leases, as whoever claimed named none."""
    answer: dict[str, Any] = {"claims": [list(one[:5]) for one in granted]}
    if any(one.due_in_ms for one in granted):
        answer["due_in_ms"] = [one.due_in_ms for one in granted]
    return {**answer, "leases": [one.lease_ms for one in granted]} if told else answer


def _sync(function: Callable[[dict[str, Any]], Any]) -> Handler:
    async def handler(args: dict[str, Any]) -> Any:
        return function(args)

    return handler
