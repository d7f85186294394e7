"""Peers under load whose disks fail in writes, syncs and pages at random moments (``failing_disk.c``)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from onyxq.store.integrity.lmdb_check import DATA
from onyxq.store.integrity.lmdb_pages import check_file
from tests.processes.cluster import Cluster, bounded
from tests.processes.failing_disk import ALWAYS, META_WRITES, compile_library
from tests.processes.failing_moments import NAMES, Moments, produce
from tests.processes.workload import History, states, work

pytestmark = [pytest.mark.anyio, pytest.mark.long]

MOMENTS = int(os.environ.get("ONYXQ_TEST_MOMENTS", "4"))
"""How often a disk fails; before a release it is 50."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library to preload."""
    return compile_library(tmp_path_factory.mktemp("failing_disk"))


@bounded(180 + 90 * MOMENTS)
async def test_a_disk_that_fails_at_random_moments_costs_nothing_acknowledged(cluster: Cluster, library: Path) -> None:
    """Each peer recovers, or ends with a clear line and starts again; no completed task is granted again."""
    moments = Moments(cluster, library)
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    history = History("work")
    async with cluster.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(produce, history, client)
        nursery.start_soon(work, history, client, "worker")
        for number in range(MOMENTS):
            await moments.one(history)
            print(f"{number + 1} of {MOMENTS}: {dict(moments.seen)}, {len(history.completed)} tasks done", flush=True)
        nursery.cancel_scope.cancel()
    async with cluster.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(work, history, client, "worker")

        async def drained() -> dict[bytes, str]:
            found = await states(client, "work")
            return found if set(found.values()) == {"completed"} else {}

        found = await cluster.until("every task is completed", drained, seconds=120)
        nursery.cancel_scope.cancel()
    assert history.wrong == []
    assert history.enqueued <= found.keys(), f"{len(history.enqueued - found.keys())} acknowledged tasks are lost"
    print(f"{len(history.enqueued)} enqueues and {len(history.completed)} completions were acknowledged")
    for name in NAMES:
        await cluster[name].terminate()
        check_file(cluster[name].data / DATA)


@bounded(240)
async def test_a_peer_whose_disk_refuses_writes_is_absent_until_it_takes_them(cluster: Cluster, library: Path) -> None:
    """It leads no partition, its partitions count as under-replicated, and health and metrics show why."""
    moments = Moments(cluster, library)
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    sick, other = cluster["c"], cluster["a"]
    async with cluster.client("a", "b") as client, trio.open_nursery() as nursery:
        nursery.start_soon(produce, History("work"), client)
        moments.disks["c"].fail(META_WRITES, times=ALWAYS)

        async def absent() -> bool:
            about = await cluster.see(other, "/v1/cluster")
            nodes = await cluster.nodes_of_ring(other)
            return bool(nodes and sick.node not in nodes and about["under_replicated"])

        await cluster.until("the peer is out of the ring, and its copies are missed", absent)
        assert await cluster.led_by(sick, seen_by=other) == []
        answer = await cluster.send(sick, "GET", "/readyz")
        assert (answer.status_code, "the store cannot be written" in answer.text) == (503, True)
        assert "onyxq_store_writable 0" in (await cluster.send(sick, "GET", "/metrics")).text
        moments.disks["c"].heal()
        await cluster.whole(*NAMES)
        await cluster.replicated(other)
        assert "onyxq_store_writable 1" in (await cluster.send(sick, "GET", "/metrics")).text
        nursery.cancel_scope.cancel()
