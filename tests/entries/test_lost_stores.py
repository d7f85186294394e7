"""A node that returns with another store: its copies do not count until they are made again."""

from __future__ import annotations

from log_entries import force_partition, leave_cluster, ready_partition, replace_node, settle_partition
from onyxq.core.entry import APPLIED
from onyxq.core.placement import LOST, holders
from onyxq.core.replica import majority
from tests.entries.world import World, created, joining


def three() -> World:
    """Return a cluster of three nodes, whose partitions are settled and ready."""
    world = created("a", "b", "c")
    serve(world)
    return world


def serve(world: World) -> None:
    """Let every leader make its partitions ready and settled."""
    world.settle(*sorted(world.now.peers))
    for number, placed in sorted(world.now.partitions.items()):
        if placed.members != placed.target:
            world.submit(placed.leader, ready_partition.Args(number, placed.epoch))
            world.submit(placed.leader, settle_partition.Args(number, world.now.partitions[number].epoch))


def lose(world: World, peer: str, node: str, *, store: str) -> None:
    """Have a node's next peer join with another store."""
    previous = world.now.nodes[node].latest_peer
    world.submit(peer, joining(peer, node, previous=previous, store=store))
    world.settle(*sorted(world.now.peers))


def test_a_lost_copy_counts_for_the_size_of_a_majority_and_never_for_one() -> None:
    """The node itself is filled again: it stays in the target."""
    world = three()
    before = world.now.partitions
    lose(world, "a2", "node-a", store="s2")
    for number, found in world.now.partitions.items():
        assert f"node-a{LOST}" in found.members and "node-a" not in found.members
        assert "node-a" in found.target and len(found.members) == 3
        assert found.epoch > before[number].epoch and not found.ready
        assert holders(found) == ("node-a", "node-b", "node-c")
        assert not majority(found.members, {"node-a", "node-b"})
        assert majority(found.members, {"node-b", "node-c"})
        assert world.now.nodes["node-b"].peer == found.leader or world.now.nodes["node-c"].peer == found.leader


def test_the_same_store_changes_no_member() -> None:
    """A restart loses nothing."""
    world = three()
    lose(world, "a2", "node-a", store="")
    assert all(found.members == ("node-a", "node-b", "node-c") for found in world.now.partitions.values())


def test_once_settled_the_node_is_a_member_again() -> None:
    """It keeps its name."""
    world = three()
    lose(world, "a2", "node-a", store="s2")
    serve(world)
    assert all(found.members == ("node-a", "node-b", "node-c") for found in world.now.partitions.values())


def test_a_store_that_is_lost_during_the_refill_makes_the_settling_stale() -> None:
    """The comparison of the earlier epoch is no longer valid."""
    world = three()
    lose(world, "a2", "node-a", store="s2")
    stale = {number: (found.leader, found.epoch) for number, found in world.now.partitions.items()}
    lose(world, "a3", "node-a", store="s3")
    for number, (leader, epoch) in stale.items():
        assert world.verdicts(leader, settle_partition.Args(number, epoch)) == ["stale epoch"]
        assert world.now.partitions[number].members[0] == f"node-a{LOST}"


def test_two_lost_copies_of_three_leave_no_majority_until_an_operator_accepts_the_loss() -> None:
    """The third copy may lack rows that the two had."""
    world = three()
    lose(world, "a2", "node-a", store="s2")
    lose(world, "b2", "node-b", store="s2")
    found = world.now.partitions[0]
    assert found.members == (f"node-a{LOST}", f"node-b{LOST}", "node-c")
    assert not majority(found.members, set(holders(found)))
    assert world.verdicts("c", force_partition.Args(0, "ops")) == [APPLIED]
    found = world.now.partitions[0]
    assert found.members == ("node-c",) and found.target == ("node-a", "node-b", "node-c")


def test_an_emptied_node_that_is_replaced_leaves_its_lost_copy_in_the_majority() -> None:
    """This lasts until another node has the copy."""
    world = created("a", "b", "c", "d", partitions=2)
    serve(world)
    number = next(number for number, found in world.now.partitions.items() if "node-a" in found.members)
    lose(world, "a2", "node-a", store="s2")
    world.submit("b", leave_cluster.Args("a2", "its pulse is gone"))
    assert world.verdicts("b", replace_node.Args("node-a")) == [APPLIED]
    found = world.now.partitions[number]
    assert f"node-a{LOST}" in found.members and "node-a" not in found.target


def test_a_node_cannot_be_named_like_a_lost_copy() -> None:
    """Otherwise it would count as that copy."""
    world = three()
    assert world.verdicts("d", joining("d", f"node-a{LOST}s1")) == ["bad name"]
