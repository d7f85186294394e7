"""The client for trio and asyncio (design: one picture, interfaces).

Times given are milliseconds.  Every call raises an `onyxq.errors.OnyxqError`; calls that
may be repeated safely are, at one peer after the other, until ``timeout_ms``.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import anyio
import anyio.lowlevel

from onyxq.client.claims import Claim, ClaimBatch, Claims
from onyxq.client.enqueuing import NOW, Enqueuer, Policy, When
from onyxq.client.holding import Holder, completion_items, extend, items_of, renewal_items
from onyxq.client.pool import Pool
from onyxq.client.values import Page, Submitted, Task, TaskUpdate, as_id
from onyxq.errors import BadRequest, BatchRefused, Refused, from_map
from onyxq.ids import TaskId
from onyxq.wire.background import Background
from onyxq.wire.network import Network
from onyxq.wire.protocol import Hello
from onyxq.wire.tcp import TcpNetwork, split_address

ADDRESS = "127.0.0.1:7400"
TIMEOUT_MS = 30_000
POLL_MS_MIN = 250
POLLS_PER_LEASE = 4
"""A wait for claims is cut into this many parts of a lease: the lease counts from when the
request was sent, so a grant at the end of a long wait would be worth nothing."""
SLOW = ("gc", "leave")
"""Methods whose answer takes its time."""

Ids = list[TaskId]
Updates = list[TaskUpdate]


class AsyncClient:
    """A connection with a cluster: ``async with AsyncClient("HOST:PORT") as client``.

    Give one address or several of the same cluster; the client finds the other peers.
    Many tasks may use it at once.  ``network``, ``now_ms`` and ``random_64`` are for
    simulations.
    """

    def __init__(
        self,
        address: str | Sequence[str] = ADDRESS,
        *,
        token: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        network: Network | None = None,
        now_ms: Callable[[], int] | None = None,
        random_64: Callable[[], int] | None = None,
    ) -> None:
        self._addresses = [address] if isinstance(address, str) else list(address)
        for each in self._addresses:
            split_address(each)
        self._hello = Hello(credential=token)
        self._timeout_ms = timeout_ms
        self._network = network or TcpNetwork()
        self._now_ms = now_ms or _wall_ms
        self._random_64 = random_64 or _random_64

    async def __aenter__(self) -> AsyncClient:
        generator = random.Random(self._random_64())
        self._worker = f"client-{generator.getrandbits(48):012x}"
        self._background = Background()
        await self._background.__aenter__()
        self._pool = Pool(self._background, self._network, self._addresses, hello=self._hello, generator=generator)
        self._enqueuer = Enqueuer(self._background, self._pool, now_ms=self._now_ms, random_64=self._random_64)
        self._holder = Holder(self._background, self._pool)
        self._background.start_soon(self._pool.keep_routes)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._background.__aexit__(kind, error, trace)

    # tasks
    async def enqueue(
        self,
        queue: str,
        payload: bytes,
        *,
        priority: int = 0,
        delay_ms: int = 0,
        at_ms: int | None = None,
        retries: int | None = 25,
        backoff_ms: int = 1000,
        format: str = "bytes",
        id: bytes | str | None = None,
        w: int | None = None,
        timeout_ms: int | None = None,
    ) -> TaskId:
        """Store one task; its id. Calls that come together leave together. See `enqueue_many`."""
        policy = Policy(queue, priority, retries, backoff_ms, format, w)
        when, until = When.of(delay_ms, at_ms), self._until(timeout_ms)
        if when == NOW and id is None:
            return await self._enqueuer.one(policy, payload, until=until)
        ids = None if id is None else [id]
        return (await self._enqueuer.many(policy, [payload], until=until, when=when, ids=ids))[0]

    async def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[bytes],
        *,
        priority: int = 0,
        delay_ms: int = 0,
        at_ms: int | None = None,
        retries: int | None = 25,
        backoff_ms: int = 1000,
        format: str = "bytes",
        ids: Sequence[bytes | str] | None = None,
        w: int | None = None,
        timeout_ms: int | None = None,
    ) -> Ids:
        """Store tasks that differ in their payload only; their ids in the same order.

        ``delay_ms``: due so much later.  ``at_ms``: due then (milliseconds since the epoch,
        by the clocks of the cluster, whatever this machine's shows).  ``retries``: failed attempts
        allowed beyond the first, None for no limit.  ``ids``: from `make_ids`, so that a
        repeated call is the same tasks.  ``w``: how many nodes must have stored them
        (None: a majority).  If it raises, some of the tasks may be stored.
        """
        policy = Policy(queue, priority, retries, backoff_ms, format, w)
        when, until, payloads = When.of(delay_ms, at_ms), self._until(timeout_ms), list(payloads)
        if len(payloads) == 1 and when == NOW and ids is None:
            # A batch of one task is as good as a single task: it goes with others that come now.
            return [await self._enqueuer.one(policy, payloads[0], until=until)]
        return await self._enqueuer.many(policy, payloads, until=until, when=when, ids=ids)

    async def make_ids(self, count: int, *, delay_ms: int = 0, at_ms: int | None = None) -> Ids:
        """Fresh ids to enqueue under; the tasks will be due at the time given here."""
        await self._pool.loaded_routes(self._until(None))
        await anyio.lowlevel.checkpoint()  # a loop around this call must not keep everything else from running
        return self._enqueuer.make_ids(count, when=When.of(delay_ms, at_ms))

    async def get(self, id: bytes | str, *, seen_token: int | None = None, seen_seq: int | None = None) -> Task:
        """A task; raises `NotFound`. Never older than a claim or update seen before."""
        args = {"id": as_id(id), "seen_token": seen_token, "seen_seq": seen_seq}
        return Task.of(await self._read("get", args))

    async def task_log(self, id: bytes | str) -> Updates:
        """The updates of a task, in order; raises `NotFound`."""
        answer = await self._read("task_log", {"id": as_id(id)})
        return [TaskUpdate(found["token"], found["seq"], found["data"], found["at_ms"]) for found in answer["updates"]]

    async def cancel(self, id: bytes | str) -> None:
        """Cancel a task; raises `NotFound`, or `Conflict` if it is claimed or finished."""
        answer = await self._read("cancel", {"ids": [as_id(id)]})
        if answer["results"][0] is not None:
            raise from_map(answer["results"][0])

    # claims
    async def claim(
        self,
        queues: str | Sequence[str],
        max: int = 1,
        lease_ms: int = 30_000,
        wait_ms: int = 0,
        worker: str | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> ClaimBatch:
        """Claim up to ``max`` (1,000) tasks for ``lease_ms``, waiting ``wait_ms`` for the first.

        Empty if there was none in time.  Raises `Unavailable` if claims could not be
        granted when the waiting was over.
        """
        names = [queues] if isinstance(queues, str) else list(queues)
        clock = anyio.current_time
        wait_until = clock() + wait_ms / 1000
        poll_ms = POLL_MS_MIN if lease_ms < POLLS_PER_LEASE * POLL_MS_MIN else lease_ms // POLLS_PER_LEASE
        sent_at = 0.0

        def args() -> dict[str, Any]:
            nonlocal sent_at
            sent_at = clock()
            left_ms = int((wait_until - sent_at) * 1000)
            now_wait_ms = min(left_ms, poll_ms) if left_ms > 0 else 0
            said = worker or self._worker
            return {"queues": names, "max": max, "lease_ms": lease_ms, "wait_ms": now_wait_ms, "worker": said}

        while True:
            answer = await self._pool.call(
                "claim",
                args,
                until=wait_until + self._seconds(timeout_ms),
                wait_ms=poll_ms,
                retry_until=wait_until,
                late=self._give_back,
            )
            if answer["claims"] or clock() >= wait_until:
                return ClaimBatch.of(answer, expires=sent_at + lease_ms / 1000, lease_ms=lease_ms)

    async def update(self, claim: Claim, data: bytes, *, timeout_ms: int | None = None) -> int:
        """Append an update to a claimed task; its number, from 0 per claim. Raises `StaleToken`."""
        return await self._holder.update(claim, data, until=self._until(timeout_ms))

    async def renew(self, claims: Claims, lease_ms: int | None = None, *, timeout_ms: int | None = None) -> None:
        """Make the lease run for ``lease_ms`` (default: as granted) from now. Raises as `complete` does."""
        claims = _kept(claims)
        sent_at = anyio.current_time()
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
        timeout_ms: int | None = None,
    ) -> None:
        """Finish tasks, with one result for all or one each.

        For a single `Claim` raises `StaleToken` and the like; for several `BatchRefused`,
        which names those refused: the others are finished.
        """
        claims = _kept(claims)
        items = completion_items(claims, result, None if results is None else list(results))
        await self._holder.act("complete", claims, items, until=self._until(timeout_ms))

    async def fail(
        self, claims: Claims, error: str, retry_in_ms: int | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Report a failed attempt: the tasks are due again later, or fail for good. Raises as `complete`."""
        claims = _kept(claims)
        items = items_of(claims, error, retry_in_ms)
        await self._holder.act("fail", claims, items, until=self._until(timeout_ms))

    async def release(self, claims: Claims, *, timeout_ms: int | None = None) -> None:
        """Give tasks back without counting an attempt. Raises as `complete` does."""
        claims = _kept(claims)
        await self._holder.act("release", claims, items_of(claims), until=self._until(timeout_ms))

    # looking around
    async def count(self, queue: str | None = None) -> dict[str, dict[str, int]]:
        """Tasks by state, per queue."""
        counts: dict[str, dict[str, int]] = (await self._read("count", {"queue": queue}))["counts"]
        return counts

    async def list(
        self, queue: str | None = None, *, state: str | None = None, after: bytes | None = None, limit: int = 100
    ) -> Page:
        """Tasks in id order, of one queue and state if given; go on with ``after`` of the page."""
        answer = await self._read("list", {"queue": queue, "state": state, "after": after, "limit": limit})
        return Page(tuple(Task.of(task) for task in answer["tasks"]), answer["after"])

    async def queues(self) -> Sequence[dict[str, Any]]:
        """Every queue with its depth by state and the age of its oldest ready task."""
        queues: Sequence[dict[str, Any]] = (await self._read("queues", {}))["queues"]
        return queues

    async def cluster(self) -> dict[str, Any]:
        """The cluster's name, settings and condition."""
        return await self._map("cluster")

    async def ring(self) -> dict[str, Any]:
        """The ring: who watches whom."""
        return await self._map("ring")

    async def partitions(self) -> dict[str, Any]:
        """Every partition's members, leader and epoch."""
        return await self._map("partitions")

    async def peers(self) -> dict[str, Any]:
        """Every peer and node."""
        return await self._map("peers")

    async def health(self) -> dict[str, Any]:
        """Whether the asked peer serves, and how far behind the log it is."""
        return await self._map("health")

    async def log(self, from_: int | None = None, limit: int = 100) -> dict[str, Any]:
        """Records of the log from a position on, with the verdict on each entry."""
        return await self._map("log", {"from": from_, "limit": limit})

    async def submit_entry(
        self, entry: str, args: Mapping[str, Any] | Sequence[Any] | None = None, *, timeout_ms: int | None = None
    ) -> Submitted:
        """Append an entry of an extension; where it stands in the log and what became of it.

        Like all calls it is repeated until a peer answers, so an entry may be applied twice.
        Raises `NotFound`, `Forbidden`, `NotEnabled`, `BadRequest` naming the argument.
        """
        sent = dict(args) if isinstance(args, Mapping) else list(args or ())
        found = await self._map("submit", {"entry": entry, "args": sent or {}}, timeout_ms=timeout_ms)
        return Submitted(found["position"], found["verdict"])

    async def extension(self, name: str, *, seen: int | None = None) -> Any:
        """The state of an extension as any peer knows it; not older than the position ``seen``. Raises `NotFound`."""
        args = {"name": name} if seen is None else {"name": name, "seen": seen}
        return (await self._read("extension", args))["state"]

    async def gc(self, *, timeout_ms: int | None = None) -> dict[str, Any]:
        """Compress the replica and trim the log; returns once it is trimmed."""
        return await self._map("gc", timeout_ms=timeout_ms)

    async def leave(self, peer: str, *, permanent: bool = False, timeout_ms: int | None = None) -> None:
        """Drain a peer; ``permanent``: its copies move away first."""
        await self._map("leave", {"peer": peer, "permanent": permanent}, timeout_ms=timeout_ms)

    async def call(self, method: str, args: dict[str, Any], *, timeout_ms: int | None = None) -> Any:
        """Any method of the API by name, asked once: what a peer answers is final, also an error.

        Only peers that cannot be reached are passed over.
        """
        wait_ms = int(self._seconds(timeout_ms) * 1000) if method in SLOW else int(args.get("wait_ms") or 0)
        until = self._until(timeout_ms) + wait_ms / 1000
        return await self._pool.call(method, args, until=until, wait_ms=wait_ms, retry_until=0.0)

    async def _read(self, method: str, args: dict[str, Any]) -> Any:
        return await self._pool.call(method, args, until=self._until(None))

    async def _map(
        self, method: str, args: dict[str, Any] | None = None, *, timeout_ms: int | None = None
    ) -> dict[str, Any]:
        wait_ms = int(self._seconds(timeout_ms) * 1000) if method in SLOW else 0
        found: dict[str, Any] = await self._pool.call(
            method, args or {}, until=self._until(timeout_ms), wait_ms=wait_ms
        )
        return found

    def _give_back(self, answer: dict[str, Any]) -> None:
        """Claims arrived for a call that had been given up: nobody will work on them."""
        late = ClaimBatch.of(answer, expires=0.0, lease_ms=0)
        if late:
            self._pool.notify("release", {"items": items_of(late)})

    def _until(self, timeout_ms: int | None) -> float:
        return anyio.current_time() + self._seconds(timeout_ms)

    def _seconds(self, timeout_ms: int | None) -> float:
        return (self._timeout_ms if timeout_ms is None else timeout_ms) / 1000


def _kept(claims: Claims) -> Claims:
    """An iterable that can be gone through more than once."""
    if isinstance(claims, (Claim, ClaimBatch)):
        return claims
    kept = list(claims)
    if not all(isinstance(claim, Claim) for claim in kept):
        raise BadRequest("claims are what claim() gave, or Claim.of(id, token)", field="claims")
    return kept


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _random_64() -> int:
    return int.from_bytes(os.urandom(8), "big")
