"""Planted bugs: the list is sound, and a handful of them is found here; ``onyxq simulate --planted`` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from simulation.planted.bugs import PLANTED, Planted
from simulation.planted.suite import NotPlanted, look_for, planted_texts
from simulation.workloads import WORKLOADS

QUICK = [planted for planted in PLANTED if planted.quick]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_the_line_is_where_it_is_said_to_be(planted: Planted) -> None:
    """Exactly once, and what takes its place is another; the file still compiles."""
    assert planted.before != planted.after
    for file, text in planted_texts(planted).items():
        compile(text, file, "exec")
    assert planted.workload in WORKLOADS and planted.breaks


def test_names_are_unique_and_there_are_enough() -> None:
    """The table is read by name."""
    assert len({planted.name for planted in PLANTED}) == len(PLANTED) >= 20


def test_a_line_that_is_gone_is_reported() -> None:
    """The bug must be told anew rather than be believed to be planted."""
    with pytest.raises(NotPlanted, match="has 0 lines"):
        planted_texts(evolve(PLANTED[0], before="no such line"))


def test_a_line_that_stands_twice_is_reported(tmp_path: Path) -> None:
    """Which of the two was meant cannot be told."""
    (tmp_path / "a.py").write_text("x = 1\n    x = 1\n")
    with pytest.raises(NotPlanted, match="has 2 lines"):
        planted_texts(evolve(PLANTED[0], file="a.py", before="x = 1"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("planted", QUICK, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found(planted: Planted) -> None:
    """By one of a few short runs; usually by the first."""
    verdict = look_for(planted, range(1, planted.quick + 1))
    assert verdict.found, f"{planted.quick} seeds of {planted.workload} do not find it any more"
