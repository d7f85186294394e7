"""Entries about partitions (ready, settle, yield, replace) and the duties that follow."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from log_entries import ready_partition, replace_node, settle_partition, yield_partition
from onyxq.core.duties import Lead, Snapshot, Watch, duties
from onyxq.core.entry import APPLIED
from onyxq.core.placement import holders, reconcile
from onyxq.core.replica import Partition, Replica, first_peer
from onyxq.core.replica import Snapshot as Gc
from tests.entries.cohorts import cluster, copies, join, leaders, leave, mark, ready, settle, submit, targets


def fresh(*nodes: str, partitions: int = 1) -> Replica:
    """Return a cluster whose leaders have just changed: nothing is ready."""
    replica = cluster(*nodes, partitions=partitions)
    return evolve(
        replica,
        partitions=replica.partitions.transform([lambda _: True], lambda found: evolve(found, ready=False)),
    )


def the(replica: Replica) -> Partition:
    """Return the only partition."""
    return replica.partitions[0]


def moving() -> Replica:
    """Return a partition with members a, b, c that is leaving c, ready to settle."""
    before = cluster("a", "b", "c", partitions=1)
    after = mark(join(before, "d"), "c", replaced=True)
    assert the(after).target == ("a", "b", "d")
    return ready(after, 0)


# --- what all three have in common ------------------------------------------


@pytest.mark.parametrize("entry", [ready_partition, settle_partition, yield_partition])
def test_only_the_leader_of_the_epoch_is_heard(entry: Any) -> None:
    """Other epochs, other peers and unknown partitions change nothing."""
    replica = fresh("a", "b", "c")
    epoch, leader = the(replica).epoch, the(replica).leader
    other = next(peer for peer in replica.ring.members if peer != leader)
    for wrong in (epoch - 1, epoch + 1):
        assert submit(replica, entry.Args(0, wrong), leader)[1] == "stale epoch"
    assert submit(replica, entry.Args(0, epoch), other)[1] == "not the leader"
    for nowhere in (-1, 1, 1 << 40):
        assert submit(replica, entry.Args(nowhere, epoch), leader)[1] == "no such partition"


# --- ready ------------------------------------------------------------------


def test_ready_makes_the_partition_serve_and_forgets_yields() -> None:
    """The epoch stays."""
    replica = fresh("a", "b", "c")
    replica, _ = submit(replica, yield_partition.Args(0, the(replica).epoch), the(replica).leader)
    after, verdict = submit(replica, ready_partition.Args(0, the(replica).epoch), the(replica).leader)
    assert verdict == APPLIED
    assert the(after) == evolve(the(replica), ready=True, yields=0)


def test_ready_twice_changes_nothing() -> None:
    """The verdict of the second one says so."""
    replica = cluster("a", partitions=1)
    assert submit(replica, ready_partition.Args(0, the(replica).epoch), the(replica).leader)[1] == "already ready"


# --- settle -----------------------------------------------------------------


def test_settling_makes_the_target_the_members() -> None:
    """A leader that stays continues in the same epoch."""
    replica = moving()
    after, verdict = submit(replica, settle_partition.Args(0, the(replica).epoch), the(replica).leader)
    assert verdict == APPLIED
    assert the(after) == evolve(the(replica), members=("a", "b", "d"))


def test_settling_needs_a_ready_leader() -> None:
    """Before it is ready, it is unknown whether its facts are complete."""
    replica = moving()
    replica = evolve(replica, partitions=replica.partitions.set(0, evolve(the(replica), ready=False)))
    assert submit(replica, settle_partition.Args(0, the(replica).epoch), the(replica).leader)[1] == "not ready"


def test_settling_twice_changes_nothing() -> None:
    """The verdict of the second one says so."""
    replica = cluster("a", partitions=1)
    verdict = submit(replica, settle_partition.Args(0, the(replica).epoch), the(replica).leader)[1]
    assert verdict == "already settled"


def test_a_leader_outside_the_target_is_followed_by_one_inside() -> None:
    """This happens when the target changes: the nodes that stay are in both cohorts."""
    replica = cluster("a", partitions=1)
    replica = mark(join(replica, "b"), "a", replaced=True)
    assert the(replica).members == ("a",) and the(replica).target == ("b",)
    assert the(replica).leader == replica.nodes["b"].peer
    after = settle(replica)
    assert the(after).members == ("b",) and the(after).leader == replica.nodes["b"].peer


# --- yield ------------------------------------------------------------------


def yielded(replica: Replica) -> Replica:
    """Let the leader yield."""
    after, verdict = submit(replica, yield_partition.Args(0, the(replica).epoch), the(replica).leader)
    assert verdict == APPLIED
    assert the(after).epoch == the(replica).epoch + 1
    assert the(after).yields == the(replica).yields + 1
    assert not the(after).ready
    return after


def test_yielding_goes_round_all_candidates() -> None:
    """Three yields, three leaders, and the first one again."""
    replica = fresh("a", "b", "c")
    seen = [the(replica).leader]
    for _ in range(3):
        replica = yielded(replica)
        seen.append(the(replica).leader)
    assert sorted(seen[:3]) == sorted(replica.ring.members)
    assert seen[3] == seen[0]


def test_a_single_candidate_tries_again_at_a_higher_epoch() -> None:
    """There is no other node that could lead."""
    replica = fresh("a")
    assert the(yielded(replica)).leader == the(replica).leader


def test_yielding_passes_over_nodes_that_are_away_or_leaving() -> None:
    """Neither an absent nor a draining node becomes leader while another can."""
    replica = mark(leave(fresh("a", "b", "c", "d", "e"), "a"), "b")
    for _ in range(5):
        replica = yielded(replica)
        assert replica.peers[the(replica).leader].node not in ("a", "b")


def test_a_partition_is_not_wedged_by_the_only_node_in_both_cohorts() -> None:
    """If it cannot become ready, the other members and the rest of the target lead in turn."""
    replica = cluster("a", partitions=1)
    replica = join(replica, "b", "c")
    assert the(replica).members == ("a",) and the(replica).target == ("a", "b", "c")
    seen = set()
    for _ in range(3):
        seen.add(replica.peers[the(replica).leader].node)
        replica = yielded(replica)
    assert seen == {"a", "b", "c"}


def test_membership_changes_do_not_interrupt_a_round_of_yields() -> None:
    """A node that yielded is not made leader by the next placement."""
    replica = yielded(fresh("a", "b", "c"))
    after = join(replica, "d")
    assert the(after).leader == the(replica).leader


def test_balance_does_not_give_back_what_was_yielded() -> None:
    """All partitions of an unreachable node get other leaders and keep them, even if that is uneven."""
    replica = fresh("a", "b", "c", partitions=9)
    cut_off = replica.nodes["a"].peer
    for number in sorted(replica.partitions):
        while (found := replica.partitions[number]).leader == cut_off or not found.yields:
            replica, _ = submit(replica, yield_partition.Args(number, found.epoch), found.leader)
    assert leaders(replica)["a"] == 0
    assert reconcile(replica) is replica


# --- replace ----------------------------------------------------------------


def later(replica: Replica, rise_ms: int) -> Replica:
    """Let log time pass."""
    return evolve(replica, log_time_ms=replica.log_time_ms + rise_ms)


def test_the_first_peer_owes_replacing_a_node_that_is_absent_for_long() -> None:
    """It owes this after the setting has passed in log time, and only this peer does."""
    replica = leave(cluster("a", "b", "c", "d", partitions=8), "d")
    limit_ms = replica.settings.absent_after_ms
    first = first_peer(replica)
    assert first == replica.nodes["a"].peer
    assert not replace_node.owed(later(replica, limit_ms), first)
    late = later(replica, limit_ms + 1)
    assert replace_node.owed(late, first) == [replace_node.Args("d")]
    assert not any(replace_node.owed(late, peer) for peer in late.ring.members if peer != first)


def test_what_is_owed_is_done_once() -> None:
    """The entry ends the obligation."""
    replica = later(leave(cluster("a", "b", "c", "d", partitions=8), "d"), 100_000)
    (args,) = replace_node.owed(replica, first_peer(replica))
    after, verdict = submit(replica, args, first_peer(replica))
    assert verdict == APPLIED and copies(after)["d"] == 0
    assert not replace_node.owed(after, first_peer(after))
    assert submit(after, args, first_peer(after))[1] == "already replaced"


def test_a_node_is_left_alone_if_nobody_could_take_over() -> None:
    """With three copies on three nodes and one node away, dropping it would gain nothing."""
    replica = later(leave(cluster("a", "b", "c", partitions=8), "c"), 100_000)
    assert not replace_node.owed(replica, first_peer(replica))
    replica = join(replica, "d")
    assert replace_node.owed(replica, first_peer(replica)) == [replace_node.Args("c")]


def test_a_node_without_copies_is_left_alone() -> None:
    """There is nothing to replace."""
    replica = cluster(*"abcdef", partitions=1)
    idle = next(node for node, count in copies(replica).items() if not count)
    replica = later(leave(replica, idle), 100_000)
    assert not replace_node.owed(replica, first_peer(replica))


def test_only_an_absent_node_can_be_replaced() -> None:
    """A present node is drained instead; an unknown node is named in the verdict."""
    replica = cluster("a", "b", partitions=8)
    assert submit(replica, replace_node.Args("a"), "")[1] == "the node is present"
    assert submit(replica, replace_node.Args("x"), "")[1] == "no such node"


def test_a_node_that_comes_back_in_time_keeps_everything() -> None:
    """There is no obligation, and no copy moved."""
    before = cluster("a", "b", "c", "d", partitions=8)
    after = join(later(leave(before, "d"), 60_000), "d")
    assert targets(after) == targets(before)
    assert not replace_node.owed(later(after, 100_000), first_peer(after))


# --- duties -----------------------------------------------------------------


def test_leading_is_a_duty_ready_or_not() -> None:
    """There is one for each partition and epoch, of the leader only."""
    replica = fresh("a", "b", "c", partitions=6)
    replica = ready(replica, 0)
    for me in replica.ring.members:
        led = {Lead(number, found.epoch) for number, found in replica.partitions.items() if found.leader == me}
        assert {duty for duty in duties(replica, me) if isinstance(duty, Lead)} == led != set()


def test_a_new_epoch_is_a_new_duty() -> None:
    """The old task is cancelled and another one started."""
    replica = fresh("a")
    after = yielded(replica)
    me = the(after).leader
    assert duties(replica, me) - duties(after, me) == {Lead(0, the(replica).epoch)}
    assert duties(after, me) - duties(replica, me) == {Lead(0, the(after).epoch)}


def test_watching_is_a_duty() -> None:
    """The watched peer is that of the ring."""
    replica = cluster("a", "b", partitions=1)
    a, b = replica.nodes["a"].peer, replica.nodes["b"].peer
    replica = evolve(replica, ring=evolve(replica.ring, pairs=replica.ring.pairs.set(a, b).set(b, a)))
    assert Watch(b) in duties(replica, a) and Watch(a) in duties(replica, b)


def test_the_snapshot_is_the_duty_of_the_peer_that_is_named() -> None:
    """Only that peer has it, and only while a collection is running."""
    replica = cluster("a", "b", partitions=1)
    me, other = replica.nodes["a"].peer, replica.nodes["b"].peer
    assert not any(isinstance(duty, Snapshot) for duty in duties(replica, me))
    replica = evolve(replica, snapshot=Gc(position=3, peer=me, finished=False))
    assert Snapshot(3) in duties(replica, me)
    assert Snapshot(3) not in duties(replica, other)


def test_a_stranger_has_no_duties() -> None:
    """No peer has duties before the cluster exists."""
    assert duties(cluster("a", partitions=1), "x") == frozenset() == duties(Replica(), "")


def test_holders_are_members_and_target() -> None:
    """Sorted, each once."""
    assert holders(Partition(members=("b", "c"), target=("a", "c"))) == ("a", "b", "c")
