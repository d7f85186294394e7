"""Placement at scale: 3 to 30 nodes come and go with 512 partitions, always balanced and with few moves."""

from __future__ import annotations

import random

import pytest
from attrs import evolve
from pyrsistent import pmap

from log_entries import force_partition
from onyxq.core.placement import reconcile
from onyxq.core.replica import Partition, Replica
from tests.entries.cohorts import arrive, cluster, copies, join, leaders, leave, mark, moves, settle, submit, targets

PARTITIONS = 512
OFF_MAX = 0.10
"""How far a node may differ from the mean."""


def settled_at_once(replica: Replica) -> Replica:
    """Settle all partitions: every copy is complete and every leader is ready."""
    arrived = {number: evolve(found, members=found.target, ready=True) for number, found in replica.partitions.items()}
    replica = reconcile(evolve(replica, partitions=pmap(arrived)))
    ready = {number: evolve(found, ready=True) for number, found in replica.partitions.items()}
    return evolve(replica, partitions=pmap(ready))


def off(counts: dict[str, int]) -> float:
    """Return the largest difference from the mean, as a fraction of it."""
    mean = sum(counts.values()) / len(counts)
    return max(max(counts.values()) - mean, mean - min(counts.values())) / mean


def present(counts: dict[str, int], replica: Replica) -> dict[str, int]:
    """Return the counts of present nodes only."""
    return {node: count for node, count in counts.items() if replica.nodes[node].peer}


def leader_moves(before: Replica, after: Replica) -> int:
    """Return the partitions whose leader changed."""
    return sum(found.leader != before.partitions[number].leader for number, found in after.partitions.items())


def balanced(replica: Replica, zones: int) -> bool:
    """Check that copies are within 10 % of the mean (of the zone's mean if zones differ), and leaders too."""
    held = present(copies(replica), replica)
    groups = [held]
    if zones > 1:
        groups = [{n: c for n, c in held.items() if replica.nodes[n].zone == f"z{zone}"} for zone in range(zones)]
    return all(off(group) <= OFF_MAX for group in groups) and off(leaders(replica)) <= OFF_MAX


@pytest.mark.long
@pytest.mark.parametrize("zones", [1, 3])
def test_growing_from_3_to_30_nodes_keeps_the_balance_with_few_moves(zones: int) -> None:
    """A new node gets its share: about 1/n of the copies move, only to it, and about as many leaders."""
    replica = reconcile(arrive(cluster(partitions=PARTITIONS), *(f"n{at:02}@z{at % zones}" for at in range(3))))
    for count in range(4, 31):
        grown = join(replica, f"n{count - 1:02}@z{(count - 1) % zones}")
        assert moves(replica, grown) == copies(grown)[f"n{count - 1:02}"] <= 3 * PARTITIONS / count + 1
        grown = settled_at_once(grown)
        assert balanced(grown, zones)
        assert leader_moves(replica, grown) <= 2.5 * PARTITIONS / count
        if zones == 3:
            assert all(len({replica.nodes[n].zone for n in cohort}) == 3 for cohort in targets(replica).values())
        replica = grown


@pytest.mark.long
@pytest.mark.parametrize("zones", [3])
def test_shrinking_from_30_to_4_nodes_moves_what_the_leaving_nodes_held(zones: int) -> None:
    """This holds in any order; else only a few copies move, which zones of different sizes require."""
    names = [f"n{at:02}@z{at % zones}" for at in range(30)]
    replica = settled_at_once(reconcile(arrive(cluster(partitions=PARTITIONS), *names)))
    draw = random.Random(zones)
    order = sorted(sorted(replica.nodes), key=lambda node: (int(node[1:]) // 3, draw.random()), reverse=True)
    for gone in order[:26]:
        held = copies(replica)[gone]
        moved = mark(replica, gone, replaced=True)
        assert moves(replica, moved) <= held * 1.1 + 2
        moved = leave(settled_at_once(moved), gone)
        assert balanced(moved, zones)
        replica = moved


def test_leaders_that_stay_stay() -> None:
    """With one node of ten less, its partitions get other leaders, and hardly anything else changes."""
    replica = settled_at_once(reconcile(arrive(cluster(partitions=PARTITIONS), *(f"n{at}" for at in range(10)))))
    led = leaders(replica)["n3"]
    after = settled_at_once(mark(replica, "n3", replaced=True))
    assert led <= leader_moves(replica, after) <= 1.5 * led


# --- partitions whose majority is lost ------------------------------------------


def of(replica: Replica, number: int = 0) -> Partition:
    """One partition."""
    return replica.partitions[number]


def test_a_forced_partition_goes_on_with_the_nodes_that_live() -> None:
    """Its members are the live nodes; it is taken over at a higher epoch, and copies are made on other live nodes."""
    before = cluster("a", "b", "c", "d", "e", partitions=16)
    lost = of(before).members[:2]
    (lives,) = set(of(before).members) - set(lost)
    replica = leave(before, *lost)
    after, verdict = submit(replica, force_partition.Args(0, "me"), "")
    assert verdict == "applied"
    assert of(after).members == (lives,)
    assert of(after).epoch > of(replica).epoch and not of(after).ready
    assert lives in of(after).target and not set(lost) & set(of(after).target) and len(of(after).target) == 3
    assert of(after).leader == after.nodes[lives].peer
    assert of(settle(after)).members == of(after).target
    assert {number: found for number, found in after.partitions.items() if number} == {
        number: found for number, found in replica.partitions.items() if number
    }


def test_a_partition_with_a_live_majority_is_not_forced() -> None:
    """One node of three is gone, and the others have everything."""
    replica = leave(cluster("a", "b", "c", partitions=4), "a")
    after, verdict = submit(replica, force_partition.Args(0, "me"), "")
    assert verdict == "a majority lives" and after.partitions == replica.partitions


def test_a_partition_of_which_nobody_lives_is_not_forced() -> None:
    """There is nothing to continue with."""
    replica = leave(cluster("a", "b", "c", "d", partitions=8), "a", "b", "c")
    number = next(at for at, found in replica.partitions.items() if found.target == ("a", "b", "c"))
    after, verdict = submit(replica, force_partition.Args(number, "me"), "")
    assert verdict == "no node of it lives" and after.partitions == replica.partitions


def test_forcing_what_does_not_exist_changes_nothing() -> None:
    """There is no such partition."""
    _, verdict = submit(cluster("a", partitions=2), force_partition.Args(2, "me"), "")
    assert verdict == "no such partition"


def test_nodes_that_come_back_after_their_partition_was_forced_hold_no_copy_of_it() -> None:
    """They are ordinary nodes then: rows on their disks are offered to the leader."""
    replica = leave(cluster("a", "b", "c", partitions=4), "a", "b")
    for number in range(4):
        replica, _ = submit(replica, force_partition.Args(number, "me"), "")
    replica = settle(replica)
    assert all(found.members == ("c",) and found.ready for found in replica.partitions.values())
    back = join(replica, "a", "b")
    assert all(found.members == ("c",) and found.target == ("a", "b", "c") for found in back.partitions.values())
