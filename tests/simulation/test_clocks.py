"""Clocks that are wrong or jump: leases last, expiry continues, and tasks are due by their leader's clock."""

from __future__ import annotations

import pytest
import trio

from onyxq.core.snapshot import pack
from onyxq.errors import ClockWrong
from simulation.workloads import WORKLOADS
from simulation.world.faults import late_appends, log_clock_flaps, log_clock_jump, node_clock_jump, wrong_clock
from simulation.world.load import Mix, under_load
from simulation.world.world import Options, World, simulate

JUMPS_MS = (-3_600_000, -120_000, -4_000, 1_000, 3_000, 4_900, 5_100, 120_000, 3_600_000)


async def idle_expiry(world: World, *, lease_ms: int, jumps_ms: tuple[int, ...], every_s: float) -> float:
    """Claim one task and forget it while the log's clock jumps; return how long until another worker gets it."""
    async with world.client() as client:
        await client.enqueue("q", [b"x"], backoff_ms=0)
        assert len(await client.claim("q", lease_ms=lease_ms)) == 1
        granted_s = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def jump() -> None:
                for by_ms in jumps_ms:
                    await trio.sleep(every_s)
                    world.log_clock.jump(by_ms)

            nursery.start_soon(jump)
            assert len(await client.claim("q", wait_ms=120_000)) == 1
            nursery.cancel_scope.cancel()
        return trio.current_time() - granted_s


@pytest.mark.long
@pytest.mark.parametrize("by_ms", JUMPS_MS)
def test_a_jump_of_the_logs_clock_neither_ends_nor_freezes_a_lease(by_ms: int) -> None:
    """For jumps in either direction, by hours or a second, a forgotten claim expires soon after its lease."""

    async def workload(world: World) -> None:
        waited_s = await idle_expiry(world, lease_ms=10_000, jumps_ms=(by_ms,), every_s=3.0)
        assert 9.5 < waited_s < 17

    simulate(workload, seed=1, options=Options(clock_offset_ms=0))


def test_an_outage_ages_no_lease_however_short() -> None:
    """A claim of three seconds can be renewed a second and a half after a minute without the log."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"x"])
            (claim,) = await client.claim("q", lease_ms=3_000, wait_ms=5_000)
            world.log_down()
            await trio.sleep(60)
            world.log_up()
            await trio.sleep(1.5)
            await client.renew(claim, 3_000)
            await client.complete(claim)
        assert not world.audit.leases_last.expired

    simulate(workload, seed=1)


def test_a_node_that_continues_from_a_snapshot_measures_log_time_anew() -> None:
    """It has not read how log time rose before the snapshot, so it counts only what passes from then on."""

    async def workload(world: World) -> None:
        running = world.nodes[0].running
        assert running is not None and running.node is not None
        node = running.node
        while node.measured().waited_ms < 10:
            await trio.sleep(0.05)
        node.replace(node.replica, pack(node.replica))
        assert node.measured().waited_ms == 0

    simulate(workload, seed=1)


@pytest.mark.parametrize("seed", range(3))
def test_a_log_whose_leaders_clocks_differ_ends_no_lease(seed: int) -> None:
    """Leadership in the ensemble alternates between servers whose clocks differ by four seconds."""

    async def workload(world: World) -> None:
        waited_s = await idle_expiry(world, lease_ms=20_000, jumps_ms=(4_000, -4_000) * 6, every_s=1.3)
        assert 19.5 < waited_s < 45

    simulate(workload, seed=seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_leases_last_under_load_while_the_logs_clock_jumps(seed: int) -> None:
    """It jumps by hours, minutes and seconds, while workers forget claims, renew them and are late."""

    async def workload(world: World) -> None:
        async def faults(world: World) -> None:
            for _ in range(4):
                await log_clock_jump(world)
            await log_clock_flaps(world)

        await under_load(world, faults, Mix(lease_ms=(2_000, 6_000), forget=0.1, late=0.1))

    world = simulate(workload, seed=seed)
    assert world.audit.leases_last.expired, "nothing expired"


# --- clocks of nodes --------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("by_ms", [-600_000, -7_000, 7_000, 600_000])
def test_a_peer_whose_clock_is_off_the_rings_leaves_and_says_why(by_ms: int) -> None:
    """It leaves within half a minute and for good, and no other peer does; claims and tasks are not affected."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"%d" % number for number in range(30)])
            claims = list(await client.claim("q", maximum=30, lease_ms=60_000))
            node = world.nodes[1]
            node.may_end = True
            node.clock.jump(by_ms)
            with trio.fail_after(30):
                await node.ended.wait()
            assert isinstance(node.error, ClockWrong)
            side = "ahead of" if by_ms > 0 else "behind"
            assert f"{side} the median" in node.error.message and "NTP" in node.error.advice
            for claim in claims:
                await client.complete(claim)
            await trio.sleep(30)
            assert [one.name for one in world.nodes if one.running is not None] == ["n0", "n2"]
            node.clock.jump(-by_ms)
            await world.bring_back(node)

    simulate(workload, seed=1)


@pytest.mark.parametrize("by_ms", [-4_000, 4_000])
def test_a_peer_whose_clock_is_a_little_off_stays(by_ms: int) -> None:
    """Up to five seconds are tolerated."""

    async def workload(world: World) -> None:
        world.nodes[1].clock.jump(by_ms)
        waited_s = await idle_expiry(world, lease_ms=30_000, jumps_ms=(), every_s=1)
        assert 29.5 < waited_s < 37
        assert all(node.running is not None for node in world.nodes)

    simulate(workload, seed=1, options=Options(clock_offset_ms=0))


def test_the_last_attempt_has_its_whole_lease_whatever_the_leaders_clock_shows() -> None:
    """A task without retries fails for good when its lease ends in log time, not when a clock says so."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"%d" % number for number in range(16)], retries=0)
            claims = list(await client.claim("q", maximum=16, lease_ms=20_000))
            assert len(claims) == 16
            for node in world.nodes:
                node.clock.jump(4_500)
            await trio.sleep(17)
            for claim in claims:
                await client.complete(claim)

    world = simulate(workload, seed=1)
    assert len(world.history.completed) == 16


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_records_that_land_long_after_they_were_made_make_no_clock_wrong(seed: int) -> None:
    """After an outage of a minute all peers stay."""

    async def workload(world: World) -> None:
        async def faults(world: World) -> None:
            for _ in range(2):
                await late_appends(world)
                await trio.sleep(20)

        await under_load(world, faults)

    simulate(workload, seed=seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_claims_do_not_care_for_the_clocks_of_nodes(seed: int) -> None:
    """Clocks jump by seconds and minutes, and nodes leave one after the other because of them."""

    async def workload(world: World) -> None:
        async def faults(world: World) -> None:
            for _ in range(4):
                await node_clock_jump(world)
            await wrong_clock(world)

        await under_load(world, faults, Mix(lease_ms=(2_000, 6_000), forget=0.1, late=0.1))

    world = simulate(workload, seed=seed)
    assert world.audit.leases_last.expired, "nothing expired"


# --- clocks of clients --------------------------------------------------------------------

CLIENTS_MS = (-600_000, -4_000, 4_000, 600_000)


async def claimed_after_s(world: World, *, delay_ms: int = 0, at_ms: int | None = None) -> float:
    """Return how long after its enqueue a waiting claimer gets a task."""
    async with world.client() as producer, world.client() as worker:
        enqueued_s = trio.current_time()
        await producer.client.enqueue("q", b"x", delay_ms=delay_ms, at_ms=at_ms)
        assert len(await worker.claim("q", wait_ms=30_000)) == 1
        return trio.current_time() - enqueued_s


@pytest.mark.parametrize("ahead_ms", CLIENTS_MS)
def test_a_task_is_due_at_once_whatever_the_clocks_of_client_and_leader_show(ahead_ms: int) -> None:
    """Its id is made with the leader's time, not the client's."""

    async def workload(world: World) -> None:
        for _ in range(8):
            assert await claimed_after_s(world) < 0.1

    simulate(workload, seed=1, options=Options(client_clock_ms=(ahead_ms,), clock_offset_ms=2_000))


@pytest.mark.parametrize("ahead_ms", CLIENTS_MS)
def test_a_delay_is_a_delay_whatever_the_clocks_show(ahead_ms: int) -> None:
    """The delay counts from now, by the leader's clock."""

    async def workload(world: World) -> None:
        for _ in range(4):
            assert 2.9 < await claimed_after_s(world, delay_ms=3_000) < 3.2

    simulate(workload, seed=1, options=Options(client_clock_ms=(ahead_ms,), clock_offset_ms=2_000))


@pytest.mark.parametrize("ahead_ms", CLIENTS_MS)
def test_a_due_time_is_the_leaders_wall_clock_time(ahead_ms: int) -> None:
    """The client's clock does not matter; a time that has just passed means now."""

    async def workload(world: World) -> None:
        now_ms = world.log_clock.wall_ms()
        assert 2.9 < await claimed_after_s(world, at_ms=now_ms + 3_000) < 3.2
        assert await claimed_after_s(world, at_ms=now_ms - 5_000) < 0.1

    simulate(workload, seed=1, options=Options(client_clock_ms=(ahead_ms,), clock_offset_ms=0))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_cluster_works_for_clients_whose_clocks_are_wrong(seed: int) -> None:
    """There is load from clients whose clocks differ by up to ten minutes in either direction."""

    async def workload(world: World) -> None:
        await under_load(world, node_clock_jump)

    simulate(workload, seed=seed, options=Options(client_clock_ms=CLIENTS_MS))


@pytest.mark.long
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(33, id="the log's clock and the leader's jump between two records: a lease ended early"),
        pytest.param(1_000, id="both jump by an hour: a retry was put off by an hour"),
        pytest.param(3_026, id="a record lands after an outage: a peer left for a clock that was right"),
        pytest.param(3_031, id="the log's clock goes to and fro: a lease ended early"),
        pytest.param(5_002, id="of two members one is an hour ahead: tasks were put off by an hour"),
    ],
)
def test_what_clocks_once_broke_holds(seed: int) -> None:
    """These seeds of the workload failed once."""
    assert WORKLOADS["clocks"].play(seed).applied > 30
