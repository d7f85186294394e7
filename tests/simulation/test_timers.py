"""Timers on a whole cluster: exactly the last set, replaced or cancelled state fires, with faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import pytest
import trio
from attrs import define, evolve, field

from onyxq.core.facts import pack_task
from onyxq.core.ids import TaskId, id_at, make_id
from onyxq.core.limits import TIMERS_QUEUE as QUEUE
from onyxq.core.purged import Watermark
from onyxq.core.timer_model import unpack
from onyxq.errors import Conflict, NotFound, OnyxqError, Purged
from onyxq.operations.timers import Timers
from simulation.scenes.base import leader_of
from simulation.world.clients import RecordingClient
from simulation.world.world import Options, World, simulate

OPTIONS = Options(partitions=4, clock_offset_ms=0)
LATER_MS = 3_600_000
CALLBACK = {"transport": "http", "uri": "http://a.example/", "method": "POST"}
TIMERS = 6
STEPS = 12
TRIES = 200
PAUSE_S = 0.3
PURGED_S = 60.0
"""Time in which all that may be purged is purged, with short buckets and margins."""


@define
class Owner:
    """A client that changes one timer, one request after the other, and knows the expected state."""

    world: World
    client: RecordingClient
    timer: str
    stands: int | None = None
    """The number in the current data, None without a timer."""
    number: int = 0
    known: bool = False
    """Whether it was ever set: from then on it is found, possibly as cancelled."""

    async def _ask(self, method: str, args: dict[str, Any]) -> Any:
        """Return the final answer; the same request is repeated until there is one."""
        for _ in range(TRIES):
            try:
                return await self.client.client.call(method, args)
            except OnyxqError as error:
                if error.status not in (503, 504):
                    raise
                await trio.sleep(PAUSE_S)
        raise AssertionError(f"{method} of {self.timer}: no answer that stays")

    async def set(self, *, replace: bool, timeout: int = LATER_MS) -> None:
        """Set or replace; check the answer against the expected state."""
        self.number += 1
        data = {"number": self.number}
        said = {"timeout": timeout, "data": data, "callback": CALLBACK, "request": f"{self.timer}/{self.number}"}
        asked = {"id": self.timer, "replace": replace, **said}
        wrong = (NotFound if self.stands is None else None) if replace else (None if self.stands is None else Conflict)
        if wrong is None:
            await self._ask("timer.set", asked)
            self.stands, self.known = self.number, True
        else:
            with pytest.raises(wrong):
                await self._ask("timer.set", asked)

    async def cancel(self) -> None:
        """Cancel; a repeat whose first answer was lost may find nothing."""
        try:
            await self._ask("timer.cancel", {"id": self.timer})
        except NotFound:
            assert self.stands is None or (await self.state())[0] == "cancelled"
        self.stands = None

    async def state(self) -> tuple[str, int]:
        """Return state and number of the timer."""
        found = await self._ask("timer.get", {"id": self.timer})
        return found["state"], found["data"]["number"]

    async def look(self) -> None:
        """Check that the read state is the expected one."""
        if self.stands is None:
            try:
                assert (await self.state())[0] == "cancelled"
            except NotFound:
                assert not self.known
        else:
            assert await self.state() == ("scheduled", self.stands)

    async def live(self) -> None:
        """Run a random program with a due timer, or none, at the end."""
        random = self.world.random
        for _ in range(STEPS):
            what = random.randrange(5)
            if what < 2:
                await self.set(replace=what == 1)
            elif what == 2:
                await self.cancel()
            else:
                await self.look()
            await trio.sleep(random.random())
        if self.stands is not None:
            await self.set(replace=True, timeout=1_000 + random.randrange(3_000))


@define
class Fired:
    """The timers that a worker got."""

    data: dict[str, list[int]] = field(factory=dict)

    async def work(self, world: World) -> None:
        """Claim due timers until cancelled, and complete them."""
        async with world.client() as client:
            while True:
                try:
                    for claim in await client.claim(QUEUE, lease_ms=20_000, wait_ms=1_000):
                        timer = unpack(claim.data)
                        self.data.setdefault(timer.id, []).append(timer.data["number"])
                        await client.complete(claim)
                except OnyxqError:
                    await trio.sleep(PAUSE_S)


async def crash(world: World) -> None:
    """Kill one node after the other, and restart each."""
    while True:
        await trio.sleep(1 + 2 * world.random.random())
        node = world.random.choice(world.nodes)
        await world.crash_node(node)
        await trio.sleep(2 * world.random.random())
        await world.bring_back(node)


@pytest.mark.parametrize("seed", range(1, 5))
def test_what_was_set_last_fires_and_nothing_else(seed: int) -> None:
    """Every answer follows from the earlier ones, and each remaining timer fires as it was last set.

    Leaders are killed meanwhile.
    """

    async def workload(world: World) -> None:
        fired, owners = Fired(), []
        async with trio.open_nursery() as background:
            background.start_soon(fired.work, world)
            async with trio.open_nursery() as crashing, world.client() as client:
                crashing.start_soon(crash, world)
                async with trio.open_nursery() as living:
                    for number in range(TIMERS):
                        owner = Owner(world, client, f"timer-{number}")
                        owners.append(owner)
                        living.start_soon(owner.live)
                crashing.cancel_scope.cancel()
            for node in world.nodes:
                if node.running is None:
                    world.start_node(node)
            left = {owner.timer: {owner.stands} for owner in owners if owner.stands is not None}
            await world.until(lambda: len(fired.data) >= len(left), "every timer that is left has fired")
            assert {timer: set(numbers) for timer, numbers in fired.data.items()} == left
            background.cancel_scope.cancel()

    simulate(workload, seed=seed, options=OPTIONS)


def test_a_repeated_request_sets_nothing_twice() -> None:
    """This holds for a new timer and a replacement; another request depends on the current state."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            ask = client.client.call
            said = {"id": "t", "timeout": LATER_MS, "data": "one", "callback": CALLBACK, "request": "first"}
            await ask("timer.set", said)
            first = await ask("timer.get", {"id": "t"})
            await ask("timer.set", said)
            assert await ask("timer.get", {"id": "t"}) == first
            with pytest.raises(Conflict):
                await ask("timer.set", {**said, "request": "other"})
            again = {**said, "data": "two", "replace": True, "request": "second"}
            await ask("timer.set", again)
            second = await ask("timer.get", {"id": "t"})
            await ask("timer.set", again)
            assert await ask("timer.get", {"id": "t"}) == second
            assert (second["data"], second["task"] == first["task"]) == ("two", False)

    simulate(workload, seed=1, options=OPTIONS)


def test_a_timer_of_a_purged_time_is_refused() -> None:
    """The store would drop its task, and nothing would fire."""

    async def workload(world: World) -> None:
        await world.settle()
        leader = leader_of(world).running
        assert leader is not None and leader.node is not None
        leader.node.store.raise_watermark(0, Watermark(2_000))
        body = pack_task({"format": "json", "queue": QUEUE, "unique_key": "t"}, [b"{}"])
        with pytest.raises(Purged):
            await leader.node.operations.timers.set(make_id(1_000, 0, 7, 0), body, replace=False)

    simulate(workload, seed=1, options=OPTIONS)


async def timers_of(world: World) -> tuple[Callable[..., Awaitable[None]], int]:
    """Return what sets timers at the leader of a settled cluster, and the time there in milliseconds."""
    await world.settle()
    leader = leader_of(world)
    assert leader.running is not None and leader.running.node is not None
    timers = leader.running.node.operations.timers

    async def put(name: str, task_id: TaskId, *, replace: bool = False) -> None:
        header = {"format": "json", "queue": QUEUE, "unique_key": name, "unique_until": "purged"}
        await timers.set(task_id, pack_task(header, [b"{}"]), replace=replace)

    return put, leader.clock.wall_ms()


def test_a_replaced_timer_does_not_come_back_when_its_replacement_is_purged() -> None:
    """Another timer of the same millisecond is unfinished for long, so the replaced one is kept with it."""

    async def workload(world: World) -> None:
        put, now_ms = await timers_of(world)
        old, new = make_id(now_ms + 1_000, 0, 7, 0), make_id(now_ms + 5_000, 0, 7, 1_024)
        await put("t", old)
        await put("other", id_at(old, 1))
        await put("t", new, replace=True)
        async with world.client() as client:
            ask = client.client.call
            await ask("queue.set", {"queue": QUEUE, "retention_ms": 0})
            (other,) = await client.claim(QUEUE, lease_ms=600_000, wait_ms=20_000)
            (claim,) = await client.claim(QUEUE, lease_ms=20_000, wait_ms=20_000)
            assert (other.id, claim.id) == (id_at(old, 1), new)
            await client.complete(claim)
            await trio.sleep(PURGED_S)
            found = await ask("timer.get", {"id": "t"})
            assert (found["state"], found["task"]) == ("fired", new)
            await client.complete(other)
            await trio.sleep(2 * PURGED_S)
            with pytest.raises(NotFound):
                await ask("timer.get", {"id": "t"})
            assert not any(list(node.disk.tables.rows.ascend(b"")) for node in world.nodes)

    simulate(workload, seed=1, options=evolve(OPTIONS, partitions=1, purge_bucket_ms=2_000, purge_margin_ms=20_000))


def test_timers_that_changed_places_are_purged_together() -> None:
    """Each of the two milliseconds has a timer that gave way to one of the other."""

    async def workload(world: World) -> None:
        put, now_ms = await timers_of(world)
        soon, late = make_id(now_ms + 1_000, 0, 7, 0), make_id(now_ms + 5_000, 0, 7, 0)
        await put("a", soon)
        await put("b", late)
        await put("a", id_at(late, 1), replace=True)
        await put("b", id_at(soon, 1), replace=True)
        async with world.client() as client:
            await client.client.call("queue.set", {"queue": QUEUE, "retention_ms": 0})
            for task_id in (id_at(soon, 1), id_at(late, 1)):
                (claim,) = await client.claim(QUEUE, lease_ms=20_000, wait_ms=20_000)
                assert claim.id == task_id
                await client.complete(claim)
            await trio.sleep(2 * PURGED_S)
            assert not any(list(node.disk.tables.rows.ascend(b"")) for node in world.nodes)

    simulate(workload, seed=1, options=evolve(OPTIONS, partitions=1, purge_bucket_ms=2_000, purge_margin_ms=20_000))


def test_a_cancel_that_a_replacement_overtakes_cancels_the_replacement() -> None:
    """A cancel first finds the current task, and when it arrives another one may be current."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            ask, find, monkeypatch = client.client.call, Timers._find, pytest.MonkeyPatch()
            said = {"id": "t", "timeout": LATER_MS, "data": "one", "callback": CALLBACK}
            await ask("timer.set", said)

            async def find_before(timers: Timers, timer: str) -> dict[str, Any]:
                monkeypatch.undo()
                found = await find(timers, timer)
                await ask("timer.set", {**said, "data": "two", "replace": True})
                return found

            monkeypatch.setattr(Timers, "_find", find_before)
            await ask("timer.cancel", {"id": "t"})
            found = await ask("timer.get", {"id": "t"})
            assert (found["state"], found["data"]) == ("cancelled", "two")

    simulate(workload, seed=1, options=OPTIONS)


def test_a_cancel_sees_the_replacement_that_nobody_waits_for_any_more() -> None:
    """Its client left while it was being written to slow disks: a timer that is cancelled afterwards does not fire."""

    async def workload(world: World) -> None:
        led_by = leader_of(world)
        said = {"id": "t", "timeout": LATER_MS, "data": "one", "callback": CALLBACK}
        async with world.client(nodes=[led_by]) as client, world.client(nodes=[led_by]) as impatient:
            await client.client.call("timer.set", said)
            for node in world.nodes:
                node.disk.delay_ms = lambda: 500
            with trio.move_on_after(0.1):
                await impatient.client.call("timer.set", {**said, "data": "two", "replace": True})
            await client.client.call("timer.cancel", {"id": "t"})
            await trio.sleep(5)
            found = await client.client.call("timer.get", {"id": "t"})
            assert (found["state"], found["data"]) == ("cancelled", "two")

    simulate(workload, seed=1, options=evolve(OPTIONS, partitions=1))


@pytest.mark.parametrize("replace", [False, True])
def test_a_timer_whose_delivery_is_being_recorded_has_fired(replace: bool) -> None:
    """On slow disks, a request for its id waits for that. Then the id is free, and nothing can be replaced."""

    async def workload(world: World) -> None:
        led_by = leader_of(world)
        said = {"id": "t", "timeout": 1_000, "data": "one", "callback": CALLBACK}
        again = {**said, "data": "two", "timeout": LATER_MS, "replace": replace}
        async with world.client(nodes=[led_by]) as client, world.client(nodes=[led_by]) as other:
            await client.client.call("timer.set", said)
            (claim,) = await client.claim(QUEUE, lease_ms=60_000, wait_ms=10_000)
            await world.settle()
            for node in world.nodes:
                node.disk.delay_ms = lambda: 500
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.complete, claim)
                await trio.sleep(0.1)
                with pytest.raises(NotFound) if replace else nullcontext():
                    await other.client.call("timer.set", again)
            found = await client.client.call("timer.get", {"id": "t"})
            assert (found["state"], found["data"]) == (("fired", "one") if replace else ("scheduled", "two"))

    simulate(workload, seed=1, options=evolve(OPTIONS, partitions=1))
