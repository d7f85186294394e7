"""Log collections as the log records them: owed when it has grown, and again when a collector leaves, until done."""

from __future__ import annotations

import pytest
from attrs import evolve
from pyrsistent import pmap

from log_entries import accept_join_cluster, finish_gc, gc, leave_cluster, notify_join_cluster
from log_entries.registry import ENTRIES
from onyxq.core import remembered
from onyxq.core.duties import Snapshot, duties
from onyxq.core.replica import EMPTY, Replica, collector
from onyxq.core.step import REPEAT, owed
from tests.entries.world import World, created, creation, joining

HOURS_MS = 4 * 3_600_000


def growing(records: int = 1_000, size: int = 1 << 30) -> World:
    """Return a world of three peers whose log is collected after a number of records or bytes."""
    world = World()
    world.submit("founder", evolve(creation(), gc_records=records, gc_bytes=size))
    world.join("a", "b", "c")
    return world


def collectors(world: World) -> list[str]:
    """Return the peers that owe a collection's work now."""
    return [peer for peer in "abc" if any(isinstance(duty, Snapshot) for duty in duties(world.now, peer))]


def passed(world: World, ms: int) -> None:
    """Let time pass by the log's clock."""
    world.now_ms += ms
    world.submit("a")


def test_the_rings_first_peer_owes_a_collection_once_the_log_has_so_many_records() -> None:
    """Only this peer owes it, and exactly then."""
    world = growing(records=40)
    while world.now.grown_records < 39:
        world.submit("b")
    assert owed(world.now, "a", ENTRIES) == []
    world.submit("b")
    assert owed(world.now, "a", ENTRIES) == [gc.Args()]
    assert owed(world.now, "b", ENTRIES) == owed(world.now, "c", ENTRIES) == []


def test_records_that_count_for_nothing_fill_the_log_too() -> None:
    """Repeats and invalid bytes count too."""
    world = growing(records=40)
    before = world.now
    world.append(b"junk")
    world.submit("b", number=1)
    assert world.now.grown_records == before.grown_records + 2
    assert world.now.grown_bytes == before.grown_bytes + sum(len(record.data) for record in world.records[-2:])


def test_a_collection_is_owed_after_so_many_bytes() -> None:
    """The limit that is reached first counts."""
    world = growing(size=1 << 20)
    while world.now.grown_bytes < 1 << 20:
        assert owed(world.now, "a", ENTRIES) == []
        world.append(bytes(100_000))
    assert owed(world.now, "a", ENTRIES) == [gc.Args()]


def test_a_large_origin_is_not_written_again_for_a_little_log() -> None:
    """As many new bytes as the last one had are required."""
    world = growing(size=1 << 20)
    position = world.submit("a", gc.Args()).replica.position
    assert world.verdicts("a", finish_gc.Args(position, 7, 3 << 20)) == ["applied"]
    while world.now.grown_bytes < 3 << 20:
        assert owed(world.now, "a", ENTRIES) == []
        world.append(bytes(100_000))
    assert owed(world.now, "a", ENTRIES) == [gc.Args()]


def test_a_collection_starts_the_count_anew_and_is_owed_again_only_when_it_is_over() -> None:
    """This holds for any growth meanwhile."""
    world = growing(records=20)
    world.submit("a", gc.Args())
    assert (world.now.grown_records, world.now.grown_bytes) == (0, 0)
    position = world.now.position
    for _ in range(30):
        world.submit("b")
    assert owed(world.now, "a", ENTRIES) == []
    assert world.verdicts("a", finish_gc.Args(position, 7, 9)) == ["applied"]
    taken = world.now.snapshot
    assert (taken.position, taken.finished, taken.trimmed, taken.origin_bytes) == (position, True, 7, 9)
    assert owed(world.now, "a", ENTRIES) == [gc.Args()]


def test_the_collector_is_the_peer_that_asked() -> None:
    """Only this peer is the collector, until the collection is over."""
    world = growing()
    assert collectors(world) == []
    world.submit("b", gc.Args())
    position = world.now.position
    assert collectors(world) == ["b"]
    assert Snapshot(position) in duties(world.now, "b")
    world.submit("b", finish_gc.Args(position, 0, 1))
    assert collectors(world) == []


def test_when_the_collector_leaves_the_rings_first_peer_owes_the_rest() -> None:
    """If that one leaves, the next one owes it, until it is done."""
    world = growing()
    world.submit("c", gc.Args())
    position = world.now.position
    world.submit("c", leave_cluster.Args("c", ""))
    world.settle("a", "b")
    assert collectors(world) == ["a"]
    world.submit("a", leave_cluster.Args("a", ""))
    world.settle("b")
    assert collectors(world) == ["b"]
    world.submit("b", finish_gc.Args(position, 0, 1))
    assert collectors(world) == []


def test_when_all_left_the_next_peer_finishes_the_collection() -> None:
    """It is the first of a new ring."""
    world = growing()
    world.submit("a", gc.Args())
    for peer in "abc":
        world.submit(peer, leave_cluster.Args(peer, ""))
    assert collector(world.now) == ""
    world.submit("d", joining("d"))
    assert collector(world.now) == "d"


def test_a_second_collection_takes_the_place_of_the_first() -> None:
    """Entries about the first one then change nothing."""
    world = growing()
    world.submit("b", gc.Args())
    first = world.now.position
    world.submit("c", gc.Args())
    second = world.now.position
    assert collectors(world) == ["c"]
    assert world.verdicts("b", finish_gc.Args(first, 0, 1)) == ["another collection"]
    assert world.verdicts("c", finish_gc.Args(second, 0, 1)) == ["applied"]
    assert world.verdicts("c", finish_gc.Args(second, 5, 5)) == ["already finished"]
    assert world.now.snapshot.trimmed == 0


def test_a_cluster_that_would_never_or_always_collect_is_not_created() -> None:
    """Its settings are refused."""
    for bad in ({"gc_records": 0}, {"gc_bytes": 0}, {"gc_records": -1}, {"gc_bytes": 1 << 60}):
        assert World().verdicts("founder", evolve(creation(), **bad)) == ["bad settings"]


# --- what is remembered ------------------------------------------------------------


def test_a_late_repeat_of_a_dead_peers_first_record_makes_no_ghost() -> None:
    """Its outbox number survives the collections soon after it left."""
    world = created("a", "b")
    first = next(record for record, step in zip(world.records, world.steps, strict=True) if step.peer == "b")
    world.submit("b", leave_cluster.Args("b", ""))
    for _ in range(3):
        world.submit("a", gc.Args())
        passed(world, 30_000)
        done = world.append(first.data)
        assert done.problem == REPEAT
        assert sorted(done.replica.peers) == ["a"]


def test_numbers_of_peers_that_left_long_ago_are_forgotten_by_a_further_gc() -> None:
    """Those of known peers stay, however old."""
    world = created("a", "b")
    world.submit("b", leave_cluster.Args("b", ""))
    passed(world, HOURS_MS)
    world.submit("a", gc.Args())
    assert {"a", "b"} <= set(world.now.outbox)
    passed(world, HOURS_MS)
    assert "b" in world.now.outbox
    world.submit("a", gc.Args())
    assert sorted(world.now.outbox) == ["a"]
    assert len(world.now.remembered) == 0


def test_a_peer_that_waits_to_join_keeps_its_number_however_long_it_waits() -> None:
    """Otherwise its next record would be a gap, and it would never join."""
    world = created("a")
    world.submit("s", joining("s"))
    for _ in range(2):
        passed(world, HOURS_MS)
        world.submit("a", gc.Args())
    world.submit("a", notify_join_cluster.Args("s"))
    world.submit("s", accept_join_cluster.Args("s"), number=2)
    assert sorted(world.now.ring.members) == ["a", "s"]


def test_what_is_remembered_goes_with_the_first_gc_behind_its_time() -> None:
    """Until then a repeat gets the first answer."""
    replica: Replica = evolve(EMPTY, clock_ms=1_000)
    replica = remembered.remember(replica, "job", "x", for_ms=500, answer=("done", 7))
    replica = remembered.remember(replica, "transaction", "x", for_ms=900)
    assert remembered.forget_old(evolve(replica, clock_ms=1_499)) == evolve(replica, clock_ms=1_499)
    kept = remembered.recall(replica, "job", "x")
    assert kept is not None and kept.answer == ("done", 7)
    later = remembered.forget_old(evolve(replica, clock_ms=1_500))
    assert remembered.recall(later, "job", "x") is None
    assert remembered.recall(later, "transaction", "x") is not None
    assert remembered.forget_old(evolve(later, clock_ms=1_900)).remembered == pmap()


@pytest.mark.parametrize("count", [0, 1, 50])
def test_start_records_do_not_grow_with_history(count: int) -> None:
    """After many collections a replica is as large as after one: nothing of the peers' past is kept for ever."""
    world = created("a")
    for number in range(count):
        peer = f"p{number}"
        world.submit(peer, joining(peer))
        world.settle("a", peer)
        world.submit(peer, leave_cluster.Args(peer, ""))
        world.settle("a")
    for _ in range(2):
        passed(world, HOURS_MS)
        world.submit("a", gc.Args())
    assert sorted(world.now.outbox) == ["a"]
    assert (len(world.now.remembered), len(world.now.peers)) == (0, 1)
