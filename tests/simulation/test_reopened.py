"""Expired claims, deposed leaders and void rows have no later effect on dead letters, renewals and unique keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from onyxq.client.claims import Claim
from onyxq.core.facts import COMPLETED, REOPENED, RETRIED, Completion, History, completion_row, history_row
from onyxq.core.ids import Run, TaskId, partition_of, stretch_of
from onyxq.core.replica import claim_of
from onyxq.errors import LogUnavailable, OnyxqError, StaleToken
from onyxq.leader.completion_rows import not_ended_by
from onyxq.leader.state.states import State
from onyxq.operations.table.dead import DiscardDead
from onyxq.store.interface import Batch
from simulation.scenes.base import ONE, back, cut_off, leader_of, successor
from simulation.world.clients import RecordingClient
from simulation.world.world import Options, SimulatedNode, World, simulate
from tests.simulation.simulated import simulated


async def taken(client: RecordingClient, **said: int) -> Claim:
    """Claim the only task, as soon as possible."""
    (claim,) = await client.claim("q", wait_ms=20_000, **said)
    return claim


@simulated(seed=1, options=ONE)
async def test_a_claim_of_an_earlier_life_completes_nothing(world: World, client: RecordingClient) -> None:
    """Its lease expired, the task failed for good and was requeued: the completion would not count."""
    (task_id,) = await client.enqueue("q", [b"x"], retries=0)
    late = await taken(client, lease_ms=1_000)
    await world.until(lambda: task_id in _dead(world, 0), "it is a dead letter", within_s=20)
    await client.requeue(task_id)
    with pytest.raises(StaleToken):
        await client.complete(late, b"late")
    await client.complete(await taken(client), b"in time")


@simulated(seed=1, options=ONE)
async def test_a_late_completion_of_an_earlier_claim_does_not_end_the_present_one(
    world: World, client: RecordingClient
) -> None:
    """Its outcome was unknown, the task was granted again, and only then the leader's own store had the row."""
    (task_id,) = await client.enqueue("q", [b"x"])
    late, held = await taken(client, lease_ms=1_000), await taken(client, lease_ms=60_000)
    node = leader_of(world).inner
    assert node is not None
    run, stretch, mark = Run(task_id, 1), stretch_of(task_id), node.leaders[partition_of(task_id)].mark()
    node.leader_state.begin(State.FINISHING, [run])
    done = Completion(late.token, 1, COMPLETED, node.wall_ms(), [b"late"], mark)
    await node.store.write(Batch(rows=[completion_row(task_id, done)]))
    node.leader_state.replace(State.FINISHING, State.UNSETTLED, [run])
    node.operations.completions._unsettled.fire()
    await world.until(lambda: not node.leader_state.bits(State.UNSETTLED, stretch), "it is settled")
    await trio.sleep(1.0)
    claim = claim_of(node.replica, task_id)
    assert claim is not None and claim[2] == held.token
    await client.complete(held, b"in time")


@simulated(seed=1, options=ONE)
async def test_a_failure_of_an_earlier_life_is_repeated_only_until_the_task_is_requeued(
    world: World, client: RecordingClient
) -> None:
    """A client without an answer may repeat it, but not after a requeue, which the failure must not end."""
    (task_id,) = await client.enqueue("q", [b"x"], retries=0)
    claim = await taken(client)
    await client.fail(claim, "did not work")
    node = leader_of(world).running
    assert node is not None and node.node is not None
    store, run = node.node.store, Run(task_id, 1)
    assert not_ended_by(store, run, claim.token, RETRIED) == []
    await client.client.fail(claim, "did not work")
    await client.requeue(task_id)
    assert not_ended_by(store, run, claim.token, RETRIED) == [run]
    with pytest.raises(StaleToken):
        await client.client.fail(claim, "did not work")
    await client.complete(await taken(client), b"in time")


def _dead(world: World, partition: int) -> list[TaskId]:
    node = leader_of(world, partition).running
    return node.node.store.failed(partition) if node is not None and node.node is not None else []


@pytest.mark.parametrize("seed", range(3))
def test_a_claim_that_is_being_renewed_does_not_die(seed: int) -> None:
    """It is renewed at the last moment, or expired and failed: never both."""
    options = Options(partitions=2, clock_offset_ms=0, append_delay_ms=(50, 300), read_delay_ms=(0, 50))

    async def workload(world: World) -> None:
        async with world.client() as client, trio.open_nursery() as nursery:
            await client.enqueue("q", [b"task %d" % number for number in range(40)], retries=0)
            claims: list[Claim] = []
            while len(claims) < 40:
                claims += await client.claim("q", maximum=40, lease_ms=3_000, wait_ms=5_000)
            for claim in claims:
                nursery.start_soon(_renew_late, world, client, claim)

    simulate(workload, seed=seed, options=options)


async def _renew_late(world: World, client: RecordingClient, claim: Claim) -> None:
    await trio.sleep(claim.expires - trio.current_time() + world.random.uniform(-0.2, 2.5))
    try:
        await client.renew(claim, 20_000)
    except OnyxqError:
        return
    await client.complete(claim, b"done")


@simulated(seed=1, options=ONE)
async def test_the_last_attempt_does_not_fail_while_its_renewal_is_under_way(
    world: World, client: RecordingClient
) -> None:
    """It fails after a renewal that was not granted."""
    (task_id,) = await client.enqueue("q", [b"x"], retries=0)
    await taken(client, lease_ms=1_000)
    node, run = leader_of(world).inner, Run(task_id, 1)
    assert node is not None
    node.leader_state.begin(State.RENEWING, [run])
    await trio.sleep(3.0)
    assert _dead(world, 0) == []
    node.leader_state.end(State.RENEWING, [run])
    await world.until(lambda: _dead(world, 0) == [task_id], "it is a dead letter", within_s=20)


@simulated(seed=1, options=ONE)
async def test_a_unique_task_keeps_the_data_of_its_first_grant(world: World, client: RecordingClient) -> None:
    """A replacement that only a deposed leader has is found later, and loses."""
    (task_id,) = await client.enqueue("q", [b"acknowledged"], unique_key="u")
    old = cut_off(world)
    async with world.client(nodes=[old]) as misled:
        with pytest.raises(OnyxqError):
            await misled.enqueue("q", [b"not acknowledged"], unique_key="u", timeout_ms=3_000)
    await successor(world, old)
    claim = await taken(client, lease_ms=60_000)
    assert claim.id == task_id and claim.data == b"acknowledged"
    await back(world, old)
    await client.complete(claim)
    await world.compare_copies()
    assert (await client.client.get(task_id)).data == b"acknowledged"


@pytest.mark.parametrize("way", ["cancel", "discard"])
@simulated(seed=1, options=ONE)
async def test_a_task_that_was_opened_again_can_be_finished_without_a_claim(
    world: World, client: RecordingClient, way: str
) -> None:
    """This holds if the leader knows the requeue only from another node's store, before it reads the log."""
    (task_id,) = await client.enqueue("q", [b"x"], retries=0)
    await client.fail(await taken(client), "broken")
    await client.requeue(task_id)
    if way == "discard":
        await client.fail(await taken(client), "broken")
    else:
        running = leader_of(world).running
        assert running is not None and running.node is not None
        opened = History(running.node.replica.position + 100, 0, 1, REOPENED, 0, 0, "", 0, 1, "")
        await running.node.store.write(Batch(rows=(history_row(task_id, opened),)))
    await getattr(client, way)(task_id)
    assert (await client.client.get(task_id)).state == "cancelled"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_dead_letter_is_requeued_or_discarded_and_not_both(seed: int) -> None:
    """The second request is refused; the checkers verify the promise of the first."""
    options = Options(partitions=1, clock_offset_ms=0, append_delay_ms=(5, 60), read_delay_ms=(0, 60))

    async def workload(world: World) -> None:
        async with world.client() as client:
            ids = await client.enqueue("q", [b"task %d" % number for number in range(24)], retries=0)
            for claim in await client.claim("q", maximum=24, wait_ms=5_000):
                await client.fail(claim, "broken")
            async with trio.open_nursery() as nursery:
                for task_id in ids:
                    for bury in (client.requeue, client.discard, client.requeue):
                        nursery.start_soon(_try, world, bury, task_id)
            for claim in await client.claim("q", maximum=24, wait_ms=2_000):
                await client.complete(claim)
            states = {task.state for task in (await client.client.list("q")).tasks}
            assert states == {"completed", "cancelled"}

    simulate(workload, seed=seed, options=options)


async def _try(world: World, bury: Callable[[TaskId], Awaitable[None]], task_id: TaskId) -> None:
    await trio.sleep(world.random.uniform(0, 0.15))
    try:
        await bury(task_id)
    except OnyxqError:
        pass  # noted by the client


@pytest.mark.parametrize("then", ["requeue", "discard"])
@simulated(seed=1, options=ONE)
async def test_a_requeue_that_could_not_be_sent_is_not_under_way(
    world: World, client: RecordingClient, then: str
) -> None:
    """A repeat is served once the leader has the log again, and the key continues.

    Seed 263 of the standard workload tests this too.
    """
    await client.client.set_queue("q", on_dead="stops")
    first, second = await client.enqueue("q", [b"first", b"second"], ordering_key="k", retries=0)
    await client.fail(await taken(client), "broken")
    epoch = world.audit.replica.partitions[0].epoch
    leader = leader_of(world)
    await without_log(world, leader)
    with pytest.raises(LogUnavailable):
        await client.requeue(first)
    world.reconnect_log(leader)
    await getattr(client, then)(first)
    for expected in (first, second) if then == "requeue" else (second,):
        claim = await taken(client)
        assert claim.id == expected
        await client.complete(claim)
    assert world.audit.replica.partitions[0].epoch == epoch, "it led all the time"


@simulated(seed=1, options=ONE)
async def test_a_requeue_that_nobody_waits_for_is_under_way_until_it_is_decided(
    world: World, client: RecordingClient
) -> None:
    """Then the task is like others: it runs, and is purged once it is finished."""
    (task_id,) = await client.enqueue("q", [b"x"], retries=0)
    await client.fail(await taken(client), "broken")
    leader = leader_of(world)
    assert leader.running is not None and leader.running.node is not None
    node = leader.running.node
    world.disconnect_log(leader)
    with trio.move_on_after(1.0):
        await client.requeue(task_id)
    (refused,) = await node.operations.dead_letters.discard(DiscardDead(ids=[task_id]))
    assert refused is not None and "is being requeued" in refused["message"]
    assert node.leader_state.bits(State.REOPENING, stretch_of(task_id))
    world.reconnect_log(leader)
    await client.complete(await taken(client), b"done")
    assert leader_of(world) is leader
    assert not node.leader_state.bits(State.REOPENING, stretch_of(task_id))


async def without_log(world: World, node: SimulatedNode) -> None:
    """Let the node lose the log, and notice it."""
    session = node.log.session_now
    assert session is not None
    world.disconnect_log(node)
    await world.until(lambda: not session.connected, "it is noticed")
