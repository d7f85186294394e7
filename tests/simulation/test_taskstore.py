"""The task store in simulated clusters: every answer is the model's, whatever goes wrong meanwhile."""

from __future__ import annotations

import pytest

from simulation.workloads import WORKLOADS


@pytest.mark.parametrize("seed", [1, 2])
def test_answers_are_the_models_under_faults(seed: int) -> None:
    """Peers die, sessions end, the log goes away and is collected; requests are repeated."""
    assert WORKLOADS["stored_tasks"].play(seed).applied > 30
