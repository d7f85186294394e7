"""Bringing a node up to date: at a limited speed, after clients, page by page, and visibly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from attrs import evolve

from onyxq.leader.cohort.copy_pace import BUSY_PAUSE, Pacer
from simulation.scenes.base import leader_of
from simulation.workloads import WORKLOADS
from simulation.world.clock import mock_clock
from simulation.world.world import Options, SimulatedNode, World, simulate

OPTIONS = Options(partitions=4, clock_offset_ms=0, absent_after_ms=600_000)
LIMIT = 1 << 20
ROW_BYTES = 200_000
ROWS = 40
SENT = 'onyxq_sync_bytes_total{direction="sent"}'


async def call(node: SimulatedNode, method: str) -> dict[str, Any]:
    """Call a method of a node's API."""
    assert node.running is not None and node.running.service is not None
    return dict(await node.running.service.call(method, {}))


async def behind(world: World) -> SimulatedNode:
    """Return a node that lacks 8 MB and has just joined the ring again."""
    away = world.nodes[2]
    await world.crash_node(away)
    await world.until(lambda: len(world.audit.replica.ring.members) == 2, "a ring of two")
    async with world.client(nodes=world.nodes[:2]) as client:
        for _ in range(ROWS):
            await client.client.enqueue("q", b"x" * ROW_BYTES)
    world.start_node(away)
    await world.until(lambda: away.peer_id in world.audit.replica.ring.members, "a ring of three")
    return away


def rows(node: SimulatedNode) -> int:
    """Return the rows on a node's disk."""
    return len(node.disk.row_keys())


def limited(workload: Callable[[World], Any], *, seed: int, options: Options = OPTIONS, limit: int = LIMIT) -> None:
    """Run a workload on nodes that send and receive that many bytes a second."""

    async def started(world: World) -> None:
        for node in world.nodes:
            node.config = evolve(node.config, sync_bytes_per_s=limit)
            world.start_node(node)
        await world.settle()
        await workload(world)

    simulate(started, seed=seed, options=options, started=False)


def test_the_limit_holds_and_progress_is_shown() -> None:
    """It is 8 MB at 1 MiB/s; meanwhile any node shows how much has arrived, what is left and the remaining time."""

    async def workload(world: World) -> None:
        away = await behind(world)
        began, seen = trio.current_time(), list[dict[str, Any]]()
        with trio.fail_after(60):
            while rows(away) < ROWS:
                for placed in (await call(away, "partitions"))["partitions"]:
                    seen += placed["transfers"]
                await trio.sleep(0.2)
        took_s = trio.current_time() - began
        assert ROWS * ROW_BYTES / LIMIT - 1.0 <= took_s <= 2 * ROWS * ROW_BYTES / LIMIT + 2.0
        shown = [one for one in seen if one["rows_left"]]
        assert {one["node"] for one in seen} == {away.node_id}
        assert any(one["rows_done"] and one["bytes_done"] >= ROW_BYTES and one["seconds_left"] for one in shown)
        await trio.sleep(2)
        assert not any(placed["transfers"] for placed in (await call(away, "partitions"))["partitions"])

    limited(workload, seed=1)


def test_a_node_that_missed_a_write_is_shown_until_it_has_it() -> None:
    """It is in the ring and was complete before; only the leader cannot reach it."""

    async def workload(world: World) -> None:
        led_by = leader_of(world)
        missed = next(node for node in world.nodes if node is not led_by)

        async def shown() -> list[str]:
            (placed,) = (await call(led_by, "partitions"))["partitions"]
            return [one["node"] for one in placed["transfers"]]

        assert not await shown()
        world.network.part([led_by.name], [missed.name])
        async with world.client(nodes=[led_by]) as client:
            await client.enqueue("q", [b"x"])
        with trio.fail_after(10):
            while await shown() != [missed.node_id]:
                await trio.sleep(0.1)
        await trio.sleep(2)
        assert await shown() == [missed.node_id]
        world.network.heal()
        await world.until(lambda: rows(missed) == 1, "it is copied")
        await trio.sleep(1)
        assert not await shown()

    simulate(workload, seed=1, options=evolve(OPTIONS, partitions=1))


def test_a_takeover_waits_for_no_copies() -> None:
    """The node that lacks 8 MB must be asked, because another died: partitions serve long before it is complete."""

    async def workload(world: World) -> None:
        away = await behind(world)
        await world.until(lambda: 0 < rows(away) < ROWS / 2, "the first pages")
        await world.crash_node(world.nodes[1])
        await world.until(lambda: len(world.audit.replica.ring.members) == 2, "a ring of two")
        with trio.fail_after(2):
            await world.until(
                lambda: all(one.ready for one in world.audit.replica.partitions.values()), "ready leaders"
            )
        assert rows(away) < ROWS

    limited(workload, seed=3, options=evolve(OPTIONS, partitions=16), limit=LIMIT // 2)


def test_metrics_tell_what_is_sent_and_left() -> None:
    """They show rows and bytes so far, and what a node lacks."""

    async def workload(world: World) -> None:
        away = await behind(world)
        sent = 0
        with trio.fail_after(20):
            while not sent:
                await trio.sleep(0.2)
                texts = [(await call(node, "metrics"))["text"] for node in world.nodes[:2]]
                lines = [line for text in texts for line in text.splitlines()]
                sent = sum(int(line.split()[-1]) for line in lines if line.startswith(SENT))
        assert any(line.startswith(f'onyxq_sync_rows_left{{node="{away.node_id}"}} ') for line in lines)
        assert sent < ROWS * ROW_BYTES * 1.1
        await world.until(lambda: rows(away) == ROWS, "all rows")

    limited(workload, seed=2)


def test_pages_pause_while_clients_are_served() -> None:
    """The pause is a multiple of each page's time, with one page at a time; without clients there is none."""

    async def main() -> None:
        pacer = Pacer()

        async def page() -> None:
            async with pacer.page():
                await trio.sleep(0.1)

        async def timed() -> float:
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(page)
            return trio.current_time() - began

        assert abs(await timed() - 0.2) < 0.01
        async with trio.open_nursery() as nursery:

            async def clients() -> None:
                while True:
                    pacer.served()
                    await trio.sleep(0.05)

            nursery.start_soon(clients)
            pacer.served()
            assert abs(await timed() - 4 * 0.1 * (1 + BUSY_PAUSE)) < 0.05
            nursery.cancel_scope.cancel()

    trio.run(main, clock=mock_clock())


@pytest.mark.parametrize("seed", (1, 2))
def test_a_copy_that_is_made_has_what_is_under_way(seed: int) -> None:
    """A new copy has all acknowledged writes of earlier epochs.

    Seed 539 of the standard workload found an acknowledged task on one of three disks. Its leader, whose disk
    was slow, had compared the new copy before a write of the earlier epoch was on its own disk.
    """
    WORKLOADS["under_way"].play(seed)
