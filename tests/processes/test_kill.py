"""Killed peers: nothing acknowledged is lost, nothing completed runs again."""

from __future__ import annotations

import os

import pytest
import trio

from onyxq.core.ids import TaskId, partition_of
from tests.processes.cluster import Cluster, PeerProcess, bounded
from tests.processes.workload import History, all_there, enqueue_over_http, enqueue_over_tcp, work

pytestmark = pytest.mark.anyio

TASKS = int(os.environ.get("ONYXQ_TEST_TASKS", "4000"))
"""Number of tasks; before a release it is 20,000."""
NAMES = ("a", "b", "c")


async def most_leading(cluster: Cluster) -> PeerProcess:
    """Return the peer that leads most partitions."""
    counts = {name: len(await cluster.led_by(peer, seen_by=peer)) for name, peer in cluster.peers.items()}
    name = max(sorted(counts), key=lambda name: counts[name])
    assert counts[name] > 0
    return cluster[name]


@bounded(120 + TASKS / 100)
async def test_a_killed_leader_costs_no_task_and_catches_up(cluster: Cluster) -> None:
    """SIGKILL happens during work over HTTP and TCP; later another peer dies, and no task is missing."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    history = History("work")
    half, quarter = TASKS // 2, TASKS // 4
    async with cluster.client() as producer, trio.open_nursery() as workers:
        for name in NAMES:
            workers.start_soon(run_worker, cluster, history, name)
        async with trio.open_nursery() as producers:
            producers.start_soon(enqueue_over_http, history, cluster, quarter)
            producers.start_soon(enqueue_over_tcp, history, producer, quarter)
            await history.until_completed(quarter)
            victim = await most_leading(cluster)
            led = await cluster.led_by(victim, seen_by=victim)
            earlier = set(history.enqueued)
            victim.kill()
            killed_at = trio.current_time()
            producers.start_soon(enqueue_over_http, history, cluster, half - quarter)
            producers.start_soon(enqueue_over_tcp, history, producer, half - quarter)
        await history.until_all_completed(producer)
        print(f"{2 * half} tasks done; the later {2 * (half - quarter)} took {trio.current_time() - killed_at:.1f} s")
        workers.cancel_scope.cancel()
    assert history.wrong == []
    assert {partition_of(TaskId(task_id)) for task_id in history.enqueued - earlier} & set(led), (
        "others took over what it led"
    )
    expected = dict.fromkeys(history.enqueued, "completed")
    assert len(expected) == 2 * half

    await cluster.start(victim.name)
    await cluster.replicated(victim)
    await cluster.whole(*NAMES)
    other = next(peer for peer in cluster.serving if peer is not victim)
    other.kill()
    left = [peer.name for peer in cluster.serving]
    await cluster.whole(*left)
    async with cluster.client(victim.name) as client:
        await all_there(cluster, client, "work", expected)
        assert not await client.claim(["work"], max=1_000, lease_ms=1_000, wait_ms=500, worker="late")


async def run_worker(cluster: Cluster, history: History, first: str) -> None:
    """Run one worker that knows one peer at first."""
    async with cluster.client(first) as client:
        await work(history, client, f"worker-{first}")
