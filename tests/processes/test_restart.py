"""All peers at once: the cluster reforms on its own, and its data stays in place."""

from __future__ import annotations

import pytest

from tests.processes.cluster import Cluster, PeerProcess, bounded
from tests.processes.workload import all_there, spread

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NAMES = ("a", "b", "c")
TASKS = 1_000
LEASE_MS = 300_000


async def cohorts(cluster: Cluster, peer: PeerProcess) -> dict[int, tuple[list[str], list[str]]]:
    """Return members and target of every partition."""
    return {number: (found["members"], found["target"]) for number, found in (await cluster.partitions(peer)).items()}


@bounded(180)
async def test_a_cluster_killed_whole_reforms_and_moves_nothing(cluster: Cluster) -> None:
    """SIGKILL to every peer at once, then all start again: ring, cohorts, tasks and claims as before."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    async with cluster.client() as client:
        ids = await spread(client, "work", TASKS)
        done = await client.claim(["work"], max=100, lease_ms=LEASE_MS, wait_ms=5_000, worker="early")
        await client.complete(done)
        kept = await client.claim(["work"], max=10, lease_ms=LEASE_MS, wait_ms=5_000, worker="patient")
    before = await cohorts(cluster, cluster["a"])
    for name in NAMES:
        cluster[name].kill()
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    for name in NAMES:
        assert await cohorts(cluster, cluster[name]) == before
    async with cluster.client() as client:
        expected: dict[bytes, str] = dict.fromkeys(ids, "ready")
        expected.update({claim.id: "completed" for claim in done})
        expected.update({claim.id: "claimed" for claim in kept})
        await all_there(cluster, client, "work", expected)
        await client.complete(kept)
        assert (await client.count("work"))["work"]["completed"] == len(done) + len(kept)
