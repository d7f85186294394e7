"""The node's methods, as clients, HTTP and other peers call them.

Client methods are served by any node: it splits the work by leader and puts the answers
together (`onyxq.peer.routing`, `onyxq.peer.claiming`).  ``lead.*`` and ``cohort.*`` are
for peers only and are served from what this node itself leads and holds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from log_entries import leave_cluster
from onyxq import facts
from onyxq.errors import BadRequest, Forbidden, NotFound, OnyxqError, Overloaded, Unavailable
from onyxq.ids import IdMaker, ids_of
from onyxq.partition.cohort import checked_rows
from onyxq.partition.granter import Granted
from onyxq.peer import arguments as check
from onyxq.peer import views
from onyxq.peer.claiming import Claimer, Claiming, claim_here, pack_answer
from onyxq.peer.node import Node
from onyxq.peer.peer import Peer
from onyxq.peer.reading import Reading, named
from onyxq.peer.routing import Router, passing_map, passing_parts
from onyxq.store.interface import Batch
from onyxq.wire.server import Request

ENQUEUE_BYTES_MAX = 256 * 1024 * 1024
"""Payload bytes of enqueues being written; above it clients hear `Overloaded`."""
LOG_LAG_READY = 1_000
IDS_MAX = 100_000

log = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any]], Awaitable[Any]]


class Service:
    """See the module's first paragraph."""

    def __init__(self, node: Node, *, random_64: Callable[[], int]) -> None:
        self.node = node
        self.peer: Peer | None = None
        self.leave_wanted = trio.Event()
        """Set when an operator asks this node's peer to leave."""
        self._ids = IdMaker(node.wall_ms, random_64)
        self._next_partition = random_64() % 64
        self._enqueueing = 0
        self._router = Router(node)
        self._reading = Reading(node)
        self.claiming = Claiming(node, self._give_back)
        self._methods: dict[str, Handler] = {
            "enqueue": self._enqueue,
            "complete": self._complete,
            "fail": self._fail,
            "renew": self._renew,
            "release": self._release,
            "update": self._update,
            "cancel": self._cancel,
            "ids": self._make_ids,
            "routes": self._routes,
            "get": self._reading.get,
            "task_log": self._reading.task_log,
            "list": self._reading.page,
            "count": self._reading.count,
            "queues": self._reading.queues,
            "log": self._reading.log,
            "cluster": self._view(views.cluster),
            "ring": self._view(views.ring),
            "partitions": self._view(views.partitions),
            "peers": self._view(views.peers),
            "partition": self._partition,
            "gc": self._gc,
            "leave": self._leave,
            "health": self._health,
            "metrics": self._metrics,
        }
        operations, cohort = node.operations, node.cohort
        self._peer_methods: dict[str, Handler] = {
            "lead.enqueue": lambda a: operations.enqueue([(f, b) for f, b in a["runs"]], a["w"]),
            "lead.complete": lambda a: operations.complete(a["items"]),
            "lead.fail": lambda a: operations.fail(a["items"]),
            "lead.renew": lambda a: operations.renew(a["items"]),
            "lead.release": lambda a: operations.release(a["items"]),
            "lead.update": lambda a: operations.update(a["items"]),
            "lead.cancel": lambda a: operations.cancel(a["ids"]),
            "lead.claim": self._lead_claim,
            "lead.head": self._lead_head,
            "lead.view": self._reading.lead_view,
            "lead.list": self._reading.lead_list,
            "lead.counts": self._reading.lead_counts,
            "lead.offer": self._lead_offer,
            "cohort.write": lambda a: cohort.write(a["writes"]),
            "cohort.reach": self._cohort_reach,
            "cohort.push": self._cohort_push,
            "cohort.hours": _sync(lambda a: cohort.hours(a["partition"])),
            "cohort.leaves": _sync(lambda a: cohort.leaves(a["partition"], a["hour"])),
            "cohort.keys": _sync(lambda a: cohort.keys(a["partition"], a["hour"], a["leaves"])),
            "cohort.rows": _sync(lambda a: cohort.rows(a["keys"])),
            "cohort.covering": _sync(lambda a: cohort.covering(a["id"])),
            "cohort.position": self._cohort_position,
            "peer.leave": self._peer_leave,
        }

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
        return await handler(args)

    def dispatch(self, request: Request) -> None:
        """Serve a request that came over the wire."""
        if request.method == "claim":
            claimer = self._claimer(request.args, request.reply, request.fail)

            def withdrawn() -> None:
                claimer.gone = True

            request.on_cancel = withdrawn
            self.claiming.submit(claimer)
            return
        handler = self._methods.get(request.method) or self._peer_methods.get(request.method)
        if handler is None:
            raise NotFound(f"there is no method {request.method[:100]!r}", field="method")
        if request.method in self._peer_methods and request.peer.role != "peer":
            raise Forbidden(f"{request.method} is for peers")
        self.node.start_soon(self._serve, request, handler)

    async def _serve(self, request: Request, handler: Handler) -> None:
        with trio.CancelScope() as scope:
            request.on_cancel = scope.cancel
            try:
                request.reply(await handler(request.args))
            except OnyxqError as error:
                request.fail(error)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                if request.method not in self._peer_methods:
                    log.exception("%s failed", request.method)
                    request.fail(OnyxqError(f"{request.method} failed unexpectedly"))
                else:
                    request.fail(BadRequest(f"{request.method}: {error!r}"))

    def _partitions(self) -> int:
        if self.node.replica.cluster is None:
            raise Unavailable("the cluster is not known here yet")
        return self.node.replica.settings.partitions

    # --- tasks

    async def _enqueue(self, args: dict[str, Any]) -> dict[str, Any]:
        partitions = self._partitions()
        check.only(args, ("runs", "w"))
        wanted = args.get("w")
        if wanted is not None:
            check.integer(wanted, "w", 1, check.W_MAX)
        found = check.items({"runs": args.get("runs")}, 2, "runs")
        runs = [check.task_run(item, place, partitions) for place, item in enumerate(found)]
        size = sum(len(body) for _, body in runs)
        if self._enqueueing + size > ENQUEUE_BYTES_MAX:
            raise Overloaded("too many bytes are being enqueued here")
        self._enqueueing += size
        try:
            acks = await self._router.each(
                runs,
                method="lead.enqueue",
                pack=lambda part: {"runs": [list(one) for one in part], "w": wanted},
                unpack=lambda answer: list(answer),
                local=lambda part: self.node.operations.enqueue(part, wanted),
                passing=passing_map,
                failed=lambda _, error: error.to_map(),
            )
        finally:
            self._enqueueing -= size
        return {"acks": acks}

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
        partitions = self._partitions()
        work = []
        for place, item in enumerate(check.items(args, 5)):
            field = f"items[{place}]"
            first, count = check.run(item, field, partitions)
            token = check.token(item[2], f"{field}.token")
            seq = item[3] if item[3] is None else check.integer(item[3], f"{field}.seq", 0, 1 << 31)
            work.append((first, count, token, seq, check.results(item[4], f"{field}.result", count)))
        return await self._items("complete", work, self.node.operations.complete)

    async def _fail(self, args: dict[str, Any]) -> dict[str, Any]:
        partitions = self._partitions()
        work = []
        for place, item in enumerate(check.items(args, 5)):
            field = f"items[{place}]"
            first, count = check.run(item, field, partitions)
            token = check.token(item[2], f"{field}.token")
            error = check.text(item[3], f"{field}.error", check.ERROR_CHARS_MAX)
            retry = item[4]
            if retry is not None:
                check.integer(retry, f"{field}.retry_in_ms", 0, check.RETRY_MS_MAX)
            work.append((first, count, token, error, retry))
        return await self._items("fail", work, self.node.operations.fail)

    async def _renew(self, args: dict[str, Any]) -> dict[str, Any]:
        partitions = self._partitions()
        work = []
        for place, item in enumerate(check.items(args, 4)):
            field = f"items[{place}]"
            first, count = check.run(item, field, partitions)
            token = check.token(item[2], f"{field}.token")
            work.append((first, count, token, check.integer(item[3], f"{field}.lease_ms", *check.LEASE_MS)))
        return await self._items("renew", work, self.node.operations.renew)

    async def _release(self, args: dict[str, Any]) -> dict[str, Any]:
        partitions = self._partitions()
        work = []
        for place, item in enumerate(check.items(args, 3)):
            field = f"items[{place}]"
            first, count = check.run(item, field, partitions)
            work.append((first, count, check.token(item[2], f"{field}.token")))
        return await self._items("release", work, self.node.operations.release)

    async def _update(self, args: dict[str, Any]) -> dict[str, Any]:
        partitions = self._partitions()
        work = []
        for place, item in enumerate(check.items(args, 4)):
            field = f"items[{place}]"
            found = check.task_id(item[0], f"{field}.id", partitions)
            token = check.token(item[1], f"{field}.token")
            seq = check.integer(item[2], f"{field}.seq", 0, 1 << 31)
            if not isinstance(item[3], bytes) or len(item[3]) > facts.RUN_BYTES_MAX:
                raise BadRequest(f"{field}.data must be at most {facts.RUN_BYTES_MAX} bytes", field=f"{field}.data")
            work.append((found, token, seq, item[3]))
        results = await self._router.each(
            work,
            method="lead.update",
            pack=lambda part: {"items": [list(one) for one in part]},
            unpack=lambda answer: list(answer),
            local=self.node.operations.update,
            passing=passing_map,
            failed=lambda _, error: error.to_map(),
        )
        return {"results": results}

    async def _cancel(self, args: dict[str, Any]) -> dict[str, Any]:
        partitions = self._partitions()
        check.only(args, ("ids",))
        ids = args.get("ids")
        if not isinstance(ids, list) or len(ids) > check.ITEMS_MAX:
            raise BadRequest(f"ids must be a list of at most {check.ITEMS_MAX}", field="ids")
        work = [(check.task_id(one, f"ids[{place}]", partitions),) for place, one in enumerate(ids)]
        results = await self._router.each(
            work,
            method="lead.cancel",
            pack=lambda part: {"ids": [one[0] for one in part]},
            unpack=lambda answer: list(answer),
            local=lambda part: self.node.operations.cancel([one[0] for one in part]),
            passing=passing_map,
            failed=lambda _, error: error.to_map(),
        )
        return {"results": results}

    # --- claims

    def _claimer(
        self, args: dict[str, Any], reply: Callable[[Any], None], fail: Callable[[OnyxqError], None]
    ) -> Claimer:
        check.only(args, ("queues", "max", "lease_ms", "wait_ms", "worker"))
        wait_ms = check.integer(args.get("wait_ms", 0), "wait_ms", 0, check.WAIT_MS_MAX)
        return Claimer(
            queues=check.queues(args.get("queues")),
            maximum=check.integer(args.get("max", 1), "max", 1, check.CLAIM_TASKS_MAX),
            lease_ms=check.integer(args.get("lease_ms", 30_000), "lease_ms", *check.LEASE_MS),
            worker=check.text(args.get("worker") or "", "worker", check.WORKER_CHARS_MAX),
            deadline=trio.current_time() + wait_ms / 1000,
            reply=lambda granted: reply({"claims": [list(one) for one in granted]}),
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
        answers, heads = await claim_here(self.node, [tuple(one) for one in args["requests"]])
        return {"claims": [pack_answer(one) for one in answers], "heads": heads}

    async def _lead_head(self, args: dict[str, Any]) -> Any:
        known = tuple(args["known"]) if args["known"] is not None else None
        return await self.node.granter.wait_head(args["queue"], known, args["timeout_ms"] / 1000)

    # --- the cohort

    async def _cohort_reach(self, args: dict[str, Any]) -> None:
        await self.node.cohort.reach(args["partition"], args["epoch"])

    async def _cohort_push(self, args: dict[str, Any]) -> None:
        node = self.node
        node.cohort.check(args["partition"], args["epoch"])
        rows = checked_rows(args["rows"], args["partition"])
        written = await node.store.write(Batch(rows=rows))
        node.pieces_added(written.pieces)

    async def _cohort_position(self, args: dict[str, Any]) -> int:
        await self.node.history.reached(self.node.replica.position)
        return self.node.history.stored

    async def _lead_offer(self, args: dict[str, Any]) -> None:
        leader = self.node.operations.leader(args["partition"])
        await leader.write(checked_rows(args["rows"], args["partition"]))

    # --- the cluster

    def _view(self, view: Callable[..., dict[str, Any]]) -> Handler:
        async def handler(args: dict[str, Any]) -> dict[str, Any]:
            check.only(args, ())
            return view(self.node.replica)

        return handler

    async def _partition(self, args: dict[str, Any]) -> dict[str, Any]:
        check.only(args, ("partition",))
        number = check.integer(args.get("partition"), "partition", 0, 1 << 16)
        if number not in self.node.replica.partitions:
            raise NotFound(f"there is no partition {number}", field="partition")
        return {"position": self.node.replica.position, **views.partition(self.node.replica, number)}

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
        leaders = {}
        for number, placed in replica.partitions.items():
            peer = replica.peers.get(placed.leader)
            if peer is not None:
                leaders[number] = peer.address
        return {
            "cluster": self.node.cluster_name,
            "cluster_id": replica.cluster.id if replica.cluster else None,
            "partitions": self._partitions(),
            "leaders": leaders,
            "peers": sorted({replica.peers[peer].address for peer in replica.ring.members}),
            "position": replica.position,
        }

    async def _gc(self, args: dict[str, Any]) -> dict[str, int]:
        check.only(args, ())
        if self.peer is None:
            raise Unavailable("this node has no peer in the ring now")
        return await self.peer.collect()

    async def _leave(self, args: dict[str, Any]) -> dict[str, Any]:
        check.only(args, ("peer", "permanent"))
        wanted = check.text(args.get("peer"), "peer", 100, least=1)
        permanent = args.get("permanent", False)
        if permanent is not False:
            raise BadRequest("moving a node's copies away first is not supported by this version", field="permanent")
        replica = self.node.replica
        found = replica.peers.get(wanted)
        if found is None:
            raise NotFound(f"there is no peer {wanted}", field="peer")
        if found.node == self.node.node_id:
            self.leave_wanted.set()
            return {}
        try:
            await self.node.call(found.node, "peer.leave", {"peer": wanted}, timeout_s=3.0)
        except Unavailable:
            await self.node.verdicts([leave_cluster.Args(wanted, "told to leave; it did not answer")])
        return {}

    async def _peer_leave(self, args: dict[str, Any]) -> None:
        if args["peer"] == self.node.peer_id:
            self.leave_wanted.set()

    async def _health(self, args: dict[str, Any]) -> dict[str, Any]:
        node = self.node
        reasons = []
        if node.replica.cluster is None or not node.peer_id:
            reasons.append("no peer of this node is in the log")
        elif node.peer_id not in node.replica.ring.members:
            reasons.append("the peer is joining the ring")
        if not node.log_connected:
            reasons.append("the log cannot be reached")
        return {
            "live": True,
            "ready": not reasons,
            "reasons": reasons,
            "log_connected": node.log_connected,
            "log_lag": node.log_lag,
            "position": node.replica.position,
        }

    async def _metrics(self, args: dict[str, Any]) -> dict[str, str]:
        node, metrics = self.node, self.node.metrics
        metrics.log_position.set(node.replica.position)
        metrics.log_lag_entries.set(node.log_lag)
        metrics.partition_leader.replace({(str(number),): int(one.ready) for number, one in node.leaders.items()})
        depths: dict[tuple[str, ...], float] = {}
        oldest: dict[tuple[str, ...], float] = {}
        for queue, counts in self._reading.local_counts(None).items():
            for state, count in named(counts).items():
                if state != "total":
                    depths[queue, state] = count
            head = node.granter.head(queue)
            if head is not None:
                oldest[queue,] = max(0, node.wall_ms() - head[1]) / 1000
        metrics.queue_depth.replace(depths)
        metrics.queue_oldest_seconds.replace(oldest)
        return {"text": metrics.text()}


def _sync(function: Callable[[dict[str, Any]], Any]) -> Handler:
    async def handler(args: dict[str, Any]) -> Any:
        return function(args)

    return handler
