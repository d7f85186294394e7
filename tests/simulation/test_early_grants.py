"""Grants of tasks whose rows are still being stored: faults in between do no harm."""

from __future__ import annotations

import pytest

from onyxq.core.errors import OnyxqError, StoreFailed
from onyxq.core.ids import TaskId
from onyxq.leader.grants.early_rows import EarlyRows
from simulation.scenes.early_grants import EARLY_SCENES

FIRST = TaskId(bytes(20))
BODY = b"body"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", EARLY_SCENES)
def test_a_fault_between_the_grant_and_the_row_does_no_harm(name: str, seed: int) -> None:
    """No worker gets a task that is in no store, the claim ends, and the repeated enqueue is granted."""
    EARLY_SCENES[name].workload.play(seed)


@pytest.mark.parametrize("error", [None, StoreFailed("full")])
def test_all_claims_of_a_row_hear_once_whether_it_is_stored(error: OnyxqError | None) -> None:
    """Slices of the row may be granted to several claimers."""
    rows, told = EarlyRows(), list[bool]()
    heard = rows.add(FIRST, BODY)
    assert rows.body(FIRST) == BODY
    rows.when_decided(FIRST, told.append)
    rows.when_decided(FIRST, told.append)
    heard(error)
    assert told == [error is None] * 2
    assert rows.body(FIRST) is None and rows.is_refused(FIRST) == (error is not None)


def test_a_refused_row_that_is_written_again_is_no_longer_refused() -> None:
    """The client repeats the enqueue under the same id."""
    rows = EarlyRows()
    rows.add(FIRST, BODY)(StoreFailed("full"))
    heard = rows.add(FIRST, BODY)
    assert not rows.is_refused(FIRST)
    heard(None)
    assert not rows.is_refused(FIRST)
