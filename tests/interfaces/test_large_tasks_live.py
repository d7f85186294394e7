"""Tasks, results and updates as large as they may be: what was stored can be claimed, listed and read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from attrs import evolve

from onyxq.client import AsyncClient
from onyxq.core.facts import TASK_BYTES_MAX
from onyxq.errors import TooLarge
from onyxq.interfaces.local_cluster import LOCAL, LocalCluster
from onyxq.leader.task_updates import UPDATES_BYTES_MAX
from onyxq.operations.checks.runs import RESULT_BYTES_MAX

LARGE = 900_000
TASKS = 60
"""Together more than two messages hold."""
HUGE = 10 * 1024 * 1024
"""One fits an answer, two do not."""
HUGE_TASKS = 6
UPDATE = 256 * 1024
LIMIT_S = 300
"""By then a task that was lost has been missed."""


def with_client(test: Callable[[AsyncClient], Awaitable[None]], *, peers: int = 3) -> None:
    """Run a test against a cluster in this process."""

    async def body() -> None:
        with trio.fail_after(LIMIT_S):
            async with LocalCluster(peers=peers, config=evolve(LOCAL, partitions=4)) as cluster:
                async with AsyncClient(cluster.addresses) as client:
                    await test(client)

    trio.run(body)


async def listed(page: Callable[..., Awaitable[Any]], **wanted: Any) -> list[bytes]:
    """The ids of all pages."""
    found: list[bytes] = []
    after = None
    while True:
        one = await page(limit=100, after=after, **wanted)
        found += [task.id for task in one.tasks]
        if (after := one.after) is None:
            return found


@pytest.mark.long
@pytest.mark.parametrize("claimers", [1, 6])
@pytest.mark.parametrize("peers", [1, 3])
def test_claims_of_many_large_tasks_end(peers: int, claimers: int) -> None:
    """Each is granted once, in as many answers as it takes, and all of them are listed."""

    async def body(client: AsyncClient) -> None:
        ids = [await client.enqueue("q", bytes(LARGE)) for _ in range(TASKS)]
        assert await listed(client.list, queue="q") == sorted(ids)
        claims: list[Any] = []

        async def claim() -> None:
            while len(claims) < TASKS:
                claims.extend(await client.claim(["q"], max=100, lease_ms=600_000, wait_ms=500))

        async with trio.open_nursery() as nursery:
            for _ in range(claimers):
                nursery.start_soon(claim)
        assert sorted(one.id for one in claims) == sorted(ids)
        assert {len(one.data) for one in claims} == {LARGE}
        await client.complete(claims[:-1], bytes(LARGE))
        await client.fail(claims[-1:], "no")
        assert len(await listed(client.list, queue="q", state="completed")) == TASKS - 1
        results = await client.results([one.id for one in claims[:-1]])
        assert sum(len(one or b"") for one in results) == (TASKS - 1) * LARGE

    with_client(body, peers=peers)


@pytest.mark.long
def test_what_several_nodes_granted_beyond_one_answer_is_granted_again_at_once() -> None:
    """Each node gives one task that is larger than its share; none of them waits until its lease is over."""

    async def body(client: AsyncClient) -> None:
        ids = [await client.enqueue("q", bytes(HUGE)) for _ in range(HUGE_TASKS)]
        claims: list[Any] = []
        with trio.fail_after(60):
            while len(claims) < HUGE_TASKS:
                claims += await client.claim(["q"], max=100, lease_ms=600_000, wait_ms=1_000)
        assert sorted(claim.id for claim in claims) == sorted(ids)

    with_client(body)


@pytest.mark.long
def test_failed_large_tasks_are_listed() -> None:
    """By pages that end early."""

    async def body(client: AsyncClient) -> None:
        ids = [await client.enqueue("q", bytes(LARGE), retries=0) for _ in range(30)]
        while len(await listed(client.dead, queue="q")) < len(ids):
            await client.fail(await client.claim(["q"], max=100, wait_ms=500), "no")
        assert await listed(client.dead, queue="q") == sorted(ids)

    with_client(body)


@pytest.mark.long
def test_the_largest_task_with_the_largest_result_and_log_is_read() -> None:
    """One more update is refused as too large, and the task can still be completed."""

    async def body(client: AsyncClient) -> None:
        ids = [await client.enqueue("q", bytes(TASK_BYTES_MAX)) for _ in range(3)]
        claims: list[Any] = []
        while len(claims) < len(ids):
            claims.extend(await client.claim(["q"], max=10, lease_ms=600_000, wait_ms=500))
        for _ in range(UPDATES_BYTES_MAX // UPDATE):
            await client.update(claims[0], bytes(UPDATE))
        with pytest.raises(TooLarge, match="updates of a task hold at most"):
            await client.update(claims[0], b"x")
        for claim in claims:
            await client.complete([claim], bytes(RESULT_BYTES_MAX))
        found = await client.get(claims[0].id)
        assert (found.data, found.result) == (bytes(TASK_BYTES_MAX), bytes(RESULT_BYTES_MAX))
        assert sum(len(one.data) for one in await client.task_log(claims[0].id)) == UPDATES_BYTES_MAX
        known = await client.call("task_history", {"id": claims[0].id})
        assert len(known["task"]["result"]) == RESULT_BYTES_MAX
        assert await listed(client.list, queue="q") == sorted(ids)

    with_client(body)
