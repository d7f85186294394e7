"""Measures ordering keys: tasks per second through keys, and the effect of a blocked key on other keys.

    python -m bench.ordering [--keys 100] [--tasks 200] [--blocked 5000]

Three peers on one ZooKeeper run on this machine. *Throughput*: a number of keys with some tasks
each are stored. Workers then claim and complete them; of each key only one task is claimed at a
time. *Poison*: tasks arrive at a fixed rate under as many keys, and are measured from enqueue to
claim. This is done in turns without and with one more key in the same queue. The first task of that
key always fails, and ``--blocked`` tasks wait for it. Every task must come once and in the order of
its key. Of the poisoned key only the first may come. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from attrs import define, field

from bench.common import emit, machine, medians, percentiles, progress
from bench.drive import fresh_queue
from bench.options import end_on_signal, guarded
from bench.peers import Cluster, three_peers, until_whole
from onyxq.client import AsyncClient, Claim
from onyxq.errors import Unavailable

GOAL_RATIO = 2.0
"""The goal: the 99th percentile with poison is at most this multiple of the one without."""
POISON = "poison"
POISON_RETRY_MS = 100
LEASE_MS = 60_000
CLAIM_TASKS = 16
CLAIM_WAIT_MS = 1_000
PATIENCE_S = 60.0
WARMUP_S = 2.0


class OutOfOrder(Exception):
    """A task came before its turn, twice, or not at all."""


@define
class Keys:
    """Tasks of keys, numbered within their key, and which of them were claimed."""

    queue: str
    expected: int
    taken: dict[str, int] = field(factory=dict)
    """Key -> how many of its tasks were claimed."""
    latest_s: list[float] = field(factory=list)
    """Seconds from enqueue to claim."""
    began: dict[tuple[str, int], float] = field(factory=dict)
    failed: int = 0
    """Failures of the poisoned key's first task."""
    unavailable: int = 0
    """Claims that were answered with ``unavailable``, because a leader did not answer in time."""
    over: anyio.Event = field(factory=anyio.Event)

    async def worker(self, client: AsyncClient, name: str) -> None:
        """Claim and complete until all tasks came."""
        while not self.over.is_set():
            try:
                claims = await client.claim(
                    [self.queue], max=CLAIM_TASKS, lease_ms=LEASE_MS, wait_ms=CLAIM_WAIT_MS, worker=name
                )
            except Unavailable:
                self.unavailable += 1
                continue
            now = time.perf_counter()
            good = [claim for claim in claims if self._took(claim, now)]
            if good:
                await client.complete(good)
            for claim in claims:
                if claim not in good:
                    await client.fail(claim, "poisoned", retry_in_ms=POISON_RETRY_MS)
                    self.failed += 1

    def _took(self, claim: Claim, now: float) -> bool:
        key, _, number = claim.data.decode().partition(" ")
        if key == POISON:
            if int(number):
                raise OutOfOrder(f"number {number} of the poisoned key came although the first never succeeds")
            return False
        if int(number) != self.taken.get(key, 0):
            raise OutOfOrder(f"number {number} of {key} came when it was number {self.taken.get(key, 0)}'s turn")
        self.taken[key] = int(number) + 1
        if (key, int(number)) in self.began:
            self.latest_s.append(now - self.began[key, int(number)])
        if sum(self.taken.values()) == self.expected:
            self.over.set()
        return True


async def worked(client: AsyncClient, keys: Keys, workers: int) -> None:
    """Run a number of workers until all tasks came."""
    async with anyio.create_task_group() as group:
        for number in range(workers):
            group.start_soon(keys.worker, client, f"worker-{number}")


async def throughput(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    """Return tasks per second through keys whose tasks are all stored."""
    keys = Keys(fresh_queue(), options.keys * options.tasks)
    async with AsyncClient(cluster.addresses) as client:
        await until_whole(client)
        began = time.perf_counter()

        async def store(number: int) -> None:
            payloads = [b"key-%d %d" % (number, place) for place in range(options.tasks)]
            await client.enqueue_many(keys.queue, payloads, ordering_key=f"key-{number}")

        async with anyio.create_task_group() as group:
            for number in range(options.keys):
                group.start_soon(store, number)
        stored_s = time.perf_counter() - began
        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            group.start_soon(worked, client, keys, options.workers)
            with anyio.fail_after(PATIENCE_S + keys.expected / 50):
                await keys.over.wait()
        took_s = time.perf_counter() - began
    return {
        "tasks": keys.expected,
        "enqueued_per_second": round(keys.expected / stored_s, 1),
        "tasks_per_second": round(keys.expected / took_s, 1),
        "load_after": round(os.getloadavg()[0], 2),
    }


async def arrivals(cluster: Cluster, options: argparse.Namespace, *, poison: bool) -> dict[str, Any]:
    """Return milliseconds from enqueue to claim, for tasks that arrive at a fixed rate."""
    warmup = int(options.rate * WARMUP_S)
    total = warmup + int(options.rate * options.seconds)
    keys = Keys(fresh_queue(), total)
    async with AsyncClient(cluster.addresses) as client:
        if poison:
            await client.enqueue(keys.queue, b"poison 0", ordering_key=POISON, retries=None)
            blocked = [b"poison %d" % number for number in range(1, options.blocked + 1)]
            await client.enqueue_many(keys.queue, blocked, ordering_key=POISON)
        begin = time.perf_counter() + 0.5

        async def arrive(number: int) -> None:
            key, place = f"key-{number % options.keys}", number // options.keys
            due = begin + number / options.rate
            await anyio.sleep(max(0.0, due - time.perf_counter()))
            if number >= warmup:
                keys.began[key, place] = time.perf_counter()
            await client.enqueue(keys.queue, b"%s %d" % (key.encode(), place), ordering_key=key)

        async def producer(first: int) -> None:
            # The tasks of a key come from one producer, so their order is that of its calls.
            for number in range(first, total, options.keys):
                await arrive(number)

        async with anyio.create_task_group() as group:
            group.start_soon(worked, client, keys, options.workers)
            for first in range(min(options.keys, total)):
                group.start_soon(producer, first)
            with anyio.fail_after(options.seconds + PATIENCE_S):
                await keys.over.wait()
        left = (await client.count(keys.queue))[keys.queue]
    if poison and left["completed"] != total:
        raise OutOfOrder(f"{left['completed']} tasks are completed instead of {total}")
    found = {**percentiles(keys.latest_s), "tasks": len(keys.latest_s), "load_after": round(os.getloadavg()[0], 2)}
    found["unavailable"] = keys.unavailable
    return {**found, "poison_failures": keys.failed, "poison_waiting": left["waiting"]} if poison else found


async def poisoned(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    """Measure without and with poison in turns, so that both have the same conditions; return medians."""
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for run, poison in itertools.product(range(options.runs), (False, True)):
        progress(f"arrivals {'with' if poison else 'without'} poison, run {run + 1}")
        found[poison].append(await arrivals(cluster, options, poison=poison))
    without, with_poison = medians(found[False]), medians(found[True])
    ratio = with_poison["p99_ms"] / without["p99_ms"]
    return {
        "without": without,
        "with": with_poison,
        "p50_ratio": round(with_poison["p50_ms"] / without["p50_ms"], 2),
        "p99_ratio": round(ratio, 2),
        "goal_p99_ratio": GOAL_RATIO,
        "reached": ratio <= GOAL_RATIO,
    }


def main() -> None:
    """Measure and print the JSON document."""
    options = _options()
    end_on_signal()
    found: dict[str, Any] = {}
    with three_peers(options.directory) as cluster:

        def measure(about: str, function: Callable[[Cluster, argparse.Namespace], Any]) -> None:
            progress(about)
            found[about] = guarded(lambda: anyio.run(function, cluster, options))

        measure("throughput", throughput)
        measure("poison", poisoned)
    settings = {
        "keys": options.keys,
        "tasks_per_key": options.tasks,
        "blocked_tasks": options.blocked,
        "workers": f"{options.workers} in one process, each claims up to {CLAIM_TASKS} at a time",
        "arrivals_per_second": options.rate,
        "seconds": options.seconds,
        "runs": options.runs,
    }
    emit({"benchmark": "ordering", "machine": machine(), "settings": settings, **found})


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--keys", type=int, default=100)
    made.add_argument("--tasks", type=int, default=200, help="tasks per key, for the throughput")
    made.add_argument("--blocked", type=int, default=5_000, help="tasks that wait for the one that always fails")
    made.add_argument("--rate", type=int, default=100, help="tasks that arrive per second")
    made.add_argument("--seconds", type=float, default=10.0, help="length of each measurement with arrivals")
    made.add_argument("--runs", type=int, default=3, help="measurements of each kind; the figures are their medians")
    made.add_argument("--workers", type=int, default=16)
    made.add_argument("--directory", type=Path, default=None, help="directory of the data")
    return made.parse_args()


if __name__ == "__main__":
    main()
