"""How fast a wiped node is refilled, and what the cluster's clients notice of it.

    python -m bench.sync [--tasks 200000] [--payload 100] [--run 10] [--seconds 10]

Three peers on one ZooKeeper, all on this machine.  Tasks are stored and kept, in runs of
``--run`` tasks.  Then a peer is killed and its data directory deleted, twice: once while
nobody uses the cluster, once under a closed loop of enqueues, claims and completions whose
rate before and meanwhile is compared.  A refill lasts from the first row that a leader sends
to the new node until no partition lacks anything.  Prints one JSON document.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define

from bench.common import emit, machine, progress
from bench.drive import make_payloads
from bench.peers import LOOK_EVERY_S, Cluster, three_peers, until_whole
from onyxq.client import AsyncClient
from onyxq.errors import OnyxqError

LANES = 4
BATCH_TASKS = 100
GOAL = 0.70
"""What part of its speed the cluster is to keep."""


@define
class Load:
    """A closed loop of clients."""

    done: int = 0
    errors: int = 0

    async def lane(self, client: AsyncClient, number: int) -> None:
        """Enqueue, claim, complete for ever."""
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
    """The lanes at work."""
    load = Load()
    async with trio.open_nursery() as nursery:
        for number in range(LANES):
            nursery.start_soon(load.lane, client, number)
        yield load
        nursery.cancel_scope.cancel()


async def store(client: AsyncClient, *, tasks: int, run: int, payload: int) -> None:
    """Enqueue tasks that stay, in runs of ``run``."""
    left = tasks

    async def lane(number: int) -> None:
        nonlocal left
        while left > 0:
            left -= run
            await client.enqueue_many("kept", make_payloads(number, run, payload))

    async with trio.open_nursery() as nursery:
        for number in range(64):
            nursery.start_soon(lane, number)


async def refill(cluster: Cluster, client: AsyncClient, load: Load | None) -> dict[str, Any]:
    """Wipe a node, start it anew and time how it is filled."""
    await trio.to_thread.run_sync(cluster.wipe)
    await trio.to_thread.run_sync(cluster.start)
    before = await trio.to_thread.run_sync(cluster.sent)
    started = before
    with trio.fail_after(120):
        while started["rows"] - before["rows"] < 10:
            await trio.sleep(LOOK_EVERY_S / 5)
            started = await trio.to_thread.run_sync(cluster.sent)
    begin, served = time.perf_counter(), load.done if load else 0
    await until_whole(client)
    took_s, ended = time.perf_counter() - begin, await trio.to_thread.run_sync(cluster.sent)
    found = {
        "seconds": round(took_s, 2),
        "mb": round((ended["bytes"] - before["bytes"]) / 1e6, 1),
        "rows": ended["rows"] - before["rows"],
        "mb_per_s": round((ended["bytes"] - before["bytes"]) / 1e6 / took_s, 2),
        "rows_per_s": round((ended["rows"] - before["rows"]) / took_s),
    }
    return found | ({"load_tasks_per_s": round((load.done - served) / took_s)} if load else {})


async def measure(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    """The whole measurement on a cluster that runs."""
    async with AsyncClient([cluster.peers[0].listen, cluster.peers[1].listen]) as client:
        await until_whole(client)
        progress(f"storing {options.tasks} tasks")
        await store(client, tasks=options.tasks, run=options.run, payload=options.payload)
        await until_whole(client)
        progress("refilling a node of a cluster that nobody uses")
        idle = await refill(cluster, client, None)
        progress(f"measuring the load for {options.seconds} s")
        async with loaded(client) as load:
            await trio.sleep(2)
            begin, done = time.perf_counter(), load.done
            await trio.sleep(options.seconds)
            speed = (load.done - done) / (time.perf_counter() - begin)
            progress(f"{speed:.0f} tasks/s; refilling a node meanwhile")
            busy = await refill(cluster, client, load)
            await trio.sleep(1)
            begin, done = time.perf_counter(), load.done
            await trio.sleep(options.seconds)
            after = (load.done - done) / (time.perf_counter() - begin)
    for one in (idle, busy):
        one["tasks_per_s"] = round(options.tasks / one["seconds"])
    kept = busy["load_tasks_per_s"] / speed
    return {
        "idle": idle,
        "loaded": busy,
        "load_tasks_per_s_before": round(speed),
        "load_tasks_per_s_after": round(after),
        "load_kept": round(kept, 3),
        "load_errors": load.errors,
        "goal_load_kept": GOAL,
        "reached": kept >= GOAL,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.sync", description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=200_000, metavar="N", help="tasks to keep (default 200000)")
    parser.add_argument("--run", type=int, default=10, metavar="N", help="tasks of one enqueue (default 10)")
    parser.add_argument("--payload", type=int, default=100, metavar="BYTES", help="of each task (default 100)")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="for the rate without refill")
    options = parser.parse_args()
    with three_peers(None) as cluster:
        found = trio.run(measure, cluster, options)
    emit({"benchmark": "sync", "machine": machine(), "options": vars(options), **found})


if __name__ == "__main__":
    main()
