"""Drivers and slots of jobs: bounds hold, few jobs move, and the result depends on no order of maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from onyxq.core.jobs.placement import MOVES_MAX, Offer, Plan, pass_over, placed, suits
from onyxq.core.jobs.slots import BALANCED, GREEDY, PERCENTAGE, most, need, shares, tasks_of
from onyxq.core.replica import Job

PEERS = ("p1", "p2", "p3")


def job(number: int, **changes: Any) -> Job:
    """Return a job named after its place in the order of submission."""
    plain: dict[str, Any] = {"id": f"j{number}", "body": b"", "digest": b"", "submitted": number, "submitted_ms": 0}
    return Job(**plain | changes)


@st.composite
def crowds(draw: st.DrawFn, *, jobs_max: int = 6) -> tuple[list[Job], list[Offer], dict[str, str]]:
    """Jobs in the order of submission, the offers of peers, and the present drivers."""
    offered = [
        Offer(peer, draw(st.integers(1, 6)), draw(st.sampled_from(("a", "b"))), draw(tags))
        for peer in PEERS[: draw(st.integers(1, 3))]
    ]
    jobs: list[Job] = []
    before: dict[str, str] = {}
    for number in range(draw(st.integers(1, jobs_max))):
        least = draw(st.integers(1, 4))
        kind = draw(st.sampled_from((BALANCED, BALANCED, GREEDY, PERCENTAGE)))
        one = job(
            number,
            scheduler=kind,
            percentage=draw(st.integers(1, 100)) if kind == PERCENTAGE else 0,
            min_slots=least,
            max_slots=draw(st.sampled_from((0, 0, least, least + 2))),
            tags=tuple(sorted(draw(tags))) if draw(st.booleans()) else (),
            zones=draw(st.sampled_from(((), (), (), ("a",)))),
            beside=draw(st.sampled_from([one.id for one in jobs])) if jobs and draw(st.integers(0, 4)) == 0 else "",
        )
        jobs.append(one)
        before[one.id] = draw(st.sampled_from(("", *PEERS, *PEERS)))
    return jobs, offered, before


tags = st.sampled_from((frozenset(), frozenset(), frozenset({"gpu"}), frozenset({"gpu", "big"})))


# --- drivers -----------------------------------------------------------------------


def valid(jobs: Mapping[str, Job], offered: Mapping[str, Offer], drivers: Mapping[str, str]) -> bool:
    """Return whether every job with a driver fits there, with room for all."""
    for name, peer in drivers.items():
        mate = jobs[name].beside
        if not suits(offered[peer], jobs[name]) or (mate in jobs and drivers.get(mate) != peer):
            return False
    return all(
        sum(need(jobs[name]) for name, at in drivers.items() if at == peer) <= offer.slots
        for peer, offer in offered.items()
    )


def kept_of(jobs: Sequence[Job], offered: Mapping[str, Offer], before: Mapping[str, str]) -> dict[str, str]:
    """Return which jobs keep their driver, by an independent computation."""
    named, kept = {one.id: one for one in jobs}, dict[str, str]()
    for one in jobs:
        if before[one.id] in offered and valid(named, offered, kept | {one.id: before[one.id]}):
            kept[one.id] = before[one.id]
    return kept


def fewest_moves(
    jobs: Mapping[str, Job], offered: Mapping[str, Offer], kept: Mapping[str, str], wanted: Sequence[str]
) -> int | None:
    """Return how many kept jobs must move so that the ``wanted`` ones run too, by trying everything."""
    bound = {name for one in jobs.values() if one.beside in jobs for name in (one.id, one.beside)}
    names = [*kept, *wanted]
    choices = [[kept[name]] if name in kept and name in bound else list(offered) for name in names]
    costs = [
        sum(drivers[name] != peer for name, peer in kept.items())
        for drivers in (dict(zip(names, peers, strict=True)) for peers in product(*choices))
        if valid(jobs, offered, drivers)
    ]
    return min(costs, default=None)


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(crowds())
def test_no_fewer_moves_would_do(crowd: tuple[list[Job], list[Offer], dict[str, str]]) -> None:
    """Trying every placement shows which jobs run, and how many of the running ones move."""
    jobs, offered, before = crowd
    named, peers = {one.id: one for one in jobs}, {offer.peer: offer for offer in offered}
    kept = kept_of(jobs, peers, before)
    running, moves = list[str](), 0
    for one in jobs:
        if one.id not in kept:
            cost = fewest_moves(named, peers, kept, [*running, one.id])
            if cost is not None and cost <= moves + MOVES_MAX:
                running.append(one.id)
                moves = cost
    found = pass_over(jobs, offered, before)
    assert sorted(found) == sorted([*kept, *running])
    assert sum(found[name] != peer for name, peer in kept.items()) == moves


def test_a_job_is_placed_where_one_beside_it_fits_too() -> None:
    """Alone, the first job would go to the peer with most room, in a zone where the second may not run."""
    jobs = [job(0, max_slots=0), job(1, max_slots=0, zones=("a",), beside="j0")]
    offered = [Offer("p1", 2, "a"), Offer("p2", 3, "b"), Offer("p3", 1, "a")]
    assert pass_over(jobs, offered, {"j0": "", "j1": ""}) == {"j0": "p1", "j1": "p1"}


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(crowds(jobs_max=12))
def test_whoever_runs_fits_and_finds_room(crowd: tuple[list[Job], list[Offer], dict[str, str]]) -> None:
    """No peer gets more than it offers, and no job a peer that does not suit it."""
    jobs, offered, before = crowd
    found = placed(driven(jobs, before), offered)
    assert valid({one.id: one for one in jobs}, {offer.peer: offer for offer in offered}, found)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(crowds(jobs_max=12))
def test_who_waits_has_no_room_as_things_are(crowd: tuple[list[Job], list[Offer], dict[str, str]]) -> None:
    """A job never waits while a suitable peer has room for it."""
    jobs, offered, before = crowd
    plan = Plan(jobs, offered)
    for name, peer in placed(driven(jobs, before), offered).items():
        plan.put(plan.jobs[name], peer)
    for one in jobs:
        if one.id not in plan.drivers:
            assert not any(plan.fits(one, peer) and plan.has_room(one, peer) for peer in plan.offers)


@settings(max_examples=300, deadline=None)
@given(crowds(jobs_max=12))
def test_placing_again_changes_nothing(crowd: tuple[list[Job], list[Offer], dict[str, str]]) -> None:
    """It does not depend on the order of peers either."""
    jobs, offered, before = crowd
    found = placed(driven(jobs, before), offered)
    assert placed(driven(jobs, found), offered) == found
    assert placed(driven(jobs, before), offered[::-1]) == found


def driven(jobs: Sequence[Job], drivers: Mapping[str, str]) -> list[Job]:
    """Return the jobs with these drivers."""
    return [evolve(one, driver=drivers.get(one.id, "")) for one in jobs]


def test_a_running_job_keeps_its_driver_when_a_better_peer_comes() -> None:
    """A move costs a start of Spark, and more slots are not worth it."""
    jobs = [job(0, driver="p1"), job(1, driver="p1")]
    assert placed(jobs, [Offer("p1", 2), Offer("p2", 64)]) == {"j0": "p1", "j1": "p1"}


def test_a_running_job_moves_for_one_that_would_starve() -> None:
    """Only the job moves that frees enough alone."""
    jobs = [job(0, driver="p1"), job(1, min_slots=2, driver="p1"), job(2, driver="p2"), job(3, min_slots=3)]
    assert placed(jobs, [Offer("p1", 4), Offer("p2", 3)]) == {"j0": "p1", "j1": "p2", "j2": "p2", "j3": "p1"}


def test_those_without_a_driver_are_rearranged_before_anybody_moves() -> None:
    """Otherwise the first would go to the peer with most room, and leave none for the second."""
    jobs = [job(0, driver="p2"), job(1, min_slots=2), job(2, min_slots=3)]
    assert placed(jobs, [Offer("p1", 3), Offer("p2", 3)]) == {"j0": "p2", "j1": "p2", "j2": "p1"}


def test_no_more_than_two_jobs_move_for_one() -> None:
    """The job waits instead of many jobs restarting."""
    others = [job(number, driver="p1") for number in range(3)]
    offered = [Offer("p1", 3), Offer("p2", 1), Offer("p3", 1), Offer("p4", 1)]
    assert "j3" not in placed([*others, job(3, min_slots=3)], offered)
    assert placed([*others, job(3, min_slots=2)], [*offered[:2], Offer("p3", 1)])["j3"] == "p1"


def test_jobs_beside_others_are_not_moved() -> None:
    """Nor are the jobs beside which they run."""
    jobs = [job(0, driver="p1"), job(1, driver="p1", beside="j0"), job(2, min_slots=3)]
    assert "j2" not in placed(jobs, [Offer("p1", 4), Offer("p2", 2)])
    assert placed(jobs, [Offer("p1", 4), Offer("p2", 3)])["j2"] == "p2"


def test_a_lone_job_that_others_will_run_beside_goes_where_there_is_room_for_all() -> None:
    """This is so when their driver has died."""
    jobs = [job(0, driver="gone"), job(1, min_slots=3, driver="gone", beside="j0"), job(2, driver="p1")]
    assert placed(jobs, [Offer("p1", 4), Offer("p2", 4)]) == {"j0": "p2", "j1": "p2", "j2": "p1"}


def test_a_thousand_jobs_are_placed_in_bounded_time() -> None:
    """Even if hardly anything fits, the search gives up, in the same way on every peer."""
    offered = [Offer(f"p{number:03}", 7) for number in range(60)]
    small = [job(number, min_slots=3, driver=f"p{number // 2:03}") for number in range(120)]
    jobs = [*small, *(job(number, min_slots=2 + number % 5) for number in range(120, 1_000))]
    found = placed(jobs, offered)
    assert all(found[one.id] for one in small) and placed(driven(jobs, found), offered) == found


def test_any_number_of_jobs_may_come_at_once() -> None:
    """Jobs without room wait, instead of hundreds of jobs being moved."""
    offered = [Offer("p1", 180), Offer("p2", 160)]
    jobs = [*(job(number) for number in range(298)), job(298, min_slots=30), job(299, min_slots=12)]
    found = placed(jobs, offered)
    assert len(found) == 299 and placed(driven(jobs, found), offered) == found


# --- slots -------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Job], int, int]:
    """Jobs at one peer, its slots, which are enough, and all offers of peers."""
    jobs = [evolve(one, beside="") for one in draw(crowds(jobs_max=8))[0]]
    slots = sum(map(need, jobs)) + draw(st.integers(0, 40))
    return jobs, slots, slots + draw(st.integers(0, 40))


def below(jobs: Sequence[Job], found: Mapping[str, int]) -> Iterator[Job]:
    """Return the jobs that could take more slots."""
    return (one for one in jobs if found[one.id] < most(one))


@settings(max_examples=100, deadline=None)
@given(tables())
def test_minimum_and_maximum_are_kept_and_nothing_is_left_over(table: tuple[list[Job], int, int]) -> None:
    """Slots are left over only if no job can take them."""
    jobs, slots, total = table
    found = shares(jobs, slots, total)
    assert all(need(one) <= found[one.id] <= most(one) for one in jobs)
    assert sum(found.values()) <= slots
    assert sum(found.values()) == slots or not list(below(jobs, found))


@settings(max_examples=100, deadline=None)
@given(tables())
def test_each_scheduler_keeps_its_word(table: tuple[list[Job], int, int]) -> None:
    """Shares come first, greedy jobs follow in the order of submission, and the rest is balanced."""
    jobs, slots, total = table
    found = shares(jobs, slots, total)
    kinds = {kind: [one for one in jobs if one.scheduler == kind] for kind in (PERCENTAGE, GREEDY, BALANCED)}
    more = {one.id: found[one.id] > need(one) for one in jobs}
    share = {one.id: min(most(one), max(need(one), total * one.percentage // 100)) for one in kinds[PERCENTAGE]}
    lacking = [one for one in kinds[PERCENTAGE] if found[one.id] < share[one.id]]
    if lacking:
        later = [one for one in kinds[PERCENTAGE] if one.submitted > lacking[0].submitted]
        assert not any(more[one.id] for one in [*later, *kinds[GREEDY], *kinds[BALANCED]])
    over = [one for one in kinds[PERCENTAGE] if found[one.id] > share[one.id]]
    if over:
        assert not list(below([*kinds[GREEDY], *kinds[BALANCED]], found))
    for first in below(kinds[GREEDY], found):
        later = [one for one in kinds[GREEDY] if one.submitted > first.submitted]
        assert not any(more[one.id] for one in [*later, *kinds[BALANCED]])
    for few in below(kinds[BALANCED], found):
        assert all(found[other.id] <= max(found[few.id] + 1, need(other)) for other in kinds[BALANCED])


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ([job(0), job(1), job(2)], [4, 3, 3]),
        ([job(0, scheduler=GREEDY), job(1, scheduler=GREEDY, max_slots=4), job(2)], [8, 1, 1]),
        ([job(0, scheduler=GREEDY, max_slots=4), job(1, scheduler=GREEDY, max_slots=4), job(2)], [4, 4, 2]),
        ([job(0, scheduler=PERCENTAGE, percentage=20), job(1)], [4, 6]),
        ([job(0, scheduler=PERCENTAGE, percentage=20), job(1, max_slots=2)], [8, 2]),
        ([job(0, max_slots=2), job(1), job(2, min_slots=5)], [2, 3, 5]),
        ([job(0, min_slots=5), job(1), job(2)], [5, 3, 2]),
    ],
)
def test_ten_slots_of_twenty_are_shared(jobs: list[Job], expected: list[int]) -> None:
    """This is the result of each scheduler."""
    assert list(shares(jobs, 10, 20).values()) == expected


def test_tasks_have_their_own_bounds() -> None:
    """Each runs in a share of its job's slots: by default in all of them, never in none."""
    limits = (("all", 0, 0, 0), ("half", 1, 0, 50), ("least", 3, 0, 10), ("most", 0, 2, 90), ("few", 0, 0, 1))
    bounded = job(0, tasks=limits)
    assert need(bounded) == 3
    assert dict(tasks_of(bounded, 8)) == {"all": 8, "half": 4, "least": 3, "most": 2, "few": 1}
    assert tasks_of(bounded, 0) == ()
