"""Cohorts that lose and gain members: service, refusals, and returning nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from onyxq.client import AsyncClient
from onyxq.core.ids import partition_of
from tests.processes.cluster import Cluster, PeerProcess, bounded
from tests.processes.workload import all_there, spread

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NAMES = ("a", "b", "c")
TASKS = 500
LEASE_MS = 300_000
DISK_BYTES = 48 * 1024 * 1024
LARGE = bytes(100_000)
REFUSAL_TIMEOUT_S = 60.0
"""Longest wait for a refusal: a peer looks for a majority for some seconds first."""
MINORITY_CODES = {"unavailable", "not_leader", "unknown"}
"""Error codes of a peer that cannot reach a majority."""


async def enqueue_in(client: AsyncClient, queue: str, partitions: set[int], data: bytes = b"x") -> list[bytes]:
    """Enqueue one acknowledged task in each of these partitions."""
    ids: dict[int, bytes] = {}
    while ids.keys() != partitions:
        made = (await client.make_ids(1))[0]
        if partition_of(made) in partitions:
            ids[partition_of(made)] = made
    async with trio.open_nursery() as nursery:
        for task_id in ids.values():
            nursery.start_soon(enqueue_one, client, queue, task_id, data)
    return sorted(ids.values())


async def enqueue_one(client: AsyncClient, queue: str, task_id: bytes, data: bytes) -> None:
    """Enqueue one acknowledged task."""
    await client.enqueue(queue, data, id=task_id)


async def claim_and_complete(client: AsyncClient, queue: str, count: int) -> list[bytes]:
    """Claim and complete a number of tasks; return their ids."""
    done: list[bytes] = []
    while len(done) < count:
        claims = await client.claim([queue], max=count - len(done), lease_ms=LEASE_MS, wait_ms=5_000, worker="w")
        await client.complete(claims)
        done += [claim.id for claim in claims]
    return done


@pytest.mark.parametrize("session_timeout_ms", [8_000])
@bounded(120)
async def test_writes_go_on_while_a_cohort_member_is_frozen(cluster: Cluster) -> None:
    """Two of three keep their partitions writable, before the freeze is noticed and after the eviction."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    frozen, other, third = (cluster[name] for name in NAMES)
    led = set(await cluster.partitions(other)) - set(await cluster.led_by(frozen, seen_by=other))
    async with cluster.client("b", "c") as client:
        await client.make_ids(1)
        frozen.freeze()
        ids = await enqueue_in(client, "work", led)
        nodes = await cluster.nodes_of_ring(other)
        assert frozen.node in nodes, "these were acknowledged before the frozen peer was given up"

        async def evicted() -> bool:
            return await cluster.nodes_of_ring(other) == {other.node, third.node}

        await cluster.until("the frozen peer's eviction", evicted)
        ids += await enqueue_in(client, "work", set(await cluster.partitions(other)))
        done = await claim_and_complete(client, "work", len(ids))
        frozen.thaw()
        await cluster.whole(*NAMES)
        await cluster.replicated(frozen)
        assert sorted(done) == sorted(ids)
        await all_there(cluster, client, "work", dict.fromkeys(ids, "completed"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Make a small file system, which a test can fill."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("yield_after_ms", [1_500])
@bounded(240)
async def test_a_leader_with_a_full_disk_yields_and_others_serve(
    small_disk: Path, yield_after_ms: int, cluster: Cluster
) -> None:
    """Its partitions accept writes at other nodes; once it has room it takes part again."""
    cluster.add("a", data=small_disk / "data")
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    full, other = cluster["a"], cluster["b"]
    still = led = set(await cluster.led_by(full, seen_by=other))
    assert led
    async with cluster.client("b", "c", timeout_ms=120_000) as client:
        ids = await spread(client, "work", TASKS)
        ballast = small_disk / "ballast"
        fill(ballast)
        while still:
            # Writes that fit free pages of the file still succeed: soon there are none.
            ids += await enqueue_in(client, "work", still, LARGE)
            placed = await cluster.partitions(other)
            still = {number for number in led if placed[number]["leader_node"] == full.node}
        assert full.runs
        done = await claim_and_complete(client, "work", len(ids))
        assert sorted(done) == sorted(ids)
        ballast.unlink()
        await cluster.whole(*NAMES)
        again = await enqueue_in(client, "again", set(placed))
    other.kill()
    await cluster.whole("a", "c")
    async with cluster.client("a") as client:
        await all_there(cluster, client, "work", dict.fromkeys(done, "completed"))
        await all_there(cluster, client, "again", dict.fromkeys(again, "ready"))


def fill(path: Path) -> None:
    """Write zeros until the disk is full."""
    with pytest.raises(OSError, match="No space"), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


@bounded(120)
async def test_one_of_two_that_drains_leaves_the_other_serving_alone(cluster: Cluster) -> None:
    """After SIGTERM the partitions settle on the remaining node before the other one leaves."""
    await cluster.start("a", "b")
    await cluster.whole("a", "b")
    stays, goes = cluster["a"], cluster["b"]
    async with cluster.client() as client:
        ids = await spread(client, "work", TASKS)
        kept = await client.claim(["work"], max=10, lease_ms=LEASE_MS, wait_ms=5_000, worker="patient")
        await goes.terminate()
        await cluster.whole("a")
        assert all(placed["members"] == [stays.node] for placed in (await cluster.partitions(stays)).values())
        await client.complete(kept)
        ids += await enqueue_in(client, "work", set(await cluster.partitions(stays)))
        done = [claim.id for claim in kept] + await claim_and_complete(client, "work", len(ids) - len(kept))
        assert sorted(done) == sorted(ids)
        await all_there(cluster, client, "work", dict.fromkeys(ids, "completed"))


async def expect_refusal(cluster: Cluster, peer: PeerProcess, method: str, path: str, body: object) -> None:
    """Send requests that need a majority: each gets 503, a reason, and a time for a retry."""
    answer = await cluster.send(peer, method, path, body, seconds=REFUSAL_TIMEOUT_S)
    assert answer.status_code == 503, f"{method} {path}: {answer.status_code} {answer.text}"
    assert answer.json()["code"] in MINORITY_CODES
    assert int(answer.headers["Retry-After"]) > 0


@bounded(240)
async def test_one_of_two_without_the_other_says_so_until_it_is_back(cluster: Cluster) -> None:
    """SIGKILL leaves one of two, too few for a majority: it refuses such requests and answers others."""
    await cluster.start("a", "b")
    await cluster.whole("a", "b")
    left, killed = cluster["a"], cluster["b"]
    async with cluster.client() as client:
        ids = await spread(client, "work", TASKS)
        held = await client.claim(["work"], max=5, lease_ms=LEASE_MS, wait_ms=5_000, worker="patient")
    killed.kill()

    async def alone() -> bool:
        return [one["node"] for one in (await cluster.see(left, "/v1/ring"))["members"]] == [left.node]

    await cluster.until("a ring of one", alone)
    orphans = [number for number, one in (await cluster.partitions(left)).items() if not one["ready"]]
    orphan = next(task_id for task_id in ids if partition_of(task_id) in orphans).hex()
    claim = {"queues": ["work"], "max": 1, "lease_ms": 1_000, "wait_ms": 0}
    finished = {"claims": [{"id": one.id.hex(), "token": one.token} for one in held]}
    async with trio.open_nursery() as nursery:
        for asked in (
            ("POST", "/v1/tasks", {"tasks": [{"queue": "work"}]}),
            ("POST", "/v1/claims", claim),
            ("DELETE", f"/v1/tasks/{orphan}", None),
            ("GET", f"/v1/tasks/{orphan}", None),
        ):
            nursery.start_soon(expect_refusal, cluster, left, *asked)
        answer = await cluster.send(left, "POST", "/v1/claims/complete", finished, seconds=REFUSAL_TIMEOUT_S)
        assert {one.get("code") for one in answer.json()["results"]} <= MINORITY_CODES
        view = await cluster.see(left, "/v1/cluster")
        assert (view["under_replicated"], view["not_ready"]) == (view["settings"]["partitions"], len(orphans))
        assert (await cluster.send(left, "GET", "/livez")).is_success

    await cluster.start("b")
    await cluster.whole("a", "b")
    async with cluster.client() as client:
        await client.complete(held)
        done = [claim.id for claim in held] + await claim_and_complete(client, "work", len(ids) - len(held))
        assert len(set(done)) == len(ids)
        found = (await client.count("work"))["work"]
        assert found["completed"] >= len(ids), "what was refused may still have been stored"


@bounded(180)
async def test_one_node_grows_to_three_and_shrinks_back_to_one(cluster: Cluster) -> None:
    """Every partition gets its copies and gives them up; every task is readable all the time."""
    await cluster.start("a")
    await cluster.whole("a")
    async with cluster.client() as client:
        ids = await spread(client, "work", TASKS)
        done = await claim_and_complete(client, "work", TASKS // 2)
    expected = dict.fromkeys(ids, "ready") | dict.fromkeys(done, "completed")
    await cluster.start("b", "c")
    await cluster.whole(*NAMES)
    await cluster.replicated(cluster["c"])
    for left, goes in ((NAMES, "a"), (("b", "c"), "b"), (("c",), "")):
        await cluster.whole(*left)
        async with cluster.client() as client:
            await all_there(cluster, client, "work", expected)
        if goes:
            await cluster[goes].terminate()
    async with cluster.client() as client:
        done += await claim_and_complete(client, "work", TASKS - len(done))
        assert sorted(done) == sorted(ids)
        task = await client.get(ids[0])
        assert (task.state, task.data) == ("completed", b"x")
