"""A leader that does not know it was deposed can acknowledge nothing that its successor lacks."""

from __future__ import annotations

from functools import partial

import pytest

from log_entries import grant_claims, yield_partition
from onyxq.ids import Run
from simulation.scenes import ONE, leader_of, misled_clients, promise_kept
from simulation.world import World, simulate


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("isolated", [True, False])
def test_it_is_asked_to_complete_while_its_successor_grants(seed: int, isolated: bool) -> None:
    """Cut off from all but clients it has no majority; cut off from the log only, its cohort has promised
    another epoch and refuses its writes. So nothing it says yes to is lost."""
    simulate(partial(misled_clients, isolated=isolated), seed=seed, options=ONE)


@pytest.mark.parametrize("seed", range(3))
def test_cut_off_from_the_log_while_a_follower_restarts(seed: int) -> None:
    """A promise of an epoch outlives the process that gave it: the old leader finds no majority with it."""
    simulate(promise_kept, seed=seed, options=ONE)


def test_what_it_granted_before_it_was_deposed_holds_nothing_when_it_leads_again() -> None:
    """A grant is void under any epoch but the one it was made in, also where its writer leads once more."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            (task,) = await client.enqueue("q", [b"x"])
            node = leader_of(world)
            stale = grant_claims.Grant("w", 60_000, (Run(task, 1),))
            epoch = first_epoch = world.audit.replica.partitions[0].epoch
            while epoch == first_epoch or leader_of(world) is not node:
                await give_way(world)
                epoch = world.audit.replica.partitions[0].epoch
            assert node.running is not None and node.running.node is not None
            _, verdicts = await node.running.node.verdicts([grant_claims.Args(0, first_epoch, (stale,))])
            assert verdicts == ["stale epoch"]
            (claim,) = await client.claim("q", wait_ms=5_000)
            await client.complete(claim)

    simulate(workload, seed=1, options=ONE)


async def give_way(world: World) -> None:
    """Have the leader yield; returns once the next one serves."""
    placed = world.audit.replica.partitions[0]
    node = leader_of(world)
    assert node.running is not None and node.running.node is not None
    await node.running.node.verdicts([yield_partition.Args(0, placed.epoch)])
    await world.until(
        lambda: (part := world.audit.replica.partitions[0]).ready and part.epoch > placed.epoch, "another leader"
    )
