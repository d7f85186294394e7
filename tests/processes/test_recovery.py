"""A cluster of real peers whose ZooKeeper was restored from an older copy, or wiped, is recovered by one command."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from onyxq.client import AsyncClient, Claim
from onyxq.core.log.interface import segment_of
from onyxq.errors import Conflict, StaleToken
from onyxq.interfaces.cli.main import run
from onyxq.log.zookeeper_server import ZookeeperServer
from tests.processes.cluster import Cluster, bounded

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NAMES = ("a", "b", "c")
ROUNDS = 20
"""Rounds of claims and releases, so that tokens rise."""


@pytest.fixture
def server(zookeeper: ZookeeperServer, tmp_path: Path) -> ZookeeperServer:
    """A ZooKeeper of the test's own, not started; ``zookeeper`` skips the test if there is none."""
    return ZookeeperServer(tmp_path / "zookeeper")


@pytest.fixture
async def own(server: ZookeeperServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster of three peers on that ZooKeeper, which runs."""
    server.start()
    try:
        async with Cluster(tmp_path, zookeeper=server.hosts, name=f"test-{uuid.uuid4().hex[:12]}") as found:
            await found.start(*NAMES)
            await found.whole(*NAMES)
            yield found
    finally:
        server.stop()


async def command(*arguments: str, code: int = 0) -> Any:
    """Return the document that a command prints with ``--json``, or its stderr if it ends with ``code``."""

    def body() -> tuple[int, str, str]:
        said, wrong = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
            return run([*arguments, "--json"]), said.getvalue(), wrong.getvalue()

    found, text, wrong = await trio.to_thread.run_sync(body)
    assert found == code, text + wrong
    return json.loads(text) if code == 0 else wrong


def recovery(cluster: Cluster, server: ZookeeperServer, *directories: str) -> list[str]:
    """Return the command with the data directories of some peers."""
    data = [word for name in directories for word in ("--data", str(cluster[name].data))]
    return ["cluster", "recover", cluster.name, "--zookeeper", server.hosts, *data]


async def raise_tokens(client: AsyncClient) -> None:
    """Claim and release repeatedly."""
    for _ in range(ROUNDS):
        for claim in await client.claim(["work"], max=10, wait_ms=5_000):
            await client.release([claim])


async def claim_all(client: AsyncClient, count: int, **how: Any) -> dict[bytes, Claim]:
    """Claim a number of tasks; return the claims by task."""
    found: dict[bytes, Claim] = {}
    while len(found) < count:
        found |= {claim.id: claim for claim in await client.claim(["work"], max=count, wait_ms=5_000, **how)}
    return found


@bounded(240)
async def test_a_zookeeper_that_was_set_back_is_recovered_from(
    own: Cluster, server: ZookeeperServer, tmp_path: Path
) -> None:
    """Completions, settings and tasks stay, claims are void, tokens rise; without --yes nothing changes."""
    async with own.client() as client:
        ids = await client.enqueue_many("work", [b"%d" % number for number in range(6)])
    own.end()
    server.stop()
    shutil.copytree(tmp_path / "zookeeper", tmp_path / "older")
    server.start()
    await own.start(*NAMES)
    await own.whole(*NAMES)
    async with own.client() as client:
        await raise_tokens(client)
        held = await claim_all(client, 6, lease_ms=600_000)
        await command("log", "gc", "--connect", own["a"].address)
        await client.set_queue("work", concurrency=7)
        for name in NAMES:
            async with own.client(name) as one:
                while (await one.queue("work"))["settings"]["concurrency"] != 7:
                    pass
        # Its write takes the record of the setting to the disks.
        await client.complete([held[ids[0]]], b"result")
    own.end()
    server.stop()
    shutil.rmtree(tmp_path / "zookeeper")
    (tmp_path / "older").rename(tmp_path / "zookeeper")
    server.start()

    shown = await command(*recovery(own, server, *NAMES))
    assert shown["log"]["state"] == "older" and shown["log"]["position"] < shown["position"]
    assert [row["node"] for row in shown["found"]] == [own[name].node for name in NAMES]
    assert max(row["log_from"] for row in shown["found"]) > 0, "copies begin with a snapshot"
    # the claim of a completed task is released later
    assert shown["missing"] == [] and shown["claims_made_void"] in (5, 6)
    again = await command(*recovery(own, server, *NAMES), "--yes")
    assert again["log"] == shown["log"], "the first run changed nothing"
    position = again["done"]["position"]
    assert segment_of(position) > segment_of(max(claim.token for claim in held.values()))

    await own.start(*NAMES)
    await own.whole(*NAMES)
    async with own.client() as client:
        assert (await client.get(ids[0])).state == "completed"
        assert (await client.queue("work"))["settings"]["concurrency"] == 7
        with pytest.raises(StaleToken):
            await client.complete(held[ids[1]], b"under a void token")
        claims = await claim_all(client, 5)
        assert claims.keys() == set(ids[1:])
        assert all(claim.token > position for claim in claims.values())
        await client.complete(list(claims.values()))
        assert {(await client.get(one)).state for one in ids} == {"completed"}
    said = await command(*recovery(own, server, *NAMES), code=Conflict.exit_code)
    assert "in use by process" in said
    own.end()
    said = await command(*recovery(own, server, *NAMES), code=Conflict.exit_code)
    assert "intact" in said


@bounded(240)
async def test_a_wiped_zookeeper_is_recovered_from_without_a_node_that_comes_later(
    own: Cluster, server: ZookeeperServer, tmp_path: Path
) -> None:
    """A missing node is named and must be named in the consent; it joins later with the same state as the others.

    One directory is given, one is exported, and one is missing.
    """
    async with own.client() as client:
        ids = await client.enqueue_many("work", [b"%d" % number for number in range(6)])
        held = await claim_all(client, 6)
        await client.complete([held[ids[0]]], b"result")
    own.end()
    server.stop()
    shutil.rmtree(tmp_path / "zookeeper")
    server.start()

    exported = tmp_path / "b.rec"
    await command("cluster", "recover", own.name, "--data", str(own["b"].data), "--export", str(exported))
    given = [*recovery(own, server, "a"), "--from", str(exported), "--yes"]
    said = await command(*given, code=Conflict.exit_code)
    assert own["c"].node in said and "--without" in said
    done = await command(*given, "--without", own["c"].node)
    assert done["log"]["state"] == "empty" and [one["node"] for one in done["missing"]] == [own["c"].node]

    await own.start("a", "b")
    async with own.client("a", "b") as client:
        claims = await claim_all(client, 5, lease_ms=600_000)
        assert claims.keys() == set(ids[1:])
        await client.complete(list(claims.values())[:4])
    await own.start("c")
    await own.whole(*NAMES)
    async with own.client("c") as client:
        states = [(await client.get(one)).state for one in ids]
        assert sorted(states) == ["claimed", *["completed"] * 5]


@bounded(240)
async def test_a_peer_that_was_frozen_meanwhile_joins_the_new_log(
    own: Cluster, server: ZookeeperServer, tmp_path: Path
) -> None:
    """It cannot continue with the old log: its session is gone when it thaws, and it loads the new snapshot."""
    async with own.client() as client:
        ids = await client.enqueue_many("work", [b"%d" % number for number in range(4)])
        held = await claim_all(client, 4, lease_ms=600_000)
    own["c"].freeze()
    own["a"].kill()
    own["b"].kill()
    server.stop()
    shutil.rmtree(tmp_path / "zookeeper")
    server.start()
    said = await command(*recovery(own, server, *NAMES), code=Conflict.exit_code)
    assert f"{own['c'].data} is in use by process" in said
    await command(*recovery(own, server, "a", "b"), "--without", own["c"].node, "--yes")
    await own.start("a", "b")
    own["c"].thaw()
    await own.whole(*NAMES)
    async with own.client("c") as client:
        with pytest.raises(StaleToken):
            await client.complete(held[ids[0]])
        claims = await claim_all(client, 4)
        assert min(claim.token for claim in claims.values()) > max(claim.token for claim in held.values())
        await client.complete(list(claims.values()))
