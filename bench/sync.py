"""Measures how fast a wiped node is refilled, and how much slower the cluster's clients are meanwhile.

    python -m bench.sync [--tasks 200000] [--payload 100] [--run 10] [--seconds 10]

Three peers on one ZooKeeper run on this machine. Tasks are stored in runs of ``--run`` tasks and
stay. Then a peer is killed and its data directory deleted, twice: once without clients, and once
under a closed loop of enqueues, claims and completions. The rate of that loop before and during the
refill is compared. A refill lasts from the first row that a leader sends to the new node until all
partitions are complete. Prints one JSON document.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import trio

from bench.common import emit, machine, progress
from bench.drive import make_payloads
from bench.options import end_on_signal
from bench.peers import Cluster, three_peers, until_whole
from bench.refilling import refilled
from onyxq.client import AsyncClient

FILL_LANES = 64


async def store(client: AsyncClient, *, tasks: int, run: int, payload: int) -> None:
    """Enqueue tasks that stay, in runs of ``run``."""
    left = tasks

    async def lane(number: int) -> None:
        nonlocal left
        while left > 0:
            left -= run
            await client.enqueue_many("kept", make_payloads(number, run, payload))

    async with trio.open_nursery() as nursery:
        for number in range(FILL_LANES):
            nursery.start_soon(lane, number)


async def measure(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    """Run the whole measurement on a running cluster."""
    async with AsyncClient(cluster.addresses[:-1]) as client:
        await until_whole(client)
        progress(f"storing {options.tasks} tasks")
        await store(client, tasks=options.tasks, run=options.run, payload=options.payload)
        await until_whole(client)
        return await refilled(cluster, client, tasks=options.tasks, seconds=options.seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.sync", description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=200_000, metavar="N", help="tasks to keep (default 200000)")
    parser.add_argument("--run", type=int, default=10, metavar="N", help="tasks of one enqueue (default 10)")
    parser.add_argument("--payload", type=int, default=100, metavar="BYTES", help="bytes of each task (default 100)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="length of the measurement without a refill"
    )
    parser.add_argument("--directory", type=Path, default=None, help="directory of the data")
    options = parser.parse_args()
    end_on_signal()
    with three_peers(options.directory) as cluster:
        found = trio.run(measure, cluster, options)
    emit({"benchmark": "sync", "machine": machine(), "options": {**vars(options), "directory": None}, **found})


if __name__ == "__main__":
    main()
