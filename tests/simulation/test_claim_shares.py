"""The division of a claim of many tasks among nodes: the best tasks of all, and no node is left out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onyxq.leader.grants.ready_heads import AHEAD, RANKS_MAX, Head, Rank
from onyxq.operations.claim_shares import Offer, shares, without
from simulation.workloads import WORKLOADS

RANKS = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 30), st.integers(1, 3)), min_size=1, max_size=6)


def head(ranks: list[Rank], *, more: int = 0) -> Head:
    """Return a head that lists these tasks, and has ``more`` that it does not list."""
    ranks = sorted(ranks)
    about = sum(tasks for _, _, tasks in ranks) + more
    return Head(ranks[0][0], ranks[0][1], about, tuple(ranks), not more)


def split(heads: dict[str, Head], maximum: int) -> dict[str, int]:
    """Return how a claim is divided among nodes with these heads."""
    offers = [Offer(name, "q", one) for name, one in heads.items()]
    return shares(offers, min(offers, key=lambda one: one.head.key), maximum)[1]


@settings(max_examples=500, deadline=None)
@given(lists=st.lists(RANKS, min_size=2, max_size=4), maximum=st.integers(1, 40))
def test_a_claim_of_many_gets_the_best_tasks_of_all_nodes(lists: list[list[Rank]], maximum: int) -> None:
    """They are ordered by priority, then age, like one sorted list of all tasks."""
    found = split({f"n{place}": head(ranks) for place, ranks in enumerate(lists)}, maximum)
    every = sorted(rank[:2] for ranks in lists for rank in ranks for _ in range(rank[2]))[:maximum]
    taken = []
    for place, ranks in enumerate(lists):
        own = [rank[:2] for rank in sorted(ranks) for _ in range(rank[2])]
        taken += own[: found.get(f"n{place}", 0)]
    assert sorted(taken) == every
    assert sum(found.values()) == maximum


@settings(max_examples=300, deadline=None)
@given(lists=st.lists(st.tuples(RANKS, st.sampled_from([0, 5])), min_size=2, max_size=4), maximum=st.integers(1, 40))
def test_no_node_is_passed_over_that_has_better_tasks_than_are_claimed(
    lists: list[tuple[list[Rank], int]], maximum: int
) -> None:
    """Even with incomplete lists, the listed tasks of each node are claimed before later ones of others."""
    heads = {f"n{place}": head(ranks, more=more) for place, (ranks, more) in enumerate(lists)}
    found = split(heads, maximum)
    assert sum(found.values()) == maximum
    worst = max(own[min(count, len(own)) - 1] for name, count in found.items() if (own := _keys(heads[name])))
    for name, one in heads.items():
        better = sum(key < worst for key in _keys(one))
        assert found.get(name, 0) >= better


def _keys(one: Head) -> list[tuple[int, int]]:
    return [rank[:2] for rank in one.ranks for _ in range(rank[2])]


def test_a_claim_goes_no_further_than_the_longest_list() -> None:
    """After it there may be later tasks than others have: the claim gets fewer, and asks again."""
    long = head([(0, due_ms, 1) for due_ms in range(RANKS_MAX)], more=700)
    assert split({"a": long, "b": head([(0, 1_000, 1)])}, 600) == {"a": RANKS_MAX}
    assert split({"a": long}, 600) == {"a": 600}


def test_tasks_that_are_not_due_yet_are_asked_for_at_one_node() -> None:
    """The node with the first of them is asked."""
    ahead = Head(AHEAD, 7, 4, (), False)
    assert split({"a": ahead, "b": Head(AHEAD, 5, 4, (), False)}, 3) == {"b": 3}
    assert split({"a": ahead, "b": head([(0, 9, 1)])}, 3) == {"b": 3}


@given(ranks=RANKS, more=st.sampled_from([0, 5]), count=st.integers(1, 30))
def test_what_is_claimed_is_no_longer_offered(ranks: list[Rank], more: int, count: int) -> None:
    """The next claimer gets the following tasks."""
    before = head(ranks, more=more)
    after = without(before, count)
    left = _keys(before)[count:]
    if after is None:
        assert not left and count >= before.about - more * (count < before.about)
    else:
        assert _keys(after) == left
        assert after.key == (left[0] if left else before.key)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 4))
def test_claims_of_many_take_the_best_tasks_of_several_nodes(seed: int) -> None:
    """In a cluster, no task waits for ever while claims are released again and again."""
    assert WORKLOADS["shared_claims"].play(seed).applied > 30
