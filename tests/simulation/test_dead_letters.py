"""Dead letters on a whole cluster: lists, requeues, discards, and their ordering keys."""

from __future__ import annotations

import pytest
import trio

from onyxq.core.ids import TaskId, ms_of, partition_of
from onyxq.core.purged import NOTHING, Watermark
from onyxq.errors import BadRequest
from onyxq.operations.table.dead import RequeueDead
from simulation.scenes.base import leader_of
from simulation.world.clients import RecordingClient
from simulation.world.world import World
from tests.simulation.scheduled import STEADY, Tasks
from tests.simulation.simulated import simulated


async def kill(tasks: Tasks, error: str = "broken") -> TaskId:
    """Take one task and fail it."""
    claim = await tasks.take()
    assert claim is not None
    await tasks.client.fail(claim, error)
    return claim.id


@simulated(seed=1, options=STEADY)
async def test_dead_letters_are_listed_by_queue_and_error(client: RecordingClient, tasks: Tasks) -> None:
    """The list is in id order, with errors, in pages."""
    for number in range(6):
        await tasks.put(b"%d" % number, retries=0)
    dead = sorted([await kill(tasks, f"broken {number % 2}") for number in range(6)])
    call = client.client.call
    found = await call("dead", {"queue": "q"})
    assert [task["id"] for task in found["tasks"]] == dead and found["after"] is None
    assert {task["error"] for task in found["tasks"]} == {"broken 0", "broken 1"}
    assert len((await call("dead", {"where": "ken 1"}))["tasks"]) == 3
    assert (await call("dead", {"queue": "other"}))["tasks"] == []
    page = await call("dead", {"limit": 4})
    rest = await call("dead", {"limit": 4, "after": page["after"]})
    assert [task["id"] for task in page["tasks"] + rest["tasks"]] == dead
    listed = await call("list", {"queue": "q", "state": "failed"})
    assert [task["id"] for task in listed["tasks"]] == dead


@simulated(seed=1, options=STEADY)
async def test_a_task_that_expired_and_is_requeued_expires_again(
    world: World, client: RecordingClient, tasks: Tasks
) -> None:
    """Its deadline is unchanged, so claimers do not get it meanwhile."""
    task_id = await tasks.put(b"late", expires_ms=tasks.now_ms() + 300)
    for _ in range(2):
        await trio.sleep(1.5)
        found = await tasks.get(task_id)
        assert found["state"] == "failed" and found["error"].startswith("expired: no worker started it before")
        await client.requeue(task_id)
        assert await tasks.state(task_id) == "ready"
        assert await tasks.take(wait_ms=0) is None
    await trio.sleep(1.5)
    assert await tasks.state(task_id) == "failed"
    assert len(world.audit.ledger.reopened[task_id]) == 2 and task_id not in world.audit.ledger.grants


@simulated(seed=1, options=STEADY)
async def test_a_requeued_dead_letter_has_all_its_retries_again(client: RecordingClient, tasks: Tasks) -> None:
    """Attempts continue to rise; the limit counts from the requeue."""
    task_id = await tasks.put(b"x", retries=1, backoff_ms=0)
    for _ in range(2):
        await kill(tasks)
    assert await tasks.state(task_id) == "failed"
    assert (await client.client.call("dead.requeue", {"ids": [task_id]}))["count"] == 1
    again = await client.client.call("dead.requeue", {"ids": [task_id]})
    assert again["count"] == 1, "a client without an answer may ask again"
    for attempts in (2, 3):
        claim = await tasks.take()
        assert claim is not None and claim.attempts == attempts
        await client.fail(claim, "again")
    found = await tasks.get(task_id)
    assert (found["state"], found["attempts"], len(found["claims"])) == ("failed", 3, 4)
    assert (await client.client.call("dead.requeue", {"queue": "q", "where": "aga"}))["count"] == 1
    claim = await tasks.take()
    assert claim is not None
    await tasks.done(claim)
    assert await tasks.state(task_id) == "completed"
    (result,) = (await client.client.call("dead.requeue", {"ids": [task_id]}))["results"]
    assert result["code"] == "conflict" and "it was requeued" in result["detail"]
    fresh = await tasks.put(b"y")
    (result,) = (await client.client.call("dead.requeue", {"ids": [fresh]}))["results"]
    assert result["code"] == "conflict" and "requeued" not in result["detail"]


@simulated(seed=1, options=STEADY)
async def test_the_pauses_of_a_requeued_dead_letter_begin_with_the_first(client: RecordingClient, tasks: Tasks) -> None:
    """They are doubled for each attempt since the requeue. Earlier attempts do not count."""
    task_id = await tasks.put(b"x", retries=3, backoff_ms=2_000)
    for _ in range(4):
        claim = await tasks.take()
        assert claim is not None
        await client.fail(claim, "broken", 0)
    assert await tasks.state(task_id) == "failed"
    await client.requeue(task_id)
    await kill(tasks, "again")
    claim = await tasks.take(wait_ms=4_000)
    assert claim is not None and claim.attempts == 5
    await tasks.done(claim)


@simulated(seed=1, options=STEADY)
async def test_a_dead_letter_is_not_requeued_while_its_time_is_about_to_be_purged(world: World, tasks: Tasks) -> None:
    """The purge may be on its way to the log already, and would delete the requeued task."""
    await tasks.put(b"x", retries=0)
    dead = await kill(tasks)
    number = partition_of(dead)
    node = leader_of(world, number).running
    assert node is not None and node.node is not None
    leader, requeue = node.node.leaders[number], node.node.operations.dead_letters.requeue
    leader.closing = Watermark(ms_of(dead) + 1)
    (refused,) = await requeue(RequeueDead(ids=[dead]))
    assert refused is not None and refused["code"] == "unavailable"
    leader.closing = NOTHING
    assert await requeue(RequeueDead(ids=[dead])) == [None]
    claim = await tasks.take()
    assert claim is not None and claim.id == dead
    await tasks.done(claim)


@simulated(seed=1, options=STEADY)
async def test_discarded_dead_letters_are_cancelled(client: RecordingClient, tasks: Tasks) -> None:
    """They are no longer listed, by ids or by filter."""
    for number in range(4):
        await tasks.put(b"%d" % number, retries=0)
    dead = [await kill(tasks) for _ in range(4)]
    assert (await client.client.call("dead.discard", {"ids": dead[:1]}))["count"] == 1
    assert (await client.client.call("dead.discard", {"queue": "q", "limit": 2}))["count"] == 2
    assert len((await client.client.call("dead", {}))["tasks"]) == 1
    assert sorted([await tasks.state(one) for one in dead]) == ["cancelled"] * 3 + ["failed"]
    again = await client.client.call("dead.discard", {"ids": dead[:1]})
    assert again["count"] == 1, "a client without an answer may ask again"
    with pytest.raises(BadRequest) as caught:
        await client.client.call("dead.discard", {"ids": dead, "queue": "q"})
    assert caught.value.field == "ids"


@pytest.mark.parametrize("way", ["goes on", "discard", "requeue"])
@simulated(seed=1, options=STEADY)
async def test_a_dead_letter_stops_its_ordering_key_if_the_queue_says_so(
    client: RecordingClient, tasks: Tasks, way: str
) -> None:
    """The key continues once it is discarded or completed; without the setting it continues at once."""
    if way != "goes on":
        await client.client.call("queue.set", {"queue": "q", "on_dead": "stops"})
    dead = await tasks.put(b"1", ordering_key="k", retries=0)
    following = await tasks.put(b"2", ordering_key="k")
    await kill(tasks)
    assert await tasks.state(dead) == "failed"
    if way != "goes on":
        assert await tasks.state(following) == "waiting"
        assert await tasks.take(wait_ms=500) is None
        await client.client.call(f"dead.{way}", {"ids": [dead]})
    claim = await tasks.take()
    assert claim is not None and claim.data == (b"1" if way == "requeue" else b"2")
    await tasks.done(claim)
    if way == "requeue":
        claim = await tasks.take()
        assert claim is not None and claim.data == b"2"


@simulated(seed=1, options=STEADY)
async def test_claims_of_every_life_of_a_task_show_their_end(client: RecordingClient, tasks: Tasks) -> None:
    """The claim before a requeue is shown as failed, whatever happened to the task since; a discard ends no claim."""
    task_id = await tasks.put(b"x", retries=0)

    async def ends() -> list[str | None]:
        claims = (await tasks.get(task_id))["claims"]
        assert all((one["end_ms"] is None) == (one["outcome"] is None) for one in claims)
        return [one["outcome"] for one in claims]

    await kill(tasks)
    await client.client.call("dead.requeue", {"ids": [task_id]})
    assert await ends() == ["failed"]
    claim = await tasks.take()
    assert await ends() == ["failed", None]
    assert claim is not None
    await client.fail(claim, "again")
    assert await ends() == ["failed", "failed"]
    await client.client.call("dead.discard", {"ids": [task_id]})
    assert await tasks.state(task_id) == "cancelled"
    assert await ends() == ["failed", "failed"]
