"""A log is recovered only if it is lost, and the recovered cluster has everything acknowledged."""

from __future__ import annotations

import functools
import random
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from log_entries import gc
from onyxq.core import snapshot
from onyxq.core.log.interface import Record, Trimmed, segment_of
from onyxq.core.log.record import encode_entry, encode_record
from onyxq.core.replica import EMPTY
from onyxq.errors import Conflict, LogUnavailable, OlderThanCluster, Unknown
from onyxq.history.recovery.findings import Newest
from onyxq.history.recovery.new_log import (
    EMPTY_LOG,
    FORKED,
    INTACT,
    LATER,
    OLDER,
    OTHER_CLUSTER,
    UNREADABLE,
    begin_anew,
    check_nobody_runs,
    present_log,
)
from simulation.scenes.recovery import RECOVERY_SCENES
from simulation.world.clock import SimulatedClock, mock_clock
from simulation.world.log import MemoryBackend, MemorySession
from simulation.world.world import simulate
from tests.entries.test_recovery import Later, found, three
from tests.entries.versions import NEW, Brand
from tests.entries.world import CLUSTER_ID, START_MS, World, created, creation


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on a clock that jumps."""

    @functools.wraps(test)
    def wrapper(**arguments: object) -> None:
        trio.run(functools.partial(test, **arguments), clock=mock_clock())

    return wrapper


def backend_with(world: World, upto: int) -> MemoryBackend:
    """Return a log with the first records of a world."""
    backend = MemoryBackend(clock=SimulatedClock(), segment_records=1)
    for record in world.records[:upto]:
        backend.records[record.position] = record
        backend.landed_s[record.position] = 0.0
    backend.following = upto
    return backend


def newest(world: World, upto: int) -> Newest:
    """Return what a node knows that has read a number of records."""
    one = found(world, "node-p1", upto)
    return Newest(one, world.replicas[upto], {}, world.replicas[upto].position, {}, 0)


@pytest.mark.parametrize(
    ("records", "read", "state"), [(0, 5, EMPTY_LOG), (3, 5, OLDER), (5, 5, INTACT), (7, 5, INTACT)]
)
@in_trio
async def test_a_log_is_compared_with_what_nodes_have_read(records: int, read: int, state: str) -> None:
    """It may be empty, end too early, or continue what they have read."""
    world = three()
    session = await backend_with(world, records).session()
    assert (await present_log(session, newest(world, read))).state == state


@in_trio
async def test_a_log_that_went_another_way_is_told_from_one_that_continues() -> None:
    """It belongs to the same cluster, and is longer than what was read."""
    world, other = three(), created("p1", "p2")
    other.join("p9")
    session = await backend_with(other, len(other.records)).session()
    assert (await present_log(session, newest(world, len(other.records) - 1))).state == FORKED


@in_trio
async def test_a_log_whose_snapshot_is_beyond_what_was_read_is_called_later() -> None:
    """Nothing shows that it is another log; the log of another cluster is recognised."""
    world = three()
    world.submit("p1", gc.Args())
    last = len(world.records)
    session = await backend_with(world, last).session()
    assert await session.store_origin(world.now.position, snapshot.pack(world.now), expected_version=-1)
    assert (await present_log(session, newest(world, 5))).state == LATER
    assert (await present_log(session, newest(world, last))).state == INTACT
    stranger = World()
    stranger.records.append(Record(0, 0, b""))
    assert (await present_log(await backend_with(stranger, 1).session(), newest(world, 5))).state == EMPTY_LOG


@in_trio
async def test_the_log_of_another_cluster_is_called_so() -> None:
    """It is a cluster that was created under the same name meanwhile."""
    world = three()
    other = World()
    data = world.records[0].data.replace(b"c1", b"c2")
    other.append(data)
    assert other.now.cluster is not None and other.now.cluster.id == "c2"
    session = await backend_with(other, 1).session()
    assert (await present_log(session, newest(world, 5))).state == OTHER_CLUSTER


@pytest.mark.parametrize("fault", [MemoryBackend.disconnect, MemoryBackend.expire])
@in_trio
async def test_a_log_that_cannot_be_reached_is_not_taken_for_a_lost_one(
    fault: Callable[[MemoryBackend, MemorySession], None],
) -> None:
    """It may be intact, so the recovery ends before it could replace the log."""
    world = three()
    backend = backend_with(world, 7)
    session = await backend.session()
    fault(backend, session)
    with pytest.raises(LogUnavailable):
        await present_log(session, newest(world, 5))


@in_trio
async def test_a_log_from_a_newer_version_is_not_taken_for_a_lost_one() -> None:
    """It may be intact, although this program cannot read it."""
    backend = backend_with(three(), 0)
    for number, entry in enumerate((creation(enabled=NEW.versions), Brand("new")), start=1):
        backend.land(encode_record(CLUSTER_ID, "a", number, START_MS, [encode_entry(entry, NEW)]))
    with pytest.raises(OlderThanCluster, match="entry brand"):
        await present_log(await backend.session(), newest(three(), 5))


class Waiting(MemorySession):
    """A session whose reader waits for a missing record, as ZooKeeper's does at the end of the log."""

    async def read(self, position: int) -> Record | Trimmed:
        """Return the record, or wait for ever."""
        if position not in self.backend.records:
            await trio.sleep_forever()
        return await super().read(position)


@in_trio
async def test_a_damaged_log_is_called_unreadable() -> None:
    """Such a log is replaced."""
    world = three()
    backend = backend_with(world, 7)
    del backend.records[3]
    assert (await present_log(await backend.session(), newest(world, 5))).state == UNREADABLE


@in_trio
async def test_a_log_without_its_last_record_is_called_unreadable() -> None:
    """No later record shows that it is missing, so ZooKeeper lets readers wait; a log that is slow is not replaced."""
    world = three()
    backend = backend_with(world, 7)
    session = await backend.session()
    session.paused = True
    with pytest.raises(LogUnavailable, match="within 60 s"):
        await present_log(session, newest(world, 5))
    session.paused = False
    waiting = Waiting(backend)
    del backend.records[6]
    found = await present_log(waiting, newest(world, 5))
    assert (found.state, found.position) == (UNREADABLE, 5) and "record 6 is missing" in found.about


@in_trio
async def test_nothing_is_begun_while_a_peer_has_a_session() -> None:
    """The peer is named; once its session has ended, the recovery can begin."""
    backend = backend_with(three(), 3)
    peer, tool = await backend.session(), await backend.session()
    await peer.set_pulse("p1", b"10.0.0.1:7400")
    with pytest.raises(Conflict, match=r"p1 at 10\.0\.0\.1:7400"):
        await check_nobody_runs(tool)
    await peer.aclose()
    await check_nobody_runs(tool)


@in_trio
async def test_a_reader_of_the_old_log_goes_on_from_the_new_snapshot() -> None:
    """This includes a reader that had read more than any asked node; its records with old numbers are void."""
    world = three()
    backend = backend_with(world, 6)
    made = await begin_anew(backend, newest(world, 4), replace=True, now_ms=lambda: 0)
    assert segment_of(made.position) == 2
    session = await backend.session()
    trimmed = await session.read(6)
    origin = await session.origin()
    assert origin is not None and getattr(trimmed, "origin", None) == origin.position == made.position
    assert snapshot.unpack(origin.data) == made
    late = World(replicas=[made], records=Later(made.position + 1))
    done = late.submit("p1", gc.Args(), number=world.now.outbox["p1"] + 1)
    assert done.problem == "gap" and done.replica.peers == made.peers == EMPTY.peers


@in_trio
async def test_a_recovery_that_was_interrupted_is_repeated() -> None:
    """Records without a snapshot belong to no log."""
    world = three()
    backend = backend_with(world, 3)

    async def die(_: object, step: str) -> None:
        if step == "pointer":
            raise Unknown("killed")

    backend.on_collecting = die
    with pytest.raises(Unknown):
        await begin_anew(backend, newest(world, 6), replace=True, now_ms=lambda: 0)
    backend.on_collecting = None
    assert (await present_log(await backend.session(), newest(world, 6))).state == EMPTY_LOG
    made = await begin_anew(backend, newest(world, 6), replace=True, now_ms=lambda: 0)
    assert segment_of(made.position) == 2


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_cluster_that_is_recovered_has_all_that_was_acknowledged(seed: int) -> None:
    """Acknowledged completions do not run again, however the old log ended."""
    scene = RECOVERY_SCENES["recovery"]
    simulate(scene.script, seed=seed, options=scene.options(random.Random(seed)))
