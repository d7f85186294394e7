"""Real peers whose log on a real ZooKeeper goes through several segments."""

from __future__ import annotations

import pytest
import trio

from onyxq.client import AsyncClient
from onyxq.core.log.interface import segment_of
from tests.processes.cluster import Cluster, PeerProcess, bounded
from tests.processes.collecting import gc
from tests.processes.workload import History, all_there, enqueue_over_tcp, work

pytestmark = [pytest.mark.anyio, pytest.mark.long]

SEGMENT_RECORDS = 30
SEGMENTS = 2


def with_short_segments(cluster: Cluster, name: str) -> PeerProcess:
    """Return a node whose program closes a segment after few records."""
    peer = cluster.add(name)
    peer.program = "tests.processes.short_segments"
    peer.surroundings = {"SEGMENT_RECORDS": str(SEGMENT_RECORDS)}
    return peer


async def collect(cluster: Cluster, history: History, *peers: PeerProcess) -> None:
    """Collect through the peers in turn, with work in between, until each reads in the last segment."""
    turn = 0
    while min([segment_of((await cluster.see(peer, "/v1/cluster"))["position"]) for peer in peers]) < SEGMENTS:
        await history.until_completed(len(history.completed) + 1)
        await gc(cluster, peers[turn % len(peers)])
        turn += 1


async def enqueue(history: History, client: AsyncClient, stop: trio.Event) -> None:
    """Keep the worker and the log busy until ``stop``."""
    while not stop.is_set():
        await enqueue_over_tcp(history, client, 20)


@bounded(180)
async def test_a_cluster_works_on_through_segments(cluster: Cluster) -> None:
    """Nothing is lost or repeated across segments, tokens rise, and a new node starts in the last one."""
    peers = [with_short_segments(cluster, name) for name in ("a", "b")]
    with_short_segments(cluster, "c")
    await cluster.start("a", "b")
    history, stop = History("work"), trio.Event()
    async with cluster.client() as client, trio.open_nursery() as workers:
        workers.start_soon(work, history, client, "worker")
        async with trio.open_nursery() as load:
            load.start_soon(enqueue, history, client, stop)
            await collect(cluster, history, *peers)
            stop.set()
        await cluster.start("c")
        await enqueue_over_tcp(history, client, 100)
        await history.until_all_completed(client)
        workers.cancel_scope.cancel()
    assert history.wrong == []
    assert {segment_of(token) for token in history.completed.values()} == set(range(SEGMENTS + 1))
    await cluster.whole("a", "b", "c")
    async with cluster.client("c") as client:
        await all_there(cluster, client, "work", dict.fromkeys(history.enqueued, "completed"))
