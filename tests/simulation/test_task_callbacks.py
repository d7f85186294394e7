"""Callbacks of tasks on a whole cluster: retention, and dead letters that are requeued."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from attrs import evolve

from onyxq.core.ids import callback_of
from onyxq.core.limits import TIMERS_QUEUE
from onyxq.core.timer_model import Delivery
from onyxq.errors import NotFound
from simulation.workloads import WORKLOADS
from simulation.world.receiver import CALLBACK
from simulation.world.world import World, simulate
from tests.simulation.scheduled import STEADY, Tasks

CALLED = evolve(STEADY, purge_bucket_ms=2_000, purge_margin_ms=20_000, callbacks=True)
PASSED_S = 60.0
"""Time in which everything that may be purged is purged."""


def test_a_task_stays_until_its_callback_is_made() -> None:
    """The callback reads the result from the task. Once it is made, both are purged."""
    down = True

    def takes_s(delivery: Delivery) -> float:
        if down:
            raise OSError("the receiver is down")
        return 0.0

    async def workload(world: World) -> None:
        nonlocal down
        world.receiver.takes_s = takes_s
        async with world.client() as client:
            for name in ("q", TIMERS_QUEUE):
                await client.client.set_queue(name, retention_ms=5_000, backoff_ms=4_000)
            task_id = await client.client.enqueue("q", b"x", callback=CALLBACK)
            for claim in await client.claim("q", wait_ms=5_000):
                await client.client.complete(claim, b'"done"')
            await trio.sleep(PASSED_S)
            assert (await client.client.get(task_id)).state == "completed"
            down = False
            attempts = len(world.receiver.callbacks)
            await world.until(lambda: len(world.receiver.callbacks) > attempts, "the callback is made", within_s=600)
            assert world.receiver.callbacks[-1].data["result"] == "done"
            await trio.sleep(2 * PASSED_S)
            for one in (task_id, callback_of(task_id)):
                with pytest.raises(NotFound, match="purged"):
                    await client.client.get(one)

    simulate(workload, seed=1, options=CALLED)


def test_a_dead_letter_that_is_requeued_has_one_callback() -> None:
    """Its first end is reported, and its second one is not."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            task_id = await client.client.enqueue("q", b"x", callback=CALLBACK, retries=0)
            for claim in await client.claim("q", wait_ms=5_000):
                await client.fail(claim, "did not work")
            await world.until(lambda: len(world.receiver.callbacks) == 1, "the callback is made")
            await client.requeue(task_id)
            for claim in await client.claim("q", wait_ms=5_000):
                await client.complete(claim)
            await trio.sleep(PASSED_S / 2)
            assert [one.data["state"] for one in world.receiver.callbacks] == ["failed"]

    simulate(workload, seed=1, options=CALLED)


def test_a_callback_follows_the_data_of_a_unique_key() -> None:
    """The last replacing enqueue that names a callback decides; those that change no data do not."""
    told: list[str] = []

    def takes_s(delivery: Delivery) -> float:
        told.append(delivery.uri)
        return 0.0

    async def workload(world: World) -> None:
        world.receiver.takes_s = takes_s
        async with world.client() as client:
            put = partial(client.client.enqueue, "q", unique_key="u", delay_ms=1_000)
            task_id = await put(b"1")
            for data, choice, receiver in (
                (b"2", "replace", "first"),
                (b"3", "replace", "second"),
                (b"4", "replace", None),
                (b"5", "extend", "late"),
                (b"6", "keep", "idle"),
            ):
                callback = None if receiver is None else {**CALLBACK, "uri": receiver}
                assert await put(data, on_conflict=choice, callback=callback) == task_id
            (claim,) = await client.claim("q", wait_ms=5_000)
            assert claim.data == b"4"
            assert await put(b"7", callback={**CALLBACK, "uri": "started"}) == task_id
            await client.complete(claim)
            await world.until(lambda: bool(told), "the callback is made")
            await trio.sleep(PASSED_S / 2)
            assert told == ["second"]
            assert {one.timer for one in world.receiver.callbacks} == {task_id.hex()}

    simulate(workload, seed=1, options=CALLED)


def test_a_task_whose_id_is_reserved_for_callbacks_gets_no_callback() -> None:
    """An enqueue that would give it one is refused by name, and changes nothing."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            reserved = callback_of(tasks.make_id({"queue": "q", "unique_key": "u"}))
            await tasks.put(b"1", unique_key="u", task_id=reserved)
            (refused,) = await tasks.send([tasks.run(b"2", unique_key="u", callback=CALLBACK)])
            assert (refused["code"], refused["field"]) == ("bad_request", "runs[0].callback")
            assert (await tasks.get(reserved))["data"] == b"1"

    simulate(workload, seed=1, options=CALLED)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_each_end_is_reported_by_one_callback(seed: int) -> None:
    """Tasks end in every way while leaders are killed and the receiver refuses callbacks."""
    WORKLOADS["ends_reported"].play(seed)
