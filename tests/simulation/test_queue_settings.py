"""Queue settings through any node: equal when read, and refused with the setting's name."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from onyxq.core.facts import pack_task
from onyxq.core.ids import make_id, partition_of
from onyxq.errors import BadRequest
from simulation.world.clients import RecordingClient
from simulation.world.world import Options, World
from tests.simulation.simulated import simulated

STEADY = Options(clock_offset_ms=0)


@simulated(seed=1, options=STEADY)
async def test_settings_are_read_back_as_they_were_set(world: World, client: RecordingClient) -> None:
    """They are read with the queue's depth; rates are tasks per second; null is the default or "no limit"."""
    call = client.client.call

    async def change(**settings: Any) -> dict[str, Any]:
        args = {"queue": "q", **settings, "by": "ops", "why": "full"}
        assert await call("queue.set", args) == {}
        found = await call("queue.get", {"queue": "q"})
        assert found["depth"]["total"] == 3 and found["running"] == 0
        shown: dict[str, Any] = found["settings"]
        return shown

    await client.enqueue("q", [b"1", b"2", b"3"])
    before = (await call("queue.get", {"queue": "q"}))["settings"]
    assert before["retries"] == 25 and before["rate"] == 0 and not before["paused"]
    shown = await change(rate=2.5, key_rate=7, concurrency=3, retries=None, on_dead="stops", paused=True)
    assert (shown["rate"], shown["key_rate"], shown["concurrency"], shown["retries"]) == (2.5, 7, 3, None)
    assert (shown["paused"], shown["paused_by"], shown["paused_why"]) == (True, "ops", "full")
    shown = await change(rate=None, key_rate=None, concurrency=0, on_dead=None, retries=25, paused=False)
    assert shown == before
    assert not world.audit.replica.queues
    unheard = await call("queue.get", {"queue": "never used"})
    assert unheard["settings"] == before and unheard["depth"]["total"] == 0


@simulated(seed=1, options=STEADY)
async def test_a_renewal_that_names_no_lease_gets_that_of_the_queue(client: RecordingClient) -> None:
    """A fixed one would be shorter than the lease that the queue granted, and the task would run twice."""
    direct = client.client  # no client of this kind leaves the lease out
    await direct.set_queue("slow", lease_ms=600_000)
    await direct.enqueue("slow", b"1", retries=0)
    (claim,) = await direct.claim("slow", lease_ms=10_000, wait_ms=5_000)
    answer = await direct.call("renew", {"items": [[claim.id, 1, claim.token, None]]})
    assert answer["results"] == [[]]
    await trio.sleep(120)
    assert (await direct.get(claim.id)).state == "claimed"
    await direct.call("complete", {"items": [[claim.id, 1, claim.token, None, None]]})
    assert (await direct.get(claim.id)).state == "completed"


@simulated(seed=1, options=STEADY)
async def test_a_renewal_of_consecutive_tasks_gives_each_the_lease_of_its_own_queue(
    world: World, client: RecordingClient
) -> None:
    """HTTP joins claims with consecutive ids and the same token to one item, whatever their queues."""
    direct, now_ms = client.client, world.nodes[0].clock.wall_ms()
    await direct.set_queue("slow", lease_ms=600_000)
    ids = [make_id(now_ms, 0, 0xBEEF, number) for number in range(2)]
    bodies = [pack_task({"queue": queue, "retries": 0}, [b"x"]) for queue in ("plain", "slow")]
    await direct.call("enqueue", {"runs": [list(one) for one in zip(ids, bodies, strict=True)], "w": None})
    claims = list(await direct.claim(["plain", "slow"], max=2, lease_ms=10_000, wait_ms=5_000))
    assert {claim.id for claim in claims} == set(ids)
    (token,) = {claim.token for claim in claims}
    answer = await direct.call("renew", {"items": [[ids[0], 2, token, None]]})
    assert answer["results"] == [[]]
    await direct.call("complete", {"items": [[ids[0], 1, token, None, None]]})
    await trio.sleep(120)
    assert (await direct.get(ids[1])).state == "claimed"
    await direct.call("complete", {"items": [[ids[1], 1, token, None, None]]})
    assert (await direct.get(ids[1])).state == "completed"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"queue": ""}, "queue"),
    ({"queue": "a\nb"}, "queue"),
    ({"queue": 7}, "queue"),
    ({"speed": 1}, "speed"),
    ({"lease_ms": 999}, "lease_ms"),
    ({"lease_ms": "1s"}, "lease_ms"),
    ({"retries": -1}, "retries"),
    ({"retries": True}, "retries"),
    ({"rate": -0.5}, "rate"),
    ({"rate": float("nan")}, "rate"),
    ({"rate": float("inf")}, "rate"),
    ({"rate": 0.0001}, "rate"),
    ({"rate": True}, "rate"),
    ({"concurrency": 1.5}, "concurrency"),
    ({"on_dead": "runs"}, "on_dead"),
    ({"on_dead": ["stops"]}, "on_dead"),
    ({"durability": ""}, "durability"),
    ({"paused": 1}, "paused"),
    ({"archive": "yes"}, "archive"),
    ({"paused_by": "x"}, "paused_by"),
    ({"by": 7}, "by"),
    ({"why": "x" * 1_001}, "why"),
    ({"colour": "red"}, "colour"),
]


@simulated(seed=1, options=STEADY)
async def test_what_cannot_be_set_is_refused_with_its_name(world: World, client: RecordingClient) -> None:
    """No setting of the request is stored."""
    for wrong, field in BAD:
        args = {"queue": "q", "backoff_ms": 7, **wrong}
        with pytest.raises(BadRequest) as refused:
            await client.client.call("queue.set", args)
        assert refused.value.field == field, wrong
    with pytest.raises(BadRequest):
        await client.client.call("queue.get", {"queue": None})
    assert not world.audit.replica.queues


@simulated(seed=1, options=STEADY)
async def test_a_queue_that_is_held_back_shows_how_long_its_tasks_wait(client: RecordingClient) -> None:
    """If it is paused or at its limit, ready tasks still age; tasks that are not ready do not count."""

    async def age_ms() -> int | None:
        (found,) = await client.client.queues()
        age: int | None = found["oldest_ready_ms"]
        return age

    await client.client.pause("q")
    await client.enqueue("q", [b"1", b"2"])
    await trio.sleep(5)
    age = await age_ms()
    assert age is not None and 4_900 < age < 5_500
    await client.client.set_queue("q", paused=False, concurrency=1)
    (claim,) = await client.claim("q", wait_ms=2_000)
    await trio.sleep(1)
    age = await age_ms()
    assert age is not None and age > 5_900
    await client.client.set_queue("q", concurrency=0)
    (other,) = await client.claim("q", wait_ms=2_000)
    assert await age_ms() is None
    await client.complete(claim)
    await client.complete(other)


@simulated(seed=1, options=STEADY)
async def test_a_queue_is_as_old_as_its_oldest_ready_task_wherever_that_is(client: RecordingClient) -> None:
    """Younger tasks in other partitions do not hide it, at any node."""
    await client.client.pause("q")
    ids = []
    for number in range(12):
        ids += await client.enqueue("q", [b"%d" % number])
        await trio.sleep(1)
    assert len({partition_of(task) for task in ids}) > 1
    (found,) = await client.client.queues()
    assert 12_000 <= found["oldest_ready_ms"] < 13_000
    assert (await client.client.queue("q"))["oldest_ready_ms"] >= found["oldest_ready_ms"]


async def oldest_s(world: World) -> float | None:
    """Return the age of the oldest ready task of the queue ``q``, as the metrics of all nodes show it."""
    found: list[float] = []
    for node in world.nodes:
        assert node.running is not None and node.running.service is not None
        text: str = (await node.running.service.call("metrics", {}))["text"]
        lines = [line for line in text.splitlines() if line.startswith('onyxq_queue_oldest_seconds{queue="q"}')]
        found += [float(line.split()[-1]) for line in lines]
    return max(found, default=None)


@simulated(seed=1, options=STEADY)
async def test_the_metric_of_a_queue_that_is_held_back_shows_how_long_its_tasks_wait(
    world: World, client: RecordingClient
) -> None:
    """Else the alert for old tasks is silent while a queue is paused or at its limit."""
    await client.client.pause("q")
    await client.enqueue("q", [b"1", b"2"])
    await trio.sleep(5)
    age_s = await oldest_s(world)
    assert age_s is not None and 4.9 < age_s < 5.5
    await client.client.set_queue("q", paused=False, concurrency=1)
    (claim,) = await client.claim("q", wait_ms=2_000)
    await trio.sleep(1)
    age_s = await oldest_s(world)
    assert age_s is not None and age_s > 5.9
    await client.client.set_queue("q", concurrency=0)
    (other,) = await client.claim("q", wait_ms=2_000)
    assert await oldest_s(world) is None
    await client.complete(claim)
    await client.complete(other)
