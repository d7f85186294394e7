"""Nodes that leave for good: their copies are made elsewhere first, without a moment with too few copies."""

from __future__ import annotations

import pytest
import trio

from onyxq.errors import Conflict, Unavailable
from simulation.scenes.copies import COPIED_S, full_until_it_ended, retire, thin
from simulation.world.clients import RecordingClient
from simulation.world.load import under_load
from simulation.world.world import Options, World, simulate

FOUR = Options(nodes=4, partitions=12, clock_offset_ms=0, absent_after_ms=600_000)


async def everywhere(client: RecordingClient) -> None:
    """Enqueue tasks in every partition."""
    for number in range(60):
        await client.enqueue("q", [b"%d" % number] * 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_node_leaves_for_good_without_a_moment_below_full_copies(seed: int) -> None:
    """This is under load; when the node and its disk are gone, the others have three copies of everything."""

    async def workload(world: World) -> None:
        async def faults(world: World) -> None:
            gone = world.nodes[seed]
            known, peer = gone.node_id, gone.peer_id
            answer = await retire(world, gone)
            assert answer["partitions_left"] > 0 and "warning" not in answer
            await full_until_it_ended(world, gone, copies=3)
            assert gone.error is None
            world.nodes.remove(gone)
            assert list(thin(world, 3)) == []
            assert peer not in world.audit.replica.ring.members
            assert all(known not in part.members for part in world.audit.replica.partitions.values())

        await under_load(world, faults)

    simulate(workload, seed=seed, options=FOUR)


def test_the_old_copies_are_kept_until_slow_disks_have_the_new_ones() -> None:
    """The others are a majority of the new cohort at once; that is not enough to drop the old copy."""

    async def workload(world: World) -> None:
        gone, slow = world.nodes[0], world.nodes[3]
        async with world.client() as client:
            await everywhere(client)
            await trio.sleep(COPIED_S)
            slow.disk.delay_ms = lambda: 1_500
            await retire(world, gone)
            await full_until_it_ended(world, gone, copies=3)
            slow.disk.delay_ms = lambda: 1
            world.nodes.remove(gone)
            await world.settle()

    simulate(workload, seed=8, options=FOUR)


def test_progress_can_be_seen_while_copies_move() -> None:
    """The views of peers and cluster show how many partitions are left, and in the end none."""

    async def workload(world: World) -> None:
        gone, other = world.nodes[0], world.nodes[1]
        async with world.client() as client:
            await everywhere(client)
        left: list[int] = []
        await retire(world, gone)
        assert other.running is not None and other.running.service is not None
        with trio.fail_after(60):
            while not gone.ended.is_set():
                found = (await other.running.service.call("cluster", {}))["leaving"]
                left += [one["partitions_left"] for one in found if one["partitions_left"] not in left[-1:]]
                await trio.sleep(0.01)
        assert left == sorted(left, reverse=True) and left[0] >= 9 and left[-1] == 0
        peers = await other.running.service.call("peers", {})
        (node,) = [one for one in peers["nodes"] if one["peer"] is None]
        assert node["copies"] == 0 and not node["leaving"]

    simulate(workload, seed=1, options=FOUR)


def test_a_node_that_crashes_on_its_way_out_costs_nothing() -> None:
    """It counts as absent then; after a restart it stays until it is asked again."""

    async def workload(world: World) -> None:
        gone = world.nodes[0]
        async with world.client() as client:
            await everywhere(client)
            await retire(world, gone)
            await world.crash_node(gone)
            await world.bring_back(gone)
            assert gone.running is not None
            await retire(world, gone)
            await full_until_it_ended(world, gone, copies=3)
            world.nodes.remove(gone)
            await world.settle()

    simulate(workload, seed=2, options=FOUR)


def test_a_lost_session_on_the_way_out_is_gone_on_with() -> None:
    """The process starts another peer, which continues to move the copies."""

    async def workload(world: World) -> None:
        gone = world.nodes[0]
        async with world.client() as client:
            await everywhere(client)
            await retire(world, gone)
            world.expire_session(gone)
            await full_until_it_ended(world, gone, copies=3)
            world.nodes.remove(gone)
            await world.settle()

    simulate(workload, seed=3, options=FOUR)


def test_a_new_node_is_filled_before_an_old_one_may_go() -> None:
    """With three nodes and three copies the answer warns; with a fourth node three copies are kept."""

    async def workload(world: World) -> None:
        gone = world.nodes[0]
        async with world.client() as client:
            await everywhere(client)
            assert "2 nodes stay for 3 copies" in (await retire(world, gone))["warning"]
            await full_until_it_ended(world, gone, copies=2)
            world.nodes.remove(gone)
            await world.settle()

    simulate(workload, seed=4, options=Options(nodes=3, partitions=6, clock_offset_ms=0, absent_after_ms=600_000))


def test_the_last_node_cannot_leave_for_good() -> None:
    """Data must be on some node."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"x"])
        with pytest.raises(Conflict, match="no other node"):
            await retire(world, world.nodes[0])

    simulate(workload, seed=5, options=Options(nodes=1, partitions=2, replicas=1))


def test_a_peer_that_does_not_answer_cannot_leave_for_good() -> None:
    """Its copies cannot be moved from it; the error says what to do."""

    async def workload(world: World) -> None:
        asked, silent = world.nodes[0], world.nodes[1]
        world.isolate(silent)
        assert asked.running is not None and asked.running.service is not None
        with pytest.raises(Unavailable, match="did not receive the order to leave"):
            await asked.running.service.call("leave", {"peer": silent.peer_id, "permanent": True})
        world.network.heal()
        await world.settle()

    simulate(workload, seed=6, options=FOUR)


def test_told_to_stop_it_stops_although_copies_are_still_moving() -> None:
    """SIGTERM always means: drain, leave, end."""

    async def workload(world: World) -> None:
        gone = world.nodes[0]
        async with world.client() as client:
            await everywhere(client)
            for other in world.nodes[1:]:
                other.disk.delay_ms = lambda: 2_000  # nothing can be copied soon
            await retire(world, gone)
            await world.stop_node(gone)
            for other in world.nodes[1:]:
                other.disk.delay_ms = lambda: 1
            await world.bring_back(gone)

    simulate(workload, seed=7, options=FOUR)
