"""Leases that run out without faults: the tasks go to waiting claimers at once."""

from __future__ import annotations

import pytest

from simulation.scenes.leases import LEASE_SCENES
from simulation.scenes.timers import TIMER_SCENES


@pytest.mark.parametrize("name", LEASE_SCENES)
def test_a_waiting_claimer_gets_the_task_of_a_lapsed_claim_at_once(name: str) -> None:
    """The claimer may wait at any node, and the cluster may be idle."""
    LEASE_SCENES[name].workload.play(1)


@pytest.mark.parametrize("name", ["timers_again", "timers_cut_off"])
def test_callbacks_of_a_dead_node_are_made_again_within_its_session_timeout_and_a_second(name: str) -> None:
    """While the node lives, its callbacks may take longer than their leases. Without the log it begins no others."""
    TIMER_SCENES[name].workload.play(1)
