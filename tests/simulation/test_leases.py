"""Leases that run out: without faults the tasks go to waiting claimers at once, in an outage of the log to none."""

from __future__ import annotations

import pytest
import trio

from simulation.scenes.leases import LEASE_SCENES
from simulation.scenes.timers import TIMER_SCENES
from simulation.world.world import Options, World, simulate


@pytest.mark.long
@pytest.mark.parametrize("name", LEASE_SCENES)
def test_a_waiting_claimer_gets_the_task_of_a_lapsed_claim_at_once(name: str) -> None:
    """The claimer may wait at any node, and the cluster may be idle."""
    LEASE_SCENES[name].workload.play(1)


@pytest.mark.parametrize("name", ["timers_again", "timers_cut_off"])
def test_callbacks_of_a_dead_node_are_made_again_within_its_session_timeout_and_a_second(name: str) -> None:
    """While the node lives, its callbacks may take longer than their leases. Without the log it begins no others."""
    TIMER_SCENES[name].workload.play(1)


def test_the_last_attempt_of_a_task_does_not_fail_in_an_outage_of_the_log() -> None:
    """A dead letter needs no log, but the lease ends only once the log can be written again."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            (task_id,) = await client.enqueue("q", [b"last attempt"], retries=0)
            (claim,) = await client.claim("q", lease_ms=1_000)
            await trio.sleep(0.5)
            world.log_down()
            await trio.sleep(3.0)
            await client.complete(claim)
            world.log_up()
            assert (await client.client.get(task_id)).state == "completed"

    simulate(workload, seed=1, options=Options(partitions=1))
