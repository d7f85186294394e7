"""What the log says of claims, as history: an entry may name more than it ends."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from pyrsistent import pmap

from log_entries import expire_claims, release_claims, renew_claims
from onyxq import facts
from onyxq.entry import APPLIED
from onyxq.ids import Run, make_id, stretch_of
from onyxq.peer.history import returned_runs
from onyxq.replica import EMPTY, Replica
from onyxq.step import Outcome

FIRST = make_id(1_700_000_000_000, 0, 1, 0)
TOKEN = 7
NOW_MS = 10_000


def task(number: int) -> Run:
    """One task."""
    return Run(make_id(1_700_000_000_000, 0, 1, number), 1)


def holding(deadlines_ms: dict[int, int]) -> Replica:
    """A replica in which these tasks are claimed until then."""
    pieces = tuple((number, 1, TOKEN, "w", deadline) for number, deadline in sorted(deadlines_ms.items()))
    claims = pmap({0: pmap({stretch_of(FIRST): pieces})})
    return evolve(EMPTY, log_time_ms=NOW_MS, claims=claims)


def applied(*args: Any) -> list[Outcome]:
    """Entries of one record, all of which changed something."""
    return [Outcome(index, "", one, APPLIED, 1) for index, one in enumerate(args)]


def expiry(*numbers: int) -> expire_claims.Args:
    """Says that the claims on these tasks are over."""
    return expire_claims.Args(0, 1, (expire_claims.Expiry(TOKEN, 1, tuple(map(task, numbers))),))


def release(number: int) -> release_claims.Args:
    """Gives a task back."""
    released = release_claims.Release(TOKEN, facts.RELEASED, 0, 0, "", (task(number),))
    return release_claims.Args(0, 1, (released,))


def events(before: Replica, outcomes: list[Outcome]) -> list[tuple[int, int]]:
    """``(task, event)`` of what was returned."""
    after = evolve(before, claims=pmap())
    found = returned_runs(before, after, outcomes)
    return [(int.from_bytes(run.first[16:], "big"), said.event) for _, run, said in found]


def test_a_claim_that_goes_on_did_not_expire() -> None:
    """Of two that are named together one was renewed shortly before."""
    before = holding({0: 1_000, 1: 60_000})
    assert events(before, applied(expiry(0, 1))) == [(0, facts.EXPIRED)]


def test_a_claim_renewed_by_the_same_record_did_not_expire() -> None:
    """The renewal came first."""
    renewal = renew_claims.Args(0, 1, (renew_claims.Renewal(TOKEN, 60_000, (task(1),)),))
    before = holding({0: 1_000, 1: 1_000})
    assert events(before, applied(renewal, expiry(0, 1))) == [(0, facts.EXPIRED)]


def test_what_one_entry_ended_the_next_one_does_not_end_again() -> None:
    """A task given back in time has not used an attempt."""
    before = holding({0: 1_000, 1: 1_000})
    assert events(before, applied(release(0), expiry(0, 1))) == [(0, facts.RELEASED), (1, facts.EXPIRED)]


def test_what_an_expiry_named_in_vain_is_ended_by_the_release_behind_it() -> None:
    """Its lease still ran."""
    before = holding({0: 60_000, 1: 1_000})
    assert events(before, applied(expiry(0, 1), release(0))) == [(1, facts.EXPIRED), (0, facts.RELEASED)]
