"""History rows from the log's entries about claims: an entry may name more claims than it ends."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from pyrsistent import pmap

from log_entries import (
    commit_transaction,
    expire_claims,
    grant_claims,
    grant_limited_claims,
    release_claims,
    renew_claims,
    reopen_tasks,
)
from onyxq.core import facts
from onyxq.core.entry import APPLIED
from onyxq.core.ids import Run, make_id, stretch_of
from onyxq.core.replica import EMPTY, HELD_MS, Replica, Transaction
from onyxq.core.step import Outcome
from onyxq.core.transactions import Claim
from onyxq.history.claim_rows import history_rows, returned_runs

FIRST = make_id(1_700_000_000_000, 0, 1, 0)
TOKEN = 7
NOW_MS = 10_000


def task(number: int) -> Run:
    """One task."""
    return Run(make_id(1_700_000_000_000, 0, 1, number), 1)


def holding(deadlines_ms: dict[int, int]) -> Replica:
    """Return a replica in which these tasks are claimed until a deadline."""
    pieces = tuple((number, 1, TOKEN, "w", deadline) for number, deadline in sorted(deadlines_ms.items()))
    claims = pmap({0: pmap({stretch_of(FIRST): pieces})})
    return evolve(EMPTY, log_time_ms=NOW_MS, claims=claims)


def applied(*args: Any) -> list[Outcome]:
    """Apply entries of one record that all change something."""
    return [Outcome(index, "", one, APPLIED, 1) for index, one in enumerate(args)]


def expiry(*numbers: int) -> expire_claims.Args:
    """Return an expiry of the claims on these tasks."""
    return expire_claims.Args(0, 1, (expire_claims.Expiry(TOKEN, 1, tuple(map(task, numbers))),))


def release(number: int) -> release_claims.Args:
    """Return a release of a task."""
    released = release_claims.Release(TOKEN, facts.RELEASED, 0, 0, "", (task(number),))
    return release_claims.Args(0, 1, (released,))


def events(before: Replica, outcomes: list[Outcome]) -> list[tuple[int, int]]:
    """Return ``(task, event)`` of history rows."""
    after = evolve(before, claims=pmap())
    found = returned_runs(before, after, outcomes)
    return [(int.from_bytes(run.first[16:], "big"), said.event) for _, run, said in found]


def test_a_claim_that_goes_on_did_not_expire() -> None:
    """Of two claims that the entry names, one was renewed shortly before."""
    before = holding({0: 1_000, 1: 60_000})
    assert events(before, applied(expiry(0, 1))) == [(0, facts.EXPIRED)]


def test_a_claim_renewed_by_the_same_record_did_not_expire() -> None:
    """The renewal came first."""
    renewal = renew_claims.Args(0, 1, (renew_claims.Renewal(TOKEN, 60_000, (task(1),)),))
    before = holding({0: 1_000, 1: 1_000})
    assert events(before, applied(renewal, expiry(0, 1))) == [(0, facts.EXPIRED)]


def test_what_one_entry_ended_the_next_one_does_not_end_again() -> None:
    """A task that was released in time has not used an attempt."""
    before = holding({0: 1_000, 1: 1_000})
    assert events(before, applied(release(0), expiry(0, 1))) == [(0, facts.RELEASED), (1, facts.EXPIRED)]


def test_what_an_expiry_named_in_vain_is_ended_by_the_release_behind_it() -> None:
    """Its lease was still valid."""
    before = holding({0: 60_000, 1: 1_000})
    assert events(before, applied(expiry(0, 1), release(0))) == [(1, facts.EXPIRED), (0, facts.RELEASED)]


def test_what_a_transaction_took_is_neither_expired_nor_given_back() -> None:
    """Entries of the same record that still named it ended the other claims."""
    commit = commit_transaction.Args("t", 60_000, (Claim(0, TOKEN, (task(0),)),), (), ())
    before = holding({0: 1_000, 1: 1_000})
    assert events(before, applied(commit, expiry(0, 1))) == [(1, facts.EXPIRED)]
    assert events(before, applied(commit, release(0), release(1))) == [(1, facts.RELEASED)]


def test_what_a_transaction_holds_is_not_given_back_under_its_position() -> None:
    """A leader may get such a request, and the entry may end other claims."""
    pieces = ((0, 1, TOKEN, "transaction t", HELD_MS), (1, 1, TOKEN, "w", 60_000))
    claims = pmap({0: pmap({stretch_of(FIRST): pieces})})
    before = evolve(EMPTY, claims=claims, transactions=pmap({"t": Transaction(TOKEN, 0)}))
    assert events(before, applied(release(0), release(1))) == [(1, facts.RELEASED)]


def rows(outcomes: list[Outcome]) -> list[facts.History]:
    """Return the rows for entries of the record at position 41."""
    after = evolve(EMPTY, position=41, ctime_ms=1_234)
    return [
        facts.unpack_history(facts.unseal(row.key, row.value))
        for row in history_rows(after, outcomes, (), lambda partition: partition == 0)
    ]


def test_a_grant_within_limits_is_a_grant() -> None:
    """The store does not distinguish them."""
    grants = (grant_claims.Grant("w", 30_000, (task(3),)),)
    plain = rows(applied(grant_claims.Args(0, 1, grants)))
    assert plain == rows(applied(grant_limited_claims.Args(0, 1, "q", grants)))
    assert [(one.event, one.token, one.worker, one.at_ms) for one in plain] == [(facts.GRANTED, 41, "w", 1_234)]


def test_a_reopening_says_when_each_run_is_due_and_what_it_has_behind_it() -> None:
    """The row has the position with which earlier and later grants are compared."""
    runs = (reopen_tasks.Reopened(task(3), 26), reopen_tasks.Reopened(task(5), 2))
    found = rows(applied(reopen_tasks.Args(0, 1, 99_000, runs)))
    assert [(one.event, one.position, one.retry_ms, one.attempts, one.count) for one in found] == [
        (facts.REOPENED, 41, 99_000, 26, 1),
        (facts.REOPENED, 41, 99_000, 2, 1),
    ]
    assert not rows([Outcome(0, "", reopen_tasks.Args(0, 1, 99_000, runs), "not free", 1)])
    assert not rows(applied(reopen_tasks.Args(1, 1, 99_000, runs)))
