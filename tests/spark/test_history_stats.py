"""Figures of history: Spark's sums equal those of the rows, and the charts are images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from onyxq.history.words import duration
from onyxq.interfaces.cli.main import run
from onyxq.spark.analysis import session as sessions
from onyxq.spark.analysis.plots import BARS_MAX, QUEUES_MAX, TICKS_MAX, _ticks, draw
from onyxq.spark.analysis.stats import Figures, Stats, Times, stats
from tests.spark.archive_world import MS, Row, claim, id_of, task, write
from tests.spark.test_history_check import aged

pytestmark = pytest.mark.long


HOUR_MS = 3_600_000


def rows() -> tuple[list[Row], list[Row]]:
    """Two queues and three hours; a task of three claims, one of them expired, one put off."""
    tasks = [task(number, number * 10) for number in range(1, 12)]
    claims = [claim(number, number * 10, 100 * number, 100 * number + 5) for number in range(1, 10)]
    claims += [
        claim(10, 80, 50, 1_050, outcome="failed", retry=MS + 2_000, until=85),
        claim(10, 90, 2_400, 32_400, outcome="expired", until=95),
        claim(10, 100, HOUR_MS + 7, HOUR_MS + 17),
        claim(11, 110, 2 * HOUR_MS, None, queue="other", outcome=None),
    ]
    tasks[-1]["queue"] = "other"
    return tasks, claims


def figures(found: Stats, queue: str, hour: str | None) -> Figures:
    """Return the figures of one queue and hour, or of all hours."""
    (one,) = [one for one in (*found.queues, *found.hours) if (one.queue, one.hour) == (queue, hour)]
    return one


@pytest.fixture(scope="module")
def found(machine: Any, tmp_path_factory: pytest.TempPathFactory) -> Stats:
    """Return the figures of an archive that is there twice."""
    directories = [str(write(tmp_path_factory.mktemp(name), *rows())) for name in ("a", "b")]
    return stats(machine, directories)


def test_waits_run_times_and_retries_are_told_by_hour(found: Stats) -> None:
    """A first claim waits from the due time, a later one from its retry time or from the last end."""
    first = figures(found, "q", "2026-11-21T00:00Z")
    waits = [*(100 * number for number in range(1, 10)), 50, 400]
    assert (first.claims, first.retries) == (11, 1)
    assert first.outcomes == {"completed": 9, "failed": 1, "expired": 1}
    assert (first.wait.half_ms, first.wait.longest_ms) == (median(waits), 900)
    assert (first.run.half_ms, first.run.longest_ms) == (5, 30_000)
    later = figures(found, "q", "2026-11-21T01:00Z")
    assert (later.claims, later.retries, later.wait.half_ms) == (1, 1, HOUR_MS + 7 - 32_400)


def test_a_claim_whose_end_is_unknown_has_no_run_time(found: Stats) -> None:
    """It is counted as a claim."""
    assert figures(found, "other", "2026-11-21T02:00Z") == Figures(
        "other", "2026-11-21T02:00Z", 1, 0, {}, Times(*[2 * HOUR_MS] * 4), Times(None, None, None, None)
    )


def test_all_hours_of_a_queue_are_summed_up(found: Stats) -> None:
    """Each queue is there once, and there are no sums over queues."""
    assert [one.queue for one in found.queues] == ["other", "q"]
    whole = figures(found, "q", None)
    assert (whole.claims, whole.retries, whole.wait.longest_ms) == (12, 2, HOUR_MS + 7 - 32_400)


def test_pictures_are_drawn(found: Stats, tmp_path: Path) -> None:
    """They are PNG files of a reasonable size; without figures there are none."""
    files = draw(found, tmp_path / "plots")
    assert [file.name for file in files] == ["waits.png", "runs.png", "claims.png", "retries.png"]
    for file in files:
        data = file.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 5_000
        width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        assert width == 1_200 and height > 400
    assert draw(Stats((), ()), tmp_path / "none") == [] and not (tmp_path / "none").exists()


def test_ticks_are_times_that_people_say() -> None:
    """There are a few for any range."""
    for low in (0.001, 0.02, 5, 400):
        for factor in (1.05, 4, 1_000, 1_000_000):
            ticks = _ticks(low, low * factor)
            assert 1 <= len(ticks) <= TICKS_MAX
            assert all(low <= tick <= low * factor for tick in ticks)
    assert [duration(round(1_000 * tick)) for tick in _ticks(0.5, 4_000)] == ["1 s", "10 s", "1 min", "10 min", "1 h"]


def test_a_month_of_hours_is_drawn(tmp_path: Path) -> None:
    """They are outlines, and queues may be left out."""
    times = Times(20, 100, 200, 5_000)
    hours = [f"2026-11-{1 + place // 24:02d}T{place % 24:02d}:00Z" for place in range(2 * BARS_MAX)]
    queues = [f"q{place}" for place in range(QUEUES_MAX + 2)]
    told = [Figures(queue, hour, 10, 1, {"completed": 9}, times, times) for queue in queues for hour in hours]
    whole = [Figures(queue, None, 10 * len(hours), 1, {}, times, times) for queue in queues]
    assert len(draw(Stats(tuple(whole), tuple(told)), tmp_path)) == 4


@pytest.fixture
def commands_share(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands use the tests' session."""

    @contextmanager
    def shared(master: str, *, memory: str = "") -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(sessions, "spark_session", shared)


@pytest.mark.usefixtures("commands_share")
def test_the_commands_tell_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They print tables and JSON; a wrong history gives exit code 1, and the report names the task."""
    tasks, claims = rows()
    claims = [one for one in claims if one["token"] != 110]
    directory = str(aged(write(tmp_path / "archive", tasks[:-1], claims)))
    assert run(["history", "check", directory]) == 0
    assert "history holds" in capsys.readouterr().out
    assert run(["history", "stats", directory, "--queue", "q", "--plots", str(tmp_path / "plots"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["claims"] for one in shown["queues"]] == [12] and len(shown["plots"]) == 4

    damaged = str(aged(write(tmp_path / "damaged", tasks[:-1], claims[1:])))
    assert run(["history", "check", damaged, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["counts"]["completions without claims"] == 1
    assert [one["id"] for one in report["first"]] == [id_of(1)]
    assert run(["history", "check", str(tmp_path / "plots")]) == 3
    assert run(["history", "check", damaged, "--apart", "soon"]) == 2
