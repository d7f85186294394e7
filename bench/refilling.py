"""Wipes a node of a cluster and measures how it is refilled, with and without a load of clients."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define

from bench.common import progress
from bench.drive import make_payloads
from bench.peers import LOOK_EVERY_S, Cluster, until_whole
from onyxq.client import AsyncClient
from onyxq.errors import OnyxqError

LANES = 4
BATCH_TASKS = 100
WHOLE_SECONDS_MAX = 1_800.0
GOAL = 0.70
"""The goal: the part of its speed that the cluster keeps."""


@define
class Load:
    """A closed loop of clients."""

    done: int = 0
    errors: int = 0

    async def lane(self, client: AsyncClient, number: int) -> None:
        """Enqueue, claim and complete for ever."""
        payloads = make_payloads(number, BATCH_TASKS, 100)
        while True:
            try:
                await client.enqueue_many("load", payloads)
                owed = BATCH_TASKS
                while owed > 0:
                    claims = await client.claim(["load"], max=owed, wait_ms=1_000, worker=f"lane-{number}")
                    await client.complete(claims)
                    owed -= len(claims)
                    self.done += len(claims)
            except OnyxqError:
                self.errors += 1
                await trio.sleep(0.1)


@asynccontextmanager
async def loaded(client: AsyncClient) -> AsyncIterator[Load]:
    """Run the lanes."""
    load = Load()
    async with trio.open_nursery() as nursery:
        for number in range(LANES):
            nursery.start_soon(load.lane, client, number)
        yield load
        nursery.cancel_scope.cancel()


async def refill(cluster: Cluster, client: AsyncClient, load: Load | None) -> dict[str, Any]:
    """Wipe a node, start it again, and measure how it is refilled."""
    await trio.to_thread.run_sync(cluster.wipe)
    await trio.to_thread.run_sync(cluster.start)
    before = await trio.to_thread.run_sync(cluster.sent)
    started = before
    with trio.fail_after(120):
        while started["rows"] - before["rows"] < 10:
            await trio.sleep(LOOK_EVERY_S / 5)
            started = await trio.to_thread.run_sync(cluster.sent)
    begin, served = time.perf_counter(), load.done if load else 0
    await until_whole(client, len(cluster.peers), seconds=WHOLE_SECONDS_MAX)
    took_s, ended = time.perf_counter() - begin, await trio.to_thread.run_sync(cluster.sent)
    found = {
        "seconds": round(took_s, 2),
        "mb": round((ended["bytes"] - before["bytes"]) / 1e6, 1),
        "rows": ended["rows"] - before["rows"],
        "mb_per_s": round((ended["bytes"] - before["bytes"]) / 1e6 / took_s, 2),
        "rows_per_s": round((ended["rows"] - before["rows"]) / took_s),
    }
    return found | ({"load_tasks_per_s": round((load.done - served) / took_s)} if load else {})


async def refilled(cluster: Cluster, client: AsyncClient, *, tasks: int, seconds: float) -> dict[str, Any]:
    """Refill a node without clients and under load; return the times and the loss of speed of the load."""
    progress("refilling a node of a cluster without clients")
    idle = await refill(cluster, client, None)
    progress(f"measuring the load for {seconds} s")
    async with loaded(client) as load:
        await trio.sleep(2)
        speed = await _speed(load, seconds)
        progress(f"{speed:.0f} tasks/s; refilling a node meanwhile")
        each_s: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_sample, load, each_s)
            busy = await refill(cluster, client, load)
            nursery.cancel_scope.cancel()
        busy["load_each_s"] = each_s
        await trio.sleep(1)
        after = await _speed(load, seconds)
    for one in (idle, busy):
        one["tasks_per_s"] = round(tasks / one["seconds"])
    kept = busy["load_tasks_per_s"] / speed
    return {
        "idle": idle,
        "loaded": busy,
        "load_tasks_per_s_before": round(speed),
        "load_tasks_per_s_after": round(after),
        "load_kept": round(kept, 3),
        "load_kept_of_both": round(2 * busy["load_tasks_per_s"] / (speed + after), 3),
        "load_errors": load.errors,
        "goal_load_kept": GOAL,
        "reached": kept >= GOAL,
    }


async def _sample(load: Load, each_s: list[int]) -> None:
    """Count the calls of the load in each second from the wipe on."""
    while True:
        done = load.done
        await trio.sleep(1)
        each_s.append(load.done - done)


async def _speed(load: Load, seconds: float) -> float:
    begin, done = time.perf_counter(), load.done
    await trio.sleep(seconds)
    return (load.done - done) / (time.perf_counter() - begin)
