"""Pauses, rates, concurrency and deadlines of queues, in the whole cluster."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio

from onyxq.client.claims import Claim
from onyxq.errors import BadRequest, OnyxqError
from simulation.workloads import CHURN_AND_MESSAGES
from simulation.world.clients import RecordingClient
from simulation.world.faults import storm
from simulation.world.world import Options, World, simulate
from tests.simulation.scheduled import STEADY, Tasks
from tests.simulation.simulated import simulated


async def settings(tasks: Tasks, **said: Any) -> None:
    """Set settings of the queue."""
    await tasks.client.client.call("queue.set", {"queue": "q", **said, "by": "me", "why": "test"})


@simulated(seed=1, options=STEADY)
async def test_a_paused_queue_grants_nothing_and_resumes_at_once(tasks: Tasks) -> None:
    """Waiting claims are answered as soon as it resumes."""
    await settings(tasks, paused=True)
    await tasks.put(b"x")
    assert await tasks.take(wait_ms=1_000) is None
    answered: list[float] = []

    async def wait() -> None:
        assert await tasks.take(wait_ms=30_000) is not None
        answered.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(3.3)
        assert not answered
        await settings(tasks, paused=False)
        resumed_s = trio.current_time()
    assert answered[0] - resumed_s < 0.1


@pytest.mark.parametrize("seed", range(2))
def test_no_more_tasks_are_claimed_at_a_time_than_the_queue_allows(seed: int) -> None:
    """This holds for all partitions and claimers; each end makes room for another task at once."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await settings(tasks, concurrency=3)
            for number in range(30):
                await tasks.put(b"%d" % number)
            held, most, done = 0, 0, 0

            async def work() -> None:
                nonlocal held, most, done
                while done < 30:
                    for claim in await client.claim("q", maximum=2, wait_ms=1_000):
                        held += 1
                        most = max(most, held)
                        await trio.sleep(0.3)
                        held -= 1
                        await tasks.done(claim)
                        done += 1

            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(work)
            assert most <= 3
            assert world.audit.replica.running.get("q", 0) == 0
            assert trio.current_time() < 60

    simulate(workload, seed=seed, options=STEADY)


@pytest.mark.parametrize("rate", [0.5, 4])
@simulated(seed=1, options=STEADY)
async def test_no_more_tasks_are_granted_in_a_time_than_the_queue_allows(
    client: RecordingClient, tasks: Tasks, rate: float
) -> None:
    """A second's worth is granted at once, then tasks follow at the rate, and not much slower."""
    await settings(tasks, rate=rate)
    for number in range(16):
        await tasks.put(b"%d" % number)
    started_s = trio.current_time()
    at_s: list[float] = []

    async def work() -> None:
        while len(at_s) < 16:
            for claim in await client.claim("q", maximum=4, wait_ms=1_000):
                at_s.append(trio.current_time() - started_s)
                await tasks.done(claim)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work)
    burst = max(1.0, rate)
    for place, at in enumerate(sorted(at_s)):
        earliest_s = max(0.0, (place + 1 - burst) / rate)
        assert earliest_s - 0.1 <= at <= earliest_s + 1.5, (place, at)


@simulated(seed=1, options=STEADY)
async def test_tasks_of_a_key_follow_each_other_no_faster_than_the_queue_allows(tasks: Tasks) -> None:
    """Other keys are not delayed."""
    await settings(tasks, key_rate=1)
    for number in range(4):
        for key in "ab":
            await tasks.put(b"%d" % number, ordering_key=key)
    at_s: dict[str, list[float]] = {"a": [], "b": []}
    while any(len(times) < 4 for times in at_s.values()):
        claim = await tasks.take()
        assert claim is not None
        await tasks.done(claim)
        at_s[(await tasks.get(claim.id))["ordering_key"]].append(trio.current_time())
    for times in at_s.values():
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(0.9 < gap < 1.4 for gap in gaps), gaps


@pytest.mark.parametrize("key_rate", [10, None])
@simulated(seed=1, options=STEADY)
async def test_a_new_pace_of_keys_counts_at_once(tasks: Tasks, key_rate: float | None) -> None:
    """A key whose last task was granted at a slow pace does not wait for the rest of that interval."""
    await settings(tasks, key_rate=0.01)
    for number in range(2):
        await tasks.put(b"%d" % number, ordering_key="a")
    await trio.sleep(101)  # a new leader waits one interval
    claim = await tasks.take()
    assert claim is not None
    await tasks.done(claim)
    assert await tasks.take(wait_ms=5_000) is None
    changed_s = trio.current_time()
    await settings(tasks, key_rate=key_rate)
    assert await tasks.take() is not None
    assert trio.current_time() - changed_s < 2


@simulated(seed=1, options=STEADY)
async def test_a_task_that_nobody_ran_in_time_fails_with_the_reason(client: RecordingClient, tasks: Tasks) -> None:
    """A task that was granted in time does not fail, however long it takes."""
    ran = await tasks.put(b"ran", expires_ms=tasks.now_ms() + 2_000, priority=1, backoff_ms=3_000)
    late = await tasks.put(b"late", expires_ms=tasks.now_ms() + 2_000)
    claim = await tasks.take()
    assert claim is not None and claim.id == ran
    await client.fail(claim, "again")
    await trio.sleep(3.5)
    found = await tasks.get(late)
    assert found["state"] == "failed" and found["error"].startswith("expired: no worker started it before")
    claim = await tasks.take()
    assert claim is not None and claim.id == ran
    await tasks.done(claim)


@simulated(seed=1, options=STEADY)
async def test_a_task_that_was_asked_for_in_time_does_not_fail_while_the_log_is_slow(
    world: World, tasks: Tasks
) -> None:
    """Its deadline passes while the grant travels. The task does not fail, and its worker completes it."""
    task = await tasks.put(b"x", expires_ms=tasks.now_ms() + 2_000)
    await trio.sleep(1)
    world.backend.append_delay_s = lambda: 3.0
    states = set[str]()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def look() -> None:
            while not states & {"claimed", "failed"}:
                states.add(await tasks.state(task))
                await trio.sleep(0.2)

        claim = await tasks.take(wait_ms=20_000)
    assert claim is not None and states == {"ready", "claimed"}
    world.backend.append_delay_s = lambda: 0.002
    await tasks.done(claim)
    assert await tasks.state(task) == "completed"


@simulated(seed=1, options=STEADY)
async def test_a_time_too_far_in_the_past_is_refused_and_a_little_late_runs_at_once(tasks: Tasks) -> None:
    """The limit is the queue's grace, by default ten seconds."""
    late = await tasks.put(b"late", at_ms=tasks.now_ms() - 9_000)
    claim = await tasks.take(wait_ms=0)
    assert claim is not None and claim.id == late
    await tasks.done(claim)
    with pytest.raises(BadRequest) as caught:
        await tasks.put(b"too late", at_ms=tasks.now_ms() - 11_000)
    assert caught.value.field == "runs[0].at_ms"
    await settings(tasks, grace_ms=20_000)
    await tasks.put(b"late", at_ms=tasks.now_ms() - 11_000)


@simulated(seed=1, options=STEADY)
async def test_tasks_are_retried_as_their_queue_says_where_they_say_nothing(
    client: RecordingClient, tasks: Tasks
) -> None:
    """Retries, back-off and lease are settings of the queue; null retries have no limit."""
    await settings(tasks, retries=1, backoff_ms=0, lease_ms=5_000)
    task_id = await tasks.put(b"x")
    for_ever = await tasks.put(b"for ever", retries=None, backoff_ms=0, priority=-1)
    for _ in range(2):
        (claim,) = (await client.client.call("claim", {"queues": ["q"]}))["claims"]
        assert claim[3] == task_id and abs(claim[1] - tasks.now_ms() - 5_000) < 50
        item = [claim[3], 1, claim[0], "broken", None]
        assert (await client.client.call("fail", {"items": [item]}))["results"] == [[]]
    assert await tasks.state(task_id) == "failed"
    for attempts in range(60):
        again: Claim | None = await tasks.take()
        assert again is not None and (again.id, again.attempts) == (for_ever, attempts)
        await client.fail(again, "broken")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_limits_hold_whatever_befalls_leaders(seed: int) -> None:
    """No position of the log has more claimed tasks; at the end all are completed."""

    async def workload(world: World) -> None:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                claims = world.audit.replica.claims.values()
                pieces = (piece for stretches in claims for found in stretches.values() for piece in found)
                most = max(most, sum(piece[1] for piece in pieces))
                await trio.sleep(0.02)

        async def work() -> None:
            async with world.client() as client:
                while True:
                    try:
                        for claim in await client.claim("q", maximum=2, lease_ms=3_000, wait_ms=1_000):
                            await trio.sleep(world.random.uniform(0, 0.5))
                            if world.random.random() < 0.8:
                                await client.complete(claim, timeout_ms=5_000)
                    except OnyxqError:
                        await trio.sleep(0.1)

        async def finished(tasks: Tasks) -> None:
            while (await tasks.client.client.count("q"))["q"]["completed"] < 40:
                await trio.sleep(1)

        async with world.client() as client:
            tasks = Tasks(world, client)
            await settings(tasks, concurrency=3, retries=None, backoff_ms=0)
            for number in range(40):
                await tasks.put(b"%d" % number)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                for _ in range(5):
                    nursery.start_soon(work)
                await storm(world, names=CHURN_AND_MESSAGES.episodes, rounds=3, at_once=2)
                await world.settle()
                with trio.fail_after(200):
                    await finished(tasks)
                nursery.cancel_scope.cancel()
            assert 0 < most <= 3

    simulate(workload, seed=seed, options=Options(partitions=4))


@simulated(seed=1, options=STEADY)
async def test_the_time_of_a_retry_is_drawn_once_and_kept(world: World, client: RecordingClient, tasks: Tasks) -> None:
    """The next leader keeps it; its randomness spreads tasks that failed together."""
    ids = [await tasks.put(b"%d" % number, backoff_ms=20_000) for number in range(6)]
    failed_ms = tasks.now_ms()
    for _ in ids:
        claim = await tasks.take()
        assert claim is not None
        await client.fail(claim, "broken")
    drawn = [(await tasks.get(one))["at_ms"] for one in ids]
    assert len(set(drawn)) > 3 and all(10_000 <= at - failed_ms <= 20_500 for at in drawn)
    for node in world.nodes:
        await world.crash_node(node)
        await world.bring_back(node)
    assert [(await tasks.get(one))["at_ms"] for one in ids] == drawn
