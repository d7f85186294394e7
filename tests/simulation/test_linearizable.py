"""The check of clients' answers: it accepts exactly the possible answers about one task."""

from __future__ import annotations

import pytest

from onyxq.core.ids import TaskId
from simulation.checkers import Broken, linearizable
from simulation.checkers.linearizable import Linearizable, explains
from simulation.world.history import (
    CANCEL,
    CLAIM,
    COMPLETE,
    FAIL,
    OK,
    REFUSED,
    RELEASE,
    RENEW,
    UNKNOWN,
    UPDATE,
    History,
    Operation,
)

NEVER = float("inf")


def call(kind: str, token: int, begun_s: float, ended_s: float, outcome: str = OK, **details: object) -> Operation:
    """Return an answered call; claims and renewals are for a second."""
    lease_ms = 1_000 if kind in (CLAIM, RENEW) else 0
    code = "stale_token" if outcome == REFUSED else ""
    return Operation(kind, "c", token, begun_s, ended_s, outcome, code, lease_ms)


def lost(kind: str, token: int, begun_s: float) -> Operation:
    """Return a call whose answer never came."""
    return call(kind, token, begun_s, NEVER, UNKNOWN)


POSSIBLE = {
    "claimed and completed": [call(CLAIM, 1, 0, 0.1), call(UPDATE, 1, 0.2, 0.3), call(COMPLETE, 1, 0.4, 0.5)],
    "given back and claimed again": [call(CLAIM, 1, 0, 0.1), call(RELEASE, 1, 0.2, 0.3), call(CLAIM, 2, 0.3, 0.4)],
    "expired and claimed again": [call(CLAIM, 1, 0, 0.1), call(CLAIM, 2, 0.5, 1.2), call(COMPLETE, 2, 1.3, 1.4)],
    "completed late, nobody newer": [call(CLAIM, 1, 0, 0.1), call(COMPLETE, 1, 8, 8.1)],
    "a completion repeated": [call(CLAIM, 1, 0, 0.1), call(COMPLETE, 1, 1, 1.1), call(COMPLETE, 1, 2, 2.1)],
    "completed just before the next claim": [call(CLAIM, 1, 0, 0.1), call(COMPLETE, 1, 2, 3), call(COMPLETE, 1, 4, 5)],
    "a lost failure took effect later": [call(CLAIM, 1, 0, 0.1), lost(FAIL, 1, 0.2), call(CLAIM, 2, 0.5, 0.6)],
    "a lost failure never did": [call(CLAIM, 1, 0, 0.1), lost(FAIL, 1, 0.2), call(COMPLETE, 1, 0.5, 0.6)],
    "cancelled": [call(CLAIM, 1, 0, 0.1), call(RELEASE, 1, 0.2, 0.3), call(CANCEL, -1, 0.4, 0.5)],
}

IMPOSSIBLE = {
    "claimed twice at once": [call(CLAIM, 1, 0, 0.1), call(CLAIM, 2, 0.2, 0.3)],
    "claimed although renewed": [call(CLAIM, 1, 0, 0.1), call(RENEW, 1, 0.8, 0.9), call(CLAIM, 2, 1.2, 1.3)],
    "claimed after it was completed": [call(CLAIM, 1, 0, 0.1), call(COMPLETE, 1, 0.2, 0.3), call(CLAIM, 2, 5, 5.1)],
    "completed under an old token": [call(CLAIM, 1, 0, 0.1), call(CLAIM, 2, 2, 2.1), call(COMPLETE, 1, 3, 3.1)],
    "a token that went back": [call(CLAIM, 5, 0, 0.1), call(CLAIM, 4, 3, 3.1)],
    "updated under an old token": [call(CLAIM, 1, 0, 0.1), call(CLAIM, 2, 2, 2.1), call(UPDATE, 1, 3, 3.1)],
    "cancelled while claimed": [call(CLAIM, 1, 0, 0.1), call(CANCEL, -1, 0.2, 0.3)],
    "renewed after it was given back": [call(CLAIM, 1, 0, 0.1), call(RELEASE, 1, 0.2, 0.3), call(RENEW, 1, 0.4, 0.5)],
    "two completions": [
        call(CLAIM, 1, 0, 0.1),
        call(CLAIM, 2, 2, 2.1),
        call(COMPLETE, 2, 3, 3.1),
        call(COMPLETE, 1, 3, 3.1),
    ],
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_one_task_can_say_is_taken(name: str) -> None:
    """Some order of the calls explains the answers."""
    assert explains(POSSIBLE[name])


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_it_cannot_say_is_found(name: str) -> None:
    """No order does."""
    assert not explains(IMPOSSIBLE[name])


def test_a_search_that_gives_up_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a task with very many calls would count as judged."""
    history = History()
    history.operations[TaskId(bytes(20))] = POSSIBLE["claimed and completed"]
    Linearizable(history).finish()
    monkeypatch.setattr(linearizable, "SEARCH_MAX", 1)
    with pytest.raises(Broken, match="the search gave up on 0000"):
        Linearizable(history).finish()


@pytest.mark.parametrize("possible", [True, False])
def test_lost_calls_that_change_nothing_make_no_search_long(possible: bool) -> None:
    """Each set of lost updates would be a situation of its own, more than the search looks at."""
    updates = [lost(UPDATE, 1, 0.2) for _ in range(20)]
    later = [call(CLAIM, 2, 2, 2.1), call(COMPLETE, 2 if possible else 1, 3, 3.1)]
    assert explains([call(CLAIM, 1, 0, 0.1), *updates, *later]) is possible


@pytest.mark.parametrize(("refused_s", "broken"), [(0.5, True), (1.5, False)])
def test_a_claim_that_is_certainly_valid_is_never_refused(refused_s: float, broken: bool) -> None:
    """A claim that may have expired may be refused."""
    history = History()
    history.operations[TaskId(bytes(20))] = [
        call(CLAIM, 1, 0, 0.1),
        call(COMPLETE, 1, refused_s, refused_s + 0.1, REFUSED),
    ]
    checker = Linearizable(history)
    if broken:
        with pytest.raises(Broken, match="although the claim was valid"):
            checker.finish()
    else:
        checker.finish()
