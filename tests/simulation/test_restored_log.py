"""A node that has read no more than an older copy learns from the others that the copy is not the log."""

from __future__ import annotations

import pytest
from attrs import evolve

from simulation.workloads import Draw
from simulation.world.restored_log import LOST, OVERTAKEN, RestoredLog, plan_of
from simulation.world.world import Options, World, simulate


@pytest.mark.long
def test_a_snapshot_of_an_overtaken_log_does_not_hide_what_the_others_have_read() -> None:
    """A new node collects the older copy, so it has neither the node's last record nor theirs any more."""

    async def script(world: World) -> None:
        plan = evolve(
            plan_of(Draw("overtaken"), world.options.nodes),
            damage=OVERTAKEN, sessions=LOST, records_first=0, behind=0, evicted=True, killed=(), newcomer=True,
            ahead=3_000, recovered=False,
        )  # fmt: skip
        await RestoredLog(world, plan).run()

    for seed in range(4):
        simulate(script, seed=seed, options=Options(nodes=3, gc_records=60))
