"""A partition whose majority is lost continues only if an operator accepts the loss."""

from __future__ import annotations

from itertools import combinations

from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from log_entries import force_partition, ready_partition, reopen_tasks, replace_node, settle_partition, yield_partition
from onyxq.core.entry import APPLIED
from onyxq.core.ids import Run, make_id
from onyxq.core.placement import holders, reconcile
from onyxq.core.replica import Partition, Replica, leader_node, majority
from tests.entries import cohorts


def forced(replica: Replica, number: int) -> tuple[Replica, str]:
    """Apply the entry of an operator."""
    return cohorts.submit(replica, force_partition.Args(number, "ops"), "")


def replaced(replica: Replica, *nodes: str) -> Replica:
    """Let the nodes leave, and mark them as replaced."""
    for node in nodes:
        if replica.nodes[node].peer:
            replica = cohorts.leave(replica, node)
        replica, _ = cohorts.submit(replica, replace_node.Args(node), "")
    return replica


def moving(replica: Replica, members: str, target: str) -> Replica:
    """Let partition 0 move from some nodes to others, all named by one letter."""
    found = evolve(replica.partitions[0], members=tuple(members), target=tuple(target), leader="", ready=False)
    return evolve(replica, partitions=replica.partitions.set(0, found))


def test_the_live_nodes_go_on_alone() -> None:
    """One of them takes over under a new epoch; the lost nodes are no longer members."""
    before = cohorts.leave(cohorts.cluster("a", "b", "c", partitions=4), "b", "c")
    after, verdict = forced(before, 1)
    found = after.partitions[1]
    assert verdict == APPLIED
    assert (found.members, found.target, found.ready) == (("a",), ("a",), False)
    assert found.epoch > before.partitions[1].epoch and found.leader == after.nodes["a"].peer
    assert after.partitions[2] is before.partitions[2]


def test_new_copies_do_not_count_before_they_are_complete() -> None:
    """They neither prevent the operator's entry nor become members by it."""
    before = moving(cohorts.cluster("a", "b", "c", "d", "e", partitions=1), "abc", "ade")
    after, verdict = forced(cohorts.leave(before, "b", "c"), 0)
    assert verdict == APPLIED
    assert (after.partitions[0].members, after.partitions[0].target) == (("a",), ("a", "d", "e"))
    assert cohorts.settle(after).partitions[0].members == ("a", "d", "e")


def test_if_more_nodes_live_than_copies_are_kept_former_members_keep_theirs() -> None:
    """The target has two nodes: the member that lives, and one of the new ones."""
    before = cohorts.cluster("a", "b", "c", "d", partitions=1, replicas=2)
    assert before.partitions[0].members == ("a", "b")
    before = cohorts.join(replaced(before, "a", "b"), "b")
    assert before.partitions[0].target == ("c", "d")
    after, verdict = forced(before, 0)
    assert verdict == APPLIED
    assert after.partitions[0].members == ("b",)
    assert after.partitions[0].target == ("b", "c")
    assert cohorts.settle(after).partitions[0].members == ("b", "c")


def test_if_the_last_complete_copy_is_away_again_another_decision_is_needed() -> None:
    """Nodes without data are no majority; the operator may give up this copy too, and then they count."""
    before = cohorts.cluster("a", "b", "c", "d", partitions=1, replicas=2)
    once, _ = forced(cohorts.join(replaced(before, "a", "b"), "b"), 0)
    assert forced(once, 0)[1] == "a majority lives"
    away = cohorts.leave(once, "b")
    assert not majority(away.partitions[0].members, {"a", "c", "d"})
    twice, verdict = forced(away, 0)
    assert verdict == APPLIED
    assert twice.partitions[0].members == ("c",)
    back = cohorts.settle(cohorts.join(away, "b"))
    assert back.partitions[0].ready and "b" in back.partitions[0].members


def test_a_majority_needs_every_live_member_until_the_partition_settles() -> None:
    """A row may be on one of them only: the three others of six that had acknowledged it are lost."""
    lost = cohorts.leave(cohorts.cluster(*"abcdef", partitions=1, replicas=6), *"def")
    after, verdict = forced(lost, 0)
    found = after.partitions[0]
    assert verdict == APPLIED
    assert found.members == ("a", "b", "c", "d~forced0") and holders(found) == ("a", "b", "c")
    assert majority(found.members, set("abc"))
    assert not any(majority(found.members, {*pair, *"def"}) for pair in combinations("abc", 2))
    assert forced(after, 0)[1] == "a majority lives"
    assert cohorts.settle(after).partitions[0].members == ("a", "b", "c")
    assert forced(cohorts.leave(after, "c"), 0)[0].partitions[0].members == ("a", "b")


def test_without_a_live_member_all_live_new_copies_are_members() -> None:
    """Each may have rows that the others lack, so a majority needs all of them."""
    before = cohorts.leave(moving(cohorts.cluster(*"abcde", partitions=1, replicas=4), "a", "bcde"), "a")
    after, verdict = forced(before, 0)
    found = after.partitions[0]
    assert verdict == APPLIED
    assert found.members == ("a~forced0", "a~forced1", "b", "c", "d", "e") and found.target == ("b", "c", "d", "e")
    assert not any(majority(found.members, set(three)) for three in combinations("bcde", 3))
    assert majority(found.members, set("bcde"))


def test_a_live_member_leads_first() -> None:
    """A new copy that led when the leaders took turns would have to copy everything before it can serve."""
    before = cohorts.cluster("a", "b", "c", "d", partitions=1, replicas=2)
    before = cohorts.join(replaced(before, "a", "b"), "b")
    found = before.partitions[0]
    before, _ = cohorts.submit(before, yield_partition.Args(0, found.epoch), found.leader)
    assert before.partitions[0].leader != before.nodes["b"].peer
    after, _ = forced(before, 0)
    assert after.partitions[0].leader == after.nodes["b"].peer


class Copies:
    """Rows of partition 0 on the disks of nodes, and leaders that wait for no more nodes than they must.

    Each event names nodes by a number: the place in a list, or a mask of the nodes that answer.
    """

    def __init__(self, replicas: int) -> None:
        self.replica = cohorts.cluster(*(f"n{which}" for which in range(9)), partitions=1, replicas=replicas)
        self.rows: dict[str, set[int]] = {node: set() for node in self.replica.nodes}
        self.current = set(self.placed.members)
        """Nodes with all rows of the ready leader."""
        self.written = 0
        self.acknowledged: set[int] = set()
        self.given_up: set[int] = set()
        """Acknowledged rows that no live member had when an operator gave up the others."""

    @property
    def placed(self) -> Partition:
        """Where the partition is."""
        return self.replica.partitions[0]

    def live(self) -> list[str]:
        """Return the live nodes of the partition, those with the most rows first."""
        nodes = [node for node in holders(self.placed) if self.replica.nodes[node].peer]
        return sorted(nodes, key=lambda node: (-len(self.rows[node]), node))

    def answering(self, mask: int) -> tuple[str, set[str]]:
        """Return the leader's node, and the nodes that answer it, itself included."""
        leader = leader_node(self.replica, 0)
        assert leader is not None
        return leader.id, {leader.id, *(node for place, node in enumerate(self.live()) if mask >> place & 1)}

    def absent(self) -> list[str]:
        """Return the nodes that left."""
        return sorted(node.id for node in self.replica.nodes.values() if not node.peer)

    def submit(self, args: object, peer: str = "") -> bool:
        """Append an entry; return whether it applied."""
        self.replica, verdict = cohorts.submit(self.replica, args, peer)
        return verdict == APPLIED

    # --- events

    def lose(self, place: int) -> None:
        """Let a live node of the partition leave."""
        if live := self.live():
            self.replica = cohorts.leave(self.replica, live[place % len(live)])

    def come_back(self, place: int) -> None:
        """Let an absent node join again, with its disk."""
        if absent := self.absent():
            self.replica = cohorts.join(self.replica, absent[place % len(absent)])

    def replace(self, place: int) -> None:
        """Let other nodes get the copies of an absent node."""
        if absent := self.absent():
            self.submit(replace_node.Args(absent[place % len(absent)]))

    def force(self, _: int) -> None:
        """Force the partition as an operator does."""
        live = set(self.live())
        counted = live.intersection(self.placed.members) or live
        if self.submit(force_partition.Args(0, "ops")):
            self.given_up |= self.acknowledged.difference(*(self.rows[node] for node in counted))

    def take_over(self, mask: int) -> None:
        """Let the leader read the nodes that answer, and serve if they are a majority of the members."""
        if not self.placed.leader or self.placed.ready:
            return
        leader, nodes = self.answering(mask)
        if majority(self.placed.members, nodes):
            self.rows[leader].update(*(self.rows[node] for node in nodes))
            assert self.submit(ready_partition.Args(0, self.placed.epoch), self.placed.leader)
            self.current = {leader}
            self.drop()

    def write(self, mask: int) -> None:
        """Write a row; it is acknowledged if majorities of members and target store it."""
        if self.placed.ready:
            _, nodes = self.answering(mask)
            for node in nodes:
                self.rows[node].add(self.written)
            if majority(self.placed.members, nodes) and majority(self.placed.target, nodes):
                self.acknowledged.add(self.written)
            self.current &= nodes
            self.written += 1

    def copy(self, mask: int) -> None:
        """Exchange all rows between the leader and the nodes that answer."""
        if self.placed.ready:
            leader, nodes = self.answering(mask)
            for node in sorted(nodes):
                self.rows[leader] |= self.rows[node]
                self.rows[node] |= self.rows[leader]
            self.current |= nodes

    def settle(self, mask: int) -> None:
        """Settle the partition if enough of the target is up to date; exchanges with the other nodes have failed."""
        placed = self.placed
        if placed.ready and placed.members != placed.target:
            _, nodes = self.answering(mask)
            whole = {node for node in self.live() if node in placed.members} & (self.current | nodes)
            complete = self.current.intersection(placed.target)
            if majority(placed.target, complete) and len(complete) >= min(len(whole), len(placed.target)):
                assert self.submit(settle_partition.Args(0, placed.epoch), placed.leader)
                self.drop()

    def drop(self) -> None:
        """Let live nodes drop a copy that is elsewhere; not even the leader takes its rows in."""
        for node in sorted(self.replica.nodes):
            if self.placed.ready and self.replica.nodes[node].peer and node not in holders(self.placed):
                self.rows[node].clear()


EVENTS = "write write lose lose lose come_back replace force force take_over take_over copy settle".split()
"""Weighted so that a third of the histories loses a majority, and leaders serve after that."""
ALL = 511
"""Every node answers."""
moves = st.tuples(st.sampled_from(EVENTS), st.just(ALL) | st.integers(0, ALL))
LEAVES_AGAIN = list(
    zip(
        "write lose lose replace replace come_back force lose take_over".split(),
        (ALL, 0, 0, 0, 1, 0, 0, 0, ALL),
        strict=True,
    )
)
"""Of two copies one is given up, and the other leaves before it is copied."""


@settings(max_examples=100)
@given(st.lists(moves, min_size=8, max_size=40), st.integers(1, 5))
@example(LEAVES_AGAIN, 2)
@example([*LEAVES_AGAIN, ("come_back", 0), ("come_back", 0), ("take_over", ALL), ("copy", ALL), ("settle", ALL)], 2)
def test_a_serving_leader_has_all_rows_that_no_operator_gave_up(script: list[tuple[str, int]], replicas: int) -> None:
    """Each time, an operator gives up the acknowledged rows that no live member has, and no others."""
    copies = Copies(replicas)
    for event, number in [("write", ALL), *script]:
        getattr(copies, event)(number)
        if copies.placed.ready:
            leader, _ = copies.answering(0)
            assert copies.acknowledged - copies.given_up <= copies.rows[leader]


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
