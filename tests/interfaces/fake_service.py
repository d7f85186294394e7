"""A cluster of a few lines for the tests of clients: it speaks the wire API and keeps tasks in memory.

All its peers share one state, so what matters here is what clients send, to whom, and
what they do when a peer dies, answers late or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import anyio
import msgspec
import trio
from anyio.abc import TaskGroup
from trio.testing import MockClock

from onyxq.client import AsyncClient
from onyxq.client.asynchronous import Sources
from onyxq.core import facts
from onyxq.core.ids import TaskId, ids_of, partition_of
from onyxq.errors import BadRequest, NotFound, OnyxqError, StaleToken
from onyxq.wire.network import Network
from onyxq.wire.protocol import Hello
from onyxq.wire.server import Request, serve
from simulation.world.network import SimulatedNetwork
from tests.own_arguments import AsyncTest, own_arguments, seen_by_pytest

PARTITIONS = 4
QUEUES_LEASE_MS = 8_000
"""Of claims that name none."""


class FakePeer:
    """One peer: where it listens and what it was asked."""

    def __init__(self, cluster: FakeCluster, address: str) -> None:
        self.cluster = cluster
        self.address = address
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.intercept: Callable[[Request], bool] | None = None
        """Takes a request over if it returns True."""
        self.scope = anyio.CancelScope()

    def methods(self, *names: str) -> list[str]:
        """The methods asked for, of those named."""
        return [method for method, _ in self.asked if method in names]

    def arguments(self, name: str) -> list[dict[str, Any]]:
        """The arguments of every request of a method."""
        return [args for method, args in self.asked if method == name]

    def stop(self) -> None:
        """The peer dies: its listener and all its connections go."""
        self.scope.cancel()

    def dispatch(self, request: Request) -> None:
        """Answer a request, or leave it to `intercept`."""
        request.args = msgspec.msgpack.decode(request.args)
        self.asked.append((request.method, request.args))
        if self.intercept is None or not self.intercept(request):
            self.cluster.answer(request)


class FakeCluster:
    """The state that the peers share."""

    def __init__(self, group: TaskGroup) -> None:
        self.id = "c1"
        self.peers: list[FakePeer] = []
        self.leaders: dict[int, str] = {}
        self.rows: dict[bytes, bytes] = {}
        """Task run body by first id, as first stored."""
        self.tokens: dict[bytes, int] = {}
        """Token of the claim in flight by task."""
        self.outcomes: dict[bytes, Any] = {}
        self.updates: list[list[Any]] = []
        self.postponed: list[tuple[bytes, str, int]] = []
        """First id, reason and pause of each item that was postponed."""
        self.last_token = 0
        self._group = group
        self._waiting: list[Request] = []

    async def start(self, network: Network, address: str) -> FakePeer:
        """A further peer."""
        peer = FakePeer(self, address)
        peer.address = await self._group.start(self._serve, network, peer)
        self.peers.append(peer)
        return peer

    async def _serve(self, network: Network, peer: FakePeer, *, task_status: Any) -> None:
        async def handler(stream: Any) -> None:
            await serve(stream, hello=Hello(cluster="main", cluster_id=self.id), dispatch=peer.dispatch)

        with peer.scope:
            await network.serve(peer.address, handler, task_status=task_status)

    def answer(self, request: Request) -> None:
        """Do what a request asks for."""
        if request.method == "claim":
            self._claim(request)
            return
        method = getattr(self, f"do_{request.method}", None)
        if method is None:
            raise NotFound(f"no method {request.method}")
        request.reply(method(request.args))

    def do_routes(self, _: dict[str, Any]) -> dict[str, Any]:
        """See the wire API."""
        peers = [peer.address for peer in self.peers]
        return {
            "cluster": "main",
            "cluster_id": self.id,
            "partitions": PARTITIONS,
            "leaders": self.leaders,
            "peers": peers,
            "position": 7,
        }

    def do_enqueue(self, args: dict[str, Any]) -> dict[str, Any]:
        """See the wire API."""
        for first, body, *_ in args["runs"]:
            facts.check_payloads(body, *facts.task_table(body)[1:])
            self.rows.setdefault(first, body)
        self._wake()
        return {"acks": [2 for _ in args["runs"]]}

    def do_complete(self, args: dict[str, Any]) -> dict[str, Any]:
        """See the wire API."""
        return self._finish(args, lambda item, i: item[4][i] if item[4] else None)

    def do_fail(self, args: dict[str, Any]) -> dict[str, Any]:
        """See the wire API."""
        return self._finish(args, lambda item, i: OnyxqError(item[3]))

    def do_give_up(self, args: dict[str, Any]) -> dict[str, Any]:
        """See the wire API."""
        return self._finish(args, lambda item, i: OnyxqError(item[3]))

    def do_release(self, args: dict[str, Any]) -> dict[str, Any]:
        """See the wire API."""
        answer = {"results": [self._refused(item) for item in args["items"]]}
        for item in args["items"]:
            for task_id in ids_of(item[0], item[1]):
                if self.tokens.get(task_id) == item[2]:
                    del self.tokens[task_id]
        self._wake()
        return answer

    def do_postpone(self, args: dict[str, Any]) -> dict[str, Any]:
        """See the wire API; the tasks stay claimed, because no time passes here."""
        self.postponed += [(item[0], item[3], item[4]) for item in args["items"]]
        return {"results": [self._refused(item) for item in args["items"]]}

    def do_renew(self, args: dict[str, Any]) -> dict[str, Any]:
        """See the wire API."""
        if any(not 1_000 <= item[3] <= 86_400_000 for item in args["items"]):
            raise BadRequest("a lease is a second to a day", field="lease_ms")
        return {"results": [self._refused(item) for item in args["items"]]}

    def do_update(self, args: dict[str, Any]) -> dict[str, Any]:
        """See the wire API."""
        self.updates += args["items"]
        return {"results": [None for _ in args["items"]]}

    def do_gc(self, _: dict[str, Any]) -> dict[str, Any]:
        """See the wire API."""
        return {"position": 7, "trimmed": 3, "origin_bytes": 100}

    def steal(self, task_id: bytes) -> None:
        """Give another client a newer claim of a task."""
        self.last_token += 1
        self.tokens[task_id] = self.last_token

    def tasks(self) -> list[TaskId]:
        """Ids of all tasks."""
        return [task_id for first, body in self.rows.items() for task_id in ids_of(first, facts.task_header(body)[1])]

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._claim(request)

    def _finish(self, args: dict[str, Any], outcome: Callable[[list[Any], int], Any]) -> dict[str, Any]:
        answer = {"results": [self._refused(item) for item in args["items"]]}
        for item in args["items"]:
            for i, task_id in enumerate(ids_of(item[0], item[1])):
                if self.tokens.get(task_id) == item[2]:
                    self.outcomes[task_id] = outcome(item, i)
        return answer

    def _refused(self, item: list[Any]) -> list[Any]:
        error = StaleToken("a newer claim was granted").to_map()
        return [[task_id, 1, error] for task_id in ids_of(item[0], item[1]) if self.tokens.get(task_id) != item[2]]

    def _claim(self, request: Request) -> None:
        if not request.open:
            return
        args = request.args
        found = list(self._free(args["queues"], args["max"]))
        if found:
            self.last_token += 1
            for first, count, _ in found:
                self.tokens |= dict.fromkeys(ids_of(first, count), self.last_token)
            claims = [[self.last_token, 0, 0, first, body] for first, _, body in found]
            named = args["lease_ms"] is not None
            request.reply(
                {"claims": claims} if named else {"claims": claims, "leases": [QUEUES_LEASE_MS] * len(claims)}
            )
        elif args["wait_ms"] > 0:
            self._waiting.append(request)
            self._group.start_soon(self._end_wait, request)
        else:
            request.reply({"claims": []})

    async def _end_wait(self, request: Request) -> None:
        await anyio.sleep(request.args["wait_ms"] / 1000)
        if request in self._waiting:
            self._waiting.remove(request)
            request.reply({"claims": []})

    def _free(self, queues: list[str], limit: int) -> Iterator[tuple[TaskId, int, bytes]]:
        for first, body in self.rows.items():
            header, count = facts.task_header(body)
            if header["queue"] not in queues:
                continue
            start = 0
            ids = ids_of(first, count)
            while start < count and limit > 0:
                end = start
                while end < count and end - start < limit and not self._taken(ids[end]):
                    end += 1
                if end > start:
                    yield ids[start], end - start, facts.slice_task(body, start, end - start)
                    limit -= end - start
                start = max(end, start + 1)

    def _taken(self, task_id: bytes) -> bool:
        return task_id in self.tokens or task_id in self.outcomes


def led_by(cluster: FakeCluster, *peers: FakePeer) -> None:
    """Give the partitions to peers, in turn."""
    cluster.leaders = {partition: peers[partition % len(peers)].address for partition in range(PARTITIONS)}


def partitions_of(args: dict[str, Any]) -> list[int]:
    """Partitions that an enqueue request is about."""
    return [partition_of(first) for first, *_ in args["runs"]]


Scenario = Callable[[FakeCluster, SimulatedNetwork], Any]
SCENARIO_S = 1_000_000.0
"""A scenario that waits so long waits for what never comes."""


def play(scenario: Scenario, *, backend: str = "trio", network: SimulatedNetwork | None = None) -> None:
    """Run ``scenario(cluster, network)``; on trio under a clock that jumps over every wait."""

    async def main() -> None:
        world = network or SimulatedNetwork()
        with anyio.fail_after(SCENARIO_S):  # without any deadline a clock that jumps would stand still for ever
            async with anyio.create_task_group() as group:
                await scenario(FakeCluster(group), world)
                group.cancel_scope.cancel()

    if backend == "trio":
        trio.run(main, clock=MockClock(autojump_threshold=0))
    else:
        anyio.run(main, backend=backend)


def played(test: AsyncTest) -> Callable[..., None]:
    """Run an async test as `play` does, on trio or on the ``backend`` that it takes from pytest.

    It may take ``cluster``, ``network``, ``peer`` (the only one, at ``a:1``) and ``client`` (of that peer).
    """
    own = own_arguments(test, ("cluster", "network", "peer", "client"))

    def run(**given: Any) -> None:
        async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
            made: dict[str, Any] = {"cluster": cluster, "network": network}
            if own & {"peer", "client"}:
                made["peer"] = await cluster.start(network.host("a"), "a:1")
            async with client_of(network) if "client" in own else nullcontext() as made["client"]:
                await test(**given, **{name: made[name] for name in own})

        play(scenario, backend=given.get("backend", "trio"))

    return seen_by_pytest(test, own, run)


def client_of(network: SimulatedNetwork, *addresses: str, **more: Any) -> AsyncClient:
    """A client on a host of its own, with ids that are the same in every run."""
    return AsyncClient(
        addresses or "a:1", network=network.host("client"), sources=Sources(lambda: 1000, lambda: 42), **more
    )


async def together(*calls: Any) -> list[Any]:
    """Results or errors of calls made at the same time."""
    results: list[Any] = [None] * len(calls)

    async def run(place: int, call: Any) -> None:
        try:
            results[place] = await call
        except OnyxqError as error:
            results[place] = error

    async with anyio.create_task_group() as group:
        for place, call in enumerate(calls):
            group.start_soon(run, place, call)
    return results


def refuse_once(peer: FakePeer, method: str, error: OnyxqError, *, times: int = 1) -> None:
    """Let a peer refuse a method for a while."""
    left = [times]

    def intercept(request: Request) -> bool:
        if request.method != method or not left[0]:
            return False
        left[0] -= 1
        request.fail(error)
        return True

    peer.intercept = intercept
