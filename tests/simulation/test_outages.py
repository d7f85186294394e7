"""Single faults: which requests continue, which wait with a reason, and how soon the cluster recovers."""

from __future__ import annotations

import pytest
import trio

from onyxq.core.placement import holders
from onyxq.errors import LogUnavailable, OnyxqError, TimedOut, Unavailable
from simulation.world.clients import RecordingClient
from simulation.world.world import Options, SimulatedNode, World, simulate

SKEWLESS = Options(clock_offset_ms=0)


def leader_of(world: World, partition: int = 0) -> SimulatedNode:
    """Return the node that leads a partition, by the log."""
    leader = world.audit.replica.partitions[partition].leader
    return next(node for node in world.nodes if node.peer_id == leader)


def led_by_others(world: World, node_id: str) -> bool:
    """Return whether every partition is ready under a leader on another node."""
    replica = world.audit.replica
    return all(
        part.ready and part.leader in replica.peers and replica.peers[part.leader].node != node_id
        for part in replica.partitions.values()
    )


@pytest.mark.parametrize("sessions_lost", [False, True])
def test_facts_go_on_and_claims_wait_while_the_log_is_away(sessions_lost: bool) -> None:
    """Enqueue, update and complete succeed during a minute without the log; claims give the reason why they fail."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"%d" % number for number in range(40)])
            claims = list(await client.claim("q", maximum=40, lease_ms=30_000))
            assert len(claims) == 40
            world.log_down()
            await trio.sleep(3)
            for _ in range(20):
                await client.enqueue("q", [b"during"], timeout_ms=3_000)
                claim = claims.pop()
                await client.update(claim, b"note", timeout_ms=3_000)
                await client.complete(claim, b"done", timeout_ms=3_000)
                with pytest.raises(LogUnavailable):
                    await client.claim("q")
                await trio.sleep(3)
            world.log_up(sessions_lost=sessions_lost)
            await world.settle(within_s=15)
            got = 0
            while got < 20:
                more = await client.claim("q", maximum=20, wait_ms=5_000)
                assert more, "what was enqueued during the outage is not granted"
                got += len(more)
            for claim in claims:
                await client.complete(claim, b"after")

    simulate(workload, seed=1, options=SKEWLESS)


def test_a_claim_that_ends_in_an_outage_of_the_log_says_so() -> None:
    """The outage began while the claim waited: its node may not know all tasks any more."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_expect_no_log, client)
                await trio.sleep(3)
                world.log_down()
            world.log_up()

    simulate(workload, seed=1, options=SKEWLESS)


def test_a_claimer_that_gave_up_while_the_log_stalled_is_granted_nothing() -> None:
    """Its request waited for the record before; no other claimer has to wait for the end of its claim."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            for queue in "ab":
                (task,) = await client.enqueue(queue, [queue.encode()])
            usual, world.backend.append_delay_s = world.backend.append_delay_s, lambda: 8.0
            async with trio.open_nursery() as nursery:
                for queue in "ab":
                    nursery.start_soon(_expect_no_log, client, queue)
                    await trio.sleep(0.5)
            world.backend.append_delay_s = usual
            await trio.sleep(10)
            assert task not in world.audit.ledger.grants
            (claim,) = await client.claim("b", wait_ms=5_000)
            await client.complete(claim)

    simulate(workload, seed=1, options=Options(nodes=1, partitions=1, clock_offset_ms=0))


async def _expect_no_log(client: RecordingClient, queue: str = "q") -> None:
    with pytest.raises(LogUnavailable):
        await client.claim(queue, lease_ms=60_000, wait_ms=4_000)


def test_an_outage_of_the_log_lapses_no_lease() -> None:
    """Two minutes without the log do not count for leases: the claim can be renewed afterwards."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"x"])
            (claim,) = await client.claim("q", lease_ms=15_000)
            world.log_down()
            await trio.sleep(120)
            world.log_up()
            await client.renew(claim, 15_000)
            assert not await client.claim("q", wait_ms=10_000)

    simulate(workload, seed=1, options=SKEWLESS)


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_leaders_partitions_are_led_again_within_the_session_timeout_and_a_second(seed: int) -> None:
    """No client waits for a leader longer than its session takes to end, plus one second."""

    async def workload(world: World) -> None:
        node = leader_of(world)
        node_id = node.node_id
        await world.crash_node(node)
        await world.until(lambda: led_by_others(world, node_id), "led by others", within_s=7.0)
        await world.bring_back(node)

    simulate(workload, seed=seed)


def test_a_stopped_node_hands_its_partitions_over_before_it_goes() -> None:
    """A drained node leaves at once, and no partition is without a leader for long."""

    async def workload(world: World) -> None:
        node = leader_of(world)
        node_id, started_s = node.node_id, trio.current_time()
        await world.stop_node(node)
        assert led_by_others(world, node_id)
        assert trio.current_time() - started_s < 5
        await world.bring_back(node)

    simulate(workload, seed=1)


def test_a_leader_cut_off_from_its_cohort_gives_way() -> None:
    """It still reaches the log, so its session is valid: it yields on its own."""

    async def workload(world: World) -> None:
        node = leader_of(world)
        node_id = node.node_id
        async with world.client() as client:
            world.isolate(node)

            async def write() -> None:
                while True:
                    try:
                        await client.enqueue("q", [b"x"], timeout_ms=2_000)
                    except OnyxqError:
                        pass
                    await trio.sleep(0.1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                await world.until(lambda: led_by_others(world, node_id), "led by others", within_s=60)
                nursery.cancel_scope.cancel()
            world.network.heal()
            await world.settle()

    simulate(workload, seed=1)


def test_a_leader_with_a_full_disk_gives_way() -> None:
    """Writes continue at another node."""

    async def workload(world: World) -> None:
        node = leader_of(world)
        node_id = node.node_id
        node.disk.failing = True
        async with world.client() as client, trio.open_nursery() as nursery:

            async def write() -> None:
                while True:
                    try:
                        await client.enqueue("q", [b"x"], timeout_ms=2_000)
                    except OnyxqError:
                        pass
                    await trio.sleep(0.1)

            nursery.start_soon(write)
            await world.until(lambda: led_by_others(world, node_id), "led by others", within_s=60)
            node.disk.failing = False
            await world.settle()
            nursery.cancel_scope.cancel()

    simulate(workload, seed=1)


def test_without_a_majority_a_partition_says_so_and_others_serve() -> None:
    """Two of five nodes die: partitions of theirs stop, and enqueues go to the others."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            dead = world.nodes[:2]
            ids = {node.node_id for node in dead}
            for node in dead:
                await world.crash_node(node)
            await trio.sleep(10)
            lost = [
                number
                for number, part in world.audit.replica.partitions.items()
                if len(ids & set(part.members)) * 2 > len(part.members)
            ]
            assert 0 < len(lost) < 16
            acknowledged = await client.enqueue("q", [b"%d" % number for number in range(60)])
            assert not {int.from_bytes(task_id[6:8], "big") for task_id in acknowledged} & set(lost)
            stuck = await client.client.make_ids(200)
            there = [task_id for task_id in stuck if int.from_bytes(task_id[6:8], "big") in lost]
            if there:
                # A client that waits less than the peer tries gets only a timeout.
                with pytest.raises((Unavailable, TimedOut)):
                    await client.client.enqueue_many("q", [b"x"], ids=there[:1], timeout_ms=3_000)
            for node in dead:
                world.start_node(node)
            await world.settle()

    simulate(workload, seed=2, options=Options(nodes=5, partitions=16, absent_after_ms=600_000))


def test_copies_of_a_node_that_stays_away_are_made_elsewhere() -> None:
    """After its timeout the cluster has three copies of everything again, and a second loss costs nothing."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"%d" % number for number in range(100)])
            gone = world.nodes[0]
            gone_id = gone.node_id
            await world.crash_node(gone)

            def whole() -> bool:
                parts = world.audit.replica.partitions.values()
                return all(gone_id not in holders(part) and len(part.members) == 3 and part.ready for part in parts)

            await world.until(whole, "three copies without it", within_s=60)
            await world.crash_node(world.nodes[1])
            await world.until(lambda: led_by_others(world, world.nodes[1].node_id or "-"), "led", within_s=20)
            got = 0
            while got < 100:
                claims = await client.claim("q", maximum=100, wait_ms=10_000)
                assert claims
                got += len(claims)

    simulate(workload, seed=1, options=Options(nodes=5, absent_after_ms=8_000, clock_offset_ms=0))


def test_a_node_that_was_away_during_a_collection_starts_from_the_origin() -> None:
    """The records that it missed are trimmed; it continues from the snapshot and serves again."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"%d" % number for number in range(20)])
            node = world.nodes[2]
            await world.crash_node(node)
            await trio.sleep(8)
            for claim in await client.claim("q", maximum=10, wait_ms=1_000):
                await client.complete(claim)
            done = await client.client.gc()
            assert done["trimmed"] > 0
            world.start_node(node)
            await world.settle()
            for claim in await client.claim("q", maximum=10, wait_ms=1_000):
                await client.complete(claim)

    simulate(workload, seed=1, options=SKEWLESS)


def test_a_task_acknowledged_just_before_every_node_died_is_there_afterwards() -> None:
    """Acknowledged means durable on a majority, even if no process survives."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"%d" % number for number in range(50)])
            for node in world.nodes:
                await world.crash_node(node)
            await trio.sleep(20)
            for node in world.nodes:
                world.start_node(node)
            await world.settle(within_s=30)

    for seed in range(3):
        simulate(workload, seed=seed)
