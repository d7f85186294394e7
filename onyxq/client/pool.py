"""Connections of one client to the peers of a cluster (design: wire).

Any peer can coordinate any request; the pool may also ask leaders directly. If a peer dies, `Pool.call` tries
one peer after the other with growing pauses until its deadline. All requests are safe to repeat.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio
from attrs import evolve, field, frozen

from onyxq.client.backpressure import ANSWER_S, Crowding
from onyxq.core.errors import (
    BadRequest,
    ClusterMismatch,
    NotLeader,
    OnyxqError,
    Overloaded,
    StaleEpoch,
    TimedOut,
    Unavailable,
)
from onyxq.wire.background import Spawner
from onyxq.wire.connection import Connection
from onyxq.wire.network import Network
from onyxq.wire.protocol import Hello
from onyxq.wire.waits import Wait, Waits

ATTEMPT_TIMEOUT_MS = 10_000
"""Time for one attempt at one peer, beyond the wait that the request asks for, in milliseconds."""
CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT_MS_MIN = 2_000, 200
"""Longest and, if peers must be reached soon, shortest time for a connection to one peer, in milliseconds."""
ROUTES_EVERY_S = 2.0
ROUTES_PAUSE_S = 0.25
"""Shortest pause between two reads of the routes, however often they prove wrong, in seconds."""
RECONNECT_PAUSE_S = 5.0
"""Pause before a leader that could not be reached is tried directly again, in seconds."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.02, 1.0

CLOCK_SKEW_MAX_MS = 5_000
"""Largest normal difference between the clocks of two peers, in milliseconds."""

OVERLAP_AFTER_S = 0.1
"""Time after which a request in progress no longer holds back the next one, in seconds."""
OVERLAPS_MAX = 16

NO_PEER = (
    "Is a peer running? Start one with `onyxq dev`, or name another address with ONYXQ_CONNECT or --connect. "
    "Clients use the port of --listen (7400), not the one of HTTP (7480)."
)
"""Hint if no peer answers."""
NEW_CLUSTER = "Start this program again. `onyxq dev` without --data DIR is a new, empty cluster each time it starts."
"""Hint if a peer belongs to another cluster than the client's other peers."""

RETRYABLE = (Unavailable, Overloaded, TimedOut)
"""Errors after which the same request may succeed."""


Entry = TypeVar("Entry")
Outcome = TypeVar("Outcome")


@frozen
class Routes:
    """Routes as a peer reports them: the number of partitions, their leaders' addresses, and all peers."""

    partitions: int = 0
    leaders: dict[int, str] = field(factory=dict)
    peers: tuple[str, ...] = ()


class Backoff:
    """Growing pauses up to a deadline (monotonic second)."""

    def __init__(self, until: float, generator: random.Random) -> None:
        self._until = until
        self._generator = generator
        self._pause_s = BACKOFF_FIRST_S
        self._asked_s = 0.0
        """Pause that a peer asked for before the next attempt, in seconds."""

    def heed(self, error: OnyxqError) -> None:
        """Adopt the pause that an overloaded peer asks for, times 1 to 2 so that clients do not return together."""
        if isinstance(error, Overloaded):
            self._asked_s = max(self._asked_s, error.retry_after_ms / 1000 * (1 + self._generator.random()))

    def over(self, *, margin_s: float = 0.0) -> bool:
        """Return whether too little time is left for another attempt, which takes ``margin_s`` seconds."""
        if self._asked_s:
            margin_s = max(margin_s, ANSWER_S)
        return anyio.current_time() + max(self._pause_s, self._asked_s) + margin_s >= self._until

    async def wait(self) -> None:
        """Pause before the next attempt."""
        await anyio.sleep(max(self._pause_s * (0.5 + self._generator.random() / 2), self._asked_s))
        self._pause_s, self._asked_s = min(2 * self._pause_s, BACKOFF_MAX_S), 0.0


class _Search:
    """A search for a peer that answers, shared by all requests that wait for one."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.found: Connection | None = None
        self.error: OnyxqError | None = None


class Pool:
    """Connections to the peers of one cluster; used within the client's ``async with``."""

    def __init__(
        self,
        spawner: Spawner,
        network: Network,
        addresses: list[str],
        *,
        hello: Hello,
        generator: random.Random,
        reach_s: float | None = None,
    ) -> None:
        self.routes = Routes()
        self.generator = generator
        self.spawner = spawner
        self._network = network
        self._hello = hello
        self._reach_s = math.inf if reach_s is None else reach_s
        """Time after which a call fails if no peer can be reached, in seconds."""
        self.waits = Waits()
        """Waits of the client's calls; the client runs their `Waits.watch`."""
        self.clock = self.waits.clock
        self.reached_at = -math.inf
        """When a request last had a connection to a peer, on `clock`."""
        self._known = list(addresses)
        """Addresses to try, the most promising first."""
        self._coordinator: Connection | None = None
        self._last_found: Connection | None = None
        """Coordinator that the last search found. It may be given up while it is open."""
        self._watched: set[Connection] = set()
        """Open connections that are or were the coordinator. The end of each refreshes the routes."""
        self._open: dict[str, Connection] = {}
        self._clocks: dict[str, tuple[int, float]] = {}
        """Wall clock of each peer that reported it, and the monotonic second at which the report arrived."""
        self._not_before: dict[str, float] = {}
        self._trying: set[str] = set()
        """Leaders to which connections are being opened."""
        self._search: _Search | None = None
        self._failed_search: OnyxqError | None = None
        """Error of the last search for a peer, if it found none."""
        self.reconnection = anyio.Event()
        """Set when a peer is found after the connection for requests was closed."""
        self.crowding = Crowding(generator)
        self.closed = False
        """Whether the client is closed or about to be: calls that are under way end."""
        self._wanted = anyio.Event()

    # calls
    async def call(
        self,
        method: str,
        args: dict[str, Any] | Callable[[], dict[str, Any]],
        *,
        until: float,
        address: str | None = None,
        wait_ms: int = 0,
        retry_until: float | None = None,
        late: Callable[[Any], None] | None = None,
    ) -> Any:
        """Send a request and return its answer; retry until ``until`` (monotonic second), then raise the last error.

        ``args``: the arguments, or a function that makes them for each attempt. ``address``: the peer to ask first, if
        a connection to it is open. ``wait_ms``: how long the peer may wait before it answers.
        ``retry_until``: monotonic second after which only broken connections are retried; other errors of an attempt
        that began later are raised at once, unless it is the first. ``late``: function that receives an answer that
        arrives after its call was given up.
        """
        backoff = Backoff(until, self.generator)
        first = True
        alone_since = self.clock()
        while True:
            self._check_open()
            connection: Connection | None = None
            began = self.clock()
            reach_by = min(until, alone_since + self._reach_s)
            try:
                connection = self._direct(address) or await self.coordinator(reach_by)
                self.reached_at = self.clock()
                left_ms = max(1, int((until - self.reached_at) * 1000))
                timeout_ms = min(left_ms, ATTEMPT_TIMEOUT_MS + wait_ms)
                made = args if isinstance(args, dict) else args()
                answer = await connection.call(method, made, timeout_ms=timeout_ms, late=late)
                if type(answer) is dict and "now_ms" in answer:
                    self._clocks[connection.address] = (answer["now_ms"], self.clock())
                return answer
            except RETRYABLE as error:
                self._check_open()
                broke = connection is not None and connection.closed.is_set()
                self._failed(connection, error)
                backoff.heed(error)
                if method == "enqueue":
                    self.crowding.refused(error)
                # An attempt that ran out of time is repeated once: the peer may have been leaving just then.
                hurried = retry_until is not None and began >= retry_until and not first
                alone_since = alone_since if connection is None else self.clock()
                left_s = alone_since + self._reach_s - self.clock()
                if backoff.over() or (hurried and not broke) or left_s <= 0:
                    raise
            address, first = None, False
            with anyio.move_on_after(left_s):
                await backoff.wait()

    def _check_open(self) -> None:
        if self.closed:
            raise Unavailable("the client was closed while it waited for the answer") from None

    def notify(self, method: str, args: dict[str, Any]) -> None:
        """Send the coordinator a message without an answer, if there is a coordinator."""
        if self._coordinator is not None:
            self._coordinator.notify(method, args)

    def leader_of(self, partition: int) -> str | None:
        """Return the last known address of a partition's leader; None if unknown."""
        return self.routes.leaders.get(partition)

    async def coordinator(self, until: float) -> Connection:
        """Return the connection for requests; if there is none, connect to the first known peer that answers.

        Raises `Unavailable` at ``until``. The search continues for later requests, whose time may be short as well.
        """
        if self._coordinator is not None and not self._coordinator.closed.is_set():
            return self._coordinator
        search = self._search
        if search is None:
            search = self._search = _Search()
            self.spawner.start_soon(self._find_peer, search)
        with anyio.move_on_after(max(0.0, until - self.clock())):
            await search.over.wait()
        if search.found is None:
            raise self._unreached(search.error or self._failed_search)
        return search.found

    def _unreached(self, error: OnyxqError | None) -> OnyxqError:
        """Return the error for one call: that of a failed search, or another if the call's time was over before."""
        if error is not None:
            return copy.copy(error)  # each call adds the ids of its own tasks
        return Unavailable(f"no peer answered in time at {', '.join(self._known)}", hint=NO_PEER)

    async def _find_peer(self, search: _Search) -> None:
        try:
            found = await self._any_peer()
            lost = self._last_found is not None and self._last_found.closed.is_set()
            search.found = self._coordinator = self._last_found = found
            self._failed_search = None
            if lost:
                self.reconnection.set()
                self.reconnection = anyio.Event()
            if found not in self._watched:
                self._watched.add(found)
                self.spawner.start_soon(self._refresh_behind, found)
            self.refresh_soon()
        except OnyxqError as error:
            search.error = self._failed_search = error
        finally:
            self._search = None
            search.over.set()

    # clocks
    def now_ms(self, partition: int) -> tuple[int, int] | None:
        """Return the time for tasks due now, and the time from which delays count; None if no clock is known.

        Both are the leader's, which decides when its tasks are due. But a leader whose clock differs too much from the
        median is about to leave. Then delays count from the median, and tasks due now are due at the earlier of both.
        """
        now = self.clock()
        # Clocks are read when an answer leaves its peer, so these times lag: a task that is due by them is due there.
        told = sorted(ms + int((now - at) * 1000) for ms, at in self._clocks.values())
        if not told:
            return None
        median_ms = leaders_ms = told[(len(told) - 1) // 2]
        known = self._clocks.get(self.leader_of(partition) or "")
        if known is not None:
            leaders_ms = known[0] + int((now - known[1]) * 1000)
        base_ms = leaders_ms if abs(leaders_ms - median_ms) <= CLOCK_SKEW_MAX_MS else median_ms
        return min(leaders_ms, base_ms), base_ms

    def clock_known(self, partition: int) -> bool:
        """Return whether the clock of the partition's leader is known; if not, ask for it.

        Also returns True if asking is useless now: no peer reports a clock, or the leader cannot be reached.
        """
        address = self.leader_of(partition)
        if address is None or not self._clocks or address in self._clocks:
            return True
        return self._direct(address) is not None or address not in self._trying

    def reachable(self, partition: int) -> bool:
        """Return whether the partition's leader is believed to answer. After a break it is retried now and then."""
        address = self.leader_of(partition)
        return address is None or address not in self._open or self._direct(address) is not None

    # routes
    async def loaded_routes(self, until: float) -> Routes:
        """Return routes that name the partitions; raise as `call` does."""
        if not self.routes.partitions:
            self._take_routes(await self.call("routes", {}, until=until))
        return self.routes

    async def _refresh_behind(self, coordinator: Connection) -> None:
        """Refresh the routes when the coordinator's connection closes: peers may come back at other addresses."""
        await coordinator.closed.wait()
        self._watched.discard(coordinator)
        self.refresh_soon()

    def refresh_soon(self) -> None:
        """Ask for a refresh of the routes."""
        self._wanted.set()

    async def keep_routes(self) -> None:
        """Refresh the routes when asked to and periodically; run until cancelled."""
        pause_s = ROUTES_PAUSE_S
        while True:
            with anyio.move_on_after(ROUTES_EVERY_S):
                await self._wanted.wait()
            self._wanted = anyio.Event()
            if not self._open:
                continue  # no request has been made yet
            try:
                connection = await self.coordinator(self.clock() + ATTEMPT_TIMEOUT_MS / 1000)
                self._take_routes(await self._ask_routes(connection))
                pause_s = ROUTES_PAUSE_S
            except OnyxqError:
                self._wanted.set()
                pause_s = min(2 * pause_s, ROUTES_EVERY_S)
            await anyio.sleep(pause_s)

    async def _ask_routes(self, connection: Connection) -> dict[str, Any]:
        answer: dict[str, Any] = await connection.call("routes", {}, timeout_ms=ATTEMPT_TIMEOUT_MS)
        if "now_ms" in answer:
            self._clocks[connection.address] = (answer["now_ms"], self.clock())
        return answer

    def _take_routes(self, answer: dict[str, Any]) -> None:
        peers = tuple(answer["peers"])
        self.routes = Routes(int(answer["partitions"]), dict(answer["leaders"]), peers)
        if self._hello.cluster_id is None and answer["cluster_id"]:
            self._hello = evolve(self._hello, cluster_id=answer["cluster_id"])
        self._known += [peer for peer in peers if peer not in self._known]
        for gone in [address for address in self._clocks if peers and address not in peers]:
            if gone not in self._open or self._open[gone].closed.is_set():
                del self._clocks[gone]

    # connections
    def _failed(self, connection: Connection | None, error: OnyxqError) -> None:
        if connection is None:
            return
        passing = isinstance(error, (NotLeader, StaleEpoch, Overloaded))
        if connection is self._coordinator and not passing:
            # It does not answer, or cannot reach the log or the leaders: another peer may.
            self._coordinator = None
            self._put_last(connection.address)
        if connection.closed.is_set() or isinstance(error, (NotLeader, StaleEpoch)):
            self.refresh_soon()

    def _put_last(self, address: str) -> None:
        if address in self._known:
            self._known.remove(address)
            self._known.append(address)

    async def _any_peer(self) -> Connection:
        errors: list[OnyxqError] = []
        for address in list(self._known):
            try:
                return await self._connect(address)
            except OnyxqError as error:
                errors.append(error)
                self._put_last(address)
        # An error that time may heal counts, because the call is then tried again.
        unavailable = [error for error in errors if isinstance(error, Unavailable)]
        if unavailable and type(unavailable[-1]) is Unavailable:
            raise Unavailable(unavailable[-1].message, hint=NO_PEER)
        raise (unavailable or errors or [Unavailable("no peer is known")])[-1]

    async def _connect(self, address: str) -> Connection:
        found = self._open.get(address)
        if found is not None and not found.closed.is_set():
            return found
        # Each known peer gets its share of a short time, so that one that is silent does not use it up.
        share_ms = min(CONNECT_TIMEOUT_MS, max(CONNECT_TIMEOUT_MS_MIN, 1000 * self._reach_s / len(self._known)))
        try:
            connection = await Connection.start(
                self.spawner, self._network, address, hello=self._hello, timeout_ms=int(share_ms)
            )
        except ClusterMismatch:
            problem = f"the server at {address} is not of the cluster that this program has used so far"
            raise ClusterMismatch(problem, hint=NEW_CLUSTER) from None
        self._open[address] = connection
        return connection

    def _direct(self, address: str | None) -> Connection | None:
        """Return an open connection to a leader; if there is none, start to open one for later requests."""
        if address is None:
            return None
        connection = self._open.get(address)
        if connection is not None and not connection.closed.is_set():
            return connection
        if self._not_before.get(address, 0.0) <= self.clock():
            self._not_before[address] = self.clock() + RECONNECT_PAUSE_S
            self._trying.add(address)
            self.spawner.start_soon(self._try_connect, address)
        return None

    async def _try_connect(self, address: str) -> None:
        try:
            await self._ask_routes(await self._connect(address))
        except OnyxqError:
            self.refresh_soon()
        finally:
            self._trying.discard(address)


class _Waiter(Wait, Generic[Entry, Outcome]):
    __slots__ = ("entry", "gone", "outcome")

    def __init__(self, entry: Entry, until: float) -> None:
        super().__init__(until)
        self.entry = entry
        self.gone = False
        """Whether the caller no longer waits for the outcome."""
        self.outcome: Outcome | OnyxqError | None = None


class Group(Generic[Entry, Outcome]):
    """Calls of one kind that arrive at the same time, sent in groups (design: runs).

    While a request of a kind is in progress, further calls of that kind wait and are sent together in the next one.
    A lone call never waits; under load the cost is per group.

    ``send(entries, until)`` makes one request of at most ``size_max`` entries and returns an outcome or an error for
    each. An error that it raises is the outcome of all. ``leave(entry)`` notes that the time of an entry is over, and
    returns the ids of tasks that may be stored.
    """

    def __init__(
        self,
        pool: Pool,
        send: Callable[[list[Entry], float], Awaitable[list[Outcome | OnyxqError]]],
        *,
        size_max: int,
        leave: Callable[[Entry], tuple[bytes, ...]] = lambda _: (),
    ) -> None:
        self._pool = pool
        self._send = send
        self._size_max = size_max
        self._leave = leave
        self._waiting: list[_Waiter[Entry, Outcome]] = []
        self._in_flight = 0
        self._started_at = 0.0

    @property
    def idle(self) -> bool:
        """Whether no call waits and no request is in progress."""
        return not self._waiting and not self._in_flight

    async def add(self, entry: Entry, *, until: float) -> Outcome:
        """Send an entry with others and return its outcome; raise its error, or `TimedOut` at ``until``."""
        waiter: _Waiter[Entry, Outcome] = _Waiter(entry, until)
        self._waiting.append(waiter)
        now = self._pool.clock()
        overdue = now - self._started_at > OVERLAP_AFTER_S and self._in_flight < OVERLAPS_MAX
        if self._in_flight == 0 or overdue:
            self._in_flight += 1
            self._started_at = now
            self._pool.spawner.start_soon(self._pump)
        try:
            await self._pool.waits.wait(waiter)
        finally:
            if not waiter.over:
                waiter.gone = True
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
        if isinstance(waiter.outcome, OnyxqError):
            raise waiter.outcome
        if waiter.outcome is None:
            late = TimedOut("the request was not answered in time; it may have taken effect")
            late.ids = self._leave(entry)
            raise late
        return waiter.outcome

    async def _pump(self) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting[: self._size_max], self._waiting[self._size_max :]
                self._started_at = self._pool.clock()
                await self._send_one(taken)
        finally:
            self._in_flight -= 1

    async def _send_one(self, taken: list[_Waiter[Entry, Outcome]]) -> None:
        try:
            outcomes = await self._send([waiter.entry for waiter in taken], max(waiter.until for waiter in taken))
            for waiter, outcome in zip(taken, outcomes, strict=True):
                waiter.outcome = outcome
        except BadRequest as error:
            if len(taken) > 1:
                # Nothing was done; only the call at fault may get the error.
                for waiter in taken:
                    if not waiter.gone:  # else its caller may already repeat it under the ids of this request
                        await self._send_one([waiter])
                return
            taken[0].outcome = error
        except OnyxqError as error:
            for waiter in taken:
                waiter.outcome = error
        for waiter in taken:
            waiter.end()
