"""Periodic tasks on a simulated cluster: each time runs once and none is lost, whichever node dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
from attrs import evolve
from pyrsistent import pmap

from onyxq.core.facts import pack_task, task_header
from onyxq.core.ids import ms_of
from onyxq.core.limits import TIME_MS_MAX
from onyxq.core.periodic import plan, task_id
from onyxq.core.replica import Periodic, first_peer
from onyxq.errors import BadRequest, NotFound, Unavailable
from onyxq.node.node import Node
from onyxq.node.periodic_duty import Firing
from onyxq.operations.table.enqueue import Enqueue, Enqueued
from simulation.world.world import Options, SimulatedNode, World, simulate

EVERY_MS = 5_000
STEADY = Options(clock_offset_ms=0)
Call = Callable[[str, dict[str, Any]], Awaitable[Any]]


def first_node(world: World) -> SimulatedNode | None:
    """Return the node whose peer fires, if it runs."""
    first = first_peer(world.audit.replica)
    return next((node for node in world.nodes if first and node.peer_id == first), None)


def tick(world: World) -> Periodic:
    """Return the periodic task in the log."""
    return world.audit.replica.periodic["tick"]


async def set_up(call: Call, **more: Any) -> None:
    """Set up a task for every five seconds."""
    given = {"name": "tick", "queue": "q", "schedule": "every 5s", "data": b"x", "missed": "all"}
    await call("periodic.set", {**given, **more})


async def fired_times(call: Call) -> list[int]:
    """Return when the tasks of the queue were due, with repetitions."""
    found: list[int] = []
    after = None
    while True:
        page = await call("list", {"queue": "q", "state": None, "after": after, "limit": 100})
        found += [ms_of(task["id"]) for task in page["tasks"]]
        after = page["after"]
        if after is None:
            return sorted(found)


def gapless(times: Sequence[int]) -> bool:
    """Return whether every time between the first and the last is there exactly once."""
    return list(times) == list(range(times[0], times[-1] + 1, EVERY_MS))


def test_a_periodic_task_runs_at_its_times() -> None:
    """None is early by the leader's clock, and each is soon."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            call = client.client.call
            await set_up(call, format="json", priority=-3)
            for _ in range(6):
                (claim,) = await client.client.claim("q", wait_ms=10_000)
                late_ms = world.nodes[0].clock.wall_ms() - ms_of(claim.id)
                assert 0 <= late_ms < 500 and not ms_of(claim.id) % EVERY_MS
                assert (claim.data, claim.format, claim.priority) == (b"x", "json", -3)
                await client.client.complete(claim)
            times = await fired_times(call)
            assert gapless(times) and len(times) == 6 == tick(world).fired

    simulate(workload, seed=3, options=STEADY)


async def take_ids(world: World, call: Call, count: int) -> list[int]:
    """Enqueue tasks of another queue under the ids of the runs after the next one; return the times of these runs."""
    times = [tick(world).next_ms + place * EVERY_MS for place in range(1, count + 1)]
    body = pack_task({"queue": "others"}, [b"y"])
    runs = [[task_id(tick(world), at_ms, world.options.partitions), body] for at_ms in times]
    acks = (await call("enqueue", {"runs": runs}))["acks"]
    assert not any(isinstance(ack, dict) for ack in acks)
    return times


def test_a_task_of_another_queue_under_the_id_of_a_run_suppresses_no_run() -> None:
    """The ids follow from name and time, so a client can compute them. Each time still runs, once."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            call = client.client.call
            await set_up(call)
            taken = await take_ids(world, call, 3)
            await world.until(lambda: tick(world).next_ms > taken[-1], "fired the runs whose ids are taken")
            times = await fired_times(call)
            assert {*taken} < {*times} and gapless(times) and len(times) == tick(world).fired

    simulate(workload, seed=3, options=STEADY)


def test_each_run_has_the_options_of_its_periodic_task() -> None:
    """It expires so long after its own due time; no limit of retries is null."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            call = client.client.call
            await set_up(call, retries=None, backoff_ms=7_000, expires_after_ms=60_000)
            for _ in range(2):
                (claim,) = await client.client.claim("q", wait_ms=10_000)
                header = {"backoff_ms": 7_000, "expires_ms": ms_of(claim.id) + 60_000, "queue": "q", "retries": None}
                assert header.items() <= claim.run.header.items()
                await client.client.complete(claim)
            shown = await call("periodic.get", {"name": "tick"})
            assert (shown["retries"], shown["backoff_ms"], shown["expires_after_ms"]) == (None, 7_000, 60_000)
            assert "retries" not in await client.client.set_periodic("tick", "q", "every 5s", b"x", missed="all")

    simulate(workload, seed=3, options=STEADY)


def test_a_run_that_is_made_up_for_expires_after_its_own_due_time() -> None:
    """It is not the time of the first missed run; and no time is greater than the greatest one."""
    found = Periodic(
        "tick", "q", "every 5s", "UTC", missed="all", next_ms=10_000, options=pmap({"expires_after_ms": 7})
    )
    firing = Firing(found, plan(found, 20_000))
    expires = [task_header(firing.body(fired_ms))[0]["expires_ms"] for fired_ms in firing.plan.fires]
    assert expires == [10_007, 15_007, 20_007]
    firing = evolve(firing, periodic=evolve(found, options=pmap({"expires_after_ms": TIME_MS_MAX})))
    assert task_header(firing.body(10_000))[0]["expires_ms"] == TIME_MS_MAX


async def first_answer(world: World) -> dict[str, Any]:
    """Restart a peer and return its first answer about the periodic task, after at least one refusal to answer."""
    await world.crash_node(world.nodes[0])
    world.start_node(world.nodes[0])
    refused = 0
    while True:
        running = world.nodes[0].running
        assert running is not None
        try:
            if running.service is not None:
                found: dict[str, Any] = await running.service.call("periodic.get", {"name": "tick"})
                assert refused
                return found
        except Unavailable:
            refused += 1
        await trio.sleep(0.001)


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_peer_that_still_reads_the_log_does_not_answer_about_a_periodic_task(snapshot: bool) -> None:
    """A worker would believe that the cluster has lost it, or would set it up without the pause."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await set_up(client.client.call)
            if snapshot:
                await client.client.gc()
            await client.client.pause_periodic("tick")
        assert (await first_answer(world))["paused"]

    simulate(workload, seed=3, options=STEADY)


class Killer:
    """Kills the node that fires, at one of the points around the two steps."""

    def __init__(self, world: World, point: str) -> None:
        self.world = world
        self.point = point
        self.killed = 0

    async def run(self, times: int) -> None:
        """Do so ``times`` times; the machine returns each time."""
        while self.killed < times:
            node = first_node(self.world)
            if node is None or node.running is None or node.running.node is None or node.error is not None:
                await trio.sleep(0.05)
                continue
            await self._kill(node, node.running.node)
            await trio.sleep(1)
            await self.world.bring_back(node)
            await self.world.settle()
            self.killed += 1

    async def _kill(self, machine: SimulatedNode, node: Node) -> None:
        genuine, reached = node.enqueue, trio.Event()
        assert genuine is not None

        async def enqueue(args: Enqueue) -> Enqueued:
            if self.point == "before the enqueueing":
                reached.set()
                await trio.sleep_forever()
            if self.point == "while it enqueues":
                machine_scope.start_soon(self._soon, reached)
            answer = await genuine(args)
            if self.point == "behind the enqueueing":
                if any(isinstance(ack, dict) for ack in answer.acks):
                    return answer  # the refused runs are enqueued next, under other ids
                reached.set()
                await trio.sleep_forever()
            machine_scope.start_soon(self._soon, reached)
            return answer

        async with trio.open_nursery() as machine_scope:
            node.enqueue = enqueue
            await reached.wait()
            await self.world.crash_node(machine)

    async def _soon(self, reached: trio.Event) -> None:
        await trio.sleep(self.world.random.uniform(0, 0.02))
        reached.set()


POINTS = ("before the enqueueing", "while it enqueues", "behind the enqueueing", "while it appends")


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("seed", range(2))
def test_a_crash_of_who_fires_doubles_and_loses_nothing(point: str, seed: int) -> None:
    """Its successor repeats both steps: ids and the log make them count once."""

    async def workload(world: World) -> None:
        await world.settle()
        async with world.client() as client:
            call = client.client.call
            await set_up(call)
            await Killer(world, point).run(4)
            await trio.sleep(2 * EVERY_MS / 1000)
            await world.settle()
            times = await fired_times(call)
            assert gapless(times) and len(times) == tick(world).fired >= 6

    simulate(workload, seed=seed, options=STEADY)


def test_a_crash_doubles_no_run_whose_id_is_taken() -> None:
    """The successor gives the run the same other id."""

    async def workload(world: World) -> None:
        await world.settle()
        async with world.client() as client:
            call = client.client.call
            await set_up(call)
            taken = await take_ids(world, call, 40)
            await Killer(world, "behind the enqueueing").run(2)
            await trio.sleep(2 * EVERY_MS / 1000)
            await world.settle()
            times = await fired_times(call)
            assert gapless(times) and len(times) == tick(world).fired
            assert len({*taken} & {*times}) >= 3

    simulate(workload, seed=0, options=STEADY)


@pytest.mark.parametrize(("missed", "runs"), [("skip", 1), ("once", 1), ("all", 24)])
def test_times_that_pass_while_the_log_is_away_are_made_up_for_as_it_was_said(missed: str, runs: int) -> None:
    """For two minutes no node may fire."""

    async def workload(world: World) -> None:
        await world.settle()
        async with world.client() as client:
            call = client.client.call
            await set_up(call, missed=missed)
            await trio.sleep(12)
            await world.until(lambda: tick(world).next_ms > world.nodes[0].clock.wall_ms(), "fired so far")
            before = len(await fired_times(call))
            world.log_down()
            await trio.sleep(120)
            world.log_up(sessions_lost=True)
            await world.settle()
            await world.until(lambda: tick(world).next_ms > world.nodes[0].clock.wall_ms(), "caught up")
            times = await fired_times(call)
            assert runs <= len(times) - before <= runs + 2
            assert len(times) == len(set(times)) and (missed != "all" or gapless(times))

    simulate(workload, seed=1, options=STEADY)


def test_clocks_that_differ_fire_no_time_twice() -> None:
    """The successor of a leader with a fast clock waits until its own clock shows the next time."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            call = client.client.call
            await set_up(call)
            for _ in range(4):
                await trio.sleep(11)
                node = first_node(world)
                if node is not None:
                    await world.stop_node(node)
                    await world.bring_back(node)
                    await world.settle()
            times = await fired_times(call)
            assert gapless(times) and len(times) == tick(world).fired

    simulate(workload, seed=5, options=Options(clock_offset_ms=2_000))


def test_a_pause_lasts_until_it_is_resumed_and_what_passed_meanwhile_is_no_miss() -> None:
    """This holds with `all` too."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            call = client.client.call
            await set_up(call)
            await trio.sleep(11)
            shown = await call("periodic.set", {"name": "tick", "paused": True})
            assert shown["paused"]
            before = await fired_times(call)
            await trio.sleep(60)
            assert await fired_times(call) == before
            resumed = await call("periodic.set", {"name": "tick", "paused": False})
            assert resumed["next_ms"] > world.nodes[0].clock.wall_ms() - 100
            await trio.sleep(11)
            times = await fired_times(call)
            assert 2 <= len(times) - len(before) <= 3 and times[len(before)] == resumed["next_ms"]
            await call("periodic.remove", {"name": "tick"})
            await trio.sleep(11)
            assert await fired_times(call) == times
            assert await call("periodic.list", {}) == {"periodic": []}

    simulate(workload, seed=2, options=STEADY)


def test_what_cannot_be_set_up_is_refused_with_the_field_named() -> None:
    """Nothing is stored."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            call = client.client.call
            for field, wrong in (
                ("schedule", "61 * * * *"),
                ("zone", "Nowhere/At_All"),
                ("missed", "never"),
                ("data", "text"),
                ("format", "xml"),
                ("queue", ""),
                ("name", "a\nb"),
                ("priority", 1 << 31),
                ("retries", -1),
                ("backoff_ms", 86_400_001),
                ("expires_after_ms", 0),
                ("ordering_key", "k"),
                ("paused", 1),
                ("more", 1),
            ):
                with pytest.raises(BadRequest) as refused:
                    await set_up(call, **{field: wrong})
                assert refused.value.field == field
            for method, more in (("get", {}), ("remove", {}), ("set", {"paused": True})):
                with pytest.raises(NotFound):
                    await call(f"periodic.{method}", {"name": "tick", **more})
            assert not world.audit.replica.periodic

    simulate(workload, seed=1, options=STEADY)


def test_two_hundred_that_are_due_together_are_fired_together() -> None:
    """They need few records, and each is fired once."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            call = client.client.call
            async with trio.open_nursery() as nursery:
                for number in range(210):
                    given = {"name": f"p{number}", "queue": "many", "schedule": "every 30s", "data": b"x" * 1_000}
                    nursery.start_soon(call, "periodic.set", given)
            due_ms = world.audit.replica.periodic["p0"].next_ms
            await trio.sleep(max(0.0, (due_ms - world.nodes[0].clock.wall_ms()) / 1000) + 1.5)
            counts = (await call("count", {"queue": "many"}))["counts"]["many"]
            assert counts["total"] == 210
            assert {one.fired for one in world.audit.replica.periodic.values()} == {1}

    simulate(workload, seed=4, options=STEADY)
