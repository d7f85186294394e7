"""Many claims at once, and tasks of several rows under one claim, in a cluster of three nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from onyxq import AsyncClient
from onyxq.client.claims import ClaimBatch
from onyxq.core.facts import pack_task
from onyxq.core.ids import TaskId, ids_of
from onyxq.errors import from_map
from onyxq.interfaces.local_cluster import LocalCluster
from tests.interfaces.claims_world import World, in_cluster, refusal
from tests.interfaces.live_world import PATIENCE_MS, fresh_id, running


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three nodes for all tests of this module; every test has queues of its own."""
    with running(peers=3) as cluster:
        yield cluster


class TestNeighbours:
    """Tasks of several rows with consecutive ids."""

    async def _three_rows(self, world: World, *, lease_ms: int = 60_000) -> tuple[TaskId, ClaimBatch]:
        first = fresh_id(11)
        ids = ids_of(first, 6)
        await world.client.enqueue_many(world.queue, [b"a0", b"a1"], ids=ids[:2], priority=9)
        await world.client.enqueue_many(world.queue, [b"b2", b"b3"], ids=ids[2:4], priority=5, retries=0)
        await world.client.enqueue_many(world.queue, [b"c4", b"c5"], ids=ids[4:], priority=1, retries=1)
        batch = await world.client.claim([world.queue], max=6, lease_ms=lease_ms, wait_ms=PATIENCE_MS)
        assert [claim.data for claim in batch] == [b"a0", b"a1", b"b2", b"b3", b"c4", b"c5"]
        assert len({claim.token for claim in batch}) == 1
        return first, batch

    async def _given_again(self, world: World, size: int) -> list[tuple[bytes, int, int]]:
        got: list[tuple[bytes, int, int]] = []
        while len(got) < size:
            batch = await world.client.claim([world.queue], max=size, wait_ms=PATIENCE_MS)
            assert batch
            got += [(claim.data, claim.priority, claim.attempts) for claim in batch]
        return got

    @in_cluster
    async def test_given_back_together_each_is_given_again_as_it_was(self, world: World) -> None:
        """Each has its own data and priority."""
        first, batch = await self._three_rows(world)
        assert await refusal(world.client, "release", first, 6, batch[0].token) is None
        wanted = [(b"a0", 9, 0), (b"a1", 9, 0), (b"b2", 5, 0), (b"b3", 5, 0), (b"c4", 1, 0), (b"c5", 1, 0)]
        assert await self._given_again(world, 6) == wanted

    @in_cluster
    async def test_failed_together_each_has_its_own_retries(self, world: World) -> None:
        """Those without retries fail for good."""
        first, batch = await self._three_rows(world)
        assert await refusal(world.client, "fail", first, 6, batch[0].token, "e", 0) is None
        states = [(await world.client.get(task_id)).state for task_id in ids_of(first, 6)]
        assert states == ["ready", "ready", "failed", "failed", "ready", "ready"]
        assert await self._given_again(world, 4) == [(b"a0", 9, 1), (b"a1", 9, 1), (b"c4", 1, 1), (b"c5", 1, 1)]

    @in_cluster
    async def test_lapsed_together_each_has_its_own_retries(self, world: World) -> None:
        """The same holds for expired leases."""
        first, _ = await self._three_rows(world, lease_ms=1_000)
        await world.until(first, lambda task: task.state == "ready")
        assert await self._given_again(world, 4) == [(b"a0", 9, 1), (b"a1", 9, 1), (b"c4", 1, 1), (b"c5", 1, 1)]
        assert [(await world.client.get(task_id)).state for task_id in ids_of(first, 6)[2:4]] == ["failed", "failed"]


class TestCrowds:
    """Many claimers, many tasks."""

    @in_cluster
    async def test_no_two_claimers_get_the_same_task(self, world: World) -> None:
        """Every task exactly once, with its data."""
        total = 600
        sent: dict[TaskId, bytes] = {}
        for client in world.clients:
            payloads = [b"%d" % (len(sent) + i) for i in range(200)]
            sent |= zip(await client.enqueue_many(world.queue, payloads), payloads, strict=True)
        got: list[tuple[TaskId, bytes]] = []

        async def work(client: AsyncClient, most: int) -> None:
            while len(got) < total:
                batch = await client.claim([world.queue], max=most, wait_ms=200)
                got.extend((claim.id, claim.data) for claim in batch)
                await client.complete(batch)

        async with trio.open_nursery() as nursery:
            for number in range(18):
                nursery.start_soon(work, world.clients[number % 3], 1 + 5 * (number % 4))
        assert len(got) == total and dict(got) == sent
        assert await world.counts() == {"total": total, "completed": total}

    @in_cluster
    async def test_a_thousand_claimers_with_long_names_are_all_answered(self, world: World) -> None:
        """Their grants do not fit one entry of the log."""
        await world.client.enqueue_many(world.queue, [b"x"] * 1_000, ids=ids_of(fresh_id(12), 1_000))
        got: list[TaskId] = []

        async def claim(number: int) -> None:
            worker = f"{number:04}" + "ä" * 190
            (one,) = await world.client.claim([world.queue], wait_ms=PATIENCE_MS, worker=worker)
            got.append(one.id)

        async with trio.open_nursery() as nursery:
            for number in range(1_000):
                nursery.start_soon(claim, number)
        assert len(set(got)) == 1_000
        assert (await world.counts())["claimed"] == 1_000

    @in_cluster
    async def test_many_failures_with_long_texts_are_all_taken(self, world: World) -> None:
        """The texts do not fit either; they are stored, cut at a limit."""
        ids = [fresh_id(13) for _ in range(600)]
        runs = [[task_id, pack_task({"queue": world.queue}, [b"x"])] for task_id in ids]
        await world.client.call("enqueue", {"runs": runs, "w": None})
        batch = await world.client.claim([world.queue], max=600, wait_ms=PATIENCE_MS)
        assert len(batch) == 600
        items = [[claim.id, 1, claim.token, "ö" * 1_000, 60_000] for claim in batch]
        answer = await world.client.call("fail", {"items": items})
        assert answer["results"] == [[]] * 600, [from_map(parts[0][2]) for parts in answer["results"] if parts][:1]
        assert await world.counts() == {"total": 600, "scheduled": 600}
        task = await world.client.get(ids[-1])
        assert task.error is not None and task.error.startswith("ö" * 100)

    @in_cluster
    async def test_many_lapsed_claims_of_scattered_tasks_come_back(self, world: World) -> None:
        """With such small entries, their expiries do not fit one entry."""
        ids = [fresh_id(14) for _ in range(700)]
        runs = [[task_id, pack_task({"queue": world.queue}, [b"x"])] for task_id in ids]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("onyxq.core.log.record.ENTRY_BYTES_MAX", 16 * 1024)
            patch.setattr("onyxq.leader.entry_chunks.ENTRY_ROOM_BYTES", 15 * 1024)
            await world.client.call("enqueue", {"runs": runs, "w": None})
            batch = await world.client.claim([world.queue], max=700, lease_ms=1_000, wait_ms=PATIENCE_MS)
            assert len(batch) == 700
            for task_id in (ids[0], ids[350], ids[-1]):
                await world.until(task_id, lambda task: task.state == "ready")
            assert await world.counts() == {"total": 700, "ready": 700}
        assert (await world.claim()).attempts == 1
