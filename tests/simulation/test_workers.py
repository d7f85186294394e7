"""The loop of real workers in a simulated cluster: they stop, die and lose contact."""

from __future__ import annotations

import pytest

from simulation.runs import play


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_workers_that_end_hand_back_what_they_could_not_finish(seed: int) -> None:
    """This is not counted if they were asked to stop; killed ones cost an attempt."""
    result = play("staff_changes", seed)
    assert not result.checker, result.what


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [pytest.param(5, id="a late claim"), pytest.param(12, id="a lease that ends between two renewals")]
)
def test_workers_that_are_cut_off_stop_with_their_leases(seed: int) -> None:
    """No worker runs a task that another worker has started."""
    result = play("staff_cut_off", seed)
    assert not result.checker, result.what


def test_tasks_that_depend_on_others_of_their_key_are_worked_off() -> None:
    """This holds for any due times and leaders."""
    result = play("after_their_own", 1)
    assert not result.checker, result.what


@pytest.mark.parametrize("seed", [3, 17])
def test_claims_are_renewed_as_they_are_found_lapsed(seed: int) -> None:
    """They expire, or continue and count as one attempt; at the last seed an expiry names continued claims."""
    result = play("renewed_unheard", seed)
    assert not result.checker, result.what
