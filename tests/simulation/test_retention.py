"""Retention on a whole cluster: finished tasks are purged on every node, and never come back."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from attrs import evolve

from onyxq.core.facts import pack_task
from onyxq.core.ids import TaskId, make_id, partition_of
from onyxq.errors import NotFound, Purged
from onyxq.leader.purge import Plan
from simulation.world.world import World, simulate
from tests.simulation.scheduled import STEADY, Tasks

SHORT = evolve(STEADY, purge_bucket_ms=2_000, purge_margin_ms=20_000)
PASSED_S = 60.0
"""Time in which everything that may be purged is purged."""


def rows(world: World, queue: str | None = None) -> list[int]:
    """Return how many rows each node's disk has."""
    return [sum(1 for _ in node.disk.tables.rows.ascend(b"")) for node in world.nodes]


async def retention(tasks: Tasks, ms: int, queue: str = "q") -> None:
    """Set how long finished tasks of the queue are kept."""
    await tasks.client.client.call("queue.set", {"queue": queue, "retention_ms": ms})


def test_finished_tasks_are_purged_on_every_node_once_their_retention_has_passed() -> None:
    """Their rows, index entries and history are deleted."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 5_000)
            done = [await tasks.put(b"%d" % number) for number in range(20)]
            for _ in done:
                claim = await tasks.take()
                assert claim is not None
                await tasks.done(claim)
            assert min(rows(world)) > 0
            await trio.sleep(PASSED_S)
            assert rows(world) == [0, 0, 0]
            for node in world.nodes:
                for name in ("ready", "due", "stretch", "hours", "leaves", "dead", "unique", "keyed"):
                    assert not list(getattr(node.disk.tables, name).ascend(b"")), name
            with pytest.raises(NotFound, match="purged"):
                await tasks.get(done[0])

    simulate(workload, seed=1, options=SHORT)


def test_a_purged_id_is_not_taken_again() -> None:
    """A client that repeats an enqueue after the purge gets an error; the task does not run twice."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            first = await tasks.put(b"x")
            claim = await tasks.take()
            assert claim is not None
            await tasks.done(claim)
            await trio.sleep(PASSED_S)
            with pytest.raises(Purged):
                await client.client.enqueue("q", b"x", id=first)
            assert await tasks.take(wait_ms=500) is None

    simulate(workload, seed=1, options=SHORT)


def test_a_task_that_has_just_ended_is_not_purged_yet() -> None:
    """Nodes with tasks that wait for it may not know the outcome yet, so the queue's retention alone is not enough."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            first = await tasks.put(b"x")
            await trio.sleep(PASSED_S)
            claim = await tasks.take()
            assert claim is not None
            await tasks.done(claim)
            await trio.sleep(Plan(margin_ms=SHORT.purge_margin_ms).settled_ms / 2_000)
            assert await tasks.state(first) == "completed"
            await trio.sleep(PASSED_S)
            with pytest.raises(NotFound, match="purged"):
                await tasks.get(first)

    simulate(workload, seed=1, options=SHORT)


def test_what_is_unfinished_or_young_stays_below_the_watermark() -> None:
    """Of tasks made together, finished ones are purged; the others are found, finished, and purged later."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            await retention(tasks, 100_000, "slow")
            waits = await tasks.put(b"unfinished", queue="other")
            long = await tasks.put(b"long", queue="slow")
            short = await tasks.put(b"short")
            for queue in ("q", "slow"):
                (claim,) = await client.claim(queue, wait_ms=5_000)
                await tasks.done(claim)
            await trio.sleep(PASSED_S)
            with pytest.raises(NotFound):
                await tasks.get(short)
            assert await tasks.state(waits) == "ready"
            assert await tasks.state(long) == "completed"
            (claim,) = await client.claim("other", wait_ms=5_000)
            assert claim.id == waits
            await tasks.done(claim)
            await trio.sleep(2 * PASSED_S)
            with pytest.raises(NotFound):
                await tasks.get(long)
            assert await tasks.state(waits) == "completed"  # seven days

    simulate(workload, seed=1, options=SHORT)


def test_a_node_that_was_away_brings_nothing_back() -> None:
    """It has the rows, some unfinished; the others have purged them."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            done: list[TaskId] = [await tasks.put(b"%d" % number) for number in range(8)]
            away = world.nodes[2]
            await trio.sleep(1)
            await world.crash_node(away)
            await world.settle()
            for _ in done:
                claim = await tasks.take(wait_ms=20_000)
                assert claim is not None
                await tasks.done(claim)
            await trio.sleep(PASSED_S)
            assert rows(world)[:2] == [0, 0] and rows(world)[2] > 0
            await world.bring_back(away)
            assert await tasks.take(wait_ms=2_000) is None
            await trio.sleep(PASSED_S)
            assert rows(world) == [0, 0, 0]
            for one in done:
                assert world.nodes[2].replica is not None
                assert world.nodes[2].replica.partitions[partition_of(one)].purged_ms

    simulate(workload, seed=1, options=SHORT)


def test_a_failed_task_stays_as_long_as_something_waits_for_it() -> None:
    """A purged dependency counts as completed, so dependents must learn of a failure first."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            await retention(tasks, 0, "after")
            failing = await tasks.put(b"fails", retries=0)
            waits = await tasks.put(b"waits", queue="after", depends=[failing])
            dependents = partition_of(waits)
            (leader,) = [
                node for node in world.nodes if node.peer_id == world.audit.replica.partitions[dependents].leader
            ]
            assert leader.running is not None and leader.running.node is not None
            # The leader of the waiting tasks learns of it neither by a hint nor by its own check.
            deaf = leader.running.node.operations.dependencies
            deaf.hint = lambda ids: None  # type: ignore[method-assign]
            deaf._resolve = _nothing  # type: ignore[method-assign]
            claim = await tasks.take()
            assert claim is not None
            await client.fail(claim, "broken")
            await trio.sleep(PASSED_S)
            assert await tasks.state(failing) == "failed"
            assert await tasks.state(waits) == "waiting"
            del deaf._resolve
            await trio.sleep(2 * PASSED_S)
            for one in (failing, waits):
                with pytest.raises(NotFound, match="purged"):
                    await tasks.get(one)

    simulate(workload, seed=1, options=SHORT)


def test_a_failed_task_is_not_purged_just_after_its_failure_was_reported() -> None:
    """The node that got the report may not have acted on it yet, and a purged dependency counts as completed."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            failing = await tasks.put(b"fails", retries=0)
            claim = await tasks.take()
            assert claim is not None
            await client.fail(claim, "broken")
            for number in range(2 * SHORT.purge_margin_ms // 1_000):
                # The leader reports the failure to the leader of this task, which fails too and does not wait.
                await tasks.put(b"after %d" % number, queue="after", depends=[failing])
                await trio.sleep(1)
                assert await tasks.state(failing) == "failed"
            await trio.sleep(PASSED_S)
            with pytest.raises(NotFound, match="purged"):
                await tasks.get(failing)

    simulate(workload, seed=1, options=SHORT)


async def _nothing(*_: object) -> None:
    """Do nothing."""


def test_a_dependency_that_was_purged_counts_as_completed() -> None:
    """A task that depends on it runs."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            first = await tasks.put(b"first")
            claim = await tasks.take()
            assert claim is not None
            await tasks.done(claim)
            await trio.sleep(PASSED_S)
            after = await tasks.put(b"after", depends=[first])
            claim = await tasks.take()
            assert claim is not None and claim.id == after
            await tasks.done(claim)

    simulate(workload, seed=1, options=SHORT)


def test_a_unique_key_is_free_once_its_task_is_purged() -> None:
    """The next one with it is a new task."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            seen = set()
            for number in range(3):
                seen.add(await tasks.put(b"%d" % number, unique_key="k", unique_until="purged"))
                claim = await tasks.take()
                assert claim is not None
                await tasks.done(claim)
                assert await tasks.put(b"again", unique_key="k", unique_until="purged") in seen
                await trio.sleep(PASSED_S)
            assert len(seen) == 3

    simulate(workload, seed=1, options=SHORT)


def test_a_dead_letter_that_stops_its_key_is_not_purged() -> None:
    """Otherwise its key would continue without a decision; after a discard both are purged."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await client.client.call("queue.set", {"queue": "q", "retention_ms": 0, "on_dead": "stops"})
            dead = await tasks.put(b"1", ordering_key="k", retries=0)
            behind = await tasks.put(b"2", ordering_key="k")
            claim = await tasks.take()
            assert claim is not None
            await client.fail(claim, "broken")
            await trio.sleep(PASSED_S)
            assert [await tasks.state(one) for one in (dead, behind)] == ["failed", "waiting"]
            await client.client.call("dead.discard", {"ids": [dead]})
            claim = await tasks.take()
            assert claim is not None and claim.id == behind
            await tasks.done(claim)
            await trio.sleep(PASSED_S)
            assert rows(world) == [0, 0, 0]

    simulate(workload, seed=1, options=SHORT)


def test_a_requeued_dead_letter_lives_on_below_the_watermark() -> None:
    """Its id is old, but it is kept; retention counts from its new end."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 40_000)
            dead = await tasks.put(b"x", retries=0)
            claim = await tasks.take()
            assert claim is not None
            await client.fail(claim, "broken")
            await trio.sleep(20)
            assert (await client.client.call("dead.requeue", {"ids": [dead]}))["count"] == 1
            await trio.sleep(PASSED_S)
            claim = await tasks.take()
            assert claim is not None and claim.id == dead
            await tasks.done(claim)
            await trio.sleep(20)
            assert await tasks.state(dead) == "completed"
            await trio.sleep(PASSED_S)
            (result,) = (await client.client.call("dead.requeue", {"ids": [dead]}))["results"]
            assert result["code"] == "not_found" and "purged" in result["detail"]

    simulate(workload, seed=1, options=SHORT)


def test_tasks_wait_for_an_archive_that_they_are_to_go_to() -> None:
    """Without a directory for it they stay."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await client.client.call("queue.set", {"queue": "q", "retention_ms": 0, "archive": True})
            kept = await tasks.put(b"x")
            claim = await tasks.take()
            assert claim is not None
            await tasks.done(claim)
            await trio.sleep(PASSED_S)
            assert await tasks.state(kept) == "completed"
            shown = await client.client.call("partition", {"partition": partition_of(kept)})
            assert "archive" in shown["purge_waits"]
            await client.client.call("queue.set", {"queue": "q", "archive": False})
            await trio.sleep(PASSED_S)
            with pytest.raises(NotFound):
                await tasks.get(kept)

    simulate(workload, seed=1, options=SHORT)


def test_a_transaction_with_a_task_of_a_purged_time_is_refused_whole() -> None:
    """It has no effect; with a new id it succeeds."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            old = await tasks.put(b"old")
            claim = await tasks.take()
            assert claim is not None
            await tasks.done(claim)
            await trio.sleep(PASSED_S)
            held = await tasks.put(b"held")
            claim = await tasks.take(lease_ms=60_000)
            assert claim is not None and claim.id == held
            call = client.client.call
            for task_id, refused in ((old, True), (tasks.make_id({"queue": "q"}), False)):
                asked = {
                    "name": f"move {refused}",
                    "complete": [[claim.id, 1, claim.token, None]],
                    "enqueue": [[task_id, pack_task({"queue": "out"}, [b"new"])]],
                }
                if refused:
                    with pytest.raises(Purged):
                        await call("transact", asked)
                    assert await tasks.state(held) == "claimed"
                else:
                    await call("transact", asked)
                    assert await tasks.state(task_id) == "ready"

    simulate(workload, seed=1, options=SHORT)


def test_times_of_periodic_tasks_that_have_not_fired_yet_are_not_purged() -> None:
    """Their runs get ids of the times at which they should have fired."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            await client.client.set_periodic("tick", "ticks", "every 30s", missed="all")
            for node in world.nodes[1:]:
                await world.stop_node(node)
            await world.crash_node(world.nodes[0])
            await trio.sleep(300)
            for node in world.nodes:
                world.start_node(node)
            await world.settle()
            await trio.sleep(PASSED_S)
            counts = (await client.client.count("ticks"))["ticks"]
            assert counts["total"] >= 10

    simulate(workload, seed=1, options=SHORT)


def test_a_paused_periodic_task_keeps_no_other_task() -> None:
    """When it is resumed, it has a later time."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            await client.client.set_periodic("tick", "ticks", "every 10s", paused=True)
            await trio.sleep(30)
            for number in range(world.options.partitions):
                await tasks.put(b"%d" % number)
                claim = await tasks.take()
                assert claim is not None
                await tasks.done(claim)
            await trio.sleep(PASSED_S)
            assert rows(world) == [0, 0, 0]

    simulate(workload, seed=1, options=SHORT)


def test_a_partition_that_nobody_leads_keeps_failed_tasks_of_others_only() -> None:
    """Tasks there may wait for failed ones; completed ones are purged."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            for node in world.nodes:
                assert node.running is not None and node.running.node is not None
                depended = node.running.node.operations.dependents
                depended._lacks_pending = lambda partition: partition == 0  # type: ignore[method-assign]
            ids = [await tasks.put(b"%d" % number, retries=0) for number in range(8)]
            states = {}
            for _ in ids:
                claim = await tasks.take()
                assert claim is not None
                if claim.data in (b"0", b"1", b"2"):
                    await client.fail(claim, "broken")
                else:
                    await tasks.done(claim)
            await trio.sleep(PASSED_S)
            for one in ids:
                try:
                    states[one] = await tasks.state(one)
                except NotFound:
                    states[one] = "purged"
            assert sorted(states.values()) == ["failed"] * 3 + ["purged"] * 5

    simulate(workload, seed=1, options=SHORT)


def test_a_task_that_comes_under_an_old_id_just_before_a_purge_is_not_lost() -> None:
    """It is refused once the leader's check has begun, or the check finds and keeps it."""

    async def workload(world: World) -> None:
        async with world.client() as client, trio.open_nursery() as nursery:
            tasks = Tasks(world, client)
            await retention(tasks, 0)
            answers: dict[TaskId, str] = {}

            async def send(task_id: TaskId, number: int) -> None:
                try:
                    answers[await tasks.put(b"late %d" % number, task_id=task_id)] = "stored"
                except Purged:
                    answers[task_id] = "purged"

            def meddle(purging: Any) -> None:
                walk, submit = purging._walk, purging._submit

                async def before_the_walk(leader: Any, *args: Any) -> Any:
                    late(leader)
                    return await walk(leader, *args)

                async def before_the_entry(leader: Any, found: Any) -> None:
                    late(leader)
                    await trio.sleep(0.3)
                    await submit(leader, found)

                def late(leader: Any) -> None:
                    ms = leader.closing.before_ms - 1_000
                    number = len(answers) + 1_000 * len(answers)
                    task_id = make_id(ms, leader.partition, world.random.getrandbits(60), 0)
                    nursery.start_soon(send, task_id, number)

                purging._walk, purging._submit = before_the_walk, before_the_entry

            for node in world.nodes:
                assert node.running is not None and node.running.node is not None
                meddle(node.running.node.operations.purger)
            for number in range(12):
                await tasks.put(b"%d" % number)
                claim = await tasks.take()
                assert claim is not None
                await tasks.done(claim)
                await trio.sleep(3)
            await trio.sleep(PASSED_S)
            assert set(answers.values()) >= {"purged"}
            for task_id, answer in answers.items():
                if answer == "stored":
                    assert await tasks.state(task_id) in ("ready", "claimed", "completed")
            nursery.cancel_scope.cancel()

    simulate(workload, seed=1, options=SHORT)
