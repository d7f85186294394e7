"""ZooKeeper stops answering: facts continue, claims wait, and no claim is lost."""

from __future__ import annotations

import json

import pytest
import trio

from onyxq.client import AsyncClient, Claim, ClaimBatch
from onyxq.errors import LogUnavailable, OnyxqError, Unavailable
from onyxq.log.zookeeper_server import ZookeeperServer
from tests.conformance.log_world import frozen
from tests.processes.cluster import POLL_S, Cluster, bounded
from tests.processes.workload import History, all_there, complete, spread, work

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NAMES = ("a", "b", "c")
FREEZE_S = 15.0
NOTICED_S = 11.0
"""Time in which every peer must notice it; usually it takes 3 s."""
LEASE_MS = 10_000
"""Lease, shorter than the freeze."""
LONG_LEASE_MS = 120_000
TASKS = 2_000


@bounded(240)
async def test_facts_go_on_while_zookeeper_is_frozen_and_no_claim_is_lost(
    cluster: Cluster, zookeeper: ZookeeperServer
) -> None:
    """The log is unavailable for 15 s, longer than every session and the lease of the present claim."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    history, held_history = History("work"), History("held")
    async with cluster.client() as client, trio.open_nursery() as nursery:
        history.enqueued.update(await spread(client, "work", TASKS))
        held_history.enqueued.update(await spread(client, "held", 20))
        stock = await claimed(client, "work", TASKS)
        held = [claim for batch in await claimed(client, "held", 20) for claim in batch]
        renewing = trio.CancelScope()
        nursery.start_soon(renewed, client, held, renewing)
        nursery.start_soon(work, held_history, client, "rival")
        acked: list[float] = []
        with frozen(zookeeper):
            began = trio.current_time()
            thaw = began + FREEZE_S
            async with trio.open_nursery() as during:
                during.start_soon(enqueue_on, history, client, acked, thaw)
                during.start_soon(complete_on, history, client, stock, thaw)
                during.start_soon(expect_log_unavailable, cluster, client, held, thaw)
        print(f"while frozen: {len(acked)} enqueues and {len(history.completed)} completions acknowledged")
        assert max(acked) - began > FREEZE_S - 3, "enqueues go on to the end of the freeze"
        assert len(history.completed) > TASKS / 2
        assert held_history.granted == {}, "the rival was given what is held"

        nursery.start_soon(work, history, client, "worker")
        await history.until_all_completed(client)
        print(f"all work done {trio.current_time() - began - FREEZE_S:.1f} s after the thaw")
        renewing.cancel()  # otherwise completed tasks would be renewed
        await complete(held_history, client, held)
        nursery.cancel_scope.cancel()
    assert (history.wrong, held_history.wrong) == ([], [])
    assert held_history.completed.keys() == held_history.enqueued
    await cluster.whole(*NAMES)
    async with cluster.client() as client:
        await all_there(cluster, client, "work", dict.fromkeys(history.enqueued, "completed"))
        for task_id in sorted(held_history.enqueued):
            assert len((await client.get(task_id)).claims) == 1, "granted once, to the one who held it"


async def claimed(client: AsyncClient, queue: str, count: int) -> list[ClaimBatch]:
    """Claim every task of a queue by one worker."""
    found: list[ClaimBatch] = []
    lease_ms = LEASE_MS if queue == "held" else LONG_LEASE_MS
    while sum(map(len, found)) < count:
        found.append(await client.claim([queue], max=100, lease_ms=lease_ms, wait_ms=1_000, worker="holder"))
    return found


async def renewed(client: AsyncClient, held: list[Claim], scope: trio.CancelScope) -> None:
    """Renew as a worker does: early, and repeatedly while the log is unavailable."""
    with scope:
        while True:
            await client.renew(held, LEASE_MS, timeout_ms=60_000)
            with trio.move_on_after(LEASE_MS / 4_000):
                await trio.sleep_forever()


async def enqueue_on(history: History, client: AsyncClient, acked: list[float], until: float) -> None:
    """Enqueue, and record when each was acknowledged."""
    while trio.current_time() < until:
        history.enqueued.update(await client.enqueue_many("work", [b"z"] * 5))
        acked.append(trio.current_time())
        with trio.move_on_after(POLL_S):
            await trio.sleep_forever()


async def complete_on(history: History, client: AsyncClient, stock: list[ClaimBatch], until: float) -> None:
    """Complete earlier claims in batches, spread over the freeze."""
    for place, batch in enumerate(stock):
        with trio.move_on_at(until - FREEZE_S * (1 - place / len(stock))):
            await trio.sleep_forever()
        await complete(history, client, batch)


async def expect_log_unavailable(cluster: Cluster, client: AsyncClient, held: list[Claim], until: float) -> None:
    """Check that claims and renewals report the unavailable log once it was noticed, over TCP and HTTP, to the end."""
    wanted = {"queues": ["held"], "max": 1, "lease_ms": LEASE_MS, "wait_ms": 0, "worker": "asker"}
    item = [held[0].id, 1, held[0].token, LEASE_MS]
    peer = cluster.serving[0]
    with trio.move_on_at(until - FREEZE_S + NOTICED_S):
        # The client tries another peer after each refusal: every one must have noticed.
        while not (
            all([await claim_refused(client, wanted) for _ in range(2 * len(NAMES))])
            and await renewal_refused(client, item)
            and (await cluster.send(peer, "POST", "/v1/claims", wanted)).status_code == 503
        ):
            await trio.sleep(POLL_S)
    while trio.current_time() < until - 2:
        assert await claim_refused(client, wanted)
        assert await renewal_refused(client, item)
        answer = await cluster.send(peer, "POST", "/v1/claims", wanted)
        assert (answer.status_code, answer.json()["code"]) == (503, LogUnavailable.code)
        assert int(answer.headers["Retry-After"]) > 0
        body = {"claims": [{"id": held[0].id.hex(), "token": held[0].token, "lease_ms": LEASE_MS}]}
        answer = await cluster.send(peer, "POST", "/v1/claims/renew", body)
        results = answer.json().get("results")
        assert results and results[0]["code"] == LogUnavailable.code, json.dumps(answer.json())
        with trio.move_on_after(0.5):
            await trio.sleep_forever()


async def claim_refused(client: AsyncClient, wanted: dict[str, object]) -> bool:
    """Return whether a claim is answered with `log_unavailable`."""
    try:
        await client.call("claim", wanted)
    except LogUnavailable:
        return True
    except Unavailable:
        return False
    return False


async def renewal_refused(client: AsyncClient, item: list[object]) -> bool:
    """Return whether a renewal is answered with `log_unavailable`."""
    try:
        refused = (await client.call("renew", {"items": [item]}))["results"][0]
    except OnyxqError:
        return False
    return bool(refused) and refused[0][2]["code"] == LogUnavailable.code
