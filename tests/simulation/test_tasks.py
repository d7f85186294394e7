"""Promises to clients, on a whole cluster of three nodes: order, retries, leases, updates."""

from __future__ import annotations

import pytest
import trio

from onyxq.client.claims import Claim
from onyxq.core.ids import TaskId
from onyxq.core.log.record import decode_record
from onyxq.errors import AlreadyFinished, Conflict, StaleToken
from simulation.world.clients import RecordingClient
from simulation.world.load import Load, Mix
from simulation.world.world import Options, World, simulate
from tests.simulation.simulated import simulated

ONE = Options(partitions=1, clock_offset_ms=0)


async def take(client: RecordingClient, *, lease_ms: int = 10_000, wait_ms: int = 20_000) -> Claim:
    """Return one claim, which must come in time."""
    claims = await client.claim("q", lease_ms=lease_ms, wait_ms=wait_ms)
    assert len(claims) == 1
    return claims[0]


@pytest.mark.parametrize("seed", range(3))
def test_everything_enqueued_is_completed_once(seed: int) -> None:
    """Without faults every task is worked on exactly once."""

    async def workload(world: World) -> None:
        load = Load(world, Mix(fail=0, release=0, forget=0, late=0, update=0, renew=0))
        async with trio.open_nursery() as nursery:
            load.start(nursery)
            await trio.sleep(5)
            await load.drain()
            nursery.cancel_scope.cancel()

    world = simulate(workload, seed=seed)
    assert world.history.completed.keys() == world.history.enqueued.keys()
    assert all(len(grants) == 1 for grants in world.history.heard.values())


@simulated(seed=1, options=ONE)
async def test_higher_priority_comes_first_then_the_older_task(client: RecordingClient) -> None:
    """Ready tasks of one partition are granted in order of priority and age."""
    for priority, data in ((0, b"c"), (5, b"a"), (-3, b"e"), (5, b"b"), (0, b"d")):
        await client.enqueue("q", [data], priority=priority)
        await trio.sleep(0.01)
    assert [(await take(client)).data for _ in range(5)] == [b"a", b"b", b"c", b"d", b"e"]


@simulated(seed=1)
async def test_a_waiting_claim_is_answered_at_once_when_a_task_comes(world: World) -> None:
    """A long poll does not wait for the next check."""
    async with world.client() as worker, world.client() as producer:
        answered_s: list[float] = []

        async def wait() -> None:
            await take(worker, lease_ms=30_000, wait_ms=30_000)
            answered_s.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(3.7)
            await producer.enqueue("q", [b"x"])
            enqueued_s = trio.current_time()
        assert answered_s[0] - enqueued_s < 0.1


@simulated(seed=1)
async def test_an_empty_queue_is_answered_when_the_waiting_is_over(client: RecordingClient) -> None:
    """A claim finds nothing after wait_ms, not much later."""
    started_s = trio.current_time()
    assert not await client.claim("q", wait_ms=2_000)
    assert 2.0 <= trio.current_time() - started_s < 2.5


@simulated(seed=1, options=Options(clock_offset_ms=0))
async def test_a_delayed_task_is_granted_when_it_is_due(client: RecordingClient) -> None:
    """It is not granted early by the leader's clock, and soon after its due time."""
    enqueued_s = trio.current_time()
    await client.enqueue("q", [b"later"], delay_ms=5_000)
    await take(client)
    assert 5.0 <= trio.current_time() - enqueued_s < 5.2


@simulated(seed=1)
async def test_a_forgotten_claim_expires_by_log_time_and_counts_as_an_attempt(client: RecordingClient) -> None:
    """The task goes to another worker after the lease, with a higher token."""
    await client.enqueue("q", [b"x"], backoff_ms=0)
    first = await take(client, lease_ms=2_000)
    granted_s = trio.current_time()
    second = await take(client, wait_ms=15_000)
    assert 1.9 < trio.current_time() - granted_s < 8.0
    assert second.token > first.token and second.attempts == 1
    with pytest.raises(StaleToken):
        await client.complete(first)
    await client.complete(second)


def test_a_dead_workers_claims_on_many_partitions_come_back_together() -> None:
    """A node expires claims of its partitions in one record, not one partition after the other."""
    partitions, tasks = 32, 96

    async def workload(world: World) -> None:
        async with world.client() as client:
            for _ in range(tasks):
                await client.enqueue("q", [b"x"], backoff_ms=0)
            for taken in (0, tasks):
                left = tasks
                while left:
                    claims = await client.claim("q", maximum=left, lease_ms=5_000, wait_ms=20_000)
                    assert claims
                    left -= len(claims)
                    for claim in claims if taken else ():
                        await client.complete(claim)

    world = simulate(workload, seed=1, options=Options(partitions=partitions, clock_offset_ms=0))
    contents = (decode_record(record.data) for record in world.audit.records)
    expired = [sum(raw.name == "expire_claims" for raw in content.entries) for content in contents if content]
    assert sum(expired) > partitions // 2
    assert sum(map(bool, expired)) <= 2 * len(world.nodes), "deadlines lie a moment apart"


@simulated(seed=1)
async def test_a_lapsed_claim_may_still_complete_while_nobody_else_was_granted(client: RecordingClient) -> None:
    """An expired lease alone does not throw work away."""
    await client.enqueue("q", [b"x"])
    claim = await take(client, lease_ms=1_000)
    await trio.sleep(10)
    await client.complete(claim, b"late")
    assert not await client.claim("q", wait_ms=3_000)


@simulated(seed=1)
async def test_a_renewed_claim_does_not_expire(client: RecordingClient) -> None:
    """Renewing keeps the task for as long as it is done."""
    await client.enqueue("q", [b"x"])
    claim = await take(client, lease_ms=3_000)
    for _ in range(10):
        await trio.sleep(2)
        await client.renew(claim, 3_000)
    assert not await client.claim("q")
    await client.complete(claim)


@simulated(seed=1)
async def test_a_failing_task_is_retried_and_then_dead(client: RecordingClient) -> None:
    """With two retries there are three attempts, each later than the one before."""
    (task_id,) = await client.enqueue("q", [b"x"], retries=2, backoff_ms=1_000)
    for attempt in range(3):
        claim = await take(client)
        assert claim.attempts == attempt
        await client.fail(claim, f"broken {attempt}")
    assert not await client.claim("q", wait_ms=10_000)
    task = await client.client.get(task_id)
    assert (task.state, task.error) == ("failed", "broken 2")
    assert [claim.outcome for claim in task.claims] == ["failed"] * 3


@simulated(seed=1, options=ONE)
async def test_a_worker_may_have_a_failed_task_tried_again_at_once(client: RecordingClient) -> None:
    """The worker's delay replaces the back-off. The attempt counts as usual."""
    await client.enqueue("q", [b"x"], backoff_ms=600_000)
    for attempt in range(3):
        failed_s = trio.current_time()
        claim = await take(client)
        assert trio.current_time() - failed_s < 0.5
        assert claim.attempts == attempt
        await client.fail(claim, "not yet", retry_in_ms=0)


@simulated(seed=1)
async def test_a_released_task_is_granted_again_at_once_uncounted(client: RecordingClient) -> None:
    """A release is not an attempt."""
    await client.enqueue("q", [b"x"])
    claim = await take(client)
    released_s = trio.current_time()
    await client.release(claim)
    again = await take(client)
    assert trio.current_time() - released_s < 0.5
    assert again.attempts == 0 and again.token > claim.token


@simulated(seed=1)
async def test_updates_are_kept_in_order_per_claim(client: RecordingClient) -> None:
    """Each claim's updates count from 0; a gap is refused."""
    (task_id,) = await client.enqueue("q", [b"x"])
    first = await take(client)
    assert [await client.update(first, data) for data in (b"a", b"b")] == [0, 1]
    await client.release(first)
    second = await take(client)
    assert await client.update(second, b"c") == 0
    gap = {"items": [[task_id, second.token, 5, b"z"]]}
    answer = await client.client.call("update", gap)
    assert answer["results"][0]["code"] == "sequence_gap"
    with pytest.raises(StaleToken):
        await client.update(first, b"late")
    found = await client.client.task_log(task_id)
    assert [(one.token, one.seq, one.data) for one in found] == [
        (first.token, 0, b"a"),
        (first.token, 1, b"b"),
        (second.token, 0, b"c"),
    ]


@simulated(seed=1)
async def test_a_cancelled_task_is_never_granted_and_a_claimed_one_not_cancelled(client: RecordingClient) -> None:
    """A cancel is for unclaimed tasks."""
    gone, kept = await client.enqueue("q", [b"gone", b"kept"])
    await client.cancel(gone)
    claim = await take(client)
    assert claim.id == kept
    with pytest.raises(Conflict):
        await client.cancel(kept)
    await client.complete(claim)
    with pytest.raises(AlreadyFinished):
        await client.cancel(kept)
    assert (await client.client.get(gone)).state == "cancelled"


@simulated(seed=1, options=ONE)
async def test_tasks_enqueued_at_one_instant_keep_their_own_payloads_when_claims_lapse(client: RecordingClient) -> None:
    """Rows with adjacent ids share a claim; when it expires each task still has its own row."""
    ids = await client.client.make_ids(6)
    for number in range(0, 6, 2):
        payloads = [b"task %d" % number, b"task %d" % (number + 1)]
        await client.client.enqueue_many("q", payloads, ids=ids[number : number + 2], priority=number, backoff_ms=0)
    assert len(await client.claim("q", maximum=6, lease_ms=1_000)) == 6
    await trio.sleep(8)
    found: dict[TaskId, tuple[bytes, int, int]] = {}
    while len(found) < 6:
        for claim in await client.claim("q", maximum=6, wait_ms=5_000):
            found[claim.id] = (claim.data, claim.priority, claim.attempts)
    assert found == {task_id: (b"task %d" % n, n // 2 * 2, 1) for n, task_id in enumerate(ids)}


@simulated(seed=1, options=ONE)
async def test_a_repeated_enqueue_is_the_same_task(client: RecordingClient) -> None:
    """Enqueuing under the same ids again changes nothing."""
    ids = await client.client.make_ids(3)
    for _ in range(3):
        assert await client.client.enqueue_many("q", [b"a", b"b", b"c"], ids=ids) == ids
    assert (await client.client.count("q"))["q"]["total"] == 3
    assert len(await client.claim("q", maximum=10)) == 3


@simulated(seed=1)
async def test_a_claim_given_up_by_its_client_is_released(world: World) -> None:
    """A client that goes away while its claim waits leaves no task stuck."""
    async with world.client() as producer:
        async with world.client() as impatient:
            with trio.move_on_after(0.5):
                await impatient.claim("q", wait_ms=20_000, lease_ms=600_000)
        await producer.enqueue("q", [b"x"])
        await take(producer, wait_ms=5_000)


@simulated(seed=3)
async def test_no_error_is_met_by_a_client_while_one_node_restarts(world: World) -> None:
    """Draining moves everything: clients only wait a little."""
    load = Load(world, Mix(fail=0, release=0, forget=0, late=0))
    async with trio.open_nursery() as nursery:
        load.start(nursery)
        await trio.sleep(2)
        for node in world.nodes:
            await world.stop_node(node)
            world.start_node(node)
            await world.settle()
        await load.drain()
        nursery.cancel_scope.cancel()
    assert not world.history.errors
