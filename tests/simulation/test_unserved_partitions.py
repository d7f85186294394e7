"""Answers to claimers while some partitions have no serving leader (design: claims, faults)."""

from __future__ import annotations

import pytest
import trio

from onyxq.errors import BatchRefused, TimedOut, Unavailable
from simulation.world.world import Options, World, simulate


def test_an_empty_answer_is_not_given_while_partitions_have_no_leader() -> None:
    """With two of three nodes gone, claims report partitions without a leader, and find their tasks later."""

    async def workload(world: World) -> None:
        async with world.client(nodes=world.nodes[2:]) as client:
            await client.enqueue("q", [b"x"])
            dead = world.nodes[:2]
            for node in dead:
                await world.crash_node(node)
            await trio.sleep(10)
            with pytest.raises(Unavailable, match="no leader|no majority"):
                await client.claim("q", timeout_ms=5_000)
            with pytest.raises(Unavailable, match="no leader|no majority"):
                await client.claim("other", wait_ms=500, timeout_ms=5_000)
            for node in dead:
                await world.bring_back(node)
            assert len(await client.claim("q", wait_ms=20_000)) == 1
            assert not await client.claim("other")

    simulate(workload, seed=1, options=Options(nodes=3, absent_after_ms=600_000))


def test_a_leader_that_reaches_the_log_only_gives_way_although_nobody_writes() -> None:
    """Its idle partitions get other leaders, and their tasks are granted; no claim gets an empty answer."""

    async def workload(world: World) -> None:
        cut_off = world.nodes[0]
        async with world.client(nodes=world.nodes[1:]) as client:
            await client.enqueue("q", [b"%d" % number for number in range(12)])
            for number in range(12):
                await client.enqueue("q", [b"%d" % number])
            world.isolate(cut_off)
            got = 0
            with trio.fail_after(60):
                while got < 24:
                    try:
                        claims = await client.claim("q", maximum=24, wait_ms=1_000, lease_ms=600_000)
                    except Unavailable:
                        continue
                    assert claims, "an empty answer although tasks are ready"
                    got += len(claims)
            world.network.heal()
            await world.settle()

    simulate(workload, seed=1)


def test_giving_back_and_failing_may_be_repeated() -> None:
    """A client without an answer repeats the request and learns that it was done."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"back", b"again", b"dead"], retries=0)
            back, *failed = await client.claim("q", maximum=3)
            for _ in range(2):
                await client.client.release([back])
                await client.client.fail(failed, "broken")
            await client.enqueue("r", [b"x"])
            (claim,) = await client.claim("r")
            for _ in range(2):
                await client.client.fail([claim], "broken", retry_in_ms=60_000)
            with pytest.raises(BatchRefused):
                await client.client.release([claim])

    simulate(workload, seed=1)


def test_counts_are_not_given_while_partitions_have_no_leader() -> None:
    """A count without these partitions would be mistaken for the total."""

    async def workload(world: World) -> None:
        async with world.client(nodes=world.nodes[2:]) as client:
            await client.enqueue("q", [b"%d" % number for number in range(12)])
            for node in world.nodes[:2]:
                await world.crash_node(node)
            await trio.sleep(20)
            with pytest.raises((Unavailable, TimedOut)):
                await client.client.count("q")
            for node in world.nodes[:2]:
                await world.bring_back(node)
            await world.settle()
            assert (await client.client.count("q"))["q"]["total"] == 12

    simulate(workload, seed=1, options=Options(nodes=3, absent_after_ms=600_000))
