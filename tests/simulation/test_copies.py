"""Rows that are written by one leader and repeated by another become equal on every node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from onyxq.client.claims import Claim
from onyxq.core.facts import COMPLETION, unpack_completion
from onyxq.core.ids import Run, mask_of, stretch_of
from onyxq.errors import AlreadyFinished, OnyxqError, StaleToken
from simulation.scenes.base import ONE, back, cut_off, leader_of, payloads, successor
from simulation.world.clients import RecordingClient
from simulation.world.world import SimulatedNode, World, simulate


def others(world: World, node: SimulatedNode) -> list[SimulatedNode]:
    """All nodes but one."""
    return [one for one in world.nodes if one is not node]


async def claim(client: RecordingClient, count: int, *, lease_ms: int = 60_000) -> list[Claim]:
    """Return a number of claims, which must come in time."""
    claims = list(await client.claim("q", maximum=count, lease_ms=lease_ms, wait_ms=20_000))
    assert len(claims) == count
    return claims


Write = Callable[[RecordingClient, Claim], Awaitable[None]]


@asynccontextmanager
async def stored_alone(
    world: World, write: Write, count: int = 1
) -> AsyncIterator[tuple[RecordingClient, list[Claim]]]:
    """Return claims for which an unreachable leader wrote something, and a client of its successor.

    No client knows of these rows. Afterwards all nodes are up again.
    """
    async with world.client() as client, world.client(nodes=[leader_of(world)]) as misled:
        await client.enqueue("q", payloads(count))
        claims = await claim(client, count)
        old = cut_off(world)
        for one in claims:
            with pytest.raises(OnyxqError):
                await write(misled, one)
        await successor(world, old)
        async with world.client(nodes=others(world, old)) as served:
            yield served, claims
        await back(world, old)


@pytest.mark.parametrize("seed", range(2))
def test_a_completion_repeated_at_another_leader_is_one_fact(seed: int) -> None:
    """The first leader stored it alone; the second one sets the time, and all nodes become equal."""

    async def complete(client: RecordingClient, claim: Claim) -> None:
        await client.complete(claim, b"done", timeout_ms=500)

    async def workload(world: World) -> None:
        async with stored_alone(world, complete, count=6) as (served, claims):
            for one in claims:
                await served.complete(one, b"done")

    simulate(workload, seed=seed, options=ONE)


def test_another_result_given_to_another_leader_is_the_one_that_stays() -> None:
    """The acknowledged result wins over the earlier, unknown one."""

    async def complete(client: RecordingClient, claim: Claim) -> None:
        await client.complete(claim, b"unheard", timeout_ms=500)

    async def workload(world: World) -> None:
        async with stored_alone(world, complete) as (served, (one,)):
            epoch = world.audit.replica.partitions[0].epoch
            await served.complete(one, b"acknowledged")
        await trio.sleep(70)
        async with world.client() as client:
            assert (await client.client.get(one.id)).result == b"acknowledged"
        for node in world.nodes:
            (key,) = [key for key in node.disk.row_keys() if key[2:3] == COMPLETION]
            done = unpack_completion((node.disk.tables.rows.get(key) or b"")[:-4])
            # The epoch says which of the two came later, not a clock.
            assert (done.mark.epoch, done.results) == (epoch, [b"acknowledged"])

    simulate(workload, seed=1, options=ONE)


def test_an_update_repeated_at_another_leader_is_one_fact() -> None:
    """This is as for completions."""

    async def update(client: RecordingClient, claim: Claim) -> None:
        await client.update(claim, b"half", timeout_ms=500)

    async def workload(world: World) -> None:
        async with stored_alone(world, update) as (served, (one,)):
            answer = await served.client.call("update", {"items": [[one.id, one.token, 0, b"half"]]})
            assert answer["results"] == [None]
        async with world.client() as client:
            await client.complete(one)

    simulate(workload, seed=1, options=ONE)


@asynccontextmanager
async def granted_anew(
    world: World,
) -> AsyncIterator[tuple[RecordingClient, SimulatedNode, SimulatedNode, Claim, Claim]]:
    """Make a task whose completion only an unreachable leader has and that its successor granted again.

    Return a client of the successor, both leaders and both claims.
    """
    async with world.client() as client, world.client(nodes=[leader_of(world)]) as misled:
        await client.enqueue("q", [b"x"], backoff_ms=0)
        (early,) = await claim(client, 1, lease_ms=2_000)
        old = cut_off(world)
        with pytest.raises(OnyxqError):
            await misled.complete(early, b"early", timeout_ms=500)
        new = await successor(world, old)
        async with world.client(nodes=[new]) as served:
            (late,) = await claim(served, 1)
            yield served, old, new, early, late


@pytest.mark.long
def test_an_older_token_completes_nothing_although_its_completion_turns_up() -> None:
    """Only the first leader had it when the second granted the task again; the third finds it and must refuse it."""

    async def workload(world: World) -> None:
        async with granted_anew(world) as (client, first, second, early, late):
            world.isolate(second)
            world.disconnect_log(second)
            with pytest.raises(OnyxqError):
                await client.complete(late, b"late", timeout_ms=500)
            world.network.heal()
            world.isolate(second)
            world.reconnect_log(first)
            await successor(world, second)
            async with world.client(nodes=others(world, second)) as client:
                with pytest.raises((AlreadyFinished, StaleToken)):
                    await client.complete(early, b"early")
            await back(world, second)

    for seed in range(4):
        simulate(workload, seed=seed, options=ONE)


def test_a_completion_that_was_refused_does_not_count_when_it_turns_up() -> None:
    """The task runs again, and its dependents wait for that.

    Its worker was refused because a newer claim had the task, and that claim's lease expired. Seed 96 of the
    standard workload found a dependent that ran too early.
    """

    async def workload(world: World) -> None:
        async with world.client() as client:
            (task,) = await client.enqueue("q", [b"x"], backoff_ms=0)
            (dependent,) = await client.enqueue("q", [b"behind it"], depends=[task])
            (early,) = await claim(client, 1, lease_ms=2_000)
            old = leader_of(world)
            async with world.client(nodes=[old]) as misled:
                cut_off(world)
                with pytest.raises(OnyxqError):
                    await misled.complete(early, b"early", timeout_ms=500)
            async with world.client(nodes=[await successor(world, old)]) as served:
                await claim(served, 1, lease_ms=8_000)
                with pytest.raises(StaleToken):
                    await served.complete(early, b"early")
            await back(world, old)
            (third,) = await claim(client, 1)
            assert (third.id, third.attempts) == (task, 2)
            assert (await client.client.get(dependent)).state == "waiting"
            await client.complete(third, b"third")
            assert (await client.client.get(task)).result == b"third"
            (last,) = await claim(client, 1)
            await client.complete(last)

    for seed in range(3):
        simulate(workload, seed=seed, options=ONE)


def test_nobody_is_told_of_a_completion_that_the_log_has_made_void() -> None:
    """The newer claim has ended; this leader has read that, and its slow disk is still storing it."""

    async def workload(world: World) -> None:
        async with granted_anew(world) as (client, old, new, early, late):
            await back(world, old)
            assert new.running is not None and new.running.node is not None
            node = new.running.node
            stretch = stretch_of(early.id)
            assert node.leaders[0].ready and node.store.finished_bits(stretch) & mask_of(early.id, 1)
            new.disk.delay_ms = lambda: 500
            node.give_back(0, late.token, [Run(early.id, 1)])
            await world.until(lambda: not node.replica.claims.get(0), "the newer claim is over")
            assert node.store.finished_bits(stretch) & mask_of(early.id, 1), "it is not stored yet"
            assert await node.operations.dependencies.outcomes([early.id], "nobody") == ["unfinished"]
            new.disk.delay_ms = lambda: 0
            with suppress(OnyxqError):
                await client.release(late)  # for its holder it ends only now
            (again,) = await claim(client, 1)
            await client.complete(again, b"again")

    for seed in range(3):
        simulate(workload, seed=seed, options=ONE)


def test_what_may_have_been_granted_when_the_log_was_lost_is_not_completed_under_an_older_token() -> None:
    """Its leader cannot know whether the grant is in the log; it is, so an acknowledgement would be void."""

    async def workload(world: World) -> None:
        async with world.client() as client, world.client(nodes=[leader_of(world)]) as late:
            await client.enqueue("q", [b"x"], backoff_ms=0)
            (early,) = await claim(client, 1, lease_ms=1_000)
            await world.until(lambda: not world.audit.replica.claims.get(0), "the first claim is over")
            old, read_delay_s = leader_of(world), world.backend.read_delay_s
            world.backend.read_delay_s = lambda: 30.0
            await client.enqueue("others", [b"y"])
            await client.claim("others", lease_ms=60_000)  # its record is the last one read at once
            landed = world.backend.last
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_claim_in_vain, late)
                await world.until(lambda: world.backend.last > landed, "the next grant has landed")
                world.log_down()
                world.expire_session(old)
                await trio.sleep(1)
                with pytest.raises(OnyxqError):
                    await client.complete(early, b"early", timeout_ms=1_000)
                world.backend.read_delay_s = read_delay_s
                world.log_up()
            await world.settle()
            (again,) = await claim(client, 1)
            await client.complete(again, b"again")

    simulate(workload, seed=1, options=ONE)


async def _claim_in_vain(client: RecordingClient) -> None:
    with suppress(OnyxqError):
        assert not await client.claim("q", lease_ms=3_000, wait_ms=1_000, timeout_ms=2_000)


def test_two_results_under_one_token_are_not_both_acknowledged() -> None:
    """If a worker sends several at once, one is acknowledged, and that result is read afterwards."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            (task,) = await client.enqueue("q", [b"x"])
            (one,) = await claim(client, 1)
            leader_of(world).disk.delay_ms = lambda: 300
            answers: dict[bytes, list[list[object]]] = {}

            async def complete(result: bytes) -> None:
                items = {"items": [[one.id, 1, one.token, None, [result]]]}
                answers[result] = (await client.client.call("complete", items))["results"]

            async with trio.open_nursery() as nursery:
                for result in (b"a", b"b", b"c"):
                    nursery.start_soon(complete, result)
            (taken,) = [result for result, refused in answers.items() if refused == [[]]]
            assert (await client.client.get(task)).result == taken
            leader_of(world).disk.delay_ms = lambda: 0

    for seed in range(3):
        simulate(workload, seed=seed, options=ONE)


@pytest.mark.long
@pytest.mark.parametrize("wait_s", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0])
def test_two_workers_are_not_both_told_that_they_completed_a_task(wait_s: float) -> None:
    """The older completion is found while the newer one is being written, and is repeated just then."""

    async def workload(world: World) -> None:
        async with granted_anew(world) as (client, old, new, early, late):
            new.disk.delay_ms = lambda: 1_500
            world.network.heal()
            told: list[bytes] = []

            async def repeat() -> None:
                while True:
                    try:
                        await client.complete(early, b"early", timeout_ms=3_500)
                        told.append(b"early")
                    except OnyxqError:
                        pass
                    await trio.sleep(0.1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(repeat)
                await trio.sleep(wait_s)
                try:
                    await client.complete(late, b"late", timeout_ms=15_000)
                    told.append(b"late")
                except OnyxqError:
                    pass
                await trio.sleep(5)
                nursery.cancel_scope.cancel()
            new.disk.delay_ms = lambda: 0
            assert len(set(told)) < 2
            await back(world, old)

    simulate(workload, seed=1, options=ONE)
