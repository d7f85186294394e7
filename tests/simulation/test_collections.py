"""Log collections under load: collectors that die at every step, slow readers, new nodes."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import trio

from onyxq.core.log.interface import SEQUENCE_BITS
from onyxq.core.log.record import decode_record
from onyxq.core.replica import first_peer
from simulation.world.load import under_load
from simulation.world.log import MemorySession
from simulation.world.world import Options, SimulatedNode, World, simulate

OFTEN = Options(gc_records=30, partitions=2)
"""Options with many collections in a run of minutes."""
STEPS = ("chunk", "pointer", "stored", "trim", "trimmed")


def _serves(node: SimulatedNode) -> bool:
    return bool(node.peer_id)


def owner(world: World, session: MemorySession) -> SimulatedNode | None:
    """Return the machine whose present process has the session."""
    return next((node for node in world.nodes if node.log.session_now is session and node.running is not None), None)


def collected(world: World) -> int:
    """Return how often the origin was replaced."""
    return world.backend.stored.version + 1 if world.backend.stored is not None else 0


async def collections(world: World, count: int, *, within_s: float = 240.0) -> None:
    """Wait for a number of further collections."""
    aim = collected(world) + count
    await world.until(lambda: collected(world) >= aim, f"{count} collections", within_s=within_s)


@pytest.mark.long
def test_a_working_cluster_collects_by_itself() -> None:
    """The log has little more than the records since the last collection."""

    async def workload(world: World) -> None:
        async def wait(world: World) -> None:
            await collections(world, 6)

        await under_load(world, wait)
        await world.until(lambda: world.audit.replica.snapshot.finished, "the last collection ends")

    world = simulate(workload, seed=3, options=OFTEN)
    assert world.audit.replica.snapshot.trimmed > 0
    assert len(world.backend.records) < 5 * OFTEN.gc_records
    assert len(world.audit.records) > 5 * OFTEN.gc_records


@pytest.mark.long
def test_whoever_comes_next_finishes_what_a_dead_collector_began() -> None:
    """A collector is killed at each step in turn, at its second passing, and returns."""
    passed: Counter[str] = Counter()
    killed: list[str] = []

    async def workload(world: World) -> None:
        async def kill(session: MemorySession, name: str) -> None:
            node = owner(world, session)
            if len(killed) == len(STEPS) or name != STEPS[len(killed)] or node is None:
                return
            passed[name] += 1
            if passed[name] == 2:
                killed.append(name)
                world.nursery.start_soon(world.restart_node, node)
                await trio.sleep_forever()

        async def wait(world: World) -> None:
            world.backend.trim_batch_records = 10
            world.backend.on_collecting = kill
            await world.until(lambda: len(killed) == len(STEPS), "collectors are killed", within_s=600)
            await collections(world, 2)

        await under_load(world, wait)
        await world.until(lambda: world.audit.replica.snapshot.finished, "the last collection ends")

    world = simulate(workload, seed=11, options=OFTEN)
    assert tuple(killed) == STEPS
    assert len(world.backend.records) < 6 * OFTEN.gc_records


@pytest.mark.long
def test_two_collectors_at_once_leave_one_origin() -> None:
    """One pauses before the pointer until it counts as dead and another one has collected twice."""
    stalled = trio.Event()
    results: list[int] = []

    async def workload(world: World) -> None:
        go_on = trio.Event()

        async def stall(session: MemorySession, name: str) -> None:
            node = owner(world, session)
            if name == "pointer" and not stalled.is_set() and node is not None:
                stalled.set()
                await go_on.wait()
                assert world.backend.stored is not None
                results.append(world.backend.stored.version)

        async def wait(world: World) -> None:
            world.backend.on_collecting = stall
            await stalled.wait()
            with trio.move_on_after(20):
                await trio.sleep_forever()
            # A client requests a collection while the first one pauses.
            other = next(node for node in world.nodes if node.peer_id not in ("", world.audit.replica.snapshot.peer))
            assert other.running is not None and other.running.service is not None
            report = await other.running.service.call("gc", {})
            assert report["position"] > 0
            go_on.set()
            await collections(world, 1)

        await under_load(world, wait)

    simulate(workload, seed=5, options=OFTEN)


def test_a_node_that_slept_through_many_collections_comes_back_right() -> None:
    """Its process and replica were frozen: it continues from the origin, as a new peer."""

    async def workload(world: World) -> None:
        async def sleep(world: World) -> None:
            node = world.nodes[2]
            await world.until(lambda: bool(node.peer_id), "the node is in the ring")
            world.disconnect_log(node)
            replica = node.replica
            assert replica is not None
            await collections(world, 5)
            assert world.backend.stored is not None and world.backend.stored.trimmed > replica.position
            world.reconnect_log(node)
            await world.settle()

        await under_load(world, sleep)

    simulate(workload, seed=8, options=OFTEN)


@pytest.mark.long
def test_a_slow_reader_in_the_ring_is_never_overtaken_by_a_trim() -> None:
    """Its store has what it has read, and later records are kept: its history is complete."""

    async def workload(world: World) -> None:
        first = first_peer(world.audit.replica)  # it starts the collections
        slow = next(node for node in world.nodes if node.peer_id != first)
        behind: list[int] = []

        async def look(session: MemorySession, name: str) -> None:
            origin, running = world.backend.stored, slow.running
            if name == "trimmed" and origin is not None and slow.peer_id and running is not None and running.node:
                behind.append(origin.position - running.node.history.stored)
                assert origin.trimmed <= running.node.history.stored

        async def lag(world: World) -> None:
            world.backend.on_collecting = look
            for _ in range(2):
                session = slow.log.session_now
                assert session is not None
                session.paused = True
                await trio.sleep(15)  # longer than a collector waits for it
                session.paused = False
                world.backend.notify()
                await trio.sleep(3)

        await under_load(world, lag)
        assert any(lag > 0 for lag in behind), "the reader never was behind an origin"

    simulate(workload, seed=2, options=OFTEN)


@pytest.mark.long
def test_a_newcomer_reads_what_came_since_the_origin_however_long_the_history() -> None:
    """It is counted in records, after two collections and after nine."""
    reads: list[int] = []

    async def workload(world: World) -> None:
        async def join(world: World) -> None:
            for count in (2, 7):
                await collections(world, count)
                node = world.add_node()
                world.start_node(node)
                await world.until(partial(_serves, node), "the newcomer is in the ring")
                assert node.log.session_now is not None and world.backend.stored is not None
                reads.append(node.log.session_now.reads)

        await under_load(world, join)

    world = simulate(workload, seed=2, options=OFTEN)
    assert len(world.audit.records) > 8 * OFTEN.gc_records
    assert all(count < 4 * OFTEN.gc_records for count in reads), reads


@pytest.mark.long
def test_a_cluster_goes_through_segments_under_load() -> None:
    """Positions jump at each segment; claims, fencing and history continue."""

    async def workload(world: World) -> None:
        world.backend.segment_records = 70

        async def wait(world: World) -> None:
            await world.until(lambda: len(world.backend.ends) >= 3, "three segments are closed", within_s=600)
            await world.restart_node(world.nodes[0])
            await world.settle()

        await under_load(world, wait)

    world = simulate(workload, seed=4, options=OFTEN)
    assert world.audit.replica.position >> SEQUENCE_BITS >= 3


def test_a_dead_peers_first_record_that_lands_late_makes_no_ghost() -> None:
    """After two collections without it, the record is a repeat, and no peer waits for its join."""

    async def workload(world: World) -> None:
        node = world.nodes[2]
        peer = node.peer_id
        contents = [(record, decode_record(record.data)) for record in world.audit.records]
        first = next(record for record, content in contents if content is not None and content.peer == peer)
        await world.crash_node(node)
        await world.until(lambda: peer not in world.audit.replica.ring.members, "the dead peer is out of the ring")
        service = world.nodes[0].running
        assert service is not None and service.service is not None
        for _ in range(2):
            await service.service.call("gc", {})
        world.backend.inject(first.data)
        await trio.sleep(5)
        ring = world.audit.replica.ring
        assert sorted(ring.members) == sorted(other.peer_id for other in world.nodes[:2])
        assert not (ring.queue or ring.prepared or ring.accepted)

    simulate(workload, seed=6, options=OFTEN)


def test_a_collector_whose_own_store_cannot_write_keeps_the_log_for_it() -> None:
    """Its snapshot is used, and the next collection trims the rest."""

    async def workload(world: World) -> None:
        node = world.nodes[0]
        running = node.running
        assert running is not None and running.node is not None and running.service is not None
        async with world.client() as client:
            await client.enqueue("q", [b"x"] * 20)
            node.disk.failing = True
            await client.claim("q", maximum=20, lease_ms=60_000)
        report = await running.service.call("gc", {})
        stored = running.node.history.stored
        assert stored < report["position"]
        assert world.backend.stored is not None and world.backend.stored.trimmed <= stored
        node.disk.failing = False
        await world.settle()
        report = await running.service.call("gc", {})
        assert world.backend.stored.trimmed == report["position"]

    simulate(workload, seed=9, options=Options(partitions=2))


def test_the_log_is_kept_for_a_live_node_that_does_not_answer_the_collector() -> None:
    """Its store's position is unknown, and it lags: records that it has not read are not trimmed."""

    async def workload(world: World) -> None:
        asked, away = world.nodes[0], world.nodes[2]
        assert asked.running is not None and asked.running.service is not None
        assert away.running is not None and away.running.node is not None and away.log.session_now is not None
        away.log.session_now.paused = True
        world.isolate(away)
        stored = away.running.node.history.stored
        async with world.client(nodes=[asked]) as client:
            await client.enqueue("q", [b"x"] * 20)
            await client.claim("q", maximum=20, lease_ms=60_000, wait_ms=5_000)
        report = await asked.running.service.call("gc", {})
        assert away.peer_id in world.audit.replica.ring.members and report["position"] > stored
        assert world.backend.stored is not None and world.backend.stored.trimmed <= stored
        away.log.session_now.paused = False
        world.backend.notify()
        world.network.heal()
        await world.settle()

    simulate(workload, seed=9, options=Options(partitions=2))
