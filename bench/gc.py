"""Measures the effect of log collections on clients: pauses with and without them.

    python -m bench.gc [--collections 200] [--held 2000] [--seconds 10]

Three peers on one ZooKeeper, all on this machine, are under a steady load of enqueues, claims and
completions. Periods with collections, which the peers run in turn, alternate with equally long ones
without. The pause of a period is the time of its slowest call. This process also sleeps for short
times beside the calls. How much longer these sleeps last shows how much the machine and the
benchmark add to a call. Every grant is checked: none may be lost or come twice. Prints one JSON
document.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from bench.common import emit, machine, percentiles, progress
from bench.onyxq_system import OnyxqZookeeper3
from onyxq.client import AsyncClient
from onyxq.interfaces.cli.processes.daemons import spare_collections

LANES = 4
BATCH_TASKS = 10
BACKLOG_TASKS = 400
"""Tasks that are always ready, so that no claim waits for one."""
LEASE_MS = 60_000
HELD_LEASE_MS = 3_600_000
STRETCHES = 5
GOAL_MS = 100.0
SLEEP = "sleep_5_ms"
Calls = list[tuple[float, float]]
"""Start and end of calls, in seconds."""


@define
class Measured:
    """Figures of the lanes."""

    calls: dict[str, Calls] = field(factory=lambda: {"enqueue": [], "claim": [], "complete": [], SLEEP: []})
    enqueued: set[bytes] = field(factory=set)
    granted: dict[bytes, int] = field(factory=dict)
    completed: set[bytes] = field(factory=set)
    repeated: int = 0
    stop: bool = False

    async def timed(self, kind: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call and record its duration."""
        start = time.perf_counter()
        answer = await call()
        self.calls[kind].append((start, time.perf_counter()))
        return answer


async def lane(client: AsyncClient, measured: Measured, number: int, pace_s: float) -> None:
    """Enqueue, claim and complete at a steady pace until told to stop."""
    at = trio.current_time() + pace_s * number / LANES
    while not measured.stop:
        at = max(at + pace_s, trio.current_time())
        await trio.sleep_until(at)
        await enqueue(client, measured, BATCH_TASKS)
        await take(client, measured, f"lane-{number}", wait_ms=0)


async def sleeper(measured: Measured) -> None:
    """Sleep again and again without any request until told to stop."""
    while not measured.stop:
        await measured.timed(SLEEP, lambda: trio.sleep(0.005))


async def enqueue(client: AsyncClient, measured: Measured, count: int) -> None:
    """Store some tasks."""
    ids = await measured.timed("enqueue", lambda: client.enqueue_many("load", [b"x" * 100] * count))
    measured.enqueued.update(bytes(task_id) for task_id in ids)


async def take(client: AsyncClient, measured: Measured, worker: str, *, wait_ms: int) -> int:
    """Claim some tasks and complete them; return how many."""
    claims = await measured.timed(
        "claim",
        lambda: client.claim(["load"], max=BATCH_TASKS, lease_ms=LEASE_MS, wait_ms=wait_ms, worker=worker),
    )
    for claim in claims:
        measured.repeated += claim.id in measured.granted
        measured.granted[bytes(claim.id)] = claim.token
    if claims:
        await measured.timed("complete", lambda: client.complete(claims))
        measured.completed.update(bytes(claim.id) for claim in claims)
    return len(claims)


async def hold(client: AsyncClient, count: int) -> int:
    """Make claims that stay, each with a token of its own, so that the replica is large."""
    for start in range(0, count, 500):
        await client.enqueue_many("held", [b"x"] * min(500, count - start))
    held = 0

    async def claim_some(worker: str) -> None:
        nonlocal held
        while await client.claim(["held"], max=1, lease_ms=HELD_LEASE_MS, wait_ms=500, worker=worker):
            held += 1

    async with trio.open_nursery() as nursery:
        for number in range(64):
            nursery.start_soon(claim_some, f"holder-{number}")
    return held


async def collect(addresses: Sequence[str], count: int) -> tuple[list[dict[str, Any]], Calls]:
    """Run a number of collections, on the peers in turn; return their reports and times."""
    reports, times = [], []
    for number in range(count):
        async with AsyncClient([addresses[number % len(addresses)]]) as client:
            start = time.perf_counter()
            reports.append(await client.call("gc", {}))
            times.append((start, time.perf_counter()))
    return reports, times


async def run(addresses: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Run the whole measurement."""
    measured = Measured()
    reports: list[dict[str, Any]] = []
    times: Calls = []
    stretches: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    async with AsyncClient(addresses) as client, trio.open_nursery() as nursery:
        held = await hold(client, options.held)
        await enqueue(client, measured, BACKLOG_TASKS)
        for number in range(LANES):
            nursery.start_soon(lane, client, measured, number, LANES / options.rate)
        nursery.start_soon(sleeper, measured)
        spare_collections()
        await trio.sleep(2)
        for stretch in range(STRETCHES):
            progress(f"stretch {stretch + 1} of {STRETCHES}")
            start = time.perf_counter()
            some = options.collections * (stretch + 1) // STRETCHES - options.collections * stretch // STRETCHES
            found, when = await collect(addresses, some)
            stretches["with"].append((start, time.perf_counter()))
            reports += found
            times += when
            await trio.sleep(1)
            start = time.perf_counter()
            await trio.sleep(max(options.seconds, stretches["with"][-1][1] - stretches["with"][-1][0]))
            stretches["without"].append((start, time.perf_counter()))
        measured.stop = True
    async with AsyncClient(addresses) as client:
        while await take(client, measured, "last", wait_ms=2_000):
            pass
    return {
        "collections": len(reports),
        "collection": percentiles([end - start for start, end in times]),
        "origin_bytes": reports[-1]["origin_bytes"],
        "records_trimmed": sum(report["trimmed"] for report in reports),
        "claims_held": held,
        "calls": sum(len(calls) for kind, calls in measured.calls.items() if kind != SLEEP),
        "tasks": len(measured.enqueued),
        "lost": len(measured.enqueued - measured.completed),
        "granted_twice": measured.repeated,
        **{name: figures(measured, parts) for name, parts in stretches.items()},
    }


def figures(measured: Measured, stretches: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return latencies of the calls in some periods."""
    found: dict[str, Any] = {"seconds": round(sum(end - start for start, end in stretches), 1)}
    slow = 0
    for kind, calls in measured.calls.items():
        inside = [b - a for a, b in calls if any(a < end and b > start for start, end in stretches)]
        found[kind] = {"calls": len(inside), **percentiles(inside)}
        slow += sum(1 for seconds in inside if kind != SLEEP and seconds * 1000 > GOAL_MS)
    return {**found, f"calls_over_{GOAL_MS:.0f}_ms": slow}


def main() -> None:
    """Measure and print the JSON document."""
    parser = argparse.ArgumentParser(prog="python -m bench.gc", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--collections", type=int, default=200)
    parser.add_argument("--held", type=int, default=2_000, help="claims that stay in flight")
    parser.add_argument("--rate", type=float, default=40.0, help="rounds of enqueue, claim, complete per second")
    parser.add_argument("--seconds", type=float, default=5.0, help="shortest period without collections")
    options = parser.parse_args()
    system = OnyxqZookeeper3()
    with tempfile.TemporaryDirectory() as directory:
        try:
            system.start(Path(directory))
            found = trio.run(run, list(system.addresses), options)
        finally:
            system.stop()
    settings = {**vars(options), "lanes": LANES, "batch_tasks": BATCH_TASKS}
    emit({"benchmark": "gc", "machine": machine(), "settings": settings, "results": found})
    sys.exit(1 if found["lost"] or found["granted_twice"] else 0)


if __name__ == "__main__":
    main()
