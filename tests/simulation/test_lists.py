"""Lists of tasks by state: complete and in order, for any page size."""

from __future__ import annotations

from typing import get_args

import pytest
import trio

from onyxq.operations import task_lists
from onyxq.operations.table.task import State
from simulation.world.clients import RecordingClient
from simulation.world.world import Options, World, simulate


async def fill(client: RecordingClient) -> None:
    """Make tasks in every state, in runs and alone, of two queues."""
    raw = client.client
    for queue in ("a", "b"):
        for _ in range(4):
            await raw.enqueue_many(queue, [b"x"] * 7, retries=0)
        await raw.complete(await raw.claim(queue, max=5, wait_ms=10_000, lease_ms=600_000))
        await raw.fail(await raw.claim(queue, max=3, wait_ms=10_000, lease_ms=600_000), "no")
        await raw.claim(queue, max=4, wait_ms=10_000, lease_ms=600_000)
        later = await raw.enqueue_many(queue, [b"x"] * 9, delay_ms=3_600_000)
        await raw.call("cancel", {"ids": list(later[:2])})
        await raw.enqueue_many(queue, [b"x"] * 5, ordering_key="one")


@pytest.mark.long
@pytest.mark.parametrize("looks", [1, 40, task_lists.LOOKS_MAX])
def test_lists_by_state_are_the_parts_of_the_list_of_all(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """Each page ends soon, and the next continues after it."""
    monkeypatch.setattr(task_lists, "LOOKS_MAX", looks)
    monkeypatch.setattr(task_lists, "PATIENCE_S", 0.0)

    async def workload(world: World) -> None:
        async with world.client() as client:
            await fill(client)
            await trio.sleep(1)
            for queue in (None, "a"):
                tasks = [task async for task in client.client.list_all(queue)]
                assert [task.id for task in tasks] == sorted({task.id for task in tasks})
                for state in get_args(State):
                    expected = [task.id for task in tasks if task.state == state]
                    assert expected
                    listed = [task.id async for task in client.client.list_all(queue, state=state)]
                    assert (state, listed) == (state, expected)

    simulate(workload, seed=3, options=Options(partitions=4))


def test_a_look_that_finds_nothing_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may be short, or empty, and yet not be the last."""
    monkeypatch.setattr(task_lists, "LOOKS_MAX", 1)

    async def workload(world: World) -> None:
        async with world.client() as client:
            raw = client.client
            await raw.enqueue_many("q", [b"x"] * 3, ordering_key="k")
            await raw.enqueue_many("q", [b"x"] * 20)
            reading = next(node for node in world.nodes if node.running is not None).running
            assert reading is not None and reading.service is not None
            first = await reading.service.call("list", {"state": "waiting", "limit": 100})
            assert first["after"] is None and len(first["tasks"]) == 2
            monkeypatch.setattr(task_lists, "PATIENCE_S", 0.0)
            first = await reading.service.call("list", {"state": "waiting", "limit": 100})
            assert first["after"] is not None

    simulate(workload, seed=3, options=Options(partitions=1, clock_offset_ms=0))


def test_a_task_is_listed_as_ready_as_soon_as_it_is_due() -> None:
    """The counts follow a moment later."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            raw = client.client
            task = await raw.enqueue("q", b"x", delay_ms=5_000)
            for _ in range(200):
                listed = [[one.id async for one in raw.list_all(state=state)] for state in ("scheduled", "ready")]
                assert [task] in listed
                await trio.sleep(0.05)
            assert listed == [[], [task]]

    simulate(workload, seed=3, options=Options(partitions=1, clock_offset_ms=0))
