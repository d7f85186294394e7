"""Tasks are archived before they are purged, under any leader; the archive has the live cluster's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from onyxq.client import AsyncClient
from onyxq.core.ids import TaskId, partition_of
from onyxq.errors import NotFound
from onyxq.history.parquet.reader import find
from simulation.scenes.base import leader_of
from simulation.world.world import World, simulate
from tests.simulation.scheduled import STEADY

SHORT = evolve(STEADY, purge_bucket_ms=2_000, purge_margin_ms=20_000)
PASSED_S = 90.0
"""Time in which everything that may be purged is purged."""


async def ask(client: AsyncClient, method: str, **args: Any) -> Any:
    """Make one call by its name on the wire."""
    return await client.call(method, args)


async def finished(client: AsyncClient) -> list[TaskId]:
    """Make tasks that ended in every way."""
    await client.set_queue("q", retention_ms=5_000, archive=True)
    ids = await client.enqueue_many("q", [b"task %d" % number for number in range(24)], retries=1, backoff_ms=0)
    ids += [await _unique(client)]
    left = len(ids)
    while left:
        for claim in await client.claim("q", max=3, lease_ms=60_000, wait_ms=20_000):
            way = int.from_bytes(claim.id[-2:], "big") % 4
            await client.update(claim, b"half way")
            if way == 0 or claim.attempts:
                await client.complete(claim, b"done")
            elif way == 1:
                await client.fail(claim, "did not work", retry_in_ms=0)
                continue
            elif way == 2:
                await client.cancel(claim.id, claimed=True)
            else:
                async with client.transaction() as tx:
                    tx.complete(claim, b"moved")
            left -= 1
    return ids


async def _unique(client: AsyncClient) -> TaskId:
    """Make a task whose data was replaced."""
    for data in (b"older", b"newer"):
        task_id = await client.enqueue("q", data, unique_key="k", delay_ms=500)
    return task_id


async def purged(client: AsyncClient, ids: list[TaskId]) -> bool:
    """Return whether all of these are purged."""
    for task_id in ids:
        try:
            await ask(client, "get", id=task_id)
        except NotFound:
            continue
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_what_is_purged_is_found_in_the_archive_as_it_was(seed: int, tmp_path: Path) -> None:
    """Every field, claim and update; leaders die meanwhile."""

    async def workload(world: World) -> None:
        async with world.client() as recording:
            client = recording.client
            ids = await finished(client)
            await world.settle()
            said = {task_id: await ask(client, "get", id=task_id) for task_id in ids}
            logs = {task_id: (await ask(client, "task_log", id=task_id))["updates"] for task_id in ids}
            for _ in range(3):
                await trio.sleep(world.random.uniform(5, 15))
                await world.restart_node(leader_of(world), after_s=1)
            await trio.sleep(PASSED_S)
            assert await purged(client, ids)
            for task_id in ids:
                found = find([tmp_path], task_id)
                assert found is not None
                assert found.task == said[task_id]
                assert list(found.updates) == logs[task_id]

    simulate(workload, seed=seed, options=evolve(SHORT, task_archive=str(tmp_path)))


@pytest.mark.long
def test_tasks_stay_while_the_archive_cannot_be_written(tmp_path: Path) -> None:
    """The reason is shown; they are purged, and found in the archive, once it can be written."""
    directory = tmp_path / "archive"
    directory.write_text("a file")

    async def workload(world: World) -> None:
        async with world.client() as recording:
            client = recording.client
            ids = await finished(client)
            await trio.sleep(PASSED_S)
            assert not await purged(client, ids[:1])
            running = leader_of(world, partition_of(ids[0])).running
            assert running is not None and running.node is not None
            assert "cannot be written" in running.node.operations.purger.waits[partition_of(ids[0])]
            directory.unlink()
            await trio.sleep(PASSED_S)
            assert await purged(client, ids)
            assert all(find([directory], task_id) is not None for task_id in ids)

    simulate(workload, seed=1, options=evolve(SHORT, task_archive=str(directory)))
