"""A backup of real peers in use is restored as a cluster with exactly the same state."""

from __future__ import annotations

import contextlib
import io
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from onyxq.client import AsyncClient, Task
from onyxq.errors import BadRequest, OnyxqError
from onyxq.history.backup.capture import take
from onyxq.history.backup.file import read
from onyxq.interfaces.cli.main import run
from onyxq.log.zookeeper_server import ZookeeperServer
from tests.processes.cluster import Cluster, bounded

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NAMES = ("a", "b", "c")
AUTH = "digest:ops:a secret of ZooKeeper"
PAGES_BEFORE = 8
"""The leader is killed when this page is requested."""
CHAINS = 12
"""Chains of tasks: each transaction completes a task and enqueues its successor."""
HOPS = 30
"""Steps of all chains together, before the backup and after it."""


async def command(*arguments: str, code: int = 0) -> Any:
    """Return the document that a command prints with ``--json``."""

    def body() -> tuple[int, str]:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            return run([*arguments, "--json"]), said.getvalue()

    found, text = await trio.to_thread.run_sync(body)
    assert found == code, text
    return json.loads(text) if code == 0 else None


class Chains:
    """Workers that replace a task by its successor in a transaction, until cancelled."""

    def __init__(self, client: AsyncClient) -> None:
        self.hops = 0
        self._client = client
        self._moved = trio.Event()

    async def begin(self) -> None:
        """Enqueue the first task of each chain."""
        await self._client.enqueue_many("chain", [f"{number} 0".encode() for number in range(CHAINS)])

    async def work(self) -> None:
        """One worker."""
        while True:
            with contextlib.suppress(OnyxqError):
                for claim in await self._client.claim(["chain"], max=2, wait_ms=500):
                    number, hop = claim.data.split()
                    following = {"queue": "chain", "data": b"%b %d" % (number, int(hop) + 1)}
                    await self._client.transact(complete=[claim], enqueue=[following])
                    self.hops += 1
                    self._moved.set()
                    self._moved = trio.Event()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until a number of steps is done."""
        while not reached():
            await self._moved.wait()


async def tasks_of(cluster: Cluster, client: AsyncClient, queue: str) -> dict[bytes, Task]:
    """Return all tasks of a queue by id, once every partition serves."""

    async def read() -> list[Task]:
        return [task async for task in client.list_all(queue)]

    return {task.id: task for task in await cluster.until(f"the tasks of {queue}", read)}


async def in_every_state(client: AsyncClient) -> dict[str, bytes]:
    """Make a task in each state of queue ``work``; return them by a word for the state."""
    made = {"scheduled": await client.enqueue("work", b"later", delay_ms=3_600_000)}
    for word in ("claimed", "completed", "failed", "retried"):
        made[word] = await client.enqueue("work", word.encode(), priority=9, retries=5 if word == "retried" else 0)
        (claim,) = await client.claim(["work"], lease_ms=600_000, worker=f"worker of {word}", wait_ms=10_000)
        assert claim.id == made[word]
        if word == "claimed":
            await client.update(claim, b"half way")
        elif word == "completed":
            await client.complete([claim], b"result")
        else:
            await client.fail([claim], "no", retry_in_ms=3_600_000 if word == "retried" else None)
    made["ready"] = await client.enqueue("work", b"now", priority=-3)
    made["waiting"] = await client.enqueue("work", b"behind", depends=[made["scheduled"]])
    made["first of its key"], made["second of its key"] = await client.enqueue_many(
        "work", [b"k1", b"k2"], ordering_key="k"
    )
    made["unique"] = await client.enqueue("work", b"u", unique_key="only")
    made["cancelled"] = await client.enqueue("work", b"never mind")
    await client.cancel(made["cancelled"])
    return made


@bounded(300)
async def test_everything_stands_as_it_did(
    cluster: Cluster, zookeeper: ZookeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restored cluster has tasks in every state, settings and periodic tasks, and no partial transaction.

    A claim from before the backup can be completed after it, and tokens continue above the old ones. A cluster
    that is restored with a credential for ZooKeeper belongs to the credential.
    """
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    file = tmp_path / "backup"
    async with cluster.client() as client, trio.open_nursery() as background:
        await client.set_queue("work", concurrency=7, retention_ms=86_400_000)
        await client.pause("resting", why="a test")
        await client.set_periodic("nightly", queue="work", schedule="0 4 1 1 *")
        made = await in_every_state(client)
        before = await tasks_of(cluster, client, "work")
        chains = Chains(client)
        await chains.begin()
        for _ in range(3):
            background.start_soon(chains.work)
        await chains.until(lambda: chains.hops >= HOPS)
        done = await command("cluster", "backup", str(file), "--connect", cluster["b"].address)
        hops = chains.hops
        await chains.until(lambda: chains.hops >= hops + HOPS)
        position = (await client.cluster())["position"]
        background.cancel_scope.cancel()
    cluster.end()
    assert done["rows"] > 0 and [path.name for path in tmp_path.glob("backup*")] == ["backup"]

    name = f"restored-{uuid.uuid4().hex[:12]}"
    where = ["--zookeeper", zookeeper.hosts, "--name", name, "--data", str(tmp_path / "restored")]
    monkeypatch.setenv("ONYXQ_ZOOKEEPER_AUTH", AUTH)
    restored = await command("cluster", "restore", str(file), *where)
    await command("cluster", "restore", str(file), *where[:-1], str(tmp_path / "again"), code=4)
    async with Cluster(tmp_path, zookeeper=zookeeper.hosts, name=name) as after:
        for letter, node in zip(NAMES, restored["nodes"], strict=True):
            after.add(f"restored-{letter}", data=Path(node["data"])).surroundings["ONYXQ_ZOOKEEPER_AUTH"] = AUTH
        await after.start(*after.peers)
        await after.whole(*after.peers)
        assert {peer.node for peer in after.peers.values()} == {peer.node for peer in cluster.peers.values()}
        async with after.client() as client:
            await as_before(after, client, made, before)
            await no_halves(after, client)
            claim = await client.claim(["work"], lease_ms=60_000, wait_ms=10_000)
            assert claim[0].id in (made["ready"], made["first of its key"], made["unique"])
            assert claim[0].token > max(position, restored["position"])
            held = before[made["claimed"]]
            await client.call("complete", {"items": [[held.id, 1, held.claims[-1].token, None, [b"late"]]]})
            assert (await client.get(held.id)).state == "completed"
        assert (await after.see(after["restored-a"], "/v1/cluster"))["id"] == restored["cluster_id"]
    monkeypatch.delenv("ONYXQ_ZOOKEEPER_AUTH")
    await command("cluster", "destroy", name, "--zookeeper", zookeeper.hosts, "--yes", code=BadRequest.exit_code)


async def as_before(cluster: Cluster, client: AsyncClient, made: dict[str, bytes], before: dict[bytes, Task]) -> None:
    """Check that every task of queue ``work`` and the settings are unchanged."""
    after = await tasks_of(cluster, client, "work")
    assert after.keys() == before.keys()
    for word, task_id in made.items():
        assert after[task_id] == before[task_id], word
    assert await client.enqueue("work", b"u2", unique_key="only") == made["unique"]
    settings = (await client.queue("work"))["settings"]
    assert (settings["concurrency"], settings["retention_ms"]) == (7, 86_400_000)
    assert (await client.queue("resting"))["settings"]["paused"]
    assert (await client.periodic("nightly"))["schedule"] == "0 4 1 1 *"


async def no_halves(cluster: Cluster, client: AsyncClient) -> None:
    """Check that all tasks of each chain are completed except the last."""
    found: dict[int, list[tuple[int, str]]] = {number: [] for number in range(CHAINS)}
    for task in (await tasks_of(cluster, client, "chain")).values():
        number, hop = map(int, task.data.split())
        found[number].append((hop, task.state))
    for number, hops in found.items():
        *done, (last, state) = sorted(hops)
        assert [hop for hop, _ in done] == list(range(last)), number
        assert {one for _, one in done} <= {"completed"} and state in ("ready", "claimed"), (number, hops)


@bounded(240)
async def test_a_backup_outlives_a_leader(cluster: Cluster, tmp_path: Path) -> None:
    """It is killed after some pages: the next leaders send the rest, and no row is missing."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    async with cluster.client() as client:
        ids = [await client.enqueue("work", b"x", ordering_key=f"k{number}") for number in range(60)]
    file = tmp_path / "backup"
    pages = 0

    async with AsyncClient([cluster["a"].address, cluster["b"].address]) as client:

        async def call(method: str, args: dict[str, Any]) -> Any:
            nonlocal pages
            pages += method == "backup.rows"
            if pages == PAGES_BEFORE and cluster["c"].runs:
                cluster["c"].kill()
            return await client.call(method, args)

        await take(call, str(file))
    assert not cluster["c"].runs
    found = read(file)
    assert found.rows >= len(ids)
    assert set(ids) <= {row.key[3:23] for _, page in found.pages() for row in page}
