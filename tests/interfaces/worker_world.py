"""A worker at a cluster of one peer, for the tests of workers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from onyxq.client import AsyncClient
from onyxq.worker import Worker
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer

PATIENCE_S = 60


async def until(condition: Callable[[], bool]) -> None:
    """Wait for an event that will come soon, with any clock."""
    while not condition():
        await anyio.sleep(0.05)


async def with_worker(
    cluster: FakeCluster,
    network: SimulatedNetwork,
    worker: Worker,
    body: Callable[[AsyncClient, FakePeer], Awaitable[None]],
) -> None:
    """Run ``body`` while a worker works at a cluster of one peer; end when both have ended."""
    peer = await cluster.start(network.host("a"), "a:1")
    async with AsyncClient("a:1", network=network.host("w")) as client, anyio.create_task_group() as group:
        group.start_soon(worker.serve, client)
        await body(client, peer)


def play_in_real_time(scenario: Callable[[FakeCluster, SimulatedNetwork], Awaitable[None]], backend: str) -> None:
    """Run ``scenario(cluster, network)`` under a clock that waits for threads and processes."""

    async def main() -> None:
        async with anyio.create_task_group() as group:
            with anyio.fail_after(PATIENCE_S):
                await scenario(FakeCluster(group), SimulatedNetwork())
            group.cancel_scope.cancel()

    anyio.run(main, backend=backend)


def a_call(name: str, *args: Any, **kwargs: Any) -> bytes:
    """Return the payload of a call of a task."""
    return json.dumps({"task": name, "args": args, "kwargs": kwargs}).encode()
