"""Producers and workers for tests, with a history of acknowledgements.

Two promises are tested: a task whose enqueue was acknowledged is never lost, and a task whose
completion was acknowledged is never granted again.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import httpx
import pytest
import trio

from onyxq.client import AsyncClient, Claim
from onyxq.core.ids import ids_of
from onyxq.errors import BatchRefused, OnyxqError, Unavailable
from tests.processes.cluster import POLL_S, Cluster

LEASE_MS = 5_000
"""Short lease, so that claims whose answer died with a peer expire during the test."""
LOOK_UP_AFTER_S = 5.0
BATCH_TASKS = 20
"""Tasks of one enqueue, which share a partition; the next enqueue uses another one."""
CLAIM_TASKS = 50
SPREAD_TASKS = 5
"""Tasks for one partition before the next one's turn."""
PAGE_TASKS = 1_000
AGAIN = (429, 503, 504)
"""Statuses after which a request may be repeated: too many requests, unavailable, timed out."""


class History:
    """What producers and workers know from answers."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.enqueued: set[bytes] = set()
        """Acknowledged enqueues."""
        self.completed: dict[bytes, int] = {}
        """Acknowledged completions: the token of each task."""
        self.done: set[bytes] = set()
        """Tasks that a read shows as completed, though the answer to the completion was lost with a leader."""
        self.granted: dict[bytes, int] = {}
        """Task -> highest token under which it was granted."""
        self.wrong: list[str] = []
        """Promises that were broken."""
        self._moved = trio.Event()

    def took(self, claims: Sequence[Claim]) -> None:
        """Record that a worker got these tasks."""
        for claim in claims:
            done = self.completed.get(claim.id)
            if done is not None and claim.token > done:
                self.wrong.append(f"{claim.id.hex()} completed under {done}, handed out again under {claim.token}")
            if claim.token == self.granted.get(claim.id):
                self.wrong.append(f"{claim.id.hex()} handed out twice under {claim.token}")
            self.granted[claim.id] = max(claim.token, self.granted.get(claim.id, -1))

    def finished(self, claims: Sequence[Claim], refused: Sequence[Any] = ()) -> None:
        """Record that these tasks, except the refused parts, were reported as completed."""
        left_out = {task_id for part in refused for task_id in ids_of(part.first, part.count)}
        for claim in claims:
            if claim.id in left_out:
                continue
            if claim.token < self.granted[claim.id]:
                newer = self.granted[claim.id]
                self.wrong.append(f"{claim.id.hex()} completed under {claim.token} though {newer} was granted")
            self.completed[claim.id] = claim.token
        self.moved()

    def moved(self) -> None:
        """Wake the callers that wait for progress."""
        self._moved.set()
        self._moved = trio.Event()

    async def until_moved(self) -> None:
        """Wait for the next progress."""
        await self._moved.wait()

    async def until_completed(self, count: int) -> None:
        """Wait until that many completions were acknowledged."""
        while len(self.completed) < count:
            await self._moved.wait()

    @property
    def left(self) -> set[bytes]:
        """The acknowledged tasks that are not known to be completed."""
        return self.enqueued - self.completed.keys() - self.done

    async def look_up(self, client: AsyncClient) -> None:
        """Ask for the tasks that workers had and whose completion has no answer."""
        for task_id in sorted(self.left & self.granted.keys()):
            with suppress(OnyxqError):
                if (await client.get(task_id)).state == "completed":
                    self.done.add(task_id)

    async def until_all_completed(self, client: AsyncClient) -> None:
        """Wait until every acknowledged enqueue is completed; while nothing moves, ask."""
        while self.left:
            with trio.move_on_after(LOOK_UP_AFTER_S) as quiet:
                await self._moved.wait()
            if quiet.cancelled_caught:
                await self.look_up(client)


async def enqueue_over_tcp(history: History, client: AsyncClient, count: int) -> None:
    """Store tasks in batches; the client repeats until each is acknowledged."""
    for start in range(0, count, BATCH_TASKS):
        batch = [b"%d" % number for number in range(start, min(count, start + BATCH_TASKS))]
        history.enqueued.update(await client.enqueue_many(history.queue, batch))


async def enqueue_over_http(history: History, cluster: Cluster, count: int) -> None:
    """Store tasks in batches; an unacknowledged batch is sent to another peer with the same ids."""
    for start in range(0, count, BATCH_TASKS):
        size = min(BATCH_TASKS, count - start)
        ids = (await _insist(cluster, "GET", f"/v1/ids?count={size}", None))["ids"]
        data = [base64.b64encode(b"%d" % (start + place)).decode() for place in range(size)]
        tasks = [
            {"id": task_id, "queue": history.queue, "data_base64": text}
            for task_id, text in zip(ids, data, strict=True)
        ]
        answer = await _insist(cluster, "POST", "/v1/tasks", {"tasks": tasks})
        assert answer["ids"] == ids
        history.enqueued.update(map(bytes.fromhex, ids))


async def _insist(cluster: Cluster, method: str, path: str, body: Any) -> Any:
    """Return the first final answer of a peer; temporary errors and broken connections are skipped."""
    turn = 0
    while True:
        peers = cluster.serving
        peer = peers[turn % len(peers)]
        turn += 1
        try:
            answer = await cluster.send(peer, method, path, body)
        except httpx.TransportError:
            await trio.lowlevel.checkpoint()
        else:
            if answer.is_success:
                return answer.json()
            assert answer.status_code in AGAIN, answer.text
        with trio.move_on_after(POLL_S):
            await trio.sleep_forever()


async def spread(client: AsyncClient, queue: str, count: int) -> list[bytes]:
    """Enqueue a number of acknowledged tasks over all partitions; return their ids."""
    ids: list[bytes] = []
    while len(ids) < count:
        ids += await client.enqueue_many(queue, [b"x"] * min(SPREAD_TASKS, count - len(ids)))
    return ids


async def work(history: History, client: AsyncClient, worker: str) -> None:
    """Claim and complete until cancelled."""
    while True:
        try:
            claims = await client.claim([history.queue], max=CLAIM_TASKS, lease_ms=LEASE_MS, wait_ms=500, worker=worker)
            if claims:
                await complete(history, client, claims)
        except Unavailable:
            with trio.move_on_after(POLL_S):
                await trio.sleep_forever()


async def complete(history: History, client: AsyncClient, claims: Sequence[Claim]) -> None:
    """Complete claims, and record the acknowledgements; raises `Unavailable` if nothing could be done."""
    history.took(claims)
    try:
        await client.complete(claims)
    except BatchRefused as error:
        history.finished(claims, error.refused)
    else:
        history.finished(claims)


async def states(client: AsyncClient, queue: str) -> dict[bytes, str]:
    """Return the state of every task of a queue, read page by page; raises `OnyxqError`."""
    found: dict[bytes, str] = {}
    after: bytes | None = None
    more = True
    while more:
        page = await client.list(queue, after=after, limit=PAGE_TASKS)
        found.update((task.id, task.state) for task in page.tasks)
        after = page.after
        more = after is not None
    return found


async def described(client: AsyncClient, task_id: bytes) -> str:
    """Return a description of one task."""
    try:
        return f"{await client.get(task_id)}"
    except OnyxqError as error:
        return f"{task_id.hex()}: {error!r}"


async def all_there(cluster: Cluster, client: AsyncClient, queue: str, expected: dict[bytes, str]) -> None:
    """Fail unless exactly the expected tasks exist in the expected states, once reads succeed."""

    async def read() -> dict[bytes, str]:
        return await states(client, queue)

    found = await cluster.until(f"reading all of {queue}", read)
    lost = sorted(expected.keys() - found.keys())
    if lost:
        count = (await client.count(queue))[queue]
        pytest.fail(f"{len(lost)} tasks are not listed, the first {await described(client, lost[0])}; counted: {count}")
    wrong = {task_id.hex(): state for task_id, state in found.items() if expected.get(task_id) != state}
    assert not wrong, f"{len(wrong)} of {len(found)} tasks are not as expected: {dict(list(wrong.items())[:5])}"
