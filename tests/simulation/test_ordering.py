"""Ordering keys on a whole cluster: one task of a key at a time, in order of due time and enqueue."""

from __future__ import annotations

import contextlib

import pytest
import trio

from onyxq.core import facts
from onyxq.core.ids import TaskId, make_id, partition_of
from onyxq.errors import BadRequest, OnyxqError
from simulation.workloads import CHURN_AND_MESSAGES
from simulation.world.clients import RecordingClient
from simulation.world.faults import storm
from simulation.world.world import Options, World
from tests.simulation.scheduled import STEADY, Tasks
from tests.simulation.simulated import simulated


@simulated(seed=1, options=STEADY)
async def test_tasks_of_a_key_are_granted_one_at_a_time_in_order(tasks: Tasks) -> None:
    """The second task cannot be claimed before the first is done; a task of another key can."""
    for number in range(3):
        await tasks.put(b"a%d" % number, ordering_key="a")
    await tasks.put(b"b0", ordering_key="b")
    first, other = await tasks.take(), await tasks.take()
    assert {first.data, other.data} == {b"a0", b"b0"}
    assert await tasks.take(wait_ms=500) is None
    a = first if first.data == b"a0" else other
    for number in (1, 2):
        await tasks.done(a)
        a = await tasks.take()
        assert a is not None and a.data == b"a%d" % number
        assert await tasks.take(wait_ms=300) is None


@simulated(seed=1, options=STEADY)
async def test_order_is_that_of_due_times_and_then_of_enqueueing(tasks: Tasks) -> None:
    """A delayed task has the place of its due time; immediate tasks keep their order."""
    await tasks.put(b"later", ordering_key="k", delay_ms=3_000)
    await tasks.put(b"soon", ordering_key="k", delay_ms=1_000)
    await tasks.put(b"1", ordering_key="k")
    await tasks.put(b"2", ordering_key="k")
    await trio.sleep(2)
    await tasks.put(b"3", ordering_key="k")
    got = []
    for _ in range(5):
        claim = await tasks.take()
        assert claim is not None
        got.append(claim.data)
        await tasks.done(claim)
    assert got == [b"1", b"2", b"soon", b"3", b"later"]


@simulated(seed=1, options=STEADY)
async def test_a_request_with_many_tasks_of_a_key_keeps_their_order(tasks: Tasks) -> None:
    """This holds even if ids have another order."""
    runs = [tasks.run(b"%d" % number, ordering_key="k") for number in range(10)]
    ids = sorted((run[0] for run in runs), reverse=True)
    assert all(
        type(ack) is int for ack in await tasks.send([[one, run[1]] for one, run in zip(ids, runs, strict=True)])
    )
    for number in range(10):
        claim = await tasks.take()
        assert claim is not None and claim.data == b"%d" % number
        await tasks.done(claim)


@simulated(seed=1, options=STEADY)
async def test_the_head_of_a_key_is_ready_and_the_others_wait(client: RecordingClient, tasks: Tasks) -> None:
    """Get, list and count show this; a failed head waits for its retry, and its key with it."""
    ids = [await tasks.put(b"%d" % number, ordering_key="k", backoff_ms=4_000) for number in range(3)]
    assert [await tasks.state(one) for one in ids] == ["ready", "waiting", "waiting"]
    counts = (await client.client.count("q"))["q"]
    assert (counts["ready"], counts["waiting"], counts["total"]) == (1, 2, 3)
    listed = await client.client.call("list", {"queue": "q", "state": "waiting"})
    assert [task["id"] for task in listed["tasks"]] == ids[1:]
    claim = await tasks.take()
    assert claim is not None
    assert [await tasks.state(one) for one in ids] == ["claimed", "waiting", "waiting"]
    await client.fail(claim, "broken")
    assert [await tasks.state(one) for one in ids] == ["scheduled", "waiting", "waiting"]
    assert await tasks.take(wait_ms=1_500) is None
    found = await tasks.get(ids[1])
    assert (found["ordering_key"], found["unique_key"], found["retries"]) == ("k", None, 25)
    claim = await tasks.take()
    assert claim is not None and claim.id == ids[0]


@simulated(seed=1, options=STEADY)
async def test_a_task_that_comes_first_in_its_key_before_it_is_due_is_had_when_it_is(
    world: World, tasks: Tasks
) -> None:
    """This holds under a leader that did not enqueue it and has no other task that is due."""
    await tasks.put(b"now", ordering_key="k")
    await tasks.put(b"then", ordering_key="k", delay_ms=40_000)
    began_s = trio.current_time()
    for node in world.nodes:
        await world.restart_node(node)
        await world.settle()
    claim = await tasks.take(wait_ms=20_000)
    assert claim is not None and claim.data == b"now"
    await tasks.done(claim)
    assert trio.current_time() < began_s + 39
    claim = await tasks.take(wait_ms=60_000)
    assert claim is not None and claim.data == b"then"
    assert trio.current_time() < began_s + 42


@simulated(seed=1, options=STEADY)
async def test_a_cancelled_head_makes_way(client: RecordingClient, tasks: Tasks) -> None:
    """The same holds for a task after the head."""
    ids = [await tasks.put(b"%d" % number, ordering_key="k") for number in range(4)]
    await client.cancel(ids[0])
    await client.cancel(ids[2])
    for number in (1, 3):
        claim = await tasks.take()
        assert claim is not None and claim.id == ids[number]
        await tasks.done(claim)


@simulated(seed=1, options=STEADY)
async def test_a_task_of_a_key_in_the_wrong_partition_is_refused(tasks: Tasks) -> None:
    """The error names the field; the same holds for a run of several tasks with a key."""
    right = tasks.make_id({"queue": "q", "ordering_key": "k"})
    wrong = make_id(tasks.now_ms(), (partition_of(right) + 1) % 4, 1, 0)
    for name in ("ordering_key", "unique_key"):
        with pytest.raises(BadRequest) as caught:
            await tasks.put(b"x", task_id=wrong, **{name: "k"})
        assert caught.value.field == f"runs[0].{name}"
        several = facts.pack_task({"ordering_key": "k", "queue": "q"}, [b"x", b"y"])
        with pytest.raises(BadRequest) as caught:
            await tasks.send([[right, several]])
        assert caught.value.field == "runs[0].ordering_key"
    for name in ("order", "scheduled"):
        with pytest.raises(BadRequest) as caught:
            await tasks.put(b"x", **{name: [1, 2, 3]})
        assert caught.value.field == f"runs[0].{name}"


@pytest.mark.long
@simulated(seed=1, options=STEADY)
async def test_a_stuck_key_delays_nobody(client: RecordingClient, tasks: Tasks) -> None:
    """While 5,000 tasks wait for one that always fails, tasks of other keys come at once."""
    for start in range(0, 5_000, 1_000):
        runs = [tasks.run(b"%d" % n, ordering_key="poison", backoff_ms=100) for n in range(start, start + 1_000)]
        await tasks.send(runs)
    waits_s = []
    for number in range(20):
        await tasks.put(b"fine", ordering_key=f"k{number}")
        started_s = trio.current_time()
        claim = await tasks.take()
        assert claim is not None
        while claim.data == b"0":
            await client.fail(claim, "poison")
            claim = await tasks.take()
            assert claim is not None
        assert claim.data == b"fine"
        waits_s.append(trio.current_time() - started_s)
        await tasks.done(claim)
    assert max(waits_s) < 0.2


class Orderly:
    """Producers and workers on ordering keys, and a check of the stored results."""

    def __init__(self, world: World, *, keys: int, each: int) -> None:
        self.world = world
        self.keys = [f"k{number}" for number in range(keys)]
        self.each = each
        self.put: dict[str, list[TaskId]] = {key: [] for key in self.keys}
        """Acknowledged tasks per key, in order."""

    async def produce(self, key: str) -> None:
        """Enqueue the tasks of a key one after the other."""
        async with self.world.client() as client:
            tasks = Tasks(self.world, client)
            for number in range(self.each):
                run = tasks.run(f"{key} {number}".encode(), ordering_key=key, retries=None, backoff_ms=100)
                (ack,) = await tasks.send([run])
                assert not isinstance(ack, dict), ack
                self.put[key].append(run[0])
                await trio.sleep(self.world.random.uniform(0, 1))

    async def work(self) -> None:
        """Claim, and complete, fail, release or forget."""
        random = self.world.random
        async with self.world.client() as client:
            while True:
                try:
                    for claim in await client.claim("q", maximum=4, lease_ms=3_000, wait_ms=1_000, timeout_ms=8_000):
                        await trio.sleep(random.uniform(0, 0.2))
                        drawn = random.random()
                        if drawn < 0.1:
                            await client.fail(claim, "broken", timeout_ms=8_000)
                        elif drawn < 0.15:
                            await client.release(claim, timeout_ms=8_000)
                        elif drawn > 0.03:
                            await client.complete(claim, timeout_ms=8_000)
                except OnyxqError:
                    await trio.sleep(0.1)

    async def finished(self) -> None:
        """Wait until everything is completed."""
        async with self.world.client() as client:
            while True:
                try:
                    found = (await client.client.count("q"))["q"]
                except (OnyxqError, KeyError):
                    await trio.sleep(1)
                    continue
                if found["completed"] == len(self.keys) * self.each:
                    return
                await trio.sleep(1)

    async def check(self) -> None:
        """Check that no task of a key was granted before the previous one was done, and each was completed once."""
        async with self.world.client() as client:
            tasks = Tasks(self.world, client)
            for key, ids in self.put.items():
                last = -1
                for task_id in ids:
                    found = await tasks.get(task_id)
                    tokens = [claim["token"] for claim in found["claims"]]
                    assert found["state"] == "completed"
                    assert tokens and min(tokens) > last, (key, found["data"], tokens, last)
                    last = max(tokens)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
@simulated(options=Options(partitions=4))
async def test_order_is_exact_whatever_befalls_leaders(world: World, seed: int) -> None:
    """Nodes crash and restart, sessions end, messages are lost; a task is granted only after earlier ones."""
    orderly = Orderly(world, keys=6, each=8)
    async with trio.open_nursery() as nursery:
        for key in orderly.keys:
            nursery.start_soon(orderly.produce, key)
        for _ in range(4):
            nursery.start_soon(orderly.work)
        await storm(world, names=CHURN_AND_MESSAGES.episodes, rounds=4, at_once=2)
        await world.settle()
        with trio.fail_after(300):
            await orderly.finished()
        nursery.cancel_scope.cancel()
    await orderly.check()


@pytest.mark.parametrize("seed", range(2))
@simulated(options=STEADY)
async def test_a_completion_that_one_node_has_does_not_let_the_next_task_go(
    world: World, client: RecordingClient, tasks: Tasks, seed: int
) -> None:
    """Its leader loses contact while it writes it, so the next leader may run the task again."""
    ids = [await tasks.put(b"%d" % number, ordering_key="k", backoff_ms=0) for number in range(2)]
    claim = await tasks.take(lease_ms=3_000)
    assert claim is not None
    placed = world.audit.replica.partitions[partition_of(ids[0])]
    (leader,) = [node for node in world.nodes if node.peer_id == placed.leader]
    world.isolate(leader)

    async def complete() -> None:
        async with world.client(nodes=[leader]) as cut_off:
            with contextlib.suppress(OnyxqError):
                await cut_off.complete(claim, timeout_ms=3_000)

    async def take() -> None:
        async with world.client(nodes=[leader]) as cut_off:
            with contextlib.suppress(OnyxqError):
                await cut_off.claim("q", wait_ms=2_500, lease_ms=3_000, timeout_ms=4_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(complete)
        nursery.start_soon(take)
    # The unreachable node returns only after others continued without it.
    await world.crash_node(leader)
    done = set()
    while len(done) < 2:
        again = await tasks.take(wait_ms=20_000)
        if again is not None:
            await tasks.done(again)
            done.add(again.id)
        elif [await tasks.state(one) for one in ids] == ["completed"] * 2:
            break
    tokens = [[one["token"] for one in (await tasks.get(task_id))["claims"]] for task_id in ids]
    assert max(tokens[0]) < min(tokens[1]), tokens
    world.network.heal()
    await world.bring_back(leader)
