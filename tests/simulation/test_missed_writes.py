"""Nodes that missed writes get them quickly when they return, and exactly these."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from onyxq.core.ids import TaskId, mask_of, stretch_of
from onyxq.node.liveness import MISSED_EVERY_S, MISSED_TIMEOUT_S, PROBE_TIMEOUT_S
from simulation.checkers.enough_copies import DiskReads
from simulation.world.world import Options, SimulatedNode, World, simulate

OPTIONS = Options(partitions=8, clock_offset_ms=0, absent_after_ms=600_000)
PROMPT_S = 1.0
"""Time from a node's return until it has the rows that it missed."""


def held(node: SimulatedNode, task_id: TaskId) -> bool:
    """Return whether a task is on a node's disk."""
    return bool(DiskReads(node.disk.tables).known_bits(stretch_of(task_id)) & mask_of(task_id, 1))


async def has_all(node: SimulatedNode, ids: list[TaskId]) -> float:
    """Return how long it takes until a node has these tasks."""
    began = trio.current_time()
    with trio.fail_after(60):
        while not all(held(node, task_id) for task_id in ids):
            await trio.sleep(0.02)
    return trio.current_time() - began


async def enqueue(client: Any, count: int) -> list[TaskId]:
    """Enqueue one task in each of a number of calls, so that they go to all partitions."""
    return [(await client.enqueue("q", [b"%d" % number]))[0] for number in range(count)]


@pytest.mark.parametrize(("away_s", "probe_s"), [(2.0, PROBE_TIMEOUT_S), (30.0, MISSED_TIMEOUT_S)])
def test_a_node_that_was_cut_off_gets_what_it_missed_at_once(away_s: float, probe_s: float) -> None:
    """A node that lost contact and kept its place in the ring gets missed rows at once.

    Others wrote without it for a moment, or for long. The last request that it did not receive must time out
    first.
    """

    async def workload(world: World) -> None:
        away = world.nodes[2]
        async with world.client(nodes=world.nodes[:2]) as client:
            await enqueue(client, 20)
            world.isolate(away, clients=True)
            await trio.sleep(3)  # its partitions have other leaders
            ids = await enqueue(client, 40)
            await trio.sleep(away_s)
            assert not any(held(away, task_id) for task_id in ids)
            world.network.heal()
            assert await has_all(away, ids) < probe_s + MISSED_EVERY_S + 0.25

    simulate(workload, seed=1, options=OPTIONS)


@pytest.mark.parametrize("away_s", [1.0, 40.0])
def test_a_restarted_node_gets_what_it_missed_within_a_second(away_s: float) -> None:
    """The time counts from when it is in the ring again."""

    async def workload(world: World) -> None:
        away = world.nodes[2]
        async with world.client(nodes=world.nodes[:2]) as client:
            await world.crash_node(away)
            await world.until(lambda: len(world.audit.replica.ring.members) == 2, "a ring of two")
            ids = await enqueue(client, 40)
            await trio.sleep(away_s)
            world.start_node(away)
            await world.until(lambda: away.peer_id in world.audit.replica.ring.members, "a ring of three")
            assert await has_all(away, ids) < PROMPT_S

    simulate(workload, seed=2, options=OPTIONS)


def test_an_interrupted_transfer_goes_on_where_it_was() -> None:
    """Rows that arrived are not sent again when a node that is being filled leaves and returns."""

    async def workload(world: World) -> None:
        away = world.nodes[2]
        async with world.client(nodes=world.nodes[:2]) as client:
            await world.crash_node(away)
            await world.until(lambda: len(world.audit.replica.ring.members) == 2, "a ring of two")
            ids = [await client.client.enqueue("q", b"x" * 200_000) for _ in range(40)]
            away.disk.delay_ms = lambda: 100
            world.start_node(away)
            await world.until(lambda: 0.2 < share(away, ids) < 0.8, "some have arrived")
            await world.crash_node(away)
            before = sent_rows(world, away)
            kept = sum(held(away, task_id) for task_id in ids)
            world.start_node(away)
            await has_all(away, ids)
            # One or two pages were in flight when the node left.
            assert sent_rows(world, away) - before <= 40 - kept + 8

    simulate(workload, seed=3, options=OPTIONS)


def share(node: SimulatedNode, ids: list[TaskId]) -> float:
    """Return the part of the tasks that is on the node's disk."""
    return sum(held(node, task_id) for task_id in ids) / len(ids)


def sent_rows(world: World, but: SimulatedNode) -> float:
    """Return the rows that nodes have sent so far to make copies equal."""
    nodes = [node.running.node for node in world.nodes if node is not but and node.running is not None]
    return sum(node.metrics.sync_rows.value("sent") for node in nodes if node is not None)
