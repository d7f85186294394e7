"""A partition whose majority is lost continues only if an operator accepts the loss."""

from __future__ import annotations

from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from log_entries import force_partition, reopen_tasks, replace_node
from onyxq.core.entry import APPLIED
from onyxq.core.ids import Run, make_id
from onyxq.core.placement import reconcile
from onyxq.core.replica import Replica
from tests.entries import cohorts


def forced(replica: Replica, number: int) -> tuple[Replica, str]:
    """Apply the entry of the first live peer."""
    return cohorts.submit(replica, force_partition.Args(number, "ops"), min(replica.ring.members))


def replaced(replica: Replica, *nodes: str) -> Replica:
    """Let the nodes leave, and mark them as replaced."""
    for node in nodes:
        if replica.nodes[node].peer:
            replica = cohorts.leave(replica, node)
        replica, _ = cohorts.submit(replica, replace_node.Args(node), "")
    return replica


def test_the_live_nodes_go_on_alone() -> None:
    """One of them takes over under a new epoch; the lost nodes are no longer members."""
    before = cohorts.leave(cohorts.cluster("a", "b", "c", partitions=4), "b", "c")
    after, verdict = forced(before, 1)
    found = after.partitions[1]
    assert verdict == APPLIED
    assert (found.members, found.target, found.ready) == (("a",), ("a",), False)
    assert found.epoch > before.partitions[1].epoch and found.leader == after.nodes["a"].peer
    assert after.partitions[2] is before.partitions[2]


def test_new_copies_do_not_count_as_a_majority_before_they_are_complete() -> None:
    """If the members are lost, nodes with incomplete copies must not prevent the operator's entry."""
    before = cohorts.cluster("a", "b", "c", "d", "e", partitions=4)
    found = evolve(before.partitions[1], members=("a", "b", "c"), target=("a", "d", "e"), leader="", ready=False)
    before = cohorts.leave(evolve(before, partitions=before.partitions.set(1, found)), "b", "c")
    assert before.partitions[1].members == ("a", "b", "c")
    after, verdict = forced(before, 1)
    assert verdict == APPLIED
    assert set(after.partitions[1].members) == {"a", "d", "e"}


def test_if_more_nodes_live_than_copies_are_kept_former_members_keep_theirs() -> None:
    """All of them become members, because each may have rows that the others lack. Only two keep a copy."""
    before = cohorts.cluster("a", "b", "c", "d", partitions=1, replicas=2)
    assert before.partitions[0].members == ("a", "b")
    before = cohorts.join(replaced(before, "a", "b"), "b")
    assert before.partitions[0].target == ("c", "d")
    after, verdict = forced(before, 0)
    assert verdict == APPLIED
    assert after.partitions[0].members == ("b", "c", "d")
    assert after.partitions[0].target == ("b", "c")
    assert cohorts.settle(after).partitions[0].members == ("b", "c")


events = st.tuples(st.sampled_from(["lose", "lose", "return", "drain", "stop", "settle"]), st.integers(0, 8))


@settings(max_examples=60)
@given(st.lists(events, max_size=8), st.integers(1, 4))
def test_no_target_grows_beyond_the_number_of_copies(script: list[tuple[str, int]], replicas: int) -> None:
    """Nodes are lost, return and drain, and partitions are forced. The invariants hold after each entry."""
    replica = cohorts.cluster(*(f"n{which}" for which in range(9)), partitions=2, replicas=replicas)
    for event, which in script:
        node = f"n{which}"
        present = bool(replica.nodes[node].peer)
        if event == "lose":
            members = replica.partitions[which % 2].members
            replica = cohorts.join(replaced(replica, *members), members[0])
            replica, _ = forced(replica, which % 2)
        elif event == "return":
            replica = cohorts.join(cohorts.leave(replica, node) if present else replica, node)
        elif event == "drain" and present:
            replica = cohorts.mark(replica, node)
        elif event == "stop":
            for leaving in [one.id for one in replica.nodes.values() if one.peer]:
                replica = cohorts.mark(replica, leaving)
        elif event == "settle":
            replica = cohorts.settle(replica)
        assert reconcile(replica) is replica


def test_copies_are_made_elsewhere_at_once() -> None:
    """This is done if other nodes are available."""
    before = cohorts.cluster("a", "b", "c", "d", "e", partitions=8)
    lost = before.partitions[3].members[:2]
    after, verdict = forced(cohorts.leave(before, *lost), 3)
    left = before.partitions[3].members[2]
    assert verdict == APPLIED
    assert after.partitions[3].members == (left,)
    assert len(after.partitions[3].target) == 3 and left in after.partitions[3].target
    assert not set(lost) & set(after.partitions[3].target)


def test_who_comes_back_gets_its_copy_anew() -> None:
    """Rows that only it had are not used: the operator gave them up."""
    replica = cohorts.leave(cohorts.cluster("a", "b", "c", partitions=4), "b", "c")
    for number in range(4):
        replica, _ = forced(replica, number)
    replica = cohorts.settle(cohorts.join(replica, "b", "c"))
    assert all(found.members == ("a", "b", "c") for found in replica.partitions.values())


def test_it_is_refused_while_it_is_not_needed_or_of_no_use() -> None:
    """A majority takes over automatically; without any live node there is nothing to continue with."""
    replica = cohorts.cluster("a", "b", "c", "d", partitions=4, replicas=3)
    number = next(n for n, found in replica.partitions.items() if "d" not in found.members)
    replica = cohorts.leave(replica, "a")
    assert forced(replica, number)[1] == "a majority lives"
    assert forced(replica, 99)[1] == "no such partition"
    assert forced(cohorts.leave(replica, "b", "c"), number)[1] == "no node of it lives"


def test_reopening_is_the_ready_leaders_word_about_free_tasks() -> None:
    """It does not change the replica, because finished tasks are not part of it."""
    replica = cohorts.cluster("a", partitions=2, replicas=1)
    leader, epoch = replica.partitions[1].leader, replica.partitions[1].epoch
    run = Run(make_id(1, 1, 7, 1_020), 4)

    def reopened(run: Run, at: int = epoch, due_ms: int = 0, attempts: int = 25) -> str:
        args = reopen_tasks.Args(1, at, due_ms, (reopen_tasks.Reopened(run, attempts),))
        return cohorts.submit(replica, args, leader)[1]

    assert reopened(run) == APPLIED
    assert reopened(run, at=epoch + 1) == "stale epoch"
    assert reopened(run._replace(count=5)) == "bad run"
    assert reopened(Run(make_id(1, 0, 7, 0), 1)) == "bad run"
    assert reopened(run, due_ms=-1) == reopened(run, attempts=-1) == "bad number"
