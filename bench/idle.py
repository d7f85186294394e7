"""Measures the cost of an idle cluster: percent of a core of each of three peers.

    python -m bench.idle [--seconds 60] [--workers 64]

Three peers on one ZooKeeper, all on this machine, run once without any client, and once with
workers that wait on empty queues. Processor time is the kernel's count for each process, without
the client's. Prints one JSON document.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import trio

from bench.common import cpu_seconds, emit, machine, progress
from bench.options import end_on_signal
from bench.peers import PARTITIONS, PEERS, SESSION_TIMEOUT_MS, Cluster, three_peers, until_whole
from onyxq.client import AsyncClient
from onyxq.worker.loop import AHEAD_MS

GOAL_PERCENT = 2.0
SETTLE_S = 10.0
"""Pause before the measurement, once the cluster is complete or the claims have begun, in seconds."""
QUEUES = 8
CLAIM_WAIT_MS = 30_000


async def measure(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    """Measure both modes on one cluster."""
    async with AsyncClient(cluster.addresses) as client:
        await until_whole(client)
    found = {"alone": await percent(cluster, options.seconds)}
    async with AsyncClient(cluster.addresses) as client, trio.open_nursery() as nursery:
        for number in range(options.workers):
            nursery.start_soon(wait, client, number)
        found["workers wait"] = await percent(cluster, options.seconds)
        nursery.cancel_scope.cancel()
    return {"modes": found}


async def percent(cluster: Cluster, seconds: float) -> dict[str, Any]:
    """Return the percent of a core that each peer, and ZooKeeper, uses within a time."""
    assert cluster.zookeeper is not None
    pids = [*(peer.pid for peer in cluster.peers), *cluster.zookeeper.pids]
    await trio.sleep(SETTLE_S)
    progress(f"measuring for {seconds:g} s")
    began, before = trio.current_time(), [cpu_seconds([pid]) for pid in pids]
    await trio.sleep(seconds)
    took_s = trio.current_time() - began
    shares = [100 * (cpu_seconds([pid]) - was) / took_s for pid, was in zip(pids, before, strict=True)]
    peers = [round(share, 2) for share in shares[: len(cluster.peers)]]
    zookeeper = round(sum(shares[len(cluster.peers) :]), 2)
    return {"peers": peers, "zookeeper": zookeeper, "goal": GOAL_PERCENT, "reached": max(peers) < GOAL_PERCENT}


async def wait(client: AsyncClient, number: int) -> None:
    """Claim from an empty queue as a worker does."""
    queue, worker = f"queue-{number % QUEUES}", f"worker-{number}"
    while True:
        await client.claim(queue, wait_ms=CLAIM_WAIT_MS, worker=worker, ahead_ms=AHEAD_MS)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.idle", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="length of each measurement (default 60)"
    )
    parser.add_argument(
        "--workers", type=int, default=64, metavar="N", help="waiting workers, on one client (default 64)"
    )
    parser.add_argument("--directory", type=Path, default=None, help="directory of the data")
    options = parser.parse_args()
    end_on_signal()
    with three_peers(options.directory) as cluster:
        found = trio.run(measure, cluster, options)
    settings = {
        "seconds": options.seconds,
        "workers": f"{options.workers} on one client, on {QUEUES} queues without tasks",
        "peers": PEERS,
        "partitions": PARTITIONS,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
    }
    emit({"benchmark": "idle", "machine": machine(), "settings": settings, **found})


if __name__ == "__main__":
    main()
