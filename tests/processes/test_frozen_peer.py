"""A peer that is frozen longer than its session and thawed: its old beliefs do no harm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
import trio

from onyxq.client import AsyncClient, ClaimBatch
from onyxq.core.ids import partition_of
from onyxq.errors import StaleToken
from tests.processes.cluster import STATE_TIMEOUT_S, Cluster, PeerProcess, bounded
from tests.processes.workload import History, all_there, complete

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NAMES = ("a", "b", "c")
OLD_LEASE_MS = 3_000
LEASE_MS = 300_000


@bounded(180)
async def test_a_thawed_peer_is_evicted_and_accepts_no_old_claim(cluster: Cluster) -> None:
    """Completions under old tokens wait in its sockets when it continues; it rejoins under a new id."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    victim, other, third = (cluster[name] for name in NAMES)
    led = await cluster.led_by(victim, seen_by=other)
    async with cluster.client("b", "c") as client, trio.open_nursery() as nursery:
        ids = await ids_in(client, set(led), 8)
        for task_id in ids:
            await client.enqueue("work", b"x", id=task_id)
        old = await claimed(client, ids, OLD_LEASE_MS, "old")
        victim.freeze()

        async def evicted() -> bool:
            return await cluster.nodes_of_ring(other) == {other.node, third.node}

        await cluster.until("the frozen peer's eviction", evicted)
        history = History("work")
        history.enqueued.update(ids)
        new = await claimed(client, ids, LEASE_MS, "new")
        old_tokens: dict[bytes, int] = {claim.id: claim.token for batch in old for claim in batch}
        assert all(claim.token > old_tokens[claim.id] for batch in new for claim in batch)

        answers: list[httpx.Response] = []
        for task_id in ids:
            nursery.start_soon(complete_at, victim, task_id, old_tokens[task_id], answers)
        await sockets_filled(victim, len(ids))
        victim.thaw()

        async def answered() -> bool:
            return len(answers) == len(ids)

        await cluster.until("answers to the old claims", answered)
        assert [answer.json()["results"][0].get("code") for answer in answers] == [StaleToken.code] * len(ids)

        await cluster.whole(*NAMES)
        peers = {one["node"]: one["peer"] for one in (await cluster.see(other, "/v1/ring"))["members"]}
        assert peers[victim.node] != victim.first_peer
        for batch in old:
            for claim in batch:
                with pytest.raises(StaleToken):
                    await client.complete(claim)
        for batch in new:
            await complete(history, client, batch)
        assert history.completed.keys() == history.enqueued
        await all_there(cluster, client, "work", dict.fromkeys(ids, "completed"))


async def ids_in(client: AsyncClient, partitions: set[int], count: int) -> list[bytes]:
    """Return new ids in some of these partitions, one run each."""
    found: list[bytes] = []
    while len(found) < count:
        (task_id,) = await client.make_ids(1)
        if partition_of(task_id) in partitions:
            found.append(task_id)
    return found


async def claimed(client: AsyncClient, ids: Sequence[bytes], lease_ms: int, worker: str) -> list[ClaimBatch]:
    """Claim these tasks by one worker as soon as possible; on a slow machine some are claimed again."""
    found: list[ClaimBatch] = []
    while {claim.id for batch in found for claim in batch} != set(ids):
        found.append(await client.claim(["work"], max=len(ids), lease_ms=lease_ms, wait_ms=2_000, worker=worker))
    return found


async def complete_at(peer: PeerProcess, task_id: bytes, token: int, answers: list[httpx.Response]) -> None:
    """Complete a claim at this peer only, however long its answer takes."""
    async with httpx.AsyncClient(timeout=STATE_TIMEOUT_S, trust_env=False) as http:
        body = {"claims": [{"id": task_id.hex(), "token": token}]}
        answers.append(await http.post(f"http://{peer.http}/v1/claims/complete", json=body))


async def sockets_filled(peer: PeerProcess, count: int) -> None:
    """Wait until the kernel keeps bytes of that many requests for a peer that does not read."""
    port = f":{int(peer.http.rpartition(':')[2]):04X}"
    waiting = 0
    while waiting < count:
        await trio.sleep(0.02)
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        waiting = sum(line[1].endswith(port) and int(line[4].partition(":")[2], 16) > 0 for line in lines)
