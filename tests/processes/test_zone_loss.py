"""One of three zones is lost, with its peers and its ZooKeeper server: full service, and nothing is lost."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from onyxq.client import AsyncClient
from onyxq.log.zookeeper_server import ZookeeperServer
from tests.processes.cluster import Cluster, bounded

pytestmark = [pytest.mark.anyio, pytest.mark.long]

ZONES = ("a", "b", "c")
TASKS = 60


@pytest.fixture
def ensemble(zookeeper: ZookeeperServer, tmp_path: Path) -> Iterator[ZookeeperServer]:
    """Three servers of their own (``zookeeper`` skips without Java)."""
    with ZookeeperServer(tmp_path / "ensemble", servers=3) as servers:
        yield servers


@pytest.fixture
async def cluster(ensemble: ZookeeperServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster with a peer in each zone; they are killed after the test."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    async with Cluster(tmp_path, zookeeper=ensemble.hosts, name=name) as found:
        for zone in ZONES:
            found.more_options("--zone", zone)  # the last one counts
            found.add(zone)
        yield found


async def work_off(cluster: Cluster, client: AsyncClient, count: int) -> set[bytes]:
    """Claim and complete a number of tasks; return their payloads.

    Like a worker, it claims again while the ensemble elects a leader: until then the log cannot be reached.
    """
    seen: set[bytes] = set()
    while len(seen) < count:
        claims = await cluster.until("claimed", lambda: client.claim(["q"], max=count, lease_ms=30_000, wait_ms=5_000))
        await client.complete(claims)
        seen |= set(claims.payloads)
    return seen


@bounded(180)
async def test_a_lost_zone_leaves_full_service(cluster: Cluster, ensemble: ZookeeperServer) -> None:
    """The ensemble's leader and the zone's peer are lost: old tasks are claimed, new tasks are accepted."""
    await cluster.start(*ZONES)
    await cluster.whole(*ZONES)
    async with cluster.client("a", "b") as client:
        ids = await client.enqueue_many("q", [b"old %d" % number for number in range(TASKS)])
        for number in range(TASKS):
            ids.append(await client.enqueue("q", b"single %d" % number))
        lost = ensemble.leader()
        ensemble.kill(lost)
        cluster["c"].kill()
        with trio.fail_after(40):
            new = [await client.enqueue("q", b"new %d" % number) for number in range(TASKS)]
            seen = await work_off(cluster, client, 3 * TASKS)
        kinds = ("old", "single", "new")
        assert seen == {b"%s %d" % (kind.encode(), number) for kind in kinds for number in range(TASKS)}
        assert {(await client.get(task_id)).state for task_id in [*ids[::7], *new[::7]]} == {"completed"}
        await cluster.whole("a", "b")
        ensemble.spawn(lost)
        await cluster.start("c")
        await cluster.whole(*ZONES)
        await cluster.replicated(cluster["a"])
