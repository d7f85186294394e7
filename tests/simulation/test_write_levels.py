"""Writes on fewer nodes than a majority, or not on disk yet: answers, and possible losses."""

from __future__ import annotations

from itertools import count, islice
from typing import Any

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from log_entries import drain_node
from onyxq.core.facts import pack_task, partition_of_keys, task_row
from onyxq.core.ids import TaskId, make_id
from onyxq.errors import BadRequest, Unknown
from onyxq.leader.cohort.unflushed_writes import WINDOW_S, UnflushedWrites
from onyxq.store.memory import MemoryStore
from simulation.scenes.copies import stop_all
from simulation.world.clients import RecordingClient
from simulation.world.disk import SimulatedDisk
from simulation.world.world import Options, SimulatedNode, World, simulate
from tests.simulation.simulated import simulated

OPTIONS = Options(partitions=4, clock_offset_ms=0, absent_after_ms=600_000)
SLOW_MS = 1_500
ON_ITS_WAY_S = 0.07
"""Time from a node's answer to the client; the nodes' windows do not begin together."""


def run(world: World, number: int, partition: int, **header: Any) -> list[Any]:
    """Return a run of one task, as ``enqueue`` takes it."""
    first = make_id(world.nodes[0].clock.wall_ms(), partition, 7, number * 1024)
    return [first, pack_task(dict(sorted({"queue": "q", **header}.items())), [b"task %d" % number])]


async def enqueue(client: RecordingClient, *runs: list[Any], w: int | None = None) -> dict[str, Any]:
    """Return the answer of ``enqueue``; checkers are not informed, because some of it may be lost on purpose."""
    answer: dict[str, Any] = await client.client.call("enqueue", {"runs": list(runs), "w": w})
    return answer


def leader(world: World, partition: int) -> SimulatedNode:
    """Return the node that leads a partition."""
    peer = world.audit.replica.partitions[partition].leader
    return next(node for node in world.nodes if node.peer_id == peer)


def slow_but(world: World, fast: SimulatedNode) -> None:
    """Slow down every disk except one."""
    for node in world.nodes:
        node.disk.delay_ms = (lambda: 1) if node is fast else (lambda: SLOW_MS)


# --- w ----------------------------------------------------------------------


@simulated(seed=1, options=OPTIONS)
async def test_an_unkeyed_enqueue_may_ask_for_fewer_copies_than_a_majority(
    world: World, client: RecordingClient
) -> None:
    """It is answered when the leader has it; the answer has the number of copies and what is not promised."""
    slow_but(world, leader(world, 1))
    began = trio.current_time()
    answer = await enqueue(client, run(world, 1, 1), w=1)
    assert answer["acks"] == [1] and trio.current_time() - began < 0.5
    assert answer["guarantee"].startswith("on 1 of 3 nodes, no majority: lost if")
    began = trio.current_time()
    answer = await enqueue(client, run(world, 2, 1))
    assert answer["acks"][0] >= 2 and "guarantee" not in answer
    assert trio.current_time() - began >= 1.0
    await trio.sleep(5)
    for node in world.nodes:
        assert len(node.disk.row_keys()) == 2


@simulated(seed=2, options=OPTIONS)
async def test_three_copies_may_be_asked_for(world: World, client: RecordingClient) -> None:
    """That is more than a majority: the answer waits for them a moment."""
    answer = await enqueue(client, run(world, 1, 2), w=3)
    assert answer["acks"] == [3] and "guarantee" not in answer


@simulated(seed=1, options=OPTIONS)
async def test_one_copy_that_was_asked_for_is_the_leaders(world: World, client: RecordingClient) -> None:
    """The leader does not know a task that only other nodes have, and could neither show nor grant it."""
    disk = leader(world, 1).disk
    disk.delay_ms = lambda: 20_000
    (refusal,) = (await enqueue(client, run(world, 1, 1), w=1))["acks"]
    assert refusal["code"] == "unknown"
    disk.delay_ms = lambda: 1


@simulated(seed=1, options=evolve(OPTIONS, nodes=5, replicas=5))
async def test_fewer_copies_than_a_majority_are_as_many_as_were_asked_for(
    world: World, client: RecordingClient
) -> None:
    """One node of five has it, and two were requested."""
    for node in world.nodes:
        node.disk.delay_ms = (lambda: 1) if node is leader(world, 1) else (lambda: 20_000)
    (refusal,) = (await enqueue(client, run(world, 1, 1), w=2))["acks"]
    assert refusal["code"] == "unknown"


@simulated(seed=1, options=evolve(OPTIONS, nodes=4, partitions=1))
async def test_while_a_copy_moves_a_write_needs_a_majority_of_the_old_nodes_and_of_the_new(world: World) -> None:
    """The leaving node does not count among the new ones: after it the write would be on one node."""
    led_by = leader(world, 0)
    members = world.audit.replica.partitions[0].members
    leaves, stays = (one for one in world.nodes if one is not led_by and one.node_id in members)
    (comes,) = (one for one in world.nodes if one.node_id not in members)
    async with world.client() as client:
        await enqueue(client, run(world, 1, 0))
        for node in (stays, comes):
            node.disk.delay_ms = lambda: 8_000
        assert led_by.running is not None and led_by.running.node is not None
        await led_by.running.node.verdicts([drain_node.Args(leaves.node_id, permanent=True)])
        placed = world.audit.replica.partitions[0]
        assert set(placed.target) - set(placed.members) == {comes.node_id} and leaves.node_id not in placed.target
        (refusal,) = (await enqueue(client, run(world, 2, 0)))["acks"]
        assert refusal["code"] == "unknown"
        for node in (stays, comes):
            node.disk.delay_ms = lambda: 1
        await trio.sleep(10)
        assert (await enqueue(client, run(world, 2, 0)))["acks"][0] >= 2


@pytest.mark.parametrize("key", ["ordering_key", "unique_key"])
@simulated(seed=3, options=OPTIONS)
async def test_a_keyed_task_is_on_a_majority_whatever_is_asked_for(world: World, key: str) -> None:
    """Order and uniqueness must survive the leader."""
    partition = partition_of_keys("q", "k", 4)
    async with world.client() as client:
        slow_but(world, leader(world, partition))
        answer = await enqueue(client, run(world, 1, partition, **{key: "k"}), w=1)
        (ack,) = answer["acks"]
        assert (ack[0] if isinstance(ack, list) else ack) >= 2
        assert "guarantee" not in answer


@simulated(seed=4, options=OPTIONS)
async def test_an_update_may_ask_for_fewer_copies_than_a_majority(world: World, client: RecordingClient) -> None:
    """This is as for an enqueue, and the next update follows it."""
    await client.enqueue("q", [b"x"])
    (claim,) = await client.claim("q", maximum=1, lease_ms=60_000, wait_ms=5_000)
    slow_but(world, leader(world, int.from_bytes(claim.id[6:8], "big")))
    for seq in range(2):
        items = [[claim.id, claim.token, seq, b"%d" % seq]]
        answer = await client.client.call("update", {"items": items, "w": 1})
        assert answer["results"] == [None] and answer["acks"] == [1]
        assert "no majority" in answer["guarantee"]
    (gap,) = (await client.client.call("update", {"items": [[claim.id, claim.token, 5, b""]], "w": 1}))["results"]
    assert gap["code"] == "sequence_gap"
    for node in world.nodes:
        node.disk.delay_ms = lambda: 1
    await trio.sleep(5)
    answer = await client.client.call("update", {"items": [[claim.id, claim.token, 2, b"2"]]})
    assert answer == {"results": [None]}


def slow_follower(world: World, partition: int) -> SimulatedNode:
    """Return a node with a copy of a partition, whose disk is slow from now on."""
    follower = next(node for node in world.nodes if node is not leader(world, partition))
    follower.disk.delay_ms = lambda: 20_000
    return follower


@simulated(seed=6, options=OPTIONS)
async def test_copies_that_cannot_be_reached_in_time_are_an_error_that_counts_those_there_are(
    world: World, client: RecordingClient
) -> None:
    """The task stays stored: two nodes have it, and a repeat makes no second one."""
    follower = slow_follower(world, 2)
    began = trio.current_time()
    one = run(world, 1, 2)
    (refusal,) = (await enqueue(client, one, w=3))["acks"]
    assert refusal["code"] == "unknown" and "2 nodes have it, and w asks for 3" in refusal["message"]
    assert refusal["details"] == [[one[0], 1, 2]]
    assert trio.current_time() - began < 2.5
    assert (await client.client.get(one[0])).state == "ready"
    follower.disk.delay_ms = lambda: 1
    await trio.sleep(25)
    assert (await enqueue(client, one, w=3))["acks"] == [3]
    assert (await client.client.count("q"))["q"]["ready"] == 1


@pytest.mark.parametrize("how", ["one", "several", "keyed"])
@simulated(seed=7, options=OPTIONS)
async def test_a_client_raises_the_ids_and_the_number_of_copies(world: World, how: str) -> None:
    """It tries until its time is up; with the ids the call may be repeated."""
    async with world.client() as recording:
        client = recording.client
        slow_follower(world, 1)
        data = [b"a"] if how == "one" else [b"a", b"b", b"c"]
        keys: Any = {"ids": [run(world, place, 1)[0] for place in range(len(data))]}
        if how == "keyed":
            there = (f"k{n}" for n in count() if partition_of_keys("q", f"k{n}", 4) == 1)
            keys = {"ordering_key": list(islice(there, 3))}
        began = trio.current_time()
        with pytest.raises(Unknown) as raised:
            await client.enqueue_many("q", data, w=3, timeout_ms=6_000, **keys)
        assert 3 < trio.current_time() - began < 6
        assert raised.value.copies == 2 and len(raised.value.ids) == len(data)
        for node in world.nodes:
            node.disk.delay_ms = lambda: 1
        await trio.sleep(25)
        ids = await client.enqueue_many("q", data, w=3, **{**keys, "ids": raised.value.ids})
        assert tuple(ids) == raised.value.ids
        assert (await client.count("q"))["q"]["ready"] == len(data)


@simulated(seed=8, options=OPTIONS)
async def test_an_update_that_too_few_nodes_have_is_unknown(world: World, client: RecordingClient) -> None:
    """It is stored, and the same update may be sent again."""
    await client.enqueue("q", [b"x"])
    (claim,) = await client.claim("q", maximum=1, lease_ms=60_000, wait_ms=5_000)
    slow_follower(world, int.from_bytes(claim.id[6:8], "big"))
    args = {"items": [[claim.id, claim.token, 0, b"half"]], "w": 3}
    (refusal,) = (await client.client.call("update", args))["results"]
    assert refusal["code"] == "unknown" and refusal["details"] == [[claim.id, 1, 2]]
    del args["w"]
    assert await client.client.call("update", args) == {"results": [None]}


@pytest.mark.parametrize("w", [4, 9])
@simulated(seed=9, options=OPTIONS)
async def test_more_copies_than_the_cluster_keeps_are_refused(world: World, client: RecordingClient, w: int) -> None:
    """The error names it, and nothing is stored."""
    for method, args in (("enqueue", {"runs": [run(world, 1, 1)]}), ("update", {"items": []})):
        with pytest.raises(BadRequest, match="w must be 1 to 3") as refused:
            await client.client.call(method, {**args, "w": w})
        assert refused.value.field == "w"
    with pytest.raises(BadRequest, match="keeps 3 copies"):
        await client.client.enqueue("q", b"x", w=w)
    assert not (await client.client.count("q")).get("q", {}).get("total")


@simulated(seed=10, options=evolve(OPTIONS, nodes=2))
async def test_copies_for_which_there_are_no_nodes_are_refused_at_once_and_the_task_stays(
    world: World, client: RecordingClient
) -> None:
    """With two nodes and three copies, waiting would not help."""
    began = trio.current_time()
    one = run(world, 1, 1)
    (refusal,) = (await enqueue(client, one, w=3))["acks"]
    assert refusal["code"] == "unknown" and refusal["details"] == [[one[0], 1, 2]]
    assert trio.current_time() - began < 0.5
    assert (await enqueue(client, one))["acks"] == [2]


@simulated(seed=5, options=OPTIONS)
async def test_w_is_checked(client: RecordingClient) -> None:
    """The error names it."""
    for method, args in (("enqueue", {"runs": []}), ("update", {"items": []})):
        with pytest.raises(BadRequest) as refused:
            await client.client.call(method, {**args, "w": 0})
        assert refused.value.field == "w"


# --- durability ---------------------------------------------------------------


async def crash_all_while_enqueueing(world: World, *, durability: str) -> tuple[dict[TaskId, float], set[TaskId]]:
    """Enqueue from several lanes and stop all machines at once; return acknowledgement times and the stored tasks."""
    acknowledged: dict[TaskId, float] = {}
    async with world.client() as client:
        if durability != "strict":
            await client.client.call("queue.set", {"queue": "q", "durability": durability})

        async def lane(number: int) -> None:
            for each in range(10_000):
                one = run(world, number * 10_000 + each, each % 4)
                answer = await enqueue(client, one)
                if answer["acks"][0] >= 2:
                    acknowledged[one[0]] = trio.current_time()
                    assert ("within the last 100 ms" in answer.get("guarantee", "")) == (durability != "strict")
                await trio.sleep(0.02)

        await stop_all(world, lane)
        there = {task.id for task in await world._all_tasks(client.client)}
    return acknowledged, there


@pytest.mark.parametrize("seed", range(3))
def test_a_strict_queue_loses_nothing_when_all_machines_stop(seed: int) -> None:
    """Acknowledged tasks are on the disks of a majority."""
    found = []

    async def workload(world: World) -> None:
        found.append(await crash_all_while_enqueueing(world, durability="strict"))

    simulate(workload, seed=seed, options=OPTIONS)
    ((acknowledged, there),) = found
    assert len(acknowledged) > 50 and acknowledged.keys() <= there


@pytest.mark.long
def test_an_opportunistic_queue_loses_at_most_its_window_when_all_machines_stop() -> None:
    """Lost tasks were acknowledged within the window, although the disks paused for longer."""
    lost: list[int] = []

    async def workload(world: World) -> None:
        acknowledged, there = await crash_all_while_enqueueing(world, durability="opportunistic")
        at_s = [when for task_id, when in acknowledged.items() if task_id not in there]
        lost.append(len(at_s))
        assert not at_s or max(at_s) - min(at_s) <= WINDOW_S + ON_ITS_WAY_S

    for seed in range(3):
        simulate(workload, seed=seed, options=OPTIONS)
    assert any(lost), "nothing was answered before it was written"


def test_a_disk_that_pauses_ends_early_answers_however_often_rows_come() -> None:
    """The window begins with the oldest row that is not written yet, not with the newest."""
    taken: list[bool] = []

    async def main() -> None:
        store = MemoryStore(SimulatedDisk(delay_ms=lambda: 60_000), now_ms=lambda: 5_000)
        async with trio.open_nursery() as nursery:
            writes = UnflushedWrites(store, stored=lambda _: None, start_soon=nursery.start_soon)
            for number in range(5):
                row = task_row(make_id(5_000, 0, 7, number * 1024), pack_task({"queue": "q"}, [b"x"]))
                taken.append(writes.take([row]))
                await trio.sleep(0.4 * WINDOW_S)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert taken == [True, True, True, False, False]


@simulated(seed=6, options=OPTIONS)
async def test_what_an_opportunistic_queue_answered_for_is_read_at_once(world: World, client: RecordingClient) -> None:
    """The reader waits for the disk, not the producer."""
    await client.client.call("queue.set", {"queue": "q", "durability": "opportunistic"})
    for node in world.nodes:
        node.disk.delay_ms = lambda: 300
    for number in range(4):
        began = trio.current_time()
        one = run(world, number, number)
        await enqueue(client, one)
        assert trio.current_time() - began < 0.1
        assert (await client.client.get(one[0])).state == "ready"


@simulated(seed=8, options=OPTIONS)
async def test_what_was_answered_for_can_be_cancelled_and_depended_on_at_once(
    world: World, client: RecordingClient
) -> None:
    """A client that knows a task may use its id."""
    await client.client.call("queue.set", {"queue": "q", "durability": "opportunistic"})
    for node in world.nodes:
        node.disk.delay_ms = lambda: 300
    one, other = run(world, 1, 0), run(world, 2, 1)
    assert all(type(ack) is int for ack in (await enqueue(client, one, other))["acks"])
    assert (await client.client.call("cancel", {"ids": [one[0]]}))["results"] == [None]
    answer = await enqueue(client, run(world, 3, 2, depends=[other[0]]))
    assert type(answer["acks"][0]) is int
    for _ in range(2):
        (claim,) = await client.claim("q", maximum=5, lease_ms=60_000, wait_ms=20_000)
        await client.complete(claim)


@simulated(seed=7, options=OPTIONS)
async def test_a_leader_that_dies_leaves_what_others_answered_for(world: World, client: RecordingClient) -> None:
    """The next leader finds the rows that a majority had in memory."""
    await client.client.call("queue.set", {"queue": "q", "durability": "opportunistic"})
    for node in world.nodes:
        node.disk.delay_ms = lambda: 50
    runs = [run(world, number, 0) for number in range(30)]
    for one in runs:
        await enqueue(client, one)
    await world.crash_node(leader(world, 0))
    await world.until(lambda: world.audit.replica.partitions[0].ready, "ready")
    with trio.fail_after(30):
        while (await client.client.count("q"))["q"]["total"] < 30:
            await trio.sleep(0.5)
