"""Transactions on a whole cluster: all or nothing, visible at once, and refusals with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import trio
from attrs import evolve

from log_entries import commit_transaction
from onyxq.client.claims import Claim
from onyxq.core.entry import APPLIED
from onyxq.core.facts import COMPLETED, pack_task, partition_of_keys
from onyxq.core.ids import Run, TaskId, make_id, ms_of, partition_of
from onyxq.core.transactions import Claim as HeldClaim
from onyxq.core.transactions import Part
from onyxq.errors import BadRequest, Conflict, OnyxqError, SequenceGap, StaleToken, TooLarge
from onyxq.leader import transaction_apply
from onyxq.leader.cohort import pending_facts
from onyxq.leader.completion_rows import Finish
from onyxq.leader.transaction_apply import DEPENDS_PATIENCE_S
from onyxq.leader.transaction_parts import PartRequest
from onyxq.node.node import Node
from onyxq.store.interface import Batch
from onyxq.store.memory import MemoryStore
from onyxq.system.procedures import pause
from simulation.scenes.base import ONE, leader_of
from simulation.workloads import NO_FAULTS
from simulation.world.clients import RecordingClient
from simulation.world.disk import SimulatedDisk
from simulation.world.moves import MovesMix, under_moves
from simulation.world.world import Options, World, simulate
from tests.simulation.simulated import simulated

FOUR = Options(partitions=4, clock_offset_ms=0)


async def inputs(client: RecordingClient, count: int, *, lease_ms: int = 30_000) -> list[Claim]:
    """Return claimed tasks of different partitions."""
    for number in range(count):
        await client.enqueue("in", [b"input %d" % number], backoff_ms=0)
    claims: list[Claim] = []
    while len(claims) < count:
        claims += await client.claim("in", maximum=count, lease_ms=lease_ms, wait_ms=5_000)
    return claims


def node_of(world: World, partition: int) -> Node:
    """Return the node that leads a partition."""
    node = leader_of(world, partition).inner
    assert node is not None
    return node


async def commit_chain(world: World, tasks: Sequence[TaskId]) -> None:
    """Commit a transaction of tasks that each depend on the one before it; the first is not in the transaction."""
    items: dict[int, list[Any]] = {}
    for number, (other, task_id) in enumerate(pairwise(tasks), 1):
        body = pack_task({"depends": [other], "queue": "graph"}, [b"node %d" % number])
        items.setdefault(partition_of(task_id), []).append(["T", task_id, body, None])
    node = node_of(world, partition_of(tasks[1]))
    deadline_ms, parts = node.replica.log_time_ms + 60_000, list[Part]()
    for partition, found in sorted(items.items()):
        asked = PartRequest("chain", deadline_ms, partition, found, [])
        (answer,) = await node_of(world, partition).operations.transaction_parts.prepare([asked])
        parts.append(Part(partition, *answer))
    _, (verdict,) = await node.verdicts([commit_transaction.Args("chain", deadline_ms, (), (), tuple(parts))])
    assert verdict == APPLIED


def pending(world: World) -> int:
    """Return pending transactions on all nodes."""
    nodes = [node.running.node for node in world.nodes if node.running is not None and node.running.node is not None]
    return sum(
        len(node.store.pending_transactions(number)) for node in nodes for number in range(world.options.partitions)
    )


@simulated(seed=1, options=FOUR)
async def test_everything_can_be_seen_once_it_is_answered(world: World) -> None:
    """Completions, updates and new tasks of several partitions are visible to any client."""
    async with world.client() as client, world.client() as reader:
        claims = await inputs(client, 5)
        done = await client.transact(
            complete=[(claim, b"done") for claim in claims[:4]],
            update=[(claims[4], b"one"), (claims[4], b"two")],
            enqueue=[("out", b"a"), ("out", b"b"), ("other", b"c")],
        )
        assert done.committed is not None and done.committed.settled
        for claim in claims[:4]:
            assert (await reader.client.get(claim.id)).state == "completed"
        found = [await reader.client.get(task_id) for task_id in done.committed.ids]
        assert [(task.queue, task.data, task.state) for task in found] == [
            ("out", b"a", "ready"),
            ("out", b"b", "ready"),
            ("other", b"c", "ready"),
        ]
        assert [update.data for update in await reader.client.task_log(claims[4].id)] == [b"one", b"two"]
        await client.update(claims[4], b"three")
        await client.complete(claims[4])


@simulated(seed=1, options=ONE)
async def test_updates_of_two_transactions_under_one_number_are_both_kept(client: RecordingClient) -> None:
    """Both were prepared before the first could be seen, and both are committed."""
    (claim,) = await inputs(client, 1)
    async with trio.open_nursery() as nursery:
        for data in (b"one", b"two"):
            asked = {"name": data.decode(), "update": [[claim.id, claim.token, 0, data]]}
            nursery.start_soon(client.client.call, "transact", asked)
    found = await client.client.task_log(claim.id)
    assert [one.seq for one in found] == [0, 1]
    assert {one.data for one in found} == {b"one", b"two"}


@simulated(seed=1, options=ONE)
async def test_a_committed_task_is_stored_although_its_time_has_passed(world: World, client: RecordingClient) -> None:
    """The check of due times is for requests that can still be refused."""
    await client.client.set_queue("q", grace_ms=0)
    leader = leader_of(world).running
    assert leader is not None and leader.node is not None
    due_ms = leader.node.wall_ms() - 5_000
    first = make_id(due_ms, 0, 7, 0)
    applier = leader.node.operations.transaction_parts.applier
    await applier._enqueue_all([[first, pack_task({"queue": "q"}, [b"x"]), due_ms]])
    assert (await client.client.get(first)).state == "ready"


def test_pending_rows_reach_a_node_that_lacks_them() -> None:
    """However few they are."""

    async def main() -> None:
        one, other = (MemoryStore(SimulatedDisk(), now_ms=lambda: 5_000) for _ in range(2))
        rows = pending_facts.pending_rows(0, pending_facts.Part(9_000, b"digest", "t"), [b"first", b"second"])
        await one.write(Batch(pending=rows))

        async def call(method: str, args: dict[str, Any]) -> None:
            assert method == "cohort.push"
            await other.write(Batch(pending=pending_facts.split_wire_rows(args["rows"], 0)[1]))

        await pending_facts.push(one, call, 0, 1, theirs=set())
        assert other.pending(0, rows[0].transaction) == rows

    trio.run(main)


@simulated(seed=1, options=ONE)
async def test_what_expires_while_its_completion_is_prepared_can_be_had_again(world: World) -> None:
    """A waiting claimer does not get it meanwhile; then the transaction is refused, and the task can be claimed."""
    lapsing, leader = trio.Event(), leader_of(world)
    assert leader.running is not None and leader.running.node is not None
    node = leader.running.node
    verdicts = node.verdicts

    async def late(entries: Sequence[Any]) -> tuple[int, Sequence[str]]:
        lapsing.set()
        await pause(0.1)  # it is on its way when the preparation begins
        return await verdicts(entries)

    async with world.client() as client, world.client() as other, trio.open_nursery() as nursery:
        await client.enqueue("q", [b"x"], backoff_ms=0)
        (claim,) = await client.claim("q", lease_ms=1_000, wait_ms=5_000)
        node.verdicts = late  # type: ignore[method-assign]

        async def wait() -> None:
            (again,) = await other.claim("q", wait_ms=20_000)
            assert again.id == claim.id and again.token > claim.token
            await other.complete(again)

        nursery.start_soon(wait)
        await lapsing.wait()
        slow_ms = 500
        for one in world.nodes:
            if one is not leader:
                one.disk.delay_ms = lambda: slow_ms
        with pytest.raises(StaleToken):
            await client.transact(complete=[(claim, b"done")])
        slow_ms = 0


@simulated(seed=1, options=ONE)
async def test_a_last_attempt_is_no_dead_letter_while_a_commit_may_complete_its_task(
    world: World, client: RecordingClient
) -> None:
    """Both leases are over, and neither claim has ended. One transaction is committed, the other never."""
    await client.enqueue("in", [b"committed", b"abandoned"], retries=0)
    claims = list(await client.claim("in", maximum=2, lease_ms=1_000, wait_ms=5_000))
    claims.sort(key=lambda claim: claim.data, reverse=True)
    node, prepared = node_of(world, 0), list[commit_transaction.Args]()
    deadline_ms = node.replica.log_time_ms + 60_000
    for claim in claims:
        asked = PartRequest(claim.data.decode(), deadline_ms, 0, [["C", claim.id, 1, claim.token, [b"done"]]], [])
        (answer,) = await node.operations.transaction_parts.prepare([asked])
        held = HeldClaim(0, claim.token, (Run(claim.id, 1),))
        prepared.append(commit_transaction.Args(asked.name, deadline_ms, (held,), (), (Part(0, *answer),)))
    await trio.sleep(5)
    assert [(await client.client.get(claim.id)).state for claim in claims] == ["claimed", "claimed"]
    _, (verdict,) = await node.verdicts([prepared[0]])
    assert verdict == APPLIED
    found = await client.client.wait(claims[0].id, 30_000)
    assert (found.state, found.result) == ("completed", b"done")
    assert (await client.client.wait(claims[1].id, 120_000)).state == "failed"
    assert node.replica.log_time_ms > deadline_ms


@simulated(seed=1, options=FOUR)
async def test_a_refused_one_names_every_claim_that_does_not_stand_and_changes_nothing(client: RecordingClient) -> None:
    """Two of four claims are gone: both are named, and nothing is completed, updated or enqueued."""
    claims = await inputs(client, 4)
    await client.release(claims[1])
    await client.complete(claims[2], b"plain")
    with pytest.raises(StaleToken) as refused:
        await client.transact(
            complete=[(claims[0], b"x"), (claims[1], b"x")],
            update=[(claims[3], b"note")],
            enqueue=[("out", b"never")],
            require=[claims[2]],
        )
    named = {(one[0], one[1]) for one in refused.value.details}
    assert named == {(claim.id, claim.token) for claim in claims[1:3]}
    assert (await client.client.get(claims[0].id)).state == "claimed"
    assert await client.client.task_log(claims[3].id) == []
    assert "out" not in await client.client.count()
    await client.complete(claims[0])
    await client.complete(claims[3])


@simulated(seed=2, options=FOUR)
async def test_a_repeat_of_a_name_gets_the_first_answer_from_any_node(world: World, client: RecordingClient) -> None:
    """This holds long after the claims ended; with other contents the name is refused."""
    (claim,) = await inputs(client, 1)
    tx = client.client.transaction("named")
    tx.complete(claim, b"done")
    tx.enqueue("out", b"once")
    first = await tx.commit()
    for node in world.nodes:
        async with world.client(nodes=[node]) as other:
            answer = await other.client.call("transact", tx._args or {})
            assert (answer["token"], answer["settled"]) == (first.token, True)
            with pytest.raises(Conflict) as refused:
                await other.client.transact(enqueue=[{"queue": "out", "data": b"else"}], name="named")
            assert refused.value.field == "name"
    assert (await client.client.count("out"))["out"]["total"] == 1


@simulated(seed=1, options=FOUR)
async def test_new_tasks_are_not_seen_before_the_commit(world: World) -> None:
    """While the commit waits for the log, they cannot be claimed; a waiting claim gets them right after it."""
    async with world.client() as client, world.client() as waiter:
        (claim,) = await inputs(client, 1)
        got: list[float] = []

        async def wait() -> None:
            while not got:
                for task in await waiter.client.claim("out", wait_ms=30_000):
                    got.append(trio.current_time())
                    await waiter.client.complete(task)

        async def commit() -> None:
            await client.transact(complete=[(claim, b"done")], enqueue=[("out", b"new")])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(commit)
            with trio.fail_after(5):
                while not pending(world):
                    await trio.sleep(0.001)
            world.log_down()
            await trio.sleep(3)
            assert not got and (await client.client.count()).get("out") is None
            world.log_up()
            up_s = trio.current_time()
        assert got[0] - up_s < 2.0


@simulated(seed=1, options=evolve(ONE, nodes=1))
async def test_transactions_that_are_more_than_one_step_makes_visible_follow_in_the_next(
    world: World, client: RecordingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most are committed in one record, so the leader learns of them at the same moment."""
    monkeypatch.setattr(transaction_apply, "AT_ONCE_MAX", 1)
    world.backend.append_delay_s = lambda: 0.5
    settled: list[bool] = []

    async def commit(number: int) -> None:
        done = await client.transact(enqueue=[("out", b"%d" % number)])
        settled.append(done.committed is not None and done.committed.settled)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(commit, number)
    assert settled == [True] * 5
    assert (await client.client.count("out"))["out"]["ready"] == 5
    world.backend.append_delay_s = lambda: 0.002


@simulated(seed=1, options=FOUR)
async def test_a_completed_task_never_runs_again_whatever_its_lease_was(client: RecordingClient) -> None:
    """It is acknowledged like any other completion."""
    (claim,) = await inputs(client, 1, lease_ms=1_000)
    await client.transact(complete=[(claim, b"done")], enqueue=[("out", b"x")])
    assert not await client.claim("in", wait_ms=8_000)
    with pytest.raises(Conflict):
        await client.complete(claim, b"other")


@simulated(seed=5, options=Options(partitions=2, clock_offset_ms=0))
async def test_a_dead_coordinators_pending_facts_are_dropped_when_log_time_has_passed_their_deadline(
    world: World, client: RecordingClient
) -> None:
    """They never become visible; the cluster lets log time pass even if nothing else happens."""
    victim = world.nodes[0]
    async with world.client(nodes=[victim]) as doomed, trio.open_nursery() as nursery:

        async def send() -> None:
            tasks = [("out", b"lost %d" % number) for number in range(3)]
            with pytest.raises(OnyxqError):
                await doomed.transact(enqueue=tasks, timeout_ms=3_000)

        world.backend.append_delay_s = lambda: 0.5
        nursery.start_soon(send)
        with trio.fail_after(5):
            while not pending(world):
                await trio.sleep(0.001)
        doomed.client._pool._known[:] = [victim.address]
        await world.crash_node(victim)
    world.backend.append_delay_s = lambda: 0.002
    await world.until(lambda: pending(world) == 0, "they are dropped", within_s=90)
    world.start_node(victim)
    await world.settle()
    await world.until(lambda: pending(world) == 0, "by all", within_s=90)
    assert client


@simulated(seed=3, options=FOUR)
async def test_a_task_may_depend_on_another_of_its_transaction_that_comes_before_it(client: RecordingClient) -> None:
    """The other task may be in another partition; this one runs after it. The reverse order is refused."""
    ids = await client.client.make_ids(4)
    tx = client.client.transaction()
    for number, task_id in enumerate(ids):
        tx.enqueue("graph", b"node %d" % number, id=task_id, depends=ids[:number])
    committed = await tx.commit()
    assert committed.settled
    for number in range(4):
        (claim,) = await client.claim("graph", maximum=4, wait_ms=15_000)
        assert claim.data == b"node %d" % number
        await client.complete(claim)
    late = await client.client.make_ids(2)
    bad = client.client.transaction()
    bad.enqueue("graph", b"early", id=late[0], depends=[late[1]])
    bad.enqueue("graph", b"late", id=late[1])
    with pytest.raises(BadRequest) as refused:
        await bad.commit()
    assert refused.value.field == "enqueue[0].depends"


@simulated(seed=1, options=FOUR)
async def test_no_task_may_depend_on_one_of_its_transaction_with_a_unique_key(client: RecordingClient) -> None:
    """Another task may hold the key: then that one is not stored, and its dependent would have to be dropped."""
    partition = partition_of_keys("graph", "k", FOUR.partitions)
    (last,) = await client.client.make_ids(1)
    first = make_id(ms_of(last), partition, 77, 0)
    tx = client.client.transaction()
    tx.enqueue("graph", b"first", id=first, unique_key="k")
    tx.enqueue("graph", b"last", id=last, depends=[first])
    with pytest.raises(BadRequest, match="has a unique key") as refused:
        await tx.commit()
    assert refused.value.field == "enqueue[1].depends"
    assert not await client.client.count()


@simulated(seed=1, options=FOUR)
async def test_a_task_waits_for_others_of_its_transaction_however_long_they_take(
    world: World, client: RecordingClient
) -> None:
    """The first task depends on one whose leader does not answer; the second, in a third partition, depends on it."""
    ids = [make_id(world.nodes[0].clock.wall_ms(), number, 77, 1024 * number) for number in range(3)]
    await client.client.enqueue("graph", b"node 0", id=ids[0])
    leader = node_of(world, 0).leaders[0]
    leader.ready = False
    await commit_chain(world, ids)
    await trio.sleep(DEPENDS_PATIENCE_S + 10)
    leader.ready = True
    await world.until(lambda: not world.audit.replica.transactions, "all of it is visible")
    for number in range(3):
        (claim,) = await client.claim("graph", maximum=3, wait_ms=15_000)
        assert claim.data == b"node %d" % number
        await client.complete(claim)


@simulated(seed=1, options=FOUR)
async def test_no_task_waits_for_ever_for_one_of_its_transaction_that_cannot_be_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first depends on a lost task. The last, in the same partition, waits for one that waits for the first."""
    monkeypatch.setattr("onyxq.leader.transaction_apply.DEPENDS_PATIENCE_S", 5.0)
    now_ms = world.nodes[0].clock.wall_ms()
    chain = [make_id(now_ms, partition, 77, 1024 * number) for number, partition in enumerate((0, 1, 2, 1))]
    await commit_chain(world, chain)
    await world.until(lambda: not world.audit.replica.transactions, "it is settled", within_s=60)
    unstored = [node_of(world, number).operations.transaction_parts.applier._outcomes.unstored for number in (1, 2)]
    assert unstored == [set(), set()]


@simulated(seed=1, options=ONE)
async def test_a_long_chain_of_tasks_of_one_partition_is_visible_soon(client: RecordingClient) -> None:
    """Each task follows the one before it at once: there is no pause in between."""
    ids = await client.client.make_ids(40)
    tx = client.client.transaction()
    for number, task_id in enumerate(ids):
        tx.enqueue("graph", b"node %d" % number, id=task_id, depends=ids[max(0, number - 1) : number])
    assert (await tx.commit()).settled
    for task_id in ids:
        (claim,) = await client.claim("graph", wait_ms=15_000)
        assert claim.id == task_id
        await client.complete(claim)


@simulated(seed=1, options=FOUR)
async def test_a_circle_of_tasks_of_several_partitions_is_refused_whole(world: World, client: RecordingClient) -> None:
    """It is refused before anything is prepared, whatever else is in the transaction; so is a circle of one task."""
    (claim,) = await inputs(client, 1)
    ids = [make_id(world.audit.true_ms(), number % 4, 77, number * 1024) for number in range(5)]
    circles = {"comes after it": [(0, 1), (1, 2), (2, 3), (3, 0)], "depend on itself": [(4, 4)]}
    for why, circle in circles.items():
        tx = client.client.transaction()
        tx.complete(claim)
        tx.enqueue("graph", b"fine")
        for one, other in circle:
            tx.enqueue("graph", b"node", id=ids[one], depends=[ids[other]])
        with pytest.raises(BadRequest, match=why) as refused:
            await tx.commit()
        assert refused.value.field == "enqueue[1].depends"
    assert await client.client.count() == {"in": (await client.client.count("in"))["in"]}
    assert not pending(world)
    await client.complete(claim)


@simulated(seed=1, options=FOUR)
async def test_a_dependent_of_a_task_that_a_transaction_completes_runs_at_once(client: RecordingClient) -> None:
    """It does not wait for the next check of its leader."""
    (claim,) = await inputs(client, 1)
    await client.client.enqueue("after", b"then", depends=[claim.id])
    await client.transact(complete=[(claim, b"done")], enqueue=[("out", b"x")])
    done_s = trio.current_time()
    assert await client.claim("after", wait_ms=15_000)
    assert trio.current_time() - done_s < 2.0


@simulated(seed=1, options=Options(partitions=1, clock_offset_ms=0))
async def test_what_is_completed_stays_so_even_where_all_that_was_pending_is_lost(
    world: World, client: RecordingClient
) -> None:
    """A majority of disks is lost: the log still knows the completions, and an error reports the loss."""
    (claim,) = await inputs(client, 1, lease_ms=20_000)

    async def commit() -> None:
        assert (await client.client.transact(complete=[(claim, b"done")])).settled

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        with trio.fail_after(5):
            while not pending(world):
                await trio.sleep(0.001)
        world.log_down()
        await trio.sleep(0.5)
        for node in world.nodes:
            assert node.running is not None and node.running.node is not None
            store = node.running.node.store
            for number in range(world.options.partitions):
                gone = tuple((number, key) for key in store.pending_transactions(number))
                await store.write(Batch(drop_pending=gone))
        world.log_up()
    found = await client.client.get(claim.id)
    assert (found.state, found.result) == ("completed", None)
    assert not await client.claim("in", wait_ms=3_000)
    lost = [node.running.node.operations.transaction_parts.applier.lost for node in world.nodes]  # type: ignore[union-attr]
    assert sum(lost) == 1


@simulated(seed=1, options=FOUR)
async def test_completions_of_a_partition_that_moved_away_meanwhile_are_refused(
    world: World, client: RecordingClient
) -> None:
    """The earlier leader still lives, and reports that it no longer leads."""
    (claim,) = await inputs(client, 1)
    partition = int.from_bytes(claim.id[6:8], "big")
    peer = world.audit.replica.partitions[partition].leader
    other = next(node for node in world.nodes if node.peer_id != peer)
    assert other.running is not None and other.running.node is not None
    refused: list[list[Any]] = [[]]
    finish = Finish(Run(claim.id, 1), claim.token, COMPLETED, [])
    await other.running.node.operations.completions.finish_all({partition: [(0, finish)]}, refused)
    ((first, count, error),) = refused[0]
    assert (first, count, error["code"]) == (claim.id, 1, "not_leader")
    await client.complete(claim)


@simulated(seed=1, options=FOUR)
async def test_limits_and_bad_input_name_the_field(world: World, client: RecordingClient) -> None:
    """Nothing is stored."""
    (claim,) = await inputs(client, 1)
    raw = client.client

    async def refused(args: dict[str, object]) -> str | None:
        with pytest.raises(BadRequest) as error:
            await raw.call("transact", {"name": "bad", **args})
        return error.value.field

    held = [claim.id, 1, claim.token]
    assert await refused({}) == "complete"
    assert await refused({"name": "", "require": [held]}) == "name"
    assert await refused({"name": "x" * 201, "require": [held]}) == "name"
    assert await refused({"complete": [[*held, None], [*held, None]]}) == "complete[1].id"
    assert await refused({"complete": [[claim.id, 1, -1, None]]}) == "complete[0].token"
    assert await refused({"complete": [held]}) == "complete[0]"
    assert await refused({"complete": [[*held, [b"a", b"b"]]]}) == "complete[0].result"
    assert await refused({"update": [[claim.id, claim.token, 0, "text"]]}) == "update[0].data"
    assert await refused({"require": "all"}) == "require"
    assert await refused({"require": [held], "digest": b"short"}) == "digest"
    assert await refused({"require": [held], "more": 1}) == "more"
    big = raw.transaction()
    big.enqueue_many("out", [b"x"] * 1_001)
    with pytest.raises(TooLarge) as many:
        await big.commit()
    assert many.value.field == "enqueue"
    heavy = raw.transaction()
    heavy.enqueue("out", b"x" * (4 * 1024 * 1024 + 1))
    with pytest.raises(TooLarge) as bytes_:
        await heavy.commit()
    assert bytes_.value.field == "enqueue"
    with pytest.raises(SequenceGap):
        await raw.call("transact", {"name": "gap", "update": [[claim.id, claim.token, 3, b"x"]]})
    assert list(await raw.count()) == ["in"] and not pending(world)


@simulated(seed=1, options=FOUR)
async def test_a_thousand_tasks_and_four_mebibytes_go_in_one_transaction(client: RecordingClient) -> None:
    """Requests at the limits succeed."""
    tx = client.client.transaction()
    tx.enqueue_many("out", [b"%04d" % number + bytes(4_000) for number in range(1_000)])
    committed = await tx.commit()
    assert len(set(committed.ids)) == 1_000
    assert (await client.client.count("out"))["out"]["ready"] == 1_000


@simulated(seed=1, options=FOUR)
async def test_many_transactions_at_once_share_records(world: World, client: RecordingClient) -> None:
    """A hundred at a time take a few records of the log, not hundreds."""
    claims = await inputs(client, 100)
    before = world.backend.following

    async def move(number: int) -> None:
        said = b"by move %d" % number
        await client.transact(complete=[(claims[number], said)], enqueue=[("out", said)])

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(move, number)
    assert world.backend.following - before < 60


@simulated(seed=1, options=FOUR)
async def test_a_transaction_that_is_abandoned_sends_nothing(world: World, client: RecordingClient) -> None:
    """This is so after an exception in the block, and for an empty block."""
    (claim,) = await inputs(client, 1)
    with pytest.raises(ValueError, match="no"):
        async with client.client.transaction() as tx:
            tx.complete(claim)
            raise ValueError("no")
    async with client.client.transaction():
        pass
    assert (await client.client.get(claim.id)).state == "claimed"
    assert not world.audit.all_or_nothing.committed


def test_without_faults_every_move_happens() -> None:
    """Inputs become outputs, and no pending rows are left."""

    async def workload(world: World) -> None:
        async def nothing(world: World) -> None:
            await NO_FAULTS.befall(world)
            await trio.sleep(5)

        await under_moves(world, nothing, MovesMix(forget=0, near=0, plain=0))

    world = simulate(workload, seed=1, options=FOUR)
    outcomes = {asked.outcome for asked in world.history.transactions.values()}
    assert outcomes == {"ok"} and len(world.history.transactions) > 10
