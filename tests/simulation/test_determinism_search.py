"""The same run in two interpreters whose strings hash differently."""

from __future__ import annotations

import pytest
from attrs import evolve

from simulation.search.determinism import compare, difference, marks


@pytest.mark.parametrize("seed", [3, 8])
def test_another_interpreter_decides_and_computes_the_same(seed: int) -> None:
    """Equal bytes of every record, equal replicas at every position."""
    assert compare(seed, 800, hash_seed=seed + 40) == ""


def test_the_first_position_that_differs_is_named() -> None:
    """A record or a replica that came out differently, and runs of different length."""
    here = marks(4, 150)
    assert difference(here, here) == ""
    middle = len(here) // 2
    there = [*here[:middle], evolve(here[middle], replica="other"), *here[middle + 1 :]]
    assert difference(here, there) == f"position {here[middle].position}: the replica behind an equal record differs"
    there[middle - 1] = evolve(here[middle - 1], record="other")
    assert difference(here, there) == f"position {here[middle - 1].position}: the record differs"
    assert difference(here, here[:-1]) == f"one run has {len(here)} records, the other {len(here) - 1}"
