"""The ring in single cases: each phase of a join, and each departure during one."""

from __future__ import annotations

from log_entries import (
    abort_join_cluster,
    accept_join_cluster,
    drain_node,
    gc,
    leave_cluster,
    notify_join_cluster,
    prepare_join_cluster,
    set_slots,
)
from log_entries.registry import ENTRIES
from onyxq.core import ring
from onyxq.core.replica import Ring, first_peer
from onyxq.core.step import owed
from tests.entries.world import World, created, joining


def leave(peer: str) -> leave_cluster.Args:
    """Return the entry that removes a peer."""
    return leave_cluster.Args(peer, "test")


def queued_world() -> World:
    """A lone member a stitches s; q and r wait in the queue."""
    world = created("a")
    for peer in ("s", "q", "r"):
        world.submit(peer, joining(peer))
    return world


def test_the_first_peer_joins_at_once() -> None:
    """In an empty ring, the joiner is the ring, and its node is present."""
    world = created("a")
    now = world.now
    assert list(now.ring.members) == ["a"] and not now.ring.pairs
    assert now.peers["a"].joined_position == now.position == 1
    assert now.nodes["node-a"].peer == "a"


def test_a_join_goes_through_three_phases() -> None:
    """Prepared, notified, accepted: who watches whom at each step."""
    world = created("a", "b")
    world.submit("s", joining("s"))
    host = ring.stitcher(world.now.ring.prepared, "s")
    other = "b" if host == "a" else "a"
    assert ring.watches(world.now, "s") == (host,)
    assert ring.watches(world.now, host) == tuple(sorted((other, "s")))
    assert owed(world.now, host, ENTRIES) == [notify_join_cluster.Args("s")]
    world.submit(host, notify_join_cluster.Args("s"))
    assert ring.watches(world.now, "s") == (other,)
    assert ring.watches(world.now, host) == tuple(sorted((other, "s")))
    assert owed(world.now, "s", ENTRIES) == [accept_join_cluster.Args("s")]
    world.submit("s", accept_join_cluster.Args("s"))
    assert dict(world.now.ring.pairs) == {host: "s", "s": other, other: host}
    assert world.now.peers["s"].joined_position == world.now.position


def test_the_second_peer_makes_a_ring_of_two() -> None:
    """A lone member stitches the joiner with itself as successor."""
    world = created("a")
    world.submit("b", joining("b"))
    world.submit("a", notify_join_cluster.Args("b"))
    assert ring.watches(world.now, "b") == ("a",)
    world.submit("b", accept_join_cluster.Args("b"))
    assert dict(world.now.ring.pairs) == {"a": "b", "b": "a"}


def test_the_position_picks_the_host_among_free_members() -> None:
    """T = V[position mod |V|] over the sorted free members."""
    world = created("a", "b", "c")
    world.submit("s", joining("s"))
    assert dict(world.now.ring.prepared) == {["a", "b", "c"][world.now.position % 3]: "s"}


def test_joiners_without_a_host_wait_in_order() -> None:
    """One member admits one joiner; the others queue and watch the one before them."""
    world = queued_world()
    assert dict(world.now.ring.prepared) == {"a": "s"} and world.now.ring.queue == ("q", "r")
    assert ring.watches(world.now, "q") == ("a", "s")
    assert ring.watches(world.now, "r") == ("a", "q", "s")


def test_the_entry_that_frees_a_place_prepares_queued_joiners() -> None:
    """Accepting frees two members, so both that waited are prepared in the same entry."""
    world = queued_world()
    world.submit("a", notify_join_cluster.Args("s"))
    world.submit("s", accept_join_cluster.Args("s"))
    assert world.now.ring.queue == () and sorted(world.now.ring.prepared.values()) == ["q", "r"]


def test_a_joiner_whose_host_leaves_is_prepared_anew_in_the_same_entry() -> None:
    """If it was not notified yet, another member admits it."""
    world = created("a", "b", "c")
    world.submit("s", joining("s"))
    host = ring.stitcher(world.now.ring.prepared, "s")
    world.submit("s", leave(host))
    assert ring.stitcher(world.now.ring.prepared, "s") not in ("", host)


def test_a_notified_joiner_whose_host_leaves_starts_over() -> None:
    """If it was notified, it is prepared again, and its late accept changes nothing."""
    world = created("a", "b", "c")
    world.submit("s", joining("s"))
    host = ring.stitcher(world.now.ring.prepared, "s")
    world.submit(host, notify_join_cluster.Args("s"))
    world.submit("s", leave(host))
    assert ring.state_of(world.now.ring, "s") == "prepared"
    assert world.verdicts("s", accept_join_cluster.Args("s")) == ["not accepted"]
    world.settle("a", "b", "c", "s")
    assert "s" in world.now.ring.members


def test_a_joiner_put_back_goes_before_the_queue() -> None:
    """The lone member leaves while it stitches: its joiner is the ring, the queue follows in order."""
    world = queued_world()
    world.submit("s", leave("a"))
    assert list(world.now.ring.members) == ["s"]
    assert dict(world.now.ring.prepared) == {"s": "q"} and world.now.ring.queue == ("r",)
    assert world.now.nodes["node-s"].peer == "s" and not world.now.nodes["node-a"].peer


def test_a_dead_joiner_gives_its_place_to_the_queue() -> None:
    """The host watches the joiner and reports it; the next one is prepared in the same entry."""
    world = queued_world()
    world.submit("a", leave("s"))
    assert dict(world.now.ring.prepared) == {"a": "q"} and world.now.ring.queue == ("r",)
    assert "s" not in world.now.peers and "node-s" not in world.now.nodes


def test_a_queued_joiner_can_leave() -> None:
    """It vanishes; the others keep their order."""
    world = queued_world()
    world.submit("r", leave("q"))
    assert world.now.ring.queue == ("r",) and ring.watches(world.now, "r") == ("a", "s")


def test_a_successor_that_leaves_while_its_watcher_stitches_is_closed_over() -> None:
    """The notified joiner then watches the next successor."""
    world = created("a", "b", "c")
    world.submit("s", joining("s"))
    host = ring.stitcher(world.now.ring.prepared, "s")
    world.submit(host, notify_join_cluster.Args("s"))
    successor = world.now.ring.pairs[host]
    world.submit("s", leave(successor))
    assert ring.watches(world.now, "s") == (world.now.ring.pairs[host],) != (successor,)


def test_a_member_that_leaves_is_closed_over_and_its_node_is_absent() -> None:
    """The watcher watches the successor; absence is stamped with log time."""
    world = created("a", "b", "c")
    watcher, successor = ring.stitcher(world.now.ring.pairs, "b"), world.now.ring.pairs["b"]
    assert world.verdicts(watcher, leave("b")) == ["applied"]
    assert world.now.ring.pairs[watcher] == successor
    assert world.now.nodes["node-b"].absent_since_ms == world.now.log_time_ms
    assert "b" not in world.now.peers


def test_two_members_minus_one_is_a_lone_member() -> None:
    """No pairs remain."""
    world = created("a", "b")
    world.submit("a", leave("b"))
    assert not world.now.ring.pairs and list(world.now.ring.members) == ["a"]


def test_the_last_member_leaves_an_empty_ring() -> None:
    """And the next joiner joins at once."""
    world = created("a")
    world.submit("a", leave("a"))
    assert world.now.ring == Ring() and not world.now.peers
    world.submit("b", joining("b"))
    assert list(world.now.ring.members) == ["b"]


def test_a_second_peer_of_a_node_makes_the_first_leave() -> None:
    """This is one entry, and the node is never marked absent."""
    world = created("a", "b", "c")
    world.submit("b2", joining("b2", "node-b", previous="b"))
    assert "b" not in world.now.peers and ring.state_of(world.now.ring, "b2") == "prepared"
    assert world.now.nodes["node-b"].absent_since_ms == world.now.log_time_ms
    world.settle("a", "c", "b2")
    assert world.now.nodes["node-b"].peer == "b2" and world.now.nodes["node-b"].absent_since_ms == -1


def test_a_second_peer_of_the_only_node_is_the_ring_at_once() -> None:
    """The lone member's successor on the same node joins in its own first entry."""
    world = created("a")
    world.submit("a2", joining("a2", "node-a", previous="a"))
    assert list(world.now.ring.members) == ["a2"] and world.now.nodes["node-a"].peer == "a2"


def test_a_second_peer_of_a_node_replaces_a_joiner() -> None:
    """This includes a stitching or queued one."""
    world = queued_world()
    world.submit("s2", joining("s2", "node-s", previous="s"))
    world.submit("r2", joining("r2", "node-r", previous="r"))
    assert dict(world.now.ring.prepared) == {"a": "q"} and world.now.ring.queue == ("s2", "r2")


def test_repeats_change_nothing_and_say_why() -> None:
    """Each entry of a join or leave is repeated once."""
    world = created("a", "b")
    before = world.now.ring
    assert world.verdicts("b", joining("b")) == ["already joined"]
    assert world.verdicts("a", notify_join_cluster.Args("b")) == ["not prepared"]
    assert world.verdicts("b", accept_join_cluster.Args("b")) == ["not accepted"]
    assert world.verdicts("b", abort_join_cluster.Args("b")) == ["already joined"]
    assert world.verdicts("x", abort_join_cluster.Args("x")) == ["not in the ring"]
    assert world.verdicts("b", leave("x")) == ["not in the ring"]
    world.submit("s", joining("s"))
    assert world.verdicts("s", joining("s")) == ["already joining"]
    world.submit("s", leave("s"))
    assert world.now.ring == before


def test_a_peer_cannot_ask_for_another() -> None:
    """prepare_join_cluster holds only for the record's writer."""
    world = created("a")
    assert world.verdicts("a", joining("x")) == ["not its own join"]


def test_a_peer_cannot_abort_the_join_of_another() -> None:
    """abort_join_cluster holds only for the record's writer; the join continues."""
    world = queued_world()
    before = world.now.ring
    assert world.verdicts("a", abort_join_cluster.Args("s")) == ["not its own join"]
    assert world.now.ring == before


def test_a_second_directory_of_one_node_is_refused() -> None:
    """Two copies of a data directory know the same latest peer; only the first one joins."""
    world = created("a", "b")
    world.submit("a", leave("b"))
    assert ring.latest_peer(world.now, "node-b") == "b"
    assert world.verdicts("b2", joining("b2", "node-b", previous="b")) == ["applied"]
    assert world.verdicts("b3", joining("b3", "node-b", previous="b")) == [prepare_join_cluster.OVERTAKEN]
    world.settle("a", "b2")
    assert world.verdicts("b3", joining("b3", "node-b", previous="b")) == [prepare_join_cluster.OVERTAKEN]
    world.submit("a", leave("b2"))
    assert world.verdicts("b3", joining("b3", "node-b", previous="b")) == [prepare_join_cluster.OVERTAKEN]
    assert world.verdicts("b3", joining("b3", "node-b", previous="b2")) == ["applied"]


def test_a_join_that_never_completed_leaves_the_node_as_it_was() -> None:
    """The node's latest peer is the latest member, so its directory can join again."""
    world = created("a", "b")
    world.submit("a", leave("b"))
    world.submit("b2", joining("b2", "node-b", previous="b"))
    world.submit("b2", abort_join_cluster.Args("b2"))
    assert ring.latest_peer(world.now, "node-b") == "b"
    assert world.verdicts("b3", joining("b3", "node-b", previous="b")) == ["applied"]


def test_an_aborted_join_frees_its_place() -> None:
    """The joiner is forgotten, the next one is prepared."""
    world = queued_world()
    assert world.verdicts("s", abort_join_cluster.Args("s")) == ["applied"]
    assert dict(world.now.ring.prepared) == {"a": "q"} and "s" not in world.now.peers


def test_the_first_peer_is_the_one_that_joined_first() -> None:
    """The oldest member owes the entries without another owner."""
    world = created("z", "a")
    assert first_peer(world.now) == "z"
    world.submit("a", leave("z"))
    assert first_peer(world.now) == "a"


def test_slots_can_be_changed() -> None:
    """Within their range, for a known peer."""
    world = created("a")
    changes = [("a", 9), ("a", 9), ("a", -1), ("x", 1)]
    verdicts = [world.verdicts("a", set_slots.Args(peer, slots))[0] for peer, slots in changes]
    assert verdicts == ["applied", "unchanged", "bad slots", "not in the ring"]
    assert world.now.peers["a"].slots == 9


def test_draining_ends_when_a_new_peer_of_the_node_joins() -> None:
    """It marks the node; the next peer of the node starts fresh."""
    world = created("a", "b")
    assert world.verdicts("b", drain_node.Args("node-b", True)) == ["applied"]
    drained = world.now.nodes["node-b"]
    assert drained.draining and drained.replaced
    assert world.verdicts("b", drain_node.Args("node-b", False)) == ["already draining"]
    assert world.verdicts("b", drain_node.Args("node-x", False)) == ["unknown node"]
    world.submit("b2", joining("b2", "node-b", previous="b"))
    world.settle("a", "b2")
    back = world.now.nodes["node-b"]
    assert not back.draining and not back.replaced


def test_one_clock_off_the_others_is_told() -> None:
    """The skew is relative to the median of the members' clocks, and negative for a slow clock."""
    world = created("a", "b", "c")
    world.submit("c", gc.Args(), clock_ahead_ms=-20_000)
    errors = {peer: ring.clock_error_ms(world.now, peer) for peer in "abc"}
    assert errors["a"] == errors["b"] == 0 and -21_000 < errors["c"] < -19_000
    assert ring.clock_error_ms(world.now, "c", among=["b", "c"]) == 0
    assert [ring.clock_is_shared(world.now, peer) for peer in "abc"] == [True, True, False]


def test_of_two_clocks_that_disagree_none_is_called_wrong() -> None:
    """With two members it is unknown which one is wrong, so neither shows the ring's time."""
    world = created("a", "b")
    world.submit("b", gc.Args(), clock_ahead_ms=20_000)
    assert {ring.clock_error_ms(world.now, peer) for peer in "ab"} == {0}
    assert not any(ring.clock_is_shared(world.now, peer) for peer in "ab")
