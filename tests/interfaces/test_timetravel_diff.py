"""The diff of two replicas: complete, minimal, sorted, and readable."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyrsistent import pmap

from onyxq.core.diff import ABSENT, BOOKKEEPING, diff, in_words, patched, plain, render, tree
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.snapshot import pack, unpack
from tests.entries.generated import generated_world
from tests.entries.world import World

LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3)
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3).map(pmap)
    ),
    max_leaves=8,
)
STATES = st.dictionaries(st.sampled_from(["lock", "cron", "x"]), VALUES, max_size=3).map(pmap)


@pytest.fixture(scope="module")
def world() -> World:
    """A log with every kind of entry."""
    return generated_world(seed=14, records=300, check=False)


def test_a_replica_does_not_differ_from_itself(world: World) -> None:
    """It does not differ from an equal one without shared parts either."""
    assert diff(world.now, world.now) == ()
    assert diff(world.now, unpack(pack(world.now))) == ()


@pytest.mark.long
def test_changes_applied_to_the_old_tree_give_the_new_one(world: World) -> None:
    """This is checked from each replica to the next."""
    for old, new in zip(world.replicas, world.replicas[1:], strict=False):
        assert patched(tree(old), diff(old, new)) == tree(new)


@pytest.mark.parametrize("ends", [(0, -1), (-1, 0), (40, 200), (200, 40)])
def test_distant_replicas_differ_by_what_leads_from_one_to_the_other(world: World, ends: tuple[int, int]) -> None:
    """This holds in both directions, and a patched tree is not changed itself."""
    old, new = (world.replicas[end] for end in ends)
    before = tree(old)
    assert patched(before, diff(old, new)) == tree(new)
    assert before == tree(old)


@settings(max_examples=150)
@given(STATES, STATES)
@example(pmap({"held": False}), pmap({"held": 0}))
@example(pmap({"held": (False,)}), pmap({"held": (0,)}))
def test_states_of_extensions_are_compared_whatever_they_hold(one: Any, other: Any) -> None:
    """Nested maps and tuples of every type that a replica can hold."""
    old, new = evolve(EMPTY, extensions=one), evolve(EMPTY, extensions=other)
    changes = diff(old, new)
    assert same(patched(tree(old), changes), tree(new))
    assert (changes == ()) == same(tree(old), tree(new))


def same(one: Any, other: Any) -> bool:
    """Return whether trees are equal with their types: true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def test_changes_are_sorted_and_name_each_place_once(world: World) -> None:
    """So two programs give the same differences of the same replicas."""
    changes = diff(EMPTY, world.now)
    paths = [change.path for change in changes]
    assert paths == sorted(paths) and len(paths) == len(set(paths))


def test_a_single_entry_shows_as_what_it_changed(world: World) -> None:
    """A renewed lease is one changed deadline of one claim, and the counters of the record."""
    for old, done, new in zip(world.replicas, world.steps, world.replicas[1:], strict=False):
        if [(one.name, one.verdict) for one in done.outcomes] == [("renew_claims", "applied")]:
            told = [change for change in diff(old, new) if change.path[0] not in BOOKKEEPING | {"peers"}]
            assert {change.path[0] for change in told} == {"claims"}
            assert any(change.path[-1] == "deadline_ms" or change.before is ABSENT for change in told)
            return
    raise AssertionError("the generated log renews nothing")


def test_claims_stand_under_their_stretch_and_offset() -> None:
    """With the names of their fields."""
    stretch = bytes(20)
    old = evolve(EMPTY, claims=pmap({3: pmap({stretch: ((0, 2, 7, "w", 50),)})}))
    new = evolve(EMPTY, claims=pmap({3: pmap({stretch: ((0, 2, 7, "w", 90), (5, 1, 8, "v", 60))})}))
    deadline, added = diff(old, new)
    assert (deadline.path, deadline.before, deadline.after) == (
        ("claims", "3", stretch.hex(), "0", "deadline_ms"),
        50,
        90,
    )
    assert added.before is ABSENT
    assert added.after == {"count": 1, "token": 8, "worker": "v", "deadline_ms": 60}


def test_subtrees_that_are_shared_are_not_looked_at() -> None:
    """A map that both replicas share may even be one that cannot be compared."""

    class Untouchable(dict[str, int]):
        def items(self) -> Any:
            raise AssertionError("looked at")

    shared: Any = Untouchable()
    old = evolve(EMPTY, extensions=shared, position=1)
    assert [change.path for change in diff(old, evolve(old, position=2))] == [("position",)]


def test_changes_are_told_in_words() -> None:
    """Added, removed and changed things are named; counters are left out, and long lists are cut with a count."""
    old = evolve(EMPTY, position=1, enabled=pmap({"a": 1, "b": 1}))
    new = evolve(EMPTY, position=2, enabled=pmap({"b": 2, "c": 1}))
    assert in_words(diff(old, new)) == ["enabled/a: gone, was 1", "enabled/b: 1 -> 2", "enabled/c: new, 1"]
    assert in_words(diff(old, new), limit=1) == ["enabled/a: gone, was 1", "and 2 more changes"]
    assert len(render(diff(EMPTY, evolve(EMPTY, extensions=pmap({"x": "y" * 999})))[0])) < 200


def test_a_tree_is_plain(world: World) -> None:
    """JSON does not change it."""
    found: list[Replica] = [EMPTY, *world.replicas[::50], world.now]
    for replica in found:
        assert json.loads(json.dumps(tree(replica))) == tree(replica)
    assert plain((b"\x01", {1: None})) == ["01", {"1": None}]
