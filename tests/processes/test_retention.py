"""Retention on real nodes: purged rows leave every disk, and a stopped node does not restore them."""

from __future__ import annotations

import pytest
import trio

from onyxq.errors import NotFound, Purged
from onyxq.store.lmdb_store import LmdbStore
from tests.processes.cluster import Cluster, PeerProcess, bounded
from tests.processes.workload import spread

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NAMES = ("a", "b", "c")
TASKS = 1_000
PURGING = {"ONYXQ_PURGE_BUCKET_MS": "1000", "ONYXQ_PURGE_MARGIN_MS": "10000", "ONYXQ_ABSENT_AFTER_MS": "600000"}


async def rows(peer: PeerProcess) -> int:
    """Return how many rows the disk of an ended node has."""
    store = LmdbStore.open(peer.data)
    try:
        return sum(1 for _ in store._tables.rows.ascend(b""))
    finally:
        await store.aclose()


async def purged_everywhere(cluster: Cluster, peer: PeerProcess, ids: list[bytes]) -> None:
    """Wait until a peer has none of these."""
    async with cluster.client(peer.name) as client:

        async def look() -> bool:
            for task_id in ids[::100]:
                try:
                    await client.get(task_id)
                except NotFound:
                    continue
                return False
            return sum((await client.count("work"))["work"].values()) == 0

        await cluster.until("everything is purged", look)


@bounded(240)
async def test_finished_tasks_leave_every_disk_and_do_not_come_back(cluster: Cluster) -> None:
    """One node is stopped while they are unfinished there, and returns once they are purged."""
    for name in NAMES:
        cluster.add(name).surroundings.update(PURGING)
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    async with cluster.client() as client:
        await client.set_queue("work", retention_ms=1_000)
        ids = await spread(client, "work", TASKS)
        await cluster["c"].terminate()
        assert await rows(cluster["c"]) > 0
        done = 0
        while done < TASKS:
            claims = await client.claim(["work"], max=500, lease_ms=60_000, wait_ms=20_000, worker="w")
            await client.complete(claims)
            done += len(claims)
    await purged_everywhere(cluster, cluster["a"], ids)
    await cluster.start("c")
    await cluster.whole(*NAMES)
    await purged_everywhere(cluster, cluster["c"], ids)
    async with cluster.client("c") as client:
        assert not await client.claim(["work"], max=10, lease_ms=1_000, wait_ms=2_000, worker="late")
        with pytest.raises(Purged):
            await client.enqueue("work", b"again", id=ids[0])
    for name in NAMES:
        peer = cluster[name]

        async def gone(peer: PeerProcess = peer) -> bool:
            metrics = (await cluster.send(peer, "GET", "/metrics")).text
            return "onyxq_purged_rows_total 0" not in metrics

        await cluster.until(f"{name} has deleted", gone)
    await trio.lowlevel.checkpoint()
    for name in NAMES:
        await cluster[name].terminate()
        assert await rows(cluster[name]) == 0
