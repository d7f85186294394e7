"""A cluster with all security settings: tokens, the peers' secret, mutual TLS, and protected znodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trustme
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from onyxq import api
from onyxq.access.certificates import Certificates
from onyxq.client import AsyncClient
from onyxq.errors import Unauthorized
from onyxq.log.zookeeper_server import ZookeeperServer
from tests.processes.cluster import POLL_S, STATE_TIMEOUT_S, Cluster, bounded

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NAMES = ("a", "b", "c")
TOKEN, SECRET, AUTH = "a-token-of-some-length", "what the peers share", "digest:onyxq:a password"
TASKS = 200


def secured(home: Path) -> dict[str, str]:
    """Environment of a peer, with files below a directory."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(home / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(home / "peer.pem"))
    files = Certificates(str(home / "ca.pem"), str(home / "peer.pem"), str(home / "peer.pem"))
    said = {"TOKENS": f"{TOKEN}=admin", "PEER_SECRET": SECRET, "ZOOKEEPER_AUTH": AUTH}
    return files.to_environment() | {f"ONYXQ_{name}": value for name, value in said.items()}


def refused(hosts: str, path: str) -> None:
    """Check that a client without ZooKeeper's credential can read nothing of the cluster."""
    client = KazooClient(hosts)
    try:
        client.start()
        for attempt in (client.get, client.get_children):
            with pytest.raises(NoAuthError):
                attempt(path)
    finally:
        client.stop()
        client.close()


@bounded(240)
async def test_tasks_survive_a_peer_with_everything_secured(
    cluster: Cluster, zookeeper: ZookeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers replicate to each other, take over from a killed one, and are found in ZooKeeper."""
    environment = secured(tmp_path)
    for name in NAMES:
        cluster.add(name).surroundings = environment
    await cluster.start(*NAMES)
    tls = Certificates(ca=environment["ONYXQ_TLS_CA"])
    addresses = [peer.address for peer in cluster.serving]
    async with AsyncClient(addresses, token=TOKEN, tls=tls, timeout_ms=60_000) as client:

        async def settled() -> bool:
            found = await client.call("cluster", {})
            return bool(found["under_replicated"] == 0 and found["not_ready"] == 0)

        await cluster.until("every partition on three nodes", settled)
        await client.enqueue_many("mail", [b"%d" % number for number in range(TASKS)], w=3)
        cluster["a"].kill()
        done = 0
        with trio.fail_after(2 * STATE_TIMEOUT_S):
            while done < TASKS:
                claims = await client.claim(["mail"], max=50, wait_ms=5_000, worker="w")
                await client.complete(claims)
                done += len(claims)
        assert (await client.count("mail"))["mail"]["completed"] == TASKS
    with pytest.raises(Unauthorized):
        async with AsyncClient(addresses[1:], token="no-such-token", tls=tls, timeout_ms=5_000) as client:
            await client.queues()
    for path in ("", "/log", "/pulse", "/origin"):
        await trio.to_thread.run_sync(refused, zookeeper.hosts, f"/onyxq/{cluster.name}{path}")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def jobs() -> list[object]:
        return list(api.jobs(zookeeper=zookeeper.hosts, cluster=cluster.name, token=TOKEN))

    assert await trio.to_thread.run_sync(jobs) == []
    stranger = cluster.add("d")
    stranger.surroundings = {name: value for name, value in environment.items() if name != "ONYXQ_ZOOKEEPER_AUTH"}
    stranger.spawn()
    with trio.fail_after(STATE_TIMEOUT_S):
        while stranger.runs:
            await trio.sleep(POLL_S)
    assert stranger.process is not None and stranger.process.poll() == 2
    assert "zookeeper_auth" in stranger.tail() and AUTH not in stranger.tail()
