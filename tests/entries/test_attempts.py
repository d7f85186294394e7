"""The attempts of a task, from its rows: numbers, ends and reports."""

from __future__ import annotations

from typing import Any

import pytest

from onyxq.core import facts
from onyxq.core.facts import Completion, History, Mark, Report, Update
from onyxq.core.ids import TaskId, make_id
from onyxq.core.texts import without_middle
from onyxq.history import words
from onyxq.history.attempts import attempts_max, attempts_of, reports_of, shown
from onyxq.store.row_checks import prepare

TASK = TaskId(make_id(1_700_000_000_000, 1, 7, 0))


def event(position: int, kind: int, token: int = 0, attempts: int = 0, **more: Any) -> History:
    """Return a history row; a grant has its position as token."""
    token = position if kind == facts.GRANTED else token
    return History(position, 0, 1, kind, token, position, "w", more.get("retry_ms", 0), attempts, more.get("note", ""))


LIFE = [
    event(1, facts.GRANTED),
    event(2, facts.EXPIRED, 1, 1),
    event(3, facts.GRANTED),
    event(4, facts.RETRIED, 3, 1, retry_ms=9, note="later"),
    event(5, facts.GRANTED),
    event(6, facts.RETRIED, 5, 2, retry_ms=9, note="no"),
    event(7, facts.GRANTED),
    event(8, facts.REOPENED, 7, 3),
    event(9, facts.GRANTED),
]
FAILED = (Completion(7, 1, facts.FAILED, 7, [b"550"]), b"550")


def test_attempts_are_counted_from_1_and_a_snooze_does_not_count() -> None:
    """A requeued task continues to count; it has all retries again."""
    found = attempts_of(LIFE, {7: FAILED}, {7: Report(True, "trace")})
    assert [(one.attempt, words.ending(members)) for one, members in zip(found, plain(found), strict=True)] == [
        (1, "lease expired"),
        (2, "snoozed"),
        (2, "failed, retried"),
        (3, "given up"),
        (4, "running"),
    ]
    assert [one.error for one in found] == [None, "later", "no", "550", None]
    assert (attempts_max(LIFE, 2), attempts_max(LIFE[:7], 2), attempts_max(LIFE, None)) == (6, 3, None)


def plain(found: Any) -> list[dict[str, Any]]:
    """Return attempts as answers have them."""
    members: list[dict[str, Any]] = shown(found, None)["claims"]
    return members


def test_of_two_reports_of_a_claim_the_later_one_counts() -> None:
    """A later leader leaves a traceback out for which there is no room; copies may still have it."""
    full, empty = Report(given_up=True, traceback="trace"), Report(given_up=True, traceback="")
    early = facts.report_update(5, full, at_ms=1, mark=Mark(1, 1))
    late = facts.report_update(5, empty, at_ms=1, mark=Mark(2, 1))
    for updates in ([early, late], [late, early]):
        assert reports_of([Update(5, 0, 1, b"half"), *updates]) == {5: empty}
    rows = [facts.update_row(TASK, one) for one in (early, late)]
    assert rows[0].key == rows[1].key and facts.rank(*rows[0]) < facts.rank(*rows[1])
    assert [prepare(row).key for row in rows] == [row.key for row in rows]


@pytest.mark.parametrize(
    ("state", "claims", "said"),
    [
        ("ready", 0, "The task is ready, due at 1970-01-01 00:00:00.009Z, without an attempt so far."),
        ("cancelled", 0, "The task was cancelled before any attempt."),
        ("scheduled", 3, "The task is scheduled, due at 1970-01-01 00:00:00.009Z, after attempt 2 of 6 by worker w"),
        ("failed", 4, "The task was given up in attempt 3 of 6 by worker w, 6 ms after its first start: 550."),
        ("claimed", 5, "The task is running: attempt 4 of 6 by worker w since 1970-01-01 00:00:00.009Z: 550."),
    ],
)
def test_a_sentence_says_where_a_task_is(state: str, claims: int, said: str) -> None:
    """With attempt, worker and error."""
    found = attempts_of(LIFE, {7: FAILED}, {7: Report(True, "")})[:claims]
    task = {"state": state, "at_ms": 9, "error": "550" if claims > 3 else None, "attempts_max": 6}
    assert words.summary(task | shown(found, 7)).startswith(said)


def test_a_long_text_loses_its_middle() -> None:
    """It still is UTF-8, and has its beginning and its end."""
    text = "beginning" + "ü" * 1_000 + "end"
    cut = without_middle(text, 500)
    assert len(cut.encode()) <= 500 and cut.startswith("beginning") and cut.endswith("end")
    assert without_middle("short \ud800", 500) == "short \\ud800"
