"""Placement: balance, zones, stickiness, draining and replacing, as targets and leaders show them."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from pyrsistent import pmap

from log_entries import replace_node
from onyxq.core.placement import eligible_nodes, reconcile, weight
from onyxq.core.replica import EMPTY, Replica
from tests.entries.cohorts import (
    arrive,
    cluster,
    copies,
    join,
    leaders,
    leave,
    mark,
    moves,
    settle,
    submit,
    targets,
)


def names(count: int, *, zones: int = 1) -> list[str]:
    """Return node names, spread over the zones."""
    return [f"n{number:02}@z{number % zones}" for number in range(count)]


def spread(counts: dict[str, int]) -> int:
    """Most minus least."""
    return max(counts.values()) - min(counts.values())


def replace(replica: Replica, node: str) -> Replica:
    """Replace the absent node, as an operator does."""
    after, verdict = submit(replica, replace_node.Args(node), "")
    assert verdict == "applied"
    return after


# --- balance ----------------------------------------------------------------


@pytest.mark.parametrize("partitions", [64, 512])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 7, 12, 30])
def test_copies_and_leaders_are_even(nodes: int, partitions: int) -> None:
    """With all nodes present from the start, counts differ by at most one."""
    replica = reconcile(arrive(cluster(partitions=partitions), *names(nodes)))
    assert sum(copies(replica).values()) == partitions * min(nodes, 3)
    assert spread(copies(replica)) <= 1
    assert spread(leaders(replica)) <= 1


@pytest.mark.long
def test_copies_stay_even_as_nodes_come_one_by_one() -> None:
    """From 1 to 30 nodes, every new node gets its fair share, and about that much moves."""
    first, *others = names(30)
    replica = cluster(first)
    for name in others:
        grown = join(replica, name)
        assert spread(copies(grown)) <= 1
        assert moves(replica, grown) <= max(copies(grown).values()) + 2
        replica = settle(grown)
        assert spread(leaders(replica)) <= 2


def test_growing_from_one_to_three_nodes_grows_the_cohorts() -> None:
    """With fewer nodes than copies, every node has everything, and the first one stays a member."""
    replica = cluster("a", partitions=8)
    assert set(targets(replica).values()) == {("a",)}
    replica = join(replica, "b")
    assert set(targets(replica).values()) == {("a", "b")}
    assert all(found.members == ("a",) for found in replica.partitions.values())
    replica = join(settle(replica), "c")
    assert set(targets(settle(replica)).values()) == {("a", "b", "c")}
    assert spread(leaders(settle(replica))) <= 1


def test_members_of_a_new_partition_are_its_target_at_once() -> None:
    """A partition without rows needs no copying."""
    replica = reconcile(arrive(cluster(partitions=8), *names(5)))
    assert all(found.members == found.target for found in replica.partitions.values())


def test_nothing_is_placed_before_the_cluster_exists() -> None:
    """No settings, no partitions."""
    assert reconcile(EMPTY) is EMPTY


# --- zones ------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 4, 4), (1, 2, 5), (10, 10, 10)])
def test_with_three_zones_no_zone_holds_a_majority(sizes: tuple[int, ...]) -> None:
    """This holds for zones of different sizes; within a zone copies are even."""
    nodes = [f"{zone}{number}@{zone}" for zone, size in zip("xyz", sizes, strict=True) for number in range(size)]
    replica = settle(reconcile(arrive(cluster(), *nodes)))
    for cohort in targets(replica).values():
        assert {node[0] for node in cohort} == set("xyz")
    for zone in "xyz":
        assert spread({node: count for node, count in copies(replica).items() if node[0] == zone}) <= 1


def test_with_five_copies_no_zone_holds_three() -> None:
    """The most a zone may hold follows from the number of copies."""
    replica = reconcile(arrive(cluster(replicas=5), *names(12, zones=3)))
    for cohort in targets(replica).values():
        assert max(sum(int(node[1:]) % 3 == zone for node in cohort) for zone in range(3)) <= 2


def test_with_two_zones_both_hold_copies() -> None:
    """A majority in one zone is unavoidable; all copies in one zone are not."""
    replica = reconcile(arrive(cluster(), *names(8, zones=2)))
    assert all(len({int(node[1:]) % 2 for node in cohort}) == 2 for cohort in targets(replica).values())
    assert spread(copies(replica)) <= 1


def test_a_third_zone_takes_over_what_a_majority_zone_holds() -> None:
    """Once there is a third zone, copies move there."""
    replica = join(cluster("a1@a", "a2@a", "b1@b"), "c1@c")
    assert all({node[0] for node in cohort} == set("abc") for cohort in targets(replica).values())


# --- staying put ------------------------------------------------------------


def test_a_node_that_leaves_changes_leaders_only() -> None:
    """It stays in its cohorts; its partitions get other leaders at the next epoch, and are not ready."""
    before = cluster(*names(5))
    after = leave(before, "n00")
    assert targets(after) == targets(before)
    for number, found in after.partitions.items():
        old = before.partitions[number]
        led = old.leader == before.nodes["n00"].peer
        assert (found.epoch, found.ready) == ((old.epoch + 1, False) if led else (old.epoch, True))
        assert (found.leader != old.leader) == led
    assert spread(leaders(after)) <= 2


@pytest.mark.parametrize("zones", [1, 3])
def test_a_restart_of_the_whole_cluster_moves_nothing(zones: int) -> None:
    """All nodes leave and return one by one in another order."""
    nodes = [name[:3] for name in names(7)]
    before = cluster(*names(7, zones=zones))
    after = leave(before, *nodes)
    assert all(not found.leader for found in after.partitions.values())
    for node in reversed(nodes):
        after = join(after, node)
        assert targets(after) == targets(before)
    after = settle(after)
    assert all(found.members == before.partitions[number].members for number, found in after.partitions.items())
    assert spread(leaders(after)) <= 2


def test_a_peer_that_restarts_leads_as_a_new_peer() -> None:
    """A lone node's new peer takes over its own partitions, at a higher epoch."""
    before = cluster("a", partitions=4)
    after = join(leave(before, "a"), "a")
    for number, found in after.partitions.items():
        assert found.leader == after.nodes["a"].peer != before.nodes["a"].peer
        assert found.epoch > before.partitions[number].epoch and not found.ready


def test_a_new_node_takes_its_share_and_little_else_moves() -> None:
    """From 512 partitions on 10 nodes, an eleventh gets an eleventh."""
    before = reconcile(arrive(cluster(partitions=512), *names(10)))
    after = join(before, "n10@z0")
    assert copies(after)["n10"] == moves(before, after) == 512 * 3 // 11
    assert spread(copies(after)) <= 1


def test_an_absent_node_gets_nothing_new() -> None:
    """A partition short of copies waits for nodes that are there."""
    replica = leave(cluster("a", "b", partitions=4), "b")
    assert set(targets(join(replica, "c")).values()) == {("a", "b", "c")}


# --- replacing and draining ---------------------------------------------------


def test_a_replaced_node_leaves_all_targets_and_stays_a_member() -> None:
    """Its copies are made elsewhere, evenly; it answers takeovers until partitions settle."""
    before = leave(cluster(*names(6)), "n00")
    after = replace(before, "n00")
    assert copies(after)["n00"] == 0
    assert moves(before, after) == copies(before)["n00"]
    assert all(found.members == before.partitions[number].members for number, found in after.partitions.items())
    others = {node: count for node, count in copies(after).items() if node != "n00"}
    assert spread(others) <= 1
    assert all("n00" not in found.members for found in settle(after).partitions.values())


def test_a_replaced_node_that_comes_back_gets_a_share_again() -> None:
    """It gets the copies that it still has, if possible."""
    before = cluster(*names(6))
    gone = replace(leave(before, "n00"), "n00")
    back = join(gone, "n00")
    assert spread(copies(back)) <= 1
    mine = [number for number, found in back.partitions.items() if "n00" in found.target]
    assert all("n00" in before.partitions[number].members for number in mine)


def test_a_lost_copy_is_made_where_one_still_is() -> None:
    """A node that holds a copy until the partition settles keeps it, although another node weighs more."""
    assert weight(0, "q") > weight(0, "a")
    replica = reconcile(arrive(cluster("a", "b", "c", partitions=1), "n", "q"))
    moving = evolve(replica.partitions[0], target=("b", "c", "n"))
    replica = leave(evolve(replica, partitions=replica.partitions.set(0, moving)), "c")
    assert replica.partitions[0].members == ("a", "b", "c")
    assert targets(replace(replica, "c"))[0] == ("a", "b", "n")


def test_a_draining_node_leads_nothing_and_keeps_its_copies() -> None:
    """Two of three nodes are left, so nothing has to move."""
    before = cluster(*names(3))
    after = mark(before, "n00")
    assert targets(after) == targets(before)
    assert leaders(after) == {"n00": 0, "n01": 32, "n02": 32}


def test_a_cohort_of_two_lets_its_draining_node_go() -> None:
    """Without it there would be no majority, so the partitions first settle on the other node."""
    before = cluster("a", "b", partitions=8)
    after = mark(before, "a")
    assert set(targets(after).values()) == {("b",)}
    assert all(found.members == ("a", "b") for found in after.partitions.values())
    after = leave(settle(after), "a")
    assert all(found.members == ("b",) and found.ready for found in after.partitions.values())
    assert set(targets(join(after, "a")).values()) == {("a", "b")}


def test_draining_beside_an_absent_node_settles_on_those_that_stay() -> None:
    """One of three is absent, one drains: neither may prevent the third from having a majority."""
    replica = mark(leave(cluster("a", "b", "c", partitions=8), "c"), "a")
    assert set(targets(replica).values()) == {("b",)}
    assert set(targets(join(replica, "d")).values()) == {("b", "d")}


def test_draining_beside_an_absent_node_uses_others_that_are_there() -> None:
    """With a fourth node, every cohort has two nodes that stay."""
    replica = mark(leave(cluster(*names(4)), "n03"), "n00")
    for cohort in targets(replica).values():
        assert len([node for node in cohort if node in ("n01", "n02")]) == 2


def test_draining_beside_an_absent_node_fills_up_at_once() -> None:
    """If the absent node is replaced too, both copies are made elsewhere in the same entry."""
    replica = mark(leave(cluster(*names(4), replicas=2), "n00"), "n01")
    assert all(len(cohort) == 2 for cohort in targets(replica).values())
    stranded = [number for number, found in replica.partitions.items() if found.members == ("n00", "n01")]
    assert stranded and all(targets(replica)[number] == ("n02", "n03") for number in stranded)


def test_when_everything_drains_nothing_moves() -> None:
    """A cluster that is stopped as a whole keeps its cohorts."""
    before = cluster("a", "b", "c", partitions=8)
    after = mark(mark(mark(before, "a"), "b"), "c")
    assert targets(after) == targets(before)


def test_a_lone_draining_node_keeps_serving() -> None:
    """There is no other node."""
    before = cluster("a", partitions=4)
    assert targets(mark(before, "a")) == targets(before)
    assert leaders(mark(before, "a")) == {"a": 4}


def test_draining_for_good_moves_all_copies() -> None:
    """This is done as if it had been replaced already, while it can still help."""
    before = cluster(*names(5))
    after = mark(before, "n00", replaced=True)
    assert copies(after)["n00"] == 0 and leaders(after)["n00"] == 0
    assert moves(before, after) == copies(before)["n00"]
    assert all("n00" not in found.members for found in settle(after).partitions.values())


def test_the_last_node_cannot_be_drained_of_its_copies() -> None:
    """Even if it drains for good, data must be on some node."""
    before = cluster("a", partitions=4)
    assert targets(mark(before, "a", replaced=True)) == targets(before)


# --- any history --------------------------------------------------------------

Action = tuple[str, int]
actions = st.tuples(
    st.sampled_from(["join", "join", "leave", "drain", "remove", "replace", "settle"]), st.integers(0, 8)
)


def act(replica: Replica, action: str, which: int, zones: int) -> Replica:
    """Do one possible event in a cluster's life."""
    name = f"n{which}"
    node = replica.nodes.get(name)
    present = node is not None and bool(node.peer)
    if action == "settle":
        replica = settle(replica)
    elif action == "join" and not present:
        replica = join(replica, f"{name}@z{which % zones}")
    elif action == "leave" and present:
        replica = leave(replica, name)
    elif action in ("drain", "remove") and present:
        replica = mark(replica, name, replaced=action == "remove")
    elif action == "replace" and node is not None and not present and not node.replaced:
        replica = replace(replica, name)
    return replica


@settings(max_examples=150)
@given(st.lists(actions, max_size=25), st.integers(1, 4), st.integers(1, 5))
def test_reconciling_is_idempotent_in_any_history(script: list[Action], zones: int, replicas: int) -> None:
    """A second run changes nothing; epochs rise exactly where leader or target changed."""
    replica = cluster(partitions=12, replicas=replicas)
    for action, which in script:
        after = act(replica, action, which, zones)
        assert reconcile(after) is after
        for number, found in after.partitions.items():
            old = replica.partitions[number]
            assert found.epoch >= old.epoch
            if (found.leader, found.target) != (old.leader, old.target):
                assert found.epoch > old.epoch
        leaving = any(node.peer and node.draining for node in after.nodes.values())
        if action == "settle" or (action == "leave" and not leaving):
            assert targets(after) == targets(replica)
        replica = after


@settings(max_examples=60)
@given(st.lists(actions, max_size=25), st.integers(1, 3))
def test_any_history_ends_balanced_once_nodes_stay(script: list[Action], zones: int) -> None:
    """When every node has returned, copies are complete, zones are respected and leaders are even."""
    replica = cluster(partitions=12)
    for action, which in script:
        replica = act(replica, action, which, zones)
    for which in range(6):
        if (node := replica.nodes.get(f"n{which}")) and node.peer:
            replica = leave(replica, node.id)
        replica = join(replica, f"n{which}@z{which % zones}")
    for which in range(6, 9):
        replica = act(act(replica, "leave", which, zones), "replace", which, zones)
    replica = settle(replica)
    assert eligible_nodes(replica) == tuple(f"n{which}" for which in range(6))
    for cohort in targets(replica).values():
        assert len(cohort) == 3
        assert zones < 3 or len({int(node[1:]) % zones for node in cohort}) == 3
    held = {node: count for node, count in copies(replica).items() if count}
    assert spread(held) <= 1
    assert spread(leaders(replica)) <= 2


def test_placement_does_not_depend_on_the_order_of_maps_or_the_process() -> None:
    """Another hash seed or order of insertion gives the same cohorts and leaders."""
    program = (
        "import sys; from tests.entries.cohorts import *; "
        "r = cluster(*sys.argv[1:], partitions=32); print(sorted(targets(r).items()))"
    )
    nodes = names(7, zones=3)
    shown = {
        subprocess.run(
            [sys.executable, "-c", program, *nodes],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(shown) == 1
    one = cluster(*nodes)
    scrambled = evolve(one, nodes=pmap({node: one.nodes[node] for node in sorted(one.nodes, reverse=True)}, 1024))
    assert join(scrambled, "n07@z1").partitions == join(one, "n07@z1").partitions


def test_reconciling_is_fast() -> None:
    """Processor time stays below ten times the intended 3 ms and 100 ms."""
    for nodes, partitions, limit_s in ((3, 64, 0.03), (30, 512, 1.0)):
        replica = arrive(cluster(partitions=partitions), *names(nodes))
        start = time.process_time()
        reconcile(reconcile(replica))
        assert time.process_time() - start < limit_s
