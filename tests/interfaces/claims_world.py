"""Clients of every node of a cluster, and a queue for each test."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import trio

from onyxq import AsyncClient
from onyxq.client.claims import Claim
from onyxq.client.values import Task
from onyxq.interfaces.local_cluster import LocalCluster
from tests.interfaces.live_world import PATIENCE_MS

TEST_TIMEOUT_S = 120
_serial = count(1)


class World:
    """A client of each node, and a queue that no other test uses."""

    def __init__(self, clients: list[AsyncClient]) -> None:
        self.clients = clients
        self.client = clients[0]
        self.queue = f"q-{next(_serial)}"

    async def claim(self, queue: str | None = None, *, wait_ms: int = PATIENCE_MS, **how: Any) -> Claim:
        """Claim the only task that is there or will come."""
        (claim,) = await self.client.claim([queue or self.queue], wait_ms=wait_ms, **how)
        return claim

    async def nothing(self, queue: str | None = None) -> bool:
        """Return whether no node grants a task now."""
        batches = [await client.claim([queue or self.queue], max=10) for client in self.clients]
        return not any(batches)

    async def until(self, task_id: bytes, holds: Callable[[Task], bool]) -> Task:
        """Return the task once a condition holds."""
        with trio.fail_after(PATIENCE_MS / 1000):
            while not holds(task := await self.client.get(task_id)):
                await trio.sleep(0.02)
        return task

    async def counts(self, queue: str | None = None) -> dict[str, int]:
        """Return the queue's counts that are not zero."""
        counts = (await self.client.count(queue or self.queue))[queue or self.queue]
        return {state: number for state, number in counts.items() if number}


def in_cluster(test: Callable[[Any, World], Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on trio with the clients of the module's cluster."""

    @functools.wraps(test)
    def run(self: Any, cluster: LocalCluster) -> None:
        async def main() -> None:
            one, two, three = cluster.addresses
            async with AsyncClient(one) as first, AsyncClient(two) as second, AsyncClient(three) as third:
                with trio.fail_after(TEST_TIMEOUT_S):
                    await test(self, World([first, second, third]))

        trio.run(main)

    del run.__wrapped__  # pytest is to see the cluster, not the world
    return run


async def refusal(client: AsyncClient, method: str, *item: Any) -> str | None:
    """Return the code with which one item is refused, or None if it is done."""
    (result,) = (await client.call(method, {"items": [list(item)]}))["results"]
    if method == "update":
        return None if result is None else str(result["code"])
    return str(result[0][2]["code"]) if result else None
