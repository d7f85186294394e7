"""A worker between bounds: more slots while all are busy, fewer once some are not used."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from onyxq.client import AsyncClient, Claim
from onyxq.errors import BadRequest
from onyxq.interfaces.cli.processes.worker import bounds
from onyxq.worker import Worker, loop, slot_count
from onyxq.worker.slot_count import UNUSED_LOOKS, Scaling
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer, played
from tests.interfaces.test_worker_processes import gone, work
from tests.interfaces.worker_world import a_call, until, with_worker


def slots_of(scaling: Scaling, running: list[int]) -> list[int]:
    """Return the slots after each second in which that many tasks ran."""
    found = []
    scaling.look(100.0)
    for second, tasks in enumerate(running):
        scaling.runs(tasks, 100.0 + second)
        scaling.look(101.0 + second)
        found.append(scaling.slots)
    return found


def test_busy_slots_get_half_as_many_again_up_to_the_bound() -> None:
    """There are no more once one of them has nothing to do."""
    assert slots_of(Scaling(2, 16), [2, 3, 4, 6, 9, 13, 16]) == [3, 4, 6, 9, 13, 16, 16]
    assert slots_of(Scaling(2, 16), [2, 3, 3, 3]) == [3, 4, 4, 4]
    assert slots_of(Scaling(1, 1), [1, 1]) == [1, 1]


def test_a_second_is_busy_by_its_mean() -> None:
    """Slots between two tasks for a moment are busy; slots that are idle for a quarter of the time are not."""
    for rest_s, slots in ((0.02, 3), (0.25, 2)):
        scaling = Scaling(2, 4)
        scaling.look(10.0)
        scaling.runs(2, 10.0)
        scaling.runs(0, 11.0 - rest_s)
        assert scaling.look(11.0) == (slots > 2)
        assert scaling.slots == slots


def test_slots_that_are_not_used_go_after_a_while() -> None:
    """As many go as were unused all the time, down to the minimum."""
    scaling = Scaling(2, 16)
    found = slots_of(scaling, [2, 3, 4, 6] + [5] * (2 * UNUSED_LOOKS) + [0] * (2 * UNUSED_LOOKS))
    assert found[3] == found[UNUSED_LOOKS - 5] == 9 and found[-1] == 2
    # The five busy slots ask at intervals for more work.
    assert set(found[2 * UNUSED_LOOKS - 10 : 2 * UNUSED_LOOKS]) <= {5, 6, 7}


@played
async def test_a_worker_grows_with_its_backlog_and_shrinks_after_it(
    cluster: FakeCluster, network: SimulatedNetwork
) -> None:
    """A backlog of long tasks uses all allowed slots; after it, one long task uses few."""
    most_running = 0

    async def body(claim: Claim) -> None:
        nonlocal most_running
        most_running = max(most_running, worker.running)
        await anyio.sleep(5)

    worker = Worker(body, queues=["q"], concurrency=1, concurrency_max=8)

    async def inside(client: AsyncClient, peer: FakePeer) -> None:
        nonlocal most_running
        await client.enqueue_many("q", [b""] * 100)
        await until(lambda: len(cluster.outcomes) == 100)
        assert most_running == 8
        await anyio.sleep(3 * UNUSED_LOOKS)
        most_running = 0
        await client.enqueue_many("q", [b""] * 2)
        await until(lambda: most_running > 0)
        assert worker.running == 1
        await until(lambda: len(cluster.outcomes) == 102)
        worker.stop()

    await with_worker(cluster, network, worker, inside)


@pytest.mark.long
def test_processes_that_are_not_needed_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of removed slots end."""
    monkeypatch.setattr(loop, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(slot_count, "UNUSED_LOOKS", 20)

    async def body(cluster: FakeCluster, client: AsyncClient, peer: FakePeer, worker: Any) -> None:
        pids: set[int] = set()
        while len(pids) < 2:
            ids = [await client.enqueue("p", a_call("pid", number)) for number in range(20)]
            await until(lambda ids=ids: all(task_id in cluster.outcomes for task_id in ids))  # type: ignore[misc]
            pids.update(json.loads(cluster.outcomes[task_id])[0] for task_id in ids)
        await until(lambda: sum(map(gone, pids)) >= len(pids) - 1)

    work(body, concurrency_max=3)


@pytest.mark.parametrize(("text", "found"), [("8", (8, 8)), ("2-16", (2, 16)), ("3-3", (3, 3))])
def test_bounds_are_a_number_or_two(text: str, found: tuple[int, int]) -> None:
    """This is the form of the command line."""
    assert bounds(text) == found


@pytest.mark.parametrize("text", ["0", "-1", "4-2", "0-3", "two", "", "2-", "2-x", "1-2-3"])
def test_what_is_no_bound_is_refused(text: str) -> None:
    """The error has the field."""
    with pytest.raises(BadRequest) as caught:
        bounds(text)
    assert caught.value.field == "concurrency"


def test_a_most_below_the_least_is_refused() -> None:
    """This holds in Python, too."""

    async def body(claim: Claim) -> None: ...

    with pytest.raises(BadRequest) as caught:
        Worker(body, queues=["q"], concurrency=4, concurrency_max=3)
    assert caught.value.field == "concurrency_max"
