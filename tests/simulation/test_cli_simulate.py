"""``onyxq simulate``: output and exit codes."""

from __future__ import annotations

import json

import pytest
from attrs import evolve

from onyxq.interfaces.cli.main import run
from simulation.results import Result, Totals
from simulation.runs import Child, blame, play
from simulation.workloads import FAULTS, WORKLOADS
from simulation.world.faults import EPISODES


@pytest.mark.long
def test_a_run_prints_its_seed_first_and_the_rates_last(capsys: pytest.CaptureFixture[str]) -> None:
    """The seed is printed before anything can fail."""
    assert run(["simulate", "--seed", "3", "--runs", "2", "--workload", "explorer", "--jobs", "1"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "seed 3"
    assert "entries applied" in last


def test_the_figures_are_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of JSON have the seed, then the broken property, then the figures."""
    assert run(["simulate", "--seed", "3", "--workload", "prompt", "--jobs", "1", "--json"]) == 0
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["seed"] == 3
    assert (last["runs"], last["broken"]) == (1, 0) and last["simulated_s"] > 1


def test_an_unknown_workload_is_named_with_what_was_probably_meant(capsys: pytest.CaptureFixture[str]) -> None:
    """The usage error names the field."""
    assert run(["simulate", "--workload", "lases"]) == 2
    assert "leases" in capsys.readouterr().err


def test_bugs_are_planted_for_known_workloads_only(capsys: pytest.CaptureFixture[str]) -> None:
    """A search for no bug at all would not be a success."""
    assert run(["simulate", "--planted", "--workload", "lases"]) == 2
    assert "leases" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--runs", "0"], ["--jobs", "0"], ["--seed", "-1"]])
def test_numbers_out_of_range_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each error names its field."""
    assert run(["simulate", *wrong]) == 2
    assert wrong[0].removeprefix("--") in capsys.readouterr().err


def test_the_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """All are listed, with a description."""
    assert run(["simulate", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and one.about in shown for name, one in WORKLOADS.items())


def test_faults_name_episodes_that_exist() -> None:
    """Otherwise a misspelt one would be found only by some seed."""
    assert {name for faults in FAULTS.values() for name in faults.episodes} <= EPISODES.keys()


def test_a_seed_does_the_same_each_time() -> None:
    """So its replay command is useful."""
    assert evolve(play("late", 3), cpu_s=0) == evolve(play("late", 3), cpu_s=0)


@pytest.mark.long
@pytest.mark.parametrize("workload", ["everything", "stored_tasks", "batches_under_fire"])
def test_a_seed_does_the_same_in_processes_that_hash_text_otherwise(workload: str) -> None:
    """The order of a set of text reaches nothing, so a failure can be repeated anywhere."""
    results = []
    for hash_seed in (7, 9):
        child = Child(workload, hash_seed=hash_seed)
        try:
            results.append(evolve(child.play(1), cpu_s=0))
        finally:
            child.close()
    assert results[0] == results[1] and results[0].digest


def test_what_broke_is_blamed_on_the_checker_that_says_so() -> None:
    """Errors come in groups from nurseries."""
    from simulation.checkers import Broken

    group = BaseExceptionGroup("", [BaseExceptionGroup("", [ValueError("x"), Broken("leases last: too early")])])
    assert blame(group) == ("leases last", "leases last: too early")
    assert blame(AssertionError("not serving"))[0] == "liveness"
    assert blame(ValueError("x")) == ("no errors", "ValueError: x")


def test_totals_add_up() -> None:
    """Rates are computed from the sums."""
    totals = Totals()
    totals.add(Result("standard", 1, simulated_s=60, cpu_s=1, applied=100, probes={"a": 1}))
    totals.add(Result("standard", 2, "leases last", "x", cpu_s=1, probes={"a": 2}))
    assert (totals.speed, totals.applied_per_s, totals.probes) == (30, 50, {"a": 3})
    assert [one.replay for one in totals.broken] == ["onyxq simulate --workload standard --seed 2"]
