"""A ZooKeeper that is restored from an older copy, wiped or partly restored: every node reports it."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from onyxq.client import AsyncClient, Claim
from onyxq.errors import LogWentBack, OnyxqError
from onyxq.log.zookeeper_server import ZookeeperServer
from tests.processes.cluster import POLL_S, SESSION_TIMEOUT_MS, Cluster, PeerProcess, bounded

pytestmark = pytest.mark.anyio

NOTICED_S = 30.0
PEERS = ("a", "b", "c")


class Restorable:
    """ZooKeeper servers whose data can be copied, restored and wiped while they are down."""

    def __init__(self, root: Path, *, servers: int = 1) -> None:
        self.server = ZookeeperServer(root / "zookeeper", servers=servers)
        self.servers = range(servers)
        self._root = root

    def down(self) -> None:
        """Kill every server."""
        for number in self.servers:
            self.server.kill(number)

    def up(self) -> None:
        """Start every server on its data."""
        for number in self.servers:
            self.server.spawn(number)

    def data(self, number: int) -> Path:
        """Return a server's directory."""
        return self._root / "zookeeper" / f"server-{number + 1}" / "data"

    def copy(self, name: str) -> None:
        """Copy the data of all servers, which are down."""
        for number in self.servers:
            shutil.copytree(self.data(number), self._root / name / str(number))

    def restore(self, name: str, *numbers: int) -> None:
        """Replace the data of some servers, or of all, by a copy."""
        for number in numbers or self.servers:
            shutil.rmtree(self.data(number))
            shutil.copytree(self._root / name / str(number), self.data(number))

    def wipe(self) -> None:
        """Delete all data."""
        for number in self.servers:
            shutil.rmtree(self.data(number))


@pytest.fixture
def servers() -> int:
    """Number of servers of the test's ZooKeeper."""
    return 1


@pytest.fixture
def own(tmp_path: Path, servers: int) -> Iterator[Restorable]:
    """A ZooKeeper of the test's own."""
    found = Restorable(tmp_path, servers=servers)
    found.server.start()
    yield found
    found.server.stop()


@pytest.fixture
async def cluster(own: Restorable, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster on it."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    async with Cluster(tmp_path, zookeeper=own.server.hosts, name=name, session_timeout_ms=SESSION_TIMEOUT_MS) as found:
        yield found


async def claimed(cluster: Cluster, client: AsyncClient) -> list[Claim]:
    """Claim a task, as a worker does: ask again while the log cannot be reached.

    Servers that have just started may elect a leader more than once, so a peer that reached them may lose them again.
    """
    return await cluster.until("claimed", lambda: client.claim(["q"], wait_ms=10_000, worker="w"))


async def churn(cluster: Cluster, times: int, *peers: str) -> None:
    """Enqueue a task and complete another, so that tokens rise; ``peers`` are those that serve."""
    async with cluster.client(*peers) as client:
        for number in range(times):
            await client.enqueue("q", b"%d" % number)
            for claim in await claimed(cluster, client):
                await client.complete(claim)


async def set_back(cluster: Cluster, own: Restorable) -> None:
    """Copy ZooKeeper, use the cluster, and restore the copy under its running peers; keep the newest copy too."""
    await churn(cluster, 3)
    own.down()
    own.copy("older")
    own.up()
    await cluster.whole(*PEERS)
    await churn(cluster, 20)
    own.down()
    own.copy("newest")
    own.restore("older")


async def refused(cluster: Cluster, *peers: PeerProcess) -> None:
    """Check that processes end with one clear line."""
    for peer in peers:
        with trio.fail_after(NOTICED_S):
            while peer.runs:
                await trio.sleep(POLL_S)
        said = peer.stderr()
        assert LogWentBack.code in said and "Traceback" not in said
        assert peer.process is not None and peer.process.returncode == LogWentBack.exit_code


async def says_so(cluster: Cluster, peer: PeerProcess) -> bool:
    """Return whether a running peer is unready because of it, and its metrics show it."""
    ready = await cluster.send(peer, "GET", "/readyz")
    metrics = await cluster.send(peer, "GET", "/metrics")
    told = ready.status_code == 503 and ready.json()["log_went_back"]
    return told and "onyxq_log_went_back 1" in metrics.text


@pytest.mark.long
@bounded(240)
async def test_running_peers_say_that_the_log_went_back_and_grant_nothing(cluster: Cluster, own: Restorable) -> None:
    """Enqueues continue. When the newest copy is restored, peers continue on their own, and nothing is lost."""
    await cluster.start(*PEERS)
    await cluster.whole(*PEERS)
    await set_back(cluster, own)
    own.up()
    for name in PEERS:
        await cluster.until("noticed", lambda peer=cluster[name]: says_so(cluster, peer), seconds=NOTICED_S)
        assert "no claims are granted" in cluster[name].stderr()
    async with cluster.client() as client:
        await client.enqueue("q", b"meanwhile")
        with pytest.raises(OnyxqError):
            await client.claim(["q"], wait_ms=2_000, worker="w", timeout_ms=4_000)
        own.down()
        own.restore("newest")
        own.up()
        await cluster.whole(*PEERS)
        claims = await claimed(cluster, client)
        assert [claim.data for claim in claims] == [b"meanwhile"]


@pytest.mark.long
@bounded(240)
async def test_a_peer_that_had_read_no_more_than_the_older_copy_hears_of_it(cluster: Cluster, own: Restorable) -> None:
    """It was frozen before the copy was made, so the log lacks nothing that it knows: the others tell it."""
    await cluster.start(*PEERS)
    await cluster.whole(*PEERS)
    await churn(cluster, 3)
    still, *others = PEERS
    cluster[still].freeze()
    own.down()
    own.copy("older")
    own.up()
    await cluster.whole(*others)
    await churn(cluster, 20, *others)
    own.down()
    own.restore("older")
    cluster[still].thaw()
    own.up()
    for name in PEERS:
        await cluster.until("noticed", lambda peer=cluster[name]: says_so(cluster, peer), seconds=NOTICED_S)


@pytest.mark.long
@bounded(240)
async def test_peers_that_start_on_an_older_copy_are_refused(cluster: Cluster, own: Restorable) -> None:
    """Each ends with the error, and none becomes ready."""
    await cluster.start(*PEERS)
    await cluster.whole(*PEERS)
    await set_back(cluster, own)
    for name in PEERS:
        cluster[name].kill()
    own.up()
    for name in PEERS:
        cluster[name].spawn()
    await refused(cluster, *(cluster[name] for name in PEERS))


@pytest.mark.long
@bounded(240)
async def test_peers_that_start_on_a_wiped_zookeeper_make_no_new_cluster(cluster: Cluster, own: Restorable) -> None:
    """Their data would not belong to it."""
    await cluster.start(*PEERS)
    await cluster.whole(*PEERS)
    for name in PEERS:
        await cluster[name].terminate()
    own.down()
    own.wipe()
    own.up()
    for name in PEERS:
        cluster[name].spawn()
    await refused(cluster, *(cluster[name] for name in PEERS))
    assert all("the log is empty" in cluster[name].stderr() for name in PEERS)


class TestEnsemble:
    """Three servers of ZooKeeper."""

    @pytest.fixture
    def servers(self) -> int:
        """Number of servers of the test's ZooKeeper."""
        return 3

    @pytest.mark.long
    @bounded(300)
    async def test_one_restored_member_of_an_ensemble_takes_the_log_from_the_others(
        self, cluster: Cluster, own: Restorable
    ) -> None:
        """The other two outvote it, so the log did not go back, and peers continue."""
        await cluster.start(*PEERS)
        await cluster.whole(*PEERS)
        await set_back(cluster, own)
        own.restore("newest", 1, 2)
        own.up()
        await cluster.whole(*PEERS)
        await churn(cluster, 3)
        assert not any("nothing is granted" in cluster[name].stderr() for name in PEERS)

    @pytest.mark.long
    @bounded(300)
    async def test_an_older_majority_of_an_ensemble_is_noticed(self, cluster: Cluster, own: Restorable) -> None:
        """Two restored members that come up first make their log the ensemble's."""
        await cluster.start(*PEERS)
        await cluster.whole(*PEERS)
        await set_back(cluster, own)
        own.restore("newest", 0)
        for number in (1, 2):
            own.server.spawn(number)
        for name in PEERS:
            await cluster.until("noticed", lambda peer=cluster[name]: says_so(cluster, peer), seconds=2 * NOTICED_S)
        own.server.spawn(0)


@pytest.mark.long
@bounded(120)
async def test_an_embedded_log_that_is_older_than_the_store_is_refused(tmp_path: Path) -> None:
    """This happens if only a part of a data directory is restored."""
    peer = PeerProcess(
        "solo", data=tmp_path / "solo", output=tmp_path, arguments=["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    )
    try:
        peer.spawn()
        await peer.ready()
        await peer.terminate()
        shutil.copytree(peer.data / "log", tmp_path / "older")
        peer.spawn()
        await peer.ready()
        await peer.terminate()
        shutil.rmtree(peer.data / "log")
        shutil.copytree(tmp_path / "older", peer.data / "log")
        peer.spawn()
        with trio.fail_after(NOTICED_S):
            while peer.runs:
                await trio.sleep(POLL_S)
        assert LogWentBack.code in peer.stderr() and "Traceback" not in peer.stderr()
    finally:
        peer.kill()
