"""`step`: which records count, how log time moves, and the outcome of entries that do not fit."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from attrs import astuple, evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from pyrsistent import pmap

from log_entries import gc, leave_cluster, prepare_join_cluster, set_slots
from log_entries.registry import ENTRIES, VERSIONS
from onyxq.core import step as stepping
from onyxq.core.entry import RECORD_BYTES_MAX
from onyxq.core.invariants.replica import violations
from onyxq.core.limits import ENTRY_BYTES_MAX
from onyxq.core.log.clock import Measured
from onyxq.core.log.digest import chained, with_step
from onyxq.core.log.interface import Record, segment_start
from onyxq.core.log.record import RawEntry, decode_record, encode_entry, encode_record
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import step
from onyxq.errors import OlderThanCluster, TooLarge
from tests.entries.world import CLUSTER_ID, START_MS, World, created, creation, joining


def raw_record(*entries: Any, peer: str = "a", number: int = 0, world: World) -> bytes:
    """Return a record whose entries are any msgpack values."""
    number = number or world.now.outbox.get(peer, 0) + 1
    data: bytes = msgpack.packb([CLUSTER_ID, peer, number, START_MS, Measured(), list(entries)])
    return data


def slots(world: World) -> int:
    """Return the value that tests change to see whether an entry was applied."""
    return world.now.peers["a"].slots


# --- records -------------------------------------------------------------------


def test_a_record_appended_twice_counts_once() -> None:
    """The repeat changes neither the replica nor the outbox number."""
    world = created("a")
    world.submit("a", set_slots.Args("a", 7))
    data = world.records[-1].data
    world.submit("a", set_slots.Args("a", 8))
    repeat = world.append(data)
    assert repeat.problem == stepping.REPEAT and not repeat.outcomes
    assert slots(world) == 8 and world.now.outbox["a"] == 3


def test_a_record_behind_a_gap_does_not_count() -> None:
    """Later records do not count either, until the missing one is written."""
    world = created("a")
    assert world.submit("a", set_slots.Args("a", 8), number=3).problem == stepping.GAP
    assert slots(world) == 4
    assert world.submit("a", set_slots.Args("a", 7), number=2).problem == ""
    assert world.submit("a", set_slots.Args("a", 8), number=3).problem == ""
    assert slots(world) == 8


def test_another_clusters_record_does_not_count() -> None:
    """This holds for any contents."""
    world = created("a")
    assert world.submit("a", set_slots.Args("a", 8), cluster_id="other").problem == stepping.OTHER_CLUSTER
    assert slots(world) == 4 and world.now.outbox["a"] == 1


def test_nothing_counts_before_the_cluster_is_created() -> None:
    """A creation under another id than its record's does not count either."""
    world = World()
    assert world.submit("a", joining("a")).problem == stepping.NO_CLUSTER
    assert world.submit("a", creation(), cluster_id="other").problem == stepping.NO_CLUSTER
    assert world.now.cluster is None and not world.now.outbox


def test_the_first_creation_wins() -> None:
    """A second one changes nothing, under any id; one record may create and join."""
    world = World()
    assert world.verdicts("a", creation(), joining("a")) == ["applied", "applied"]
    assert world.verdicts("b", creation(partitions=9)) == ["already created"]
    assert world.submit("c", evolve(creation(), id="c2"), cluster_id="c2").problem == stepping.OTHER_CLUSTER
    assert world.now.settings.partitions == len(world.now.partitions) == 4


@pytest.mark.parametrize(
    "change",
    [{"partitions": 0}, {"partitions": 1 << 40}, {"replicas": 0}, {"yield_after_ms": -1}, {"name": ""}],
)
def test_a_cluster_with_impossible_settings_is_not_created(change: dict[str, Any]) -> None:
    """The verdict says so and the log stays without a cluster."""
    world = World()
    args = evolve(creation(), **change)
    assert world.verdicts("a", args)[0].startswith("bad ")
    assert world.now.cluster is None


GARBAGE = [
    b"",
    b"\xc1",
    b"hello",
    b"\x95" * 2000,
    msgpack.packb([]),
    msgpack.packb({"a": 1}),
    msgpack.packb([CLUSTER_ID, "a", 2, 0]),
    msgpack.packb([CLUSTER_ID, "a", "2", 0, []]),
    msgpack.packb([CLUSTER_ID, "a", True, 0, []]),
    msgpack.packb([CLUSTER_ID, "a", 0, 0, []]),
    msgpack.packb([CLUSTER_ID, "a", 2, -1, []]),
    msgpack.packb([CLUSTER_ID, "a", 2, 0, [["gc"]]]),
    msgpack.packb([CLUSTER_ID, "a", 2, 0, [["gc", 0, []]]]),
    msgpack.packb([CLUSTER_ID, b"a", 2, 0, []]),
    b"\x81\x90\x01",
]


@pytest.mark.parametrize("data", GARBAGE)
def test_bytes_that_are_no_record_only_advance_the_position(data: bytes) -> None:
    """This is so on every peer."""
    world = created("a")
    before = world.now
    done = world.append(data)
    assert done.problem == stepping.NOT_A_RECORD
    assert done.replica.position == before.position + 1
    grown = {"grown_records": before.grown_records + 1, "grown_bytes": before.grown_bytes + len(data)}
    digest = chained(before.digest, *astuple(world.records[-1]))
    trail = with_step(before.trail, before.position + 1, digest)
    read = {"position": before.position + 1, "digest": digest, "trail": trail}
    assert done.replica == evolve(before, **read, **grown)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=80))
def test_no_bytes_make_step_raise(data: bytes) -> None:
    """Random bytes are tried at both stages of a log."""
    for replica in (EMPTY, SMALL.now):
        step(replica, Record(replica.position + 1, START_MS, data), ENTRIES)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=4)
    | st.binary(max_size=20) | st.sampled_from(["a", "node-a", 0, 1]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(ENTRIES)), args=st.lists(plain, max_size=8), peer=st.sampled_from(["a", "x"]))
def test_no_arguments_make_an_entry_raise(name: str, args: list[Any], peer: str) -> None:
    """Any msgpack values instead of arguments give a verdict, and no invariant breaks."""
    data = raw_record([name, 1, args], peer=peer, world=SMALL)
    done = step(SMALL.now, Record(SMALL.now.position + 1, START_MS, data), ENTRIES)
    assert len(done.outcomes) == 1 and done.outcomes[0].verdict
    assert violations(done.replica) == []


# --- entries -------------------------------------------------------------------


def test_an_entry_that_is_not_enabled_is_a_no_op() -> None:
    """This holds for known and unknown entries, and for versions above the enabled one."""
    world = World()
    world.submit("a", creation(enabled=VERSIONS.remove("gc").set("later", 1)), joining("a"))
    entries = (["gc", 1, []], ["nothing", 1, []], ["set_slots", 2, ["a", 7]], ["later", 2, []])
    done = world.append(raw_record(*entries, world=world))
    assert [outcome.verdict for outcome in done.outcomes] == [stepping.NOT_ENABLED] * 4


def test_an_enabled_entry_that_is_not_known_stops_the_peer() -> None:
    """This program is older than the cluster; the same for an enabled higher version."""
    world = World()
    world.submit("a", creation(enabled=VERSIONS.set("later", 1).set("gc", 2)), joining("a"))
    for name, version in (("later", 1), ("gc", 2)):
        with pytest.raises(OlderThanCluster, match=name):
            world.append(raw_record([name, version, []], world=world))


def test_malformed_arguments_are_a_no_op_and_spare_the_others() -> None:
    """The verdict says what is wrong; the entries around it are applied."""
    world = created("a")
    entries = (["set_slots", 1, ["a", 7]], ["set_slots", 1, ["a", "8"]], ["set_slots", 1, []])
    done = world.append(raw_record(*entries, world=world))
    assert [outcome.verdict.partition(":")[0] for outcome in done.outcomes] == ["applied", "malformed", "malformed"]
    assert slots(world) == 7


def test_outcomes_name_entry_arguments_and_version() -> None:
    """The log display and waiting callers need this."""
    world = created("a")
    done = world.submit("a", set_slots.Args("a", 7), gc.Args())
    assert [(o.index, o.name, o.args, o.version) for o in done.outcomes] == [
        (0, "set_slots", set_slots.Args("a", 7), 1),
        (1, "gc", gc.Args(), 1),
    ]
    assert (done.peer, done.number) == ("a", 2)


def test_a_peer_outside_the_ring_can_only_ask_to_join() -> None:
    """Its other entries change nothing."""
    world = created("a")
    assert world.verdicts("x", set_slots.Args("a", 7), gc.Args(), joining("x")) == [
        stepping.NOT_IN_RING,
        stepping.NOT_IN_RING,
        "applied",
    ]


def test_a_joining_peer_can_join_leave_and_set_slots_only() -> None:
    """It is known but not a member yet."""
    world = created("a")
    world.submit("x", joining("x"))
    assert world.verdicts("x", set_slots.Args("x", 7), gc.Args()) == ["applied", stepping.NOT_IN_RING]
    assert world.verdicts("x", leave_cluster.Args("x", "")) == ["applied"]


def test_a_peer_that_left_is_outside_from_the_next_entry_on() -> None:
    """This holds within one record."""
    world = created("a", "b")
    assert world.verdicts("b", leave_cluster.Args("b", ""), gc.Args()) == ["applied", stepping.NOT_IN_RING]


# --- positions ------------------------------------------------------------------


def test_positions_go_on_in_the_next_segment() -> None:
    """Position = segment * 2^31 + sequence."""
    world = created("a")
    data = raw_record(["gc", 1, []], world=world)
    assert step(
        world.now, Record(segment_start(1), START_MS, data), ENTRIES
    ).replica.snapshot.position == segment_start(1)


# --- bytes ---------------------------------------------------------------------


def test_a_record_comes_back_from_its_bytes() -> None:
    """This holds for any number of entries."""
    for count in (0, 1, 15, 16, 70_000):
        measured = Measured(7, 8, 9)
        data = encode_record("c", "p", 5, 6, [encode_entry(gc.Args(), ENTRIES)] * count, measured=measured)
        content = decode_record(data)
        assert content == ("c", "p", 5, 6, measured, (RawEntry("gc", 1, []),) * count)


def test_a_record_without_a_sound_measure_is_no_record() -> None:
    """Foreign bytes do not move log time."""
    for measured in ([], [1, 2], [1, 2, 3, 4], [1, -1, 0], [1, 0, -1], [-2, 0, 0], [1.5, 0, 0], None, 7):
        assert decode_record(msgpack.packb(["c", "p", 5, 6, measured, []])) is None


def test_an_entry_over_its_limit_is_refused_where_it_is_made() -> None:
    """So is a record."""
    with pytest.raises(TooLarge):
        encode_entry(leave_cluster.Args("a", "x" * ENTRY_BYTES_MAX), ENTRIES)
    with pytest.raises(TooLarge):
        encode_record("c", "p", 1, 0, [encode_entry(leave_cluster.Args("a", "x" * 200_000), ENTRIES)] * 3)
    assert 2 * ENTRY_BYTES_MAX <= RECORD_BYTES_MAX


def test_every_entry_is_registered_under_its_modules_name() -> None:
    """With a documented module and argument types that can be read from the log."""
    for name, entry in ENTRIES.items():
        assert entry.args.__module__ == f"log_entries.{name}" and entry.version >= 1
        assert len(entry.doc.strip()) > 80


def test_stepping_the_same_log_again_gives_equal_replicas() -> None:
    """One world is replayed from its records."""
    replica: Replica = EMPTY
    for record, known in zip(SMALL.records, SMALL.replicas[1:], strict=True):
        replica = step(replica, record, ENTRIES).replica
        assert replica == known


SMALL = created("a", "b")
SMALL.submit("s", prepare_join_cluster.Args("s", "node-s", "", "", "z2", 0, ("big",), pmap(), "", ""))
SMALL.submit("q", joining("q"))
