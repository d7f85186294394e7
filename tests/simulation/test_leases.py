"""Leases that run out without faults: the tasks go to waiting claimers at once."""

from __future__ import annotations

import pytest

from simulation.scenes.leases import LEASE_SCENES


@pytest.mark.parametrize("name", LEASE_SCENES)
def test_a_waiting_claimer_gets_the_task_of_a_lapsed_claim_at_once(name: str) -> None:
    """The claimer may wait at any node, and the cluster may be idle."""
    LEASE_SCENES[name].workload.play(1)
