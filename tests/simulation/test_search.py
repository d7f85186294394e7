"""The search through interleavings of the pure cluster: its findings, reports and reached branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from onyxq.core import ring, step
from onyxq.core.replica import Ring
from simulation.checkers import Broken
from simulation.probes import OF_SEARCHES, Probes
from simulation.probes import SEARCH as PROBES
from simulation.scenario import ScenarioError, play
from simulation.search.__main__ import report
from simulation.search.cluster import ACTIONS, Cluster, Options, parameters
from simulation.search.plan import plan_of
from simulation.search.run import new_cluster, perform, replay, shrink, trace
from simulation.search.search import Search
from tests.simulation.searching import broken_run, searched

OPTIONS = Options(partitions=1, replicas=1)


def played(*lines: str) -> Cluster:
    """Return a cluster after these actions, with all checks on."""
    cluster = new_cluster(OPTIONS)
    for line in lines:
        word, *args = line.split()
        perform(cluster, (word, *(int(arg) if arg.isdigit() else arg for arg in args)))
    return cluster


@pytest.mark.long
def test_no_interleaving_breaks_a_property() -> None:
    """Runs from fixed seeds; ``python -m simulation.search --seed N --steps 1500`` cuts a broken one down."""
    runs = list(searched(1, 20, 1_500))
    assert runs[-1].broken is None, report(runs[-1])
    assert sum(run.course.applied for run in runs) > 10_000, "the search hardly did anything"


@pytest.mark.long
def test_the_rare_branches_of_the_ring_are_reached() -> None:
    """A few dozen short runs reach the probes of joins; the long search requires all of them."""
    probes = Probes(OF_SEARCHES)
    for run in searched(100, 30, 500):
        probes.add(run.probes)
    assert len({*probes.unreached()} & {*PROBES}) < 0.2 * len(PROBES), probes.table()


def test_the_same_seed_makes_the_same_run() -> None:
    """Equal actions, equal bytes in the log."""
    first, second = (Search(11).run(400) for _ in range(2))
    assert first.actions == second.actions
    assert [r.data for r in first.cluster.log.records] == [r.data for r in second.cluster.log.records]


def test_other_seeds_make_other_clusters() -> None:
    """Sizes, odds and settings are drawn."""
    plans = [plan_of(seed) for seed in range(20)]
    assert len({len(plan.nodes) for plan in plans}) > 3
    assert len({plan.options for plan in plans}) > 5


def test_what_the_search_did_can_be_replayed_from_its_actions() -> None:
    """A run is its list of actions: nothing else is random."""
    run = Search(5).run(600)
    assert run.broken is None
    assert replay(run.plan.options, run.actions) is None


def _patched_remove(now: Ring, peer: str, position: int) -> Ring:
    """Close the ring without moving the watch."""
    bridged = evolve(now, pairs=now.pairs.discard(peer), members=now.members.discard(peer))
    return ring.fill(bridged, position)


def test_a_broken_ring_is_found_and_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a watch is not moved when a peer leaves, few actions remain, as a scenario that breaks again."""
    monkeypatch.setattr(ring, "remove", _patched_remove)
    run = broken_run(1, 10, 1_000)
    assert run.broken is not None
    kept = shrink(run.plan.options, run.actions, run.broken.check, tries=400)
    assert len(kept) < 25 < len(run.actions)
    broken = replay(run.plan.options, kept)
    assert broken is not None and broken.check == run.broken.check
    with pytest.raises(ScenarioError, match="found.txt"):
        play("found.txt", trace(run.plan.options, kept, broken))


@pytest.mark.parametrize(("found", "problem"), [(step.GAP, "land a"), (step.REPEAT, "land-twice a")])
def test_records_that_count_out_of_turn_are_found(monkeypatch: pytest.MonkeyPatch, found: str, problem: str) -> None:
    """A step that accepts repeats or gaps breaks "records count once" at the first of them."""
    real: Callable[..., str] = step._problem
    monkeypatch.setattr(step, "_problem", lambda *args: "" if real(*args) == found else real(*args))
    lines = ["start a", "turn a", "turn a", "slots a 5", "send a", "slots a 6", "send a"]
    with pytest.raises(Broken, match="records count once"):
        played(*lines, "skip a" if found == step.GAP else problem)


def test_an_entry_that_raises_is_a_broken_property(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any result of `step` other than a replica is reported, with the action that caused it."""

    def fails(*args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ring, "move", fails)
    with pytest.raises(Broken, match="no errors: ZeroDivisionError"):
        played("start a", "turn a", "turn a")


def test_a_trim_without_an_origin_is_found() -> None:
    """A reader that finds neither its record nor a snapshot reports it."""
    cluster = played("start a", "turn a", "turn a", "start b")
    cluster.log.trimmed = cluster.log.end
    cluster.peers["b"].place = 0
    with pytest.raises(Broken, match="readable log"):
        perform(cluster, ("read", "b"))


def test_a_cluster_that_does_not_recover_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If peers report no dead ones, the ring is never closed without them."""
    monkeypatch.setattr("simulation.search.peer.watches", lambda replica, me: ())
    actions = [("start", "a"), ("turn", "a"), ("turn", "a"), ("start", "b"), ("turn", "b")]
    actions += [("turn", "a"), ("turn", "b"), ("kill", "b")]
    broken = replay(OPTIONS, actions)
    assert broken is not None and broken.check == "liveness"


def test_a_reader_that_stepped_for_itself_must_come_out_equal() -> None:
    """Peers share replicas; one that must step alone is compared."""
    cluster = played("start a", "turn a", "turn a", "start b", "alone b 2", "slots a 3", "turn a")
    peer = cluster.peers["b"]
    peer.replica = evolve(peer.replica, clock_ms=peer.replica.clock_ms + 1)
    cluster.log.course.checkers = ()
    with pytest.raises(Broken, match="equal replicas"):
        for _ in range(3):
            perform(cluster, ("turn", "a"))
            perform(cluster, ("read", "b"))
            cluster.act("slots", "a", 4)


def test_a_probe_that_is_not_in_the_table_is_a_mistake() -> None:
    """Otherwise a misspelt probe would never be missed."""
    with pytest.raises(KeyError):
        Probes(PROBES).reached("a name nobody declared")


def test_every_action_says_what_it_does() -> None:
    """The words of scenario files are documented where they are defined."""
    for word, action in ACTIONS.items():
        assert action.__doc__, word
        assert all(one.annotation in ("str", "int", "Any") for one in parameters(word)), word


def test_an_action_that_makes_no_sense_does_nothing() -> None:
    """So any part of a trace can be left out."""
    cluster = played("start a", "turn a", "turn a")
    for word in ACTIONS:
        args = ["nobody" if one.annotation == "str" else 1 for one in parameters(word) if one.default is one.empty]
        if word in ("garbage", "wait", "log-clock", "clock", "segment", "install", "start", "kill-all"):
            continue
        assert not cluster.act(word, *[arg for arg in args if word != "append" or arg != 1]), word


@pytest.mark.parametrize(("minutes", "check"), [(1, ""), (12, "records count once")])
def test_a_late_copy_of_a_join_is_a_repeat_for_ten_minutes(minutes: int, check: str) -> None:
    """Collections remember the numbers of removed peers for that long; the search finds a later one."""
    actions: list[tuple[int | str, ...]] = [
        ("start", "c"), ("turn", "c"), ("turn", "c"), ("start", "d"), ("send", "d"), ("lose", "d"), ("land", "d"),
        ("crash", "d"), ("start", "d"), ("send", "d2"), ("land", "d2"), ("turn", "c"), ("gc", "c"), ("turn", "c"),
        ("turn", "c"), *minutes * [("wait", 59_999)], ("gc", "c"), ("turn", "c"), ("late", "d"),
    ]  # fmt: skip
    broken = replay(OPTIONS, actions)
    assert (broken.check if broken is not None else "") == check
