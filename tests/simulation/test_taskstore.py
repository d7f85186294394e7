"""The task store in simulated clusters: every answer equals the model's, with any faults."""

from __future__ import annotations

import pytest

from simulation.workloads import WORKLOADS


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_answers_are_the_models_under_faults(seed: int) -> None:
    """Peers die, sessions end, the log is unavailable and collected; requests are repeated."""
    assert WORKLOADS["stored_tasks"].play(seed).applied > 30
