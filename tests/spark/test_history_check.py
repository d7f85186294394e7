"""The check of history finds every kind of damage at its place, and reports no correct history."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyxq.errors import NotFound
from onyxq.spark.analysis.history_check import check
from onyxq.spark.analysis.rules import APART_MS, KEYS, LOST, OVERLAPPING, TOKENS, UNCLAIMED, Report
from tests.spark.archive_world import MS, Found, Row, claim, id_of, naive, task, update, write

pytestmark = pytest.mark.long


APART = 1_000
"""Distance between the task numbers of histories that are checked together."""


def aged(directory: Path) -> Path:
    """Let the archive look an hour old."""
    then = time.time() - 3_600
    for file in directory.rglob("*.parquet"):
        os.utime(file, (then, then))
    return directory


def told(report: Report) -> Found:
    """Return what a report names."""
    return {(one.rule, one.id, one.token) for one in report.first}


Damaged = tuple[list[Row], list[Row], list[Row]]


def sound() -> Damaged:
    """Return a correct history with everything that may happen.

    It has retries, expiry, releases, a requeued dead letter, a cancelled task, one that was never granted, keys
    in order, a log whose clock was set back, and a completion that was found only after another worker had the
    task.
    """
    tasks = [
        task(1, 10),
        task(2, 30, attempts=1, updates=2),
        task(3, None, state="cancelled"),
        task(4, 44, state="failed", error="expired: nobody ran it"),
        task(5, 70, requeued=MS + 90_000, finished=MS + 100_000),
        task(6, 80, ordering_key="k", turn=[MS, 1, 1], finished=MS + 500),
        task(7, 90, ordering_key="k", turn=[MS, 1, 2], finished=MS + 900),
        task(8, 120, attempts=1),
        task(9, 130, attempts=2, finished=MS + 900),
    ]
    claims = [
        claim(1, 10, 0, 1_000),
        claim(2, 20, 0, 40_000, outcome="expired", until=25),
        claim(2, 25 + 1, 40_000, 41_000, outcome="released", until=28),
        claim(2, 30, 41_000, 42_000),
        claim(5, 50, 0, 10_000, outcome="failed"),
        claim(5, 70, 91_000, 100_000),
        claim(6, 80, 0, 500),
        claim(7, 90, 500, 900),
        claim(8, 100, 3_600_000, 3_700_000, outcome="failed", until=110),
        claim(8, 120, 900, 1_000),
        claim(9, 130, 0, 900, until=135),
        claim(9, 140, 40_000, 80_000, outcome="expired", until=150),
    ]
    return tasks, claims, [update(2, 20, 0, 100), update(2, 30, 0, 41_500)]


def test_a_sound_history_is_clean(spark: Any, tmp_path: Path) -> None:
    """This holds even if all of it is in two archives."""
    tasks, claims, updates = sound()
    directories = [str(aged(write(tmp_path / name, tasks, claims, updates))) for name in ("a", "b")]
    report = check(spark, directories)
    assert report.clean, report.first
    assert (report.tasks, report.claims, report.updates) == (len(tasks), len(claims), len(updates))
    assert report.repeats == len(tasks) + len(claims) + len(updates)
    assert naive(tasks, claims, updates) == set()


DAMAGE: dict[str, tuple[Callable[[Damaged], None], Found]] = {
    "granted before the claim before it was over": (
        lambda all_: all_[1].append(claim(2, 24, 20_000, 21_000, until=29)),
        {(OVERLAPPING, id_of(2), token) for token in (24, 26)},
    ),
    "two claims overlap by their times": (
        lambda all_: all_[1].append(claim(1, 5, 0, APART_MS + 1, outcome="failed")),
        {(OVERLAPPING, id_of(1), 10)},
    ),
    "a claim that never ended": (
        lambda all_: all_[1].append(claim(1, 5, 0, None, outcome=None)),
        {(OVERLAPPING, id_of(1), 10)},
    ),
    "a task's row is gone": (lambda all_: all_[0].pop(1), {(LOST, id_of(2), 20)}),
    "an update is gone": (lambda all_: all_[2].pop(), {(LOST, id_of(2), 30)}),
    "a claim is gone": (lambda all_: all_[1].pop(0), {(UNCLAIMED, id_of(1), 10)}),
    "an update under a token of nobody": (
        lambda all_: all_[2].append(update(1, 9, 0, 10)),
        {(UNCLAIMED, id_of(1), 9)},
    ),
    "an end before its beginning": (
        lambda all_: all_[1].append(claim(1, 5, 0, 100, until=4)),
        {(TOKENS, id_of(1), 5)},
    ),
    "completed under an old token": (
        lambda all_: all_[1].append(claim(1, 11, 2_000, 3_000, until=12)),
        {(TOKENS, id_of(1), 11)},
    ),
    "updated under an old token": (
        lambda all_: all_[2].append(update(2, 20, 1, 50_000)),
        {(TOKENS, id_of(2), 30)},
    ),
    "two workers under one token": (
        lambda all_: all_[1].append(claim(1, 10, 0, 900, worker="other")),
        {(TOKENS, id_of(1), 10)},
    ),
    "two tasks of a key at a time": (
        lambda all_: all_[1][6].update(until=95),
        {(KEYS, id_of(7), 90)},
    ),
    "two tasks of a key at a time by their times": (
        lambda all_: all_[1][6].update(ended=MS + 500 + APART_MS + 1),
        {(KEYS, id_of(7), 90)},
    ),
    "a key's tasks out of turn": (
        lambda all_: all_[0][5].update(turn=[MS - 20_000, 1, 9]) or all_[0][6].update(turn=[MS - 20_000, 1, 2]),  # type: ignore[func-returns-value]
        {(KEYS, id_of(7), 90)},
    ),
}


def moved(everything: Damaged, place: int) -> Damaged:
    """Return the same history with tasks and keys of its own."""

    def own(row: Row) -> Row:
        number = int(row["id"][-8:], 16)
        more = {"ordering_key": f"{row['ordering_key']} {place}"} if row.get("ordering_key") else {}
        return {**row, "id": id_of(number + APART * place), **more}

    tasks, claims, updates = everything
    return list(map(own, tasks)), list(map(own, claims)), list(map(own, updates))


def brought_back(found: Found, place: int) -> Found:
    """Return the findings about one of several histories in one archive."""
    low, high = id_of(APART * place), id_of(APART * (place + 1))
    numbers = {one: int(one[1][-8:], 16) - APART * place for one in found if low <= one[1] < high}
    return {(one[0], id_of(number), one[2]) for one, number in numbers.items()}


def together(histories: Sequence[Damaged]) -> Damaged:
    """Join histories, each with tasks and keys of its own."""
    parts = [moved(one, place) for place, one in enumerate(histories)]
    return [r for p in parts for r in p[0]], [r for p in parts for r in p[1]], [r for p in parts for r in p[2]]


def test_damage_is_found(spark: Any, tmp_path: Path) -> None:
    """Every kind is found at its place, by Spark and by the plain check."""
    histories = []
    for do, _ in DAMAGE.values():
        histories.append(sound())
        do(histories[-1])
    report = check(spark, [str(aged(write(tmp_path, *together(histories))))], first=1_000)
    for place, (kind, (_, expected)) in enumerate(DAMAGE.items()):
        assert naive(*histories[place]) == expected, kind
        assert brought_back(told(report), place) == expected, kind
    assert len(told(report)) == sum(len(expected) for _, expected in DAMAGE.values())
    assert sum(report.counts.values()) == len(report.first)


def test_archived_just_now_is_not_judged_yet(spark: Any, tmp_path: Path) -> None:
    """Claims of a new task may not be visible yet, so it does not count as one without claims."""
    report = check(spark, [str(write(tmp_path, [task(1, 10, updates=3)]))])
    assert report.clean
    assert not check(spark, [str(aged(tmp_path))]).clean


def test_a_report_names_the_first_offenders_of_many(spark: Any, tmp_path: Path) -> None:
    """Counts are of all offenders."""
    tasks = [task(number, 10) for number in range(30)]
    report = check(spark, [str(aged(write(tmp_path, tasks)))], first=4)
    assert report.counts[UNCLAIMED] == 30
    assert [one.id for one in report.first] == [id_of(number) for number in range(4)]


def test_another_directory_is_refused(spark: Any, tmp_path: Path) -> None:
    """The error says what an archive has."""
    with pytest.raises(NotFound, match="is not an archive of tasks"):
        check(spark, [str(tmp_path)])


# --- any history ------------------------------------------------------------------------------

TIMES = st.integers(0, 12).map(lambda value: value * 2_000)
NUMBERS = st.integers(1, 3)
TOKENS_DRAWN = st.integers(1, 9)


@st.composite
def histories(draw: st.DrawFn) -> Damaged:
    """Small histories, correct and wrong, with few tasks, tokens and times, so that many things coincide."""
    tasks = []
    for number in draw(st.lists(NUMBERS, max_size=5)):
        state = draw(st.sampled_from(("completed", "completed", "failed", "cancelled")))
        token = None if state == "cancelled" else draw(TOKENS_DRAWN)
        keyed = draw(st.booleans())
        more: Row = {"finished": MS + draw(TIMES), "updates": draw(st.integers(0, 2)), "state": state}
        if keyed:
            more |= {"ordering_key": "k", "turn": [MS + draw(TIMES), 1, draw(st.integers(1, 4))]}
        tasks.append(task(number, token, requeued=draw(st.sampled_from((None, MS))), **more))
    claims = [
        claim(
            number,
            token,
            began,
            ended,
            until=until,
            worker=worker,
            outcome=outcome,
        )
        for number, token, began, ended, until, worker, outcome in draw(
            st.lists(
                st.tuples(
                    NUMBERS,
                    TOKENS_DRAWN,
                    TIMES,
                    st.none() | TIMES,
                    st.none() | TOKENS_DRAWN,
                    st.sampled_from("wv"),
                    st.sampled_from(("completed", "failed")),
                ),
                max_size=8,
            )
        )
    ]
    notes = draw(st.lists(st.tuples(NUMBERS, TOKENS_DRAWN, st.integers(0, 1), TIMES), max_size=4))
    return tasks, claims, [update(*one) for one in notes]


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(drawn=st.lists(histories(), min_size=60, max_size=60))
def test_any_history_is_judged_as_by_the_plain_check(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, drawn: list[Damaged]
) -> None:
    """Many small ones are in one archive."""
    directory = aged(write(tmp_path_factory.mktemp("drawn"), *together(drawn)))
    found = told(check(spark, [str(directory)], first=100_000))
    for place, one in enumerate(drawn):
        assert brought_back(found, place) == naive(*one), one
