"""The client for trio and asyncio (design: one picture, interfaces).

A duration is a number of milliseconds, a `timedelta`, or text such as ``"10s"``. Every call raises an
`onyxq.core.errors.OnyxqError`. A call that is safe to repeat is retried at one peer after the other until
``timeout_ms``.
"""

from __future__ import annotations

import logging
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import anyio
import anyio.lowlevel
from attrs import frozen

from onyxq.access.certificates import Certificates
from onyxq.client import unfinished
from onyxq.client.batches import Batching
from onyxq.client.claim_requests import ClaimRequests, Options
from onyxq.client.claims import Claim, ClaimBatch, Claims, kept_claims
from onyxq.client.enqueues import Enqueuer, Enqueuing
from onyxq.client.flow_calls import FlowCalls
from onyxq.client.held_claims import Holder, completion_items, extend, items_of, renewal_items
from onyxq.client.jobs import Jobs
from onyxq.client.management import Managing
from onyxq.client.options import explains_calls
from onyxq.client.pool import RETRYABLE, Pool
from onyxq.client.taskstore import AsyncTaskStore
from onyxq.client.transactions import AsyncTransaction, Committed, Committer, Gathered, gather
from onyxq.client.values import Task, TaskUpdate, as_id, queue_names
from onyxq.core.errors import BadRequest, BatchRefused, OnyxqError, Overloaded, Refused, TimedOut, Unavailable, from_map
from onyxq.core.ids import TaskId
from onyxq.core.limits import AHEAD_MS_MAX
from onyxq.operations.table.claim import CLAIM_TASKS_MAX
from onyxq.system.durations import Milliseconds, Timeout, as_milliseconds
from onyxq.wire.background import Background
from onyxq.wire.network import Network
from onyxq.wire.protocol import Hello
from onyxq.wire.tcp import split_address

log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1:7400"
TIMEOUT_MS = 30_000
SLOW = ("gc", "leave", "dead.requeue", "dead.discard")
"""Methods whose answer may take the whole timeout."""

Ids = list[TaskId]
Updates = list[TaskUpdate]
Results = list[bytes | None]

FINISHED = ("completed", "failed", "cancelled")
LOOK_FIRST_S, LOOK_MAX_S = 0.02, 1.0
"""Shortest and longest pause between two reads of a task during `AsyncClient.next_updates`, in seconds."""
OUTLAST_PAUSE_S = 0.2
"""Shortest pause after an error that a wait outlasts, in seconds."""
WARN_EVERY_S = 60.0
"""Shortest pause between two warnings that a wait gets no answer, in seconds. A wait may have no limit."""
WAIT_MS = 10_000
"""Longest wait of a peer for the end of a task, in milliseconds; then the client asks again."""

READS_MAX = 16
"""Largest number of tasks that one call reads at the same time."""


def with_port(address: str) -> str:
    """Complete an address to ``HOST:PORT``: a host gets the default port, a port alone is one of this machine."""
    host, port = ADDRESS.split(":")
    if address.isdecimal():
        return f"{host}:{address}"
    return f"{address}:{port}" if address and (":" not in address or address.endswith("]")) else address


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _random_64() -> int:
    return int.from_bytes(os.urandom(8), "big")


@frozen
class Sources:
    """Where a client gets its wall clock, in milliseconds, and its random numbers of 64 bits."""

    now_ms: Callable[[], int] = _wall_ms
    random_64: Callable[[], int] = _random_64


class NotOpen(Unavailable, AttributeError):
    """The client is not open, so it has no connections. ``hasattr``, mocks and debuggers see a missing attribute."""


class _WhileOpen:
    """An attribute that a client has only while it is open; to read it at another time raises `Unavailable`.

    An open client has the value in its ``__dict__``, which is read first.
    """

    def __get__(self, client: object | None, owner: type) -> _WhileOpen:
        if client is None:
            return self
        hint = "Use it in an async with block: async with AsyncClient(...) as client."
        raise NotOpen("the client is not open", hint=hint)


def _while_open() -> Any:
    return _WhileOpen()


@explains_calls
class AsyncClient(Enqueuing, Managing, Batching, Jobs, FlowCalls):
    """A connection with a cluster: ``async with AsyncClient("HOST:PORT") as client``.

    Give one address or several of the same cluster; the client finds the other peers. Many tasks may share a client.
    ``tls``: the trusted authorities, if peers speak TLS. Default: the files that ``ONYXQ_TLS_CA`` and related variables
    name. ``connect_timeout_ms``: a call fails if no peer can be reached within this time; default: within
    ``timeout_ms``. ``network`` and ``sources`` are for simulations.
    """

    _worker: str = _while_open()
    _pool: Pool = _while_open()
    _enqueuer: Enqueuer = _while_open()
    _holder: Holder = _while_open()
    _claims: ClaimRequests = _while_open()
    _committer: Committer = _while_open()

    def __init__(
        self,
        address: str | Sequence[str] = ADDRESS,
        *,
        token: str | None = None,
        tls: Certificates | None = None,
        timeout_ms: Milliseconds = TIMEOUT_MS,
        connect_timeout_ms: Timeout = None,
        network: Network | None = None,
        sources: Sources | None = None,
    ) -> None:
        self._addresses = [with_port(one) for one in ([address] if isinstance(address, str) else address)]
        for each in self._addresses:
            split_address(each)
        self._hello = Hello(credential=token)
        self._timeout_ms = as_milliseconds(timeout_ms, "timeout_ms")
        self._reach_s = None
        if connect_timeout_ms is not None:
            self._reach_s = as_milliseconds(connect_timeout_ms, "connect_timeout_ms") / 1000
        self._network = network or (Certificates.from_environment() if tls is None else tls).network()
        sources = sources or Sources()
        self._now_ms, self._random_64 = sources.now_ms, sources.random_64

    async def __aenter__(self) -> AsyncClient:
        generator = random.Random(self._random_64())
        self._worker = f"client-{generator.getrandbits(48):012x}"
        self._background = Background()
        await self._background.__aenter__()
        self._pool = Pool(
            self._background,
            self._network,
            self._addresses,
            hello=self._hello,
            generator=generator,
            reach_s=self._reach_s,
        )
        self._enqueuer = Enqueuer(self._pool, now_ms=self._now_ms, random_64=self._random_64)
        self._holder = Holder(self._pool)
        self._claims = ClaimRequests(self._pool)
        self._committer = Committer(self._pool, self._enqueuer)
        self._warn_at = -math.inf
        self._background.start_soon(self._pool.keep_routes)
        self._background.start_soon(self._pool.waits.watch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.closed = True
        try:
            await self._background.__aexit__(kind, error, trace)
        finally:
            for name, made in vars(AsyncClient).items():
                if isinstance(made, _WhileOpen):
                    self.__dict__.pop(name, None)

    async def _outlasts(self, error: OnyxqError, began: float, until: float) -> bool:
        is_open = "_pool" in self.__dict__ and not self._pool.closed
        now = anyio.current_time()
        if not is_open or self._pool.reached_at < began or now >= until:
            return False
        if now >= self._warn_at:
            self._warn_at = now + WARN_EVERY_S
            log.warning("a wait gets no answer and continues: %s", error.message)
        asked_s = error.retry_after_ms / 1000 if isinstance(error, Overloaded) else 0.0
        await anyio.sleep(min(max(asked_s, OUTLAST_PAUSE_S), until - now))
        return True

    # tasks
    async def results(self, ids: Iterable[bytes | str]) -> Results:
        """Return the results of tasks, such as ``claim.depends``, in the same order.

        The result is None if a task returned none, failed, was cancelled or is not finished. Raises `NotFound` if a
        task does not exist or was purged.
        """
        wanted = [as_id(one) for one in ids]
        found: Results = [None] * len(wanted)
        places = iter(range(len(wanted)))

        async def read() -> None:
            for place in places:
                found[place] = (await self.get(wanted[place])).result

        await _together(read, READS_MAX)
        return found

    async def get(self, id: bytes | str, *, seen_token: int | None = None, seen_seq: int | None = None) -> Task:
        """Return a task, at least as new as the given claim and update; raise `NotFound` if it does not exist."""
        args = {"id": as_id(id), "seen_token": seen_token, "seen_seq": seen_seq}
        return Task.of(await self._ask("get", args))

    async def wait(self, id: bytes | str, wait_ms: Milliseconds | None = TIMEOUT_MS) -> Task:
        """Wait until a task is completed, failed or cancelled, and return it.

        Once it has reached a peer, it waits for peers that are gone. Raises `NotFound`, or `TimedOut` if the task is
        not finished within ``wait_ms``; None for no limit.
        """
        looks, args = _Looks(wait_ms), {"id": as_id(id)}
        while True:
            try:
                task = Task.of(await self._ask("get", {**args, "wait_ms": looks.left_ms}))
            except RETRYABLE as error:
                if await self._outlasts(error, looks.began, looks.until):
                    continue
                raise
            if task.state in FINISHED:
                return task
            if looks.over:
                raise await self.late(task, looks.limit_ms)

    async def now_ms(self) -> int:
        """Return the cluster's time in milliseconds since the epoch. It decides when tasks are due or expire."""
        await self._pool.loaded_routes(self._until(None))
        known = self._pool.now_ms(0)
        return self._now_ms() if known is None else known[1]

    async def reconnection(self) -> anyio.Event:
        """Return an event that is set when the client next finds a peer after its connection to one was closed.

        A peer that only refuses a request, or does not answer it in time, does not count.
        Raises `Unavailable` if no peer answers in time.
        """
        await self._pool.coordinator(self._until(None))
        return self._pool.reconnection

    async def disconnection(self) -> anyio.Event:
        """Return an event that is set when the connection for requests is closed, whatever follows.

        Raises `Unavailable` if no peer answers in time.
        """
        return (await self._pool.coordinator(self._until(None))).closed

    async def task_log(self, id: bytes | str) -> Updates:
        """Return the updates of a task, in order; raise `NotFound` if it does not exist."""
        answer = await self._ask("task_log", {"id": as_id(id)})
        return [TaskUpdate(found["token"], found["seq"], found["data"], found["at_ms"]) for found in answer["updates"]]

    async def next_updates(
        self, id: bytes | str, after: TaskUpdate | None = None, *, wait_ms: Milliseconds | None = TIMEOUT_MS
    ) -> Updates:
        """Return the updates of a task after a given one, and wait for the first; none means that it is finished.

        Raises `NotFound`, or `TimedOut` if there is none within ``wait_ms``; None for no limit.
        """
        seen = (-1, -1) if after is None else (after.token, after.seq)
        looks, count = _Looks(wait_ms), 0
        while True:
            try:
                task = await self.get(id)
                if task.updates > count:
                    found = [one for one in await self.task_log(id) if (one.token, one.seq) > seen]
                    if found:
                        return found
                    count = task.updates
            except RETRYABLE as error:
                if await self._outlasts(error, looks.began, looks.until):
                    continue
                raise
            if task.state in FINISHED:
                return []
            if looks.over:
                raise await self.late(task, looks.limit_ms)
            await looks.wait()

    async def late(self, task: Task, limit_ms: float, *, field: str = "wait_ms") -> TimedOut:
        """Return the error of a wait for a task whose time is over, with the reason if the cluster gives it soon.

        ``limit_ms``: the time; with 0 the caller did not wait, so nothing is asked. ``field``: its name for the caller.
        """
        questions = unfinished.questions(task) if limit_ms else []
        answers: list[unfinished.Answer] = [None] * len(questions)
        now_ms = self._now_ms()
        with anyio.move_on_after(unfinished.QUESTION_TIMEOUT_MS / 1000):
            with suppress(OnyxqError):
                now_ms = await self.now_ms()
            for place, (method, args) in enumerate(questions):
                with suppress(OnyxqError):
                    answers[place] = await self.call(method, args)
        return unfinished.late(task, limit_ms, now_ms, answers, field=field)

    async def cancel(self, id: bytes | str, *, claimed: bool = False) -> None:
        """Cancel a task; raise `NotFound`, or `Conflict` if it is claimed, completed or failed.

        You may repeat the call: a cancelled task stays cancelled. ``claimed``: cancel the task even if it is claimed.
        Its worker learns this when it next renews or uses the claim, and its outcome is refused.
        """
        answer = await self._ask("cancel", {"ids": [as_id(id)], **({"claimed": True} if claimed else {})})
        if answer["results"][0] is not None:
            raise from_map(answer["results"][0])

    # claims
    async def claim(
        self,
        queues: str | Sequence[str],
        max: int = 1,
        lease_ms: Milliseconds | None = None,
        wait_ms: Milliseconds = 0,
        worker: str | None = None,
        *,
        ahead_ms: Milliseconds = 0,
        timeout_ms: Timeout = None,
    ) -> ClaimBatch:
        """Claim up to ``max`` tasks (at most 1,000); wait up to ``wait_ms`` for the first.

        Concurrent calls with the same options share requests, except those that name a worker.
        ``lease_ms``: how long the claims are valid; default: as the queues set it. ``ahead_ms`` (up to 1,000): if no
        task is ready, also claim tasks that are due within this time, so that they can start without delay. Do not
        start them before `Claim.due`.

        Returns an empty batch if there was no task in time. Raises `Unavailable` if claims could not be granted when
        the wait ended.
        """
        ahead_ms, wait_ms = as_milliseconds(ahead_ms, "ahead_ms"), as_milliseconds(wait_ms, "wait_ms")
        if lease_ms is not None:
            lease_ms = as_milliseconds(lease_ms, "lease_ms")
        if type(ahead_ms) is not int or not 0 <= ahead_ms <= AHEAD_MS_MAX:
            raise BadRequest(f"ahead_ms must be from 0 to {AHEAD_MS_MAX}, not {ahead_ms!r}", field="ahead_ms")
        if not isinstance(max, int) or not 1 <= max <= CLAIM_TASKS_MAX:
            raise BadRequest(f"max must be from 1 to {CLAIM_TASKS_MAX}, not {max!r}", field="max")
        asks_as, timeout_s = worker or self._worker, self._seconds(timeout_ms)
        options = Options(queue_names(queues), lease_ms, wait_ms, asks_as, ahead_ms, timeout_s)
        return await self._claims.claim(options, max, shares=worker is None)

    def _give_back(self, claims: ClaimBatch) -> None:
        """Release claims whose caller is gone, without an answer."""
        self._claims.give_back(claims)

    async def update(self, claim: Claim, data: bytes, *, w: int | None = None, timeout_ms: Timeout = None) -> int:
        """Append an update to a claimed task; return its number, counted from 0 per claim.

        ``w``: number of nodes that must store it before this returns; None for a majority. With fewer than a majority
        it is lost if those nodes are lost. Raises `StaleToken`, or `Unknown` if fewer nodes have it at the timeout.
        """
        return await self._holder.update(claim, data, w=w, until=self._until(timeout_ms))

    async def renew(self, claims: Claims, lease_ms: Milliseconds | None = None, *, timeout_ms: Timeout = None) -> None:
        """Renew leases for ``lease_ms`` from now (default: as granted); raise as `complete` does."""
        claims = kept_claims(claims)
        if lease_ms is not None:
            lease_ms = as_milliseconds(lease_ms, "lease_ms")
        sent_at = self._pool.clock()
        refused: list[Refused] = []
        items = renewal_items(claims, lease_ms)
        try:
            await self._holder.act("renew", claims, items, until=self._until(timeout_ms))
        except BatchRefused as error:
            refused = error.refused
            raise
        finally:
            if refused:
                extend(claims, lease_ms, sent_at=sent_at, refused=refused)
        extend(claims, lease_ms, sent_at=sent_at, refused=[])

    async def complete(
        self,
        claims: Claims,
        result: bytes | None = None,
        *,
        results: Sequence[bytes | None] | None = None,
        timeout_ms: Timeout = None,
    ) -> None:
        """Complete tasks, with one result for all of them or one each.

        For a single `Claim` it raises `StaleToken` and similar errors. For several it raises `BatchRefused`, which
        names the refused claims; the others are completed.
        """
        claims = kept_claims(claims)
        items = completion_items(claims, result, None if results is None else list(results))
        await self._holder.act("complete", claims, items, until=self._until(timeout_ms))

    async def fail(
        self,
        claims: Claims,
        error: str,
        retry_in_ms: Milliseconds | None = None,
        *,
        traceback: str = "",
        timeout_ms: Timeout = None,
    ) -> None:
        """Report failed attempts: the tasks are due again later, or fail for good; raise as `complete` does.

        ``retry_in_ms``: pause before the next attempt; default: as the task or its queue sets it. ``traceback``: text
        that is kept and shown with the attempt.
        """
        claims = kept_claims(claims)
        if retry_in_ms is not None:
            retry_in_ms = as_milliseconds(retry_in_ms, "retry_in_ms")
        items = items_of(claims, error, retry_in_ms, traceback)
        await self._holder.act("fail", claims, items, until=self._until(timeout_ms))

    async def release(self, claims: Claims, *, timeout_ms: Timeout = None) -> None:
        """Give tasks back without counting an attempt; raise as `complete` does."""
        claims = kept_claims(claims)
        await self._holder.act("release", claims, items_of(claims), until=self._until(timeout_ms))

    async def give_up(self, claims: Claims, error: str, *, traceback: str = "", timeout_ms: Timeout = None) -> None:
        """Report that tasks failed for good, whatever retries they have left; raise as `complete` does.

        ``traceback``: as for `fail`.
        """
        claims = kept_claims(claims)
        items = items_of(claims, error, traceback)
        await self._holder.act("give_up", claims, items, until=self._until(timeout_ms))

    async def postpone(
        self, claims: Claims, retry_in_ms: Milliseconds, reason: str = "", *, timeout_ms: Timeout = None
    ) -> None:
        """Give tasks back without counting an attempt; they are due again after a pause. Raise as `complete` does.

        ``retry_in_ms``: the pause. ``reason``: text to be shown with the claim.
        """
        claims = kept_claims(claims)
        items = items_of(claims, reason, as_milliseconds(retry_in_ms, "retry_in_ms"))
        await self._holder.act("postpone", claims, items, until=self._until(timeout_ms))

    # transactions
    def transaction(self, name: str | None = None, *, timeout_ms: Timeout = None) -> AsyncTransaction:
        """Start a transaction: ``async with client.transaction() as tx``.

        It is committed at the end of the block, or dropped if the block raises. ``name``: a repeated commit under the
        same name returns the first outcome; default: a random name.
        """

        async def commit(gathered: Gathered) -> Committed:
            return await self.commit(gathered, timeout_ms)

        return AsyncTransaction(commit, name=name, random_name=self.random_name)

    async def commit(self, gathered: Gathered, timeout_ms: Timeout = None) -> Committed:
        """Commit a transaction; prefer `AsyncTransaction.commit`."""
        return await self._committer.commit(gathered, self._until(timeout_ms))

    def random_name(self) -> str:
        """Return a unique random name for a transaction."""
        return self._committer.random_name()

    async def transact(
        self,
        *,
        complete: Claims | Iterable[tuple[Claim, bytes | None]] = (),
        update: Iterable[tuple[Claim, bytes]] = (),
        enqueue: Iterable[Mapping[str, Any]] = (),
        require: Claims = (),
        name: str | None = None,
        timeout_ms: Timeout = None,
    ) -> Committed:
        """Commit a transaction in one call: all of it takes effect, or nothing.

        ``complete``: claims, or pairs of claim and result. ``update``: pairs of claim and data. ``enqueue``: maps with
        ``queue``, ``data`` and the options of `enqueue`. ``require``: claims that must still be valid. Raises
        `StaleToken`, whose ``details`` name the claims that are no longer valid.
        """
        transaction = self.transaction(name, timeout_ms=timeout_ms)
        gather(transaction, complete=complete, update=update, enqueue=enqueue, require=require)
        return await transaction.commit()

    async def call(self, method: str, args: dict[str, Any], *, timeout_ms: Timeout = None) -> Any:
        """Call a method of the API by name and return its answer.

        While the connection breaks, the call is sent again, until ``timeout_ms``: it may take effect twice. After any
        other temporary error (`Unavailable`, `Overloaded`, `TimedOut`) it is sent once more. Other errors are raised.
        """
        wait_ms = int(self._seconds(timeout_ms) * 1000) if method in SLOW else int(args.get("wait_ms") or 0)
        until = self._until(timeout_ms) + wait_ms / 1000
        return await self._pool.call(method, args, until=until, wait_ms=wait_ms, retry_until=0.0)

    def task_store(self, client_id: int | None = None) -> AsyncTaskStore:
        """Return the task store as seen by one of its clients.

        ``client_id``: the client that owns the tasks it adds and claims, a signed 32-bit integer; default: a random one
        from 0.
        """
        return AsyncTaskStore(self._ask, self._random_64() >> 33 if client_id is None else client_id)

    async def _ask(self, method: str, args: dict[str, Any] | None = None, *, timeout_ms: Timeout = None) -> Any:
        args = args or {}
        wait_ms = int(self._seconds(timeout_ms) * 1000) if method in SLOW else int(args.get("wait_ms") or 0)
        return await self._pool.call(method, args, until=self._until(timeout_ms) + wait_ms / 1000, wait_ms=wait_ms)

    def _until(self, timeout_ms: Timeout) -> float:
        return self._pool.clock() + self._seconds(timeout_ms)

    def _seconds(self, timeout_ms: Timeout) -> float:
        return (self._timeout_ms if timeout_ms is None else as_milliseconds(timeout_ms, "timeout_ms")) / 1000


class _Looks:
    """Growing pauses between the reads of a task that is not finished, up to a limit."""

    def __init__(self, wait_ms: Milliseconds | None) -> None:
        self.limit_ms = math.inf if wait_ms is None else as_milliseconds(wait_ms, "wait_ms")
        self.began = anyio.current_time()
        self.until = self.began + self.limit_ms / 1000
        self._pause_s = LOOK_FIRST_S

    @property
    def left_ms(self) -> int:
        """Milliseconds until the limit, at most the longest wait of a peer."""
        return int(max(0.0, min(1000 * (self.until - anyio.current_time()), WAIT_MS)))

    @property
    def over(self) -> bool:
        """Whether no time is left."""
        return anyio.current_time() >= self.until

    async def wait(self) -> None:
        """Wait before the next read."""
        await anyio.sleep(min(self._pause_s, self.until - anyio.current_time()))
        self._pause_s = min(2 * self._pause_s, LOOK_MAX_S)


async def _together(work: Callable[[], Awaitable[None]], count: int) -> None:
    """Run ``count`` copies of ``work`` at the same time; raise the first error, not a group."""
    errors: list[OnyxqError] = []
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            try:
                await work()
            except OnyxqError as error:
                errors.append(error)
                tasks.cancel_scope.cancel()

        for _ in range(count):
            tasks.start_soon(run)
    if errors:
        raise errors[0]
