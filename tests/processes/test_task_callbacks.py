"""Callbacks of tasks from real peers, to an HTTP server on loopback: a peer is killed while tasks end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import httpx
import pytest
import trio
from attrs import define, field

from onyxq.client import AsyncClient
from onyxq.errors import OnyxqError
from tests.processes.cluster import Cluster, bounded

pytestmark = [pytest.mark.anyio, pytest.mark.long]

TASKS = int(os.environ.get("ONYXQ_TEST_TASKS", "300"))
NAMES = ("a", "b", "c")
SECONDS = 240
CLAIM_MAX = 10


@define
class Receiver:
    """An HTTP server that notes each callback by its key, and refuses every seventh request."""

    bodies: dict[str, list[dict[str, Any]]] = field(factory=dict)
    requests: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection, which has one request."""
        try:
            head, _, body = (await self._read(stream, b"")).partition(b"\r\n\r\n")
            said = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:])
            while len(body) < int(said["content-length"]):
                body += await stream.receive_some()
            self.requests += 1
            status = b"200 OK"
            if self.requests % 7 == 0:
                status = b"503 Service Unavailable"
            else:
                self.bodies.setdefault(said["idempotency-key"], []).append(json.loads(body))
            await stream.send_all(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        except trio.BrokenResourceError:
            pass  # the peer was killed
        finally:
            await trio.aclose_forcefully(stream)

    async def _read(self, stream: trio.SocketStream, head: bytes) -> bytes:
        while b"\r\n\r\n" not in head:
            some = await stream.receive_some()
            if not some:
                raise trio.BrokenResourceError
            head += some
        return head


async def store(addresses: Sequence[str], uri: str) -> list[str]:
    """Store tasks over HTTP, each request twice: at one peer and at another one. Return the ids."""
    ids: list[str] = []
    callback = {"transport": "http", "uri": uri, "method": "post"}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        for number in range(0, TASKS, 10):
            first, second = (f"http://{addresses[(number // 10 + place) % len(addresses)]}" for place in (0, 1))
            fresh = (await http.get(f"{first}/v1/ids", params={"count": 10})).json()["ids"]
            tasks = [
                {"id": one, "queue": "work", "data": number + place, "retries": 0, "callback": callback}
                for place, one in enumerate(fresh)
            ]
            for base in (first, second):
                answer = await http.post(f"{base}/v1/tasks", json={"tasks": tasks})
                assert answer.status_code == 201, answer.text
            ids += fresh
    return ids


async def work(addresses: Sequence[str], ended: set[bytes]) -> None:
    """End tasks until cancelled: every third fails for good, every fifth is cancelled, the others are completed."""
    async with AsyncClient(addresses) as client:
        while True:
            try:
                for claim in await client.claim("work", max=CLAIM_MAX, wait_ms=1_000, lease_ms=5_000):
                    number = json.loads(claim.data)
                    if number % 3 == 0:
                        await client.fail(claim, f"number {number}")
                    elif number % 5 == 0:
                        await client.cancel(claim.id, claimed=True)
                    else:
                        await client.complete(claim, json.dumps({"twice": 2 * number}).encode())
                    ended.add(claim.id)
            except OnyxqError:
                await trio.lowlevel.checkpoint()  # the peer was killed; its claims are granted again


async def has_ended(ended: set[bytes], count: int) -> bool:
    """Return whether at least ``count`` tasks have ended."""
    return len(ended) >= count


@bounded(SECONDS)
async def test_each_end_makes_one_callback_although_a_peer_is_killed(cluster: Cluster) -> None:
    """The callback of each task has one key and tells what the cluster shows of the task."""
    receiver, ended = Receiver(), set[bytes]()
    for name in NAMES:
        await cluster.start(name)
    await cluster.whole(*NAMES)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, receiver.serve, 0, host="127.0.0.1"))
        uri = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/ended"
        ids = await store([cluster[name].http for name in NAMES], uri)
        nursery.start_soon(work, [cluster[name].address for name in NAMES], ended)
        await cluster.until("a third has ended", partial(has_ended, ended, TASKS // 3))
        cluster["a"].kill()

        async def look() -> bool:
            depth = (await cluster.see(cluster["b"], "/v1/queues/onyxq.timers"))["depth"]
            assert depth["failed"] == 0
            return bool(depth["completed"] == TASKS)

        await cluster.until("every end is reported", look, seconds=SECONDS)
        nursery.cancel_scope.cancel()
    told = {bodies[0]["id"]: bodies for bodies in receiver.bodies.values()}
    print(f"\n{TASKS} tasks, {len(receiver.bodies)} callbacks, {receiver.requests} requests")
    assert len(told) == len(receiver.bodies) == TASKS and sorted(told) == sorted(ids)
    for task_id, bodies in told.items():
        task = await cluster.see(cluster["b"], f"/v1/tasks/{task_id}")
        for body in bodies:
            assert (body["state"], body["error"]) == (task["state"], task["error"])
            assert body["result"] == task["result"]
