"""Waiting for the end of a task at the server: it is heard of at once, whatever leader the task has then."""

from __future__ import annotations

import tracemalloc

import pytest
import trio

from onyxq.core.ids import TaskId
from onyxq.errors import NotFound, TimedOut
from onyxq.leader.outcomes import Outcomes
from simulation.scenes.base import leader_of
from simulation.scenes.rules import lead_elsewhere
from simulation.world.world import World, simulate
from tests.simulation.scheduled import STEADY

SOON_S = 0.25
"""Time within which a waiter without faults hears of an end, in seconds."""
LATE_S = 30.0
WAITERS = 100


async def wait_for(world: World, task_id: TaskId, heard_s: list[float]) -> None:
    """Wait for a task with a client of its own, and note the time."""
    async with world.client() as client:
        task = await client.client.wait(task_id, 120_000)
        assert (task.state, task.result) == ("completed", b"done")
        heard_s.append(trio.current_time())


def test_a_waiter_hears_of_an_end_at_once() -> None:
    """The peer that it asked gets a hint from the leader."""

    async def workload(world: World) -> None:
        heard_s: list[float] = []
        async with world.client() as client, trio.open_nursery() as nursery:
            (task_id,) = await client.enqueue("q", [b"x"])
            for _ in world.nodes:
                nursery.start_soon(wait_for, world, task_id, heard_s)
            await trio.sleep(LATE_S / 2)
            (claim,) = await client.claim("q")
            began_s = trio.current_time()
            await client.client.complete(claim, b"done")
            await world.until(lambda: len(heard_s) == len(world.nodes), "all have heard of it")
            assert max(heard_s) - began_s < SOON_S

    simulate(workload, seed=1, options=STEADY)


def test_waiters_hold_no_copy_of_their_task() -> None:
    """A large task that many requests wait for is in memory once, not once for each."""
    size = 200_000

    async def workload(world: World) -> None:
        heard_s: list[float] = []
        async with world.client() as client, trio.open_nursery() as nursery:
            (task_id,) = await client.enqueue("q", [bytes(size)])
            tracemalloc.start()
            try:
                for _ in range(WAITERS):
                    nursery.start_soon(wait_for, world, task_id, heard_s)
                await trio.sleep(5)
                held, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert held < WAITERS * size / 2
            (claim,) = await client.claim("q")
            await client.client.complete(claim, b"done")

    simulate(workload, seed=2, options=STEADY)


def test_many_waiters_of_a_task_cost_a_node_one_question() -> None:
    """The leader is asked for the outcome once in a while, for all of them together."""
    asked = 0

    async def workload(world: World) -> None:
        nonlocal asked
        outcomes, monkeypatch = Outcomes.outcomes, pytest.MonkeyPatch()

        async def counted(self: Outcomes, ids: list[TaskId], watcher: str) -> list[str | None]:
            nonlocal asked
            asked += 1
            return await outcomes(self, ids, watcher)

        heard: list[None] = []

        async def wait(task_id: TaskId) -> None:
            await client.client.wait(task_id, 60_000)
            heard.append(None)

        async with world.client() as client, trio.open_nursery() as nursery:
            (task_id,) = await client.enqueue("q", [b"x"])
            with monkeypatch.context() as patched:
                for node in world.nodes:
                    assert node.running is not None and node.running.node is not None
                    dependencies = node.running.node.operations.dependencies
                    original = dependencies.outcomes
                    patched.setattr(dependencies, "outcomes", lambda *args, one=original.__self__: counted(one, *args))
                for _ in range(WAITERS):
                    nursery.start_soon(wait, task_id)
                await trio.sleep(5)
                assert asked < WAITERS / 4
            (claim,) = await client.claim("q")
            await client.client.complete(claim)
            await world.until(lambda: len(heard) == WAITERS, "all have heard of it")

    simulate(workload, seed=1, options=STEADY)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_waiter_hears_of_an_end_although_the_leader_changes(seed: int) -> None:
    """Its own peer may die too: the client goes to another one."""

    async def workload(world: World) -> None:
        heard_s: list[float] = []
        async with world.client() as client, trio.open_nursery() as nursery:
            ids = await client.enqueue("q", [b"%d" % number for number in range(6)])
            for task_id in ids:
                nursery.start_soon(wait_for, world, task_id, heard_s)
            await trio.sleep(1)
            for _ in range(2):
                await lead_elsewhere(world)
            await world.settle()
            for claim in await client.claim("q", maximum=len(ids), wait_ms=10_000):
                await client.complete(claim, b"done")
            await world.until(lambda: len(heard_s) == len(ids), "all have heard of it", within_s=LATE_S)

    simulate(workload, seed=seed, options=STEADY)


def test_a_wait_ends_at_its_limit() -> None:
    """So does that for a task that does not exist, at once."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            (task_id,) = await client.enqueue("q", [b"x"])
            began_s = trio.current_time()
            with pytest.raises(TimedOut, match="is ready after 3 s: no worker asks for queue 'q'"):
                await client.client.wait(task_id, 3_000)
            assert 3.0 <= trio.current_time() - began_s < 4.0
            answer = await client.client.call("get", {"id": task_id, "wait_ms": 2_000})
            assert (answer["state"], leader_of(world).running is not None) == ("ready", True)
            (fresh,) = await client.client.make_ids(1)
            with pytest.raises(NotFound):
                await client.client.wait(fresh, 60_000)

    simulate(workload, seed=1, options=STEADY)
