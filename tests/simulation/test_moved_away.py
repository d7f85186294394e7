"""A node drops copies of partitions that have moved, but none on which a leader relies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from log_entries import yield_partition
from onyxq.core.facts import Row
from onyxq.node.moved_copies import LOOK_EVERY_S
from onyxq.node.node import Node
from onyxq.store.interface import Batch, Written
from simulation.runs import run_many
from simulation.scenes.base import leader_of
from simulation.workloads import WORKLOADS
from simulation.world.world import Options, SimulatedNode, World, simulate

SPARE = Options(nodes=4, partitions=1, clock_offset_ms=0, absent_after_ms=600_000)
LOOKED_S = LOOK_EVERY_S + 1.0
"""Time in which a node that can ask the leader drops unneeded copies."""


def node_of(machine: SimulatedNode) -> Node:
    """Return the node on a machine."""
    assert machine.running is not None and machine.running.node is not None
    return machine.running.node


async def reach(machine: SimulatedNode, epoch: int) -> None:
    """Let a node promise an epoch, like a leader that has read more of the log."""
    await node_of(machine).cohort.reach(0, epoch)


@asynccontextmanager
async def left_over(world: World) -> AsyncIterator[tuple[SimulatedNode, int]]:
    """Return the node that must drop its copy and still has it, and the partition's epoch."""
    placed = world.audit.replica.partitions[0]
    (spare,) = [node for node in world.nodes if node.node_id not in placed.target]
    async with world.client() as client:
        await client.enqueue("q", [b"x"])
        rows = [Row(bytes(key), bytes(value)) for key, value in leader_of(world).disk.tables.rows.ascend(b"")]
        await node_of(spare).store.write(Batch(rows=rows))
        assert spare.disk.row_keys()
        yield spare, placed.epoch


def test_a_copy_that_is_elsewhere_goes() -> None:
    """The leader has all rows, so the copy is not needed."""

    async def workload(world: World) -> None:
        async with left_over(world) as (spare, _):
            await world.until(lambda: not spare.disk.row_keys(), "it is dropped", within_s=LOOKED_S)

    simulate(workload, seed=1, options=SPARE)


def test_a_copy_stays_while_the_log_has_not_told_of_an_epoch_that_is_promised() -> None:
    """The leader that asked for the promise may rely on the copy until the log shows that no leader does."""

    async def workload(world: World) -> None:
        async with left_over(world) as (spare, epoch):
            await reach(spare, epoch + 1)
            await trio.sleep(2 * LOOKED_S)
            assert spare.disk.row_keys()
            await node_of(leader_of(world)).verdicts([yield_partition.Args(0, epoch)])
            await world.until(lambda: world.audit.replica.partitions[0].epoch > epoch, "a later epoch")
            await world.until(lambda: not spare.disk.row_keys(), "it is dropped", within_s=2 * LOOKED_S)

    simulate(workload, seed=1, options=SPARE)


def test_a_promise_is_given_behind_a_drop_that_is_under_way() -> None:
    """The leader that asked for it reads the copy next: it must not find rows that are about to be deleted."""

    async def workload(world: World) -> None:
        async with left_over(world) as (spare, epoch):
            store, dropping = node_of(spare).store, trio.Event()
            write = store.write

            async def slowly(batch: Batch) -> Written:
                if batch.drop:
                    spare.disk.delay_ms = lambda: 3_000
                    dropping.set()
                return await write(batch)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(store, "write", slowly)
                with trio.fail_after(LOOKED_S):
                    await dropping.wait()
                await trio.sleep(0.1)
                assert spare.disk.row_keys()
                await reach(spare, epoch + 1)
                assert not spare.disk.row_keys()
            spare.disk.delay_ms = lambda: 1

    simulate(workload, seed=1, options=SPARE)


@pytest.mark.parametrize("seed", (1, 2))
def test_a_node_that_reads_the_log_late_keeps_what_it_is_given(seed: int) -> None:
    """Rows from a new leader are not dropped because of an older epoch in the log.

    Seed 285 of the standard workload found an acknowledged task on one of three disks. A node had only read of
    the epoch before, in which it had no copy, and dropped the rows that the next leader had just sent.
    """
    WORKLOADS["unread"].play(seed)


@pytest.mark.long
def test_the_seed_that_found_it_breaks_nothing() -> None:
    """It is played in a process of its own, as when it was found."""
    (result,) = run_many("standard", [285], jobs=1)
    assert not result.checker, result.what
