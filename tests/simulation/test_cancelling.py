"""Cancels of tasks that workers hold: the first of cancel and completion counts, and the other is refused."""

from __future__ import annotations

import pytest
import trio

from onyxq.client.claims import Claim
from onyxq.core.ids import TaskId
from onyxq.errors import AlreadyFinished, Conflict, StaleToken
from onyxq.operations.table.task import CancelTasks
from simulation.scenes.base import ONE, back, deposed
from simulation.workloads import WORKLOADS
from simulation.world.clients import RecordingClient
from simulation.world.world import World
from tests.simulation.simulated import simulated


async def held(client: RecordingClient, data: bytes = b"x") -> tuple[TaskId, Claim]:
    """Return a task and the claim on it."""
    (task_id,) = await client.enqueue("q", [data], retries=0)
    (claim,) = await client.claim("q", wait_ms=20_000, lease_ms=60_000)
    return task_id, claim


@simulated(seed=1, options=ONE)
async def test_a_claimed_task_is_cancelled_if_that_is_asked_for(world: World, client: RecordingClient) -> None:
    """Otherwise the cancel is a conflict. The claim ends, and is shown as cancelled."""
    task_id, claim = await held(client)
    with pytest.raises(Conflict, match="is claimed"):
        await client.cancel(task_id)
    await client.cancel(task_id, claimed=True)
    task = await client.client.get(task_id)
    assert task.state == "cancelled"
    assert [(one.token, one.outcome) for one in task.claims] == [(claim.token, "cancelled")]
    await world.until(lambda: not world.audit.replica.claims.get(0), "the claim is gone", within_s=20)


@simulated(seed=1, options=ONE)
async def test_a_cancel_that_is_repeated_is_done_already(world: World, client: RecordingClient) -> None:
    """A client without an answer repeats the cancel, and a refusal would tell it that another client has the task.

    Seed 623 of the standard workload found a cancelled task whose only cancels had been refused.
    """
    (waits,) = await client.enqueue("q", [b"waits"])
    for claimed in (False, False, True):
        await client.cancel(waits, claimed=claimed)
    task_id, _ = await held(client)
    for claimed in (True, True, False):
        await client.cancel(task_id, claimed=claimed)
    await world.until(lambda: not world.audit.replica.claims.get(0), "the claim is gone", within_s=20)
    await client.cancel(task_id, claimed=True)
    assert [(await client.client.get(one)).state for one in (waits, task_id)] == ["cancelled"] * 2


@simulated(seed=1, options=ONE)
async def test_the_holder_of_a_cancelled_task_is_told_whatever_it_asks_for(client: RecordingClient) -> None:
    """All its requests are refused, and the message says why."""
    task_id, claim = await held(client)
    await client.update(claim, b"half way")
    await client.cancel(task_id, claimed=True)
    with pytest.raises(StaleToken, match="was cancelled"):
        await client.renew(claim, 60_000)
    with pytest.raises(StaleToken, match="was cancelled"):
        await client.fail(claim, "did not work")
    with pytest.raises(StaleToken, match="was cancelled"):
        await client.release(claim)
    with pytest.raises(AlreadyFinished, match="was cancelled"):
        await client.update(claim, b"further")
    with pytest.raises(AlreadyFinished, match="was cancelled"):
        await client.complete(claim, b"done")
    with pytest.raises(StaleToken):
        await client.transact(complete=[(claim, b"done")], enqueue=[("q", b"next")])
    assert (await client.client.get(task_id)).state == "cancelled"


@simulated(seed=1, options=ONE)
async def test_a_claimed_task_of_a_key_is_not_cancelled(client: RecordingClient) -> None:
    """The next task of its key must not start while its worker runs; a waiting task can be cancelled."""
    first, second = await client.enqueue("q", [b"first", b"second"], ordering_key="k")
    (claim,) = await client.claim("q", wait_ms=20_000, lease_ms=60_000)
    with pytest.raises(Conflict, match="has an ordering key"):
        await client.cancel(first, claimed=True)
    await client.cancel(second, claimed=True)
    await client.complete(claim, b"done")
    assert (await client.client.get(first)).state == "completed"


@simulated(seed=1, options=ONE)
async def test_a_claimed_task_of_a_limited_queue_is_not_cancelled(client: RecordingClient) -> None:
    """Another task would run beside it; seed 190 of the standard workload tests this too."""
    await client.client.set_queue("q", concurrency=1)
    first, second = await client.enqueue("q", [b"first", b"second"])
    (claim,) = await client.claim("q", wait_ms=20_000, lease_ms=60_000)
    with pytest.raises(Conflict, match="limits how many"):
        await client.cancel(first, claimed=True)
    await client.cancel(second, claimed=True)
    await client.complete(claim, b"done")
    assert (await client.client.get(first)).state == "completed"


@simulated(seed=1, options=ONE)
async def test_a_task_that_waits_is_cancelled_in_the_same_way(client: RecordingClient) -> None:
    """A client that includes claimed tasks need not know whether the task is claimed."""
    (task_id,) = await client.enqueue("q", [b"x"])
    await client.cancel(task_id, claimed=True)
    assert (await client.client.get(task_id)).state == "cancelled"
    assert len(await client.claim("q", wait_ms=500)) == 0


@simulated(seed=1, options=ONE)
async def test_a_cancel_comes_too_late_for_a_task_that_is_done(client: RecordingClient) -> None:
    """It was completed alone or by a transaction."""
    for way in ("complete", "transact"):
        task_id, claim = await held(client, way.encode())
        if way == "complete":
            await client.complete(claim, b"done")
        else:
            await client.transact(complete=[(claim, b"done")])
        with pytest.raises(AlreadyFinished):
            await client.cancel(task_id, claimed=True)
        assert (await client.client.get(task_id)).result == b"done"


@simulated(seed=1, options=ONE)
async def test_a_claimed_task_can_be_cancelled_while_the_log_is_away(world: World, client: RecordingClient) -> None:
    """A cancel is a fact like a completion: the claim is released later."""
    task_id, claim = await held(client)
    world.log_down()
    await client.cancel(task_id, claimed=True)
    with pytest.raises(AlreadyFinished):
        await client.complete(claim, b"done")
    world.log_up()
    await world.until(lambda: not world.audit.replica.claims.get(0), "the claim is gone", within_s=60)


@simulated(seed=1, options=ONE)
async def test_a_deposed_leader_cancels_nothing(world: World, client: RecordingClient) -> None:
    """Its successor has accepted the completion meanwhile."""
    task_id, claim = await held(client)
    old, _ = await deposed(world)
    async with world.client(nodes=[node for node in world.nodes if node is not old]) as other:
        await other.complete(claim, b"done")
    assert old.running is not None and old.running.node is not None
    with trio.move_on_after(5):
        (said,) = await old.running.node.operations.cancellations.cancel(CancelTasks(ids=[task_id], claimed=True))
        assert said is not None
    await back(world, old)
    assert (await client.client.get(task_id)).result == b"done"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30, 34))
def test_holders_and_cancels_meet(seed: int) -> None:
    """Every request of a holder happens around the cancel of its task, with changes of the leader."""
    played = WORKLOADS["told_to_stop"].play(seed)
    assert played.probes["a task was cancelled that a worker held"] > 5
