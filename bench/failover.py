"""Measures how long a job pauses when its driver's peer is killed: from ``kill -9`` to the next committed batch.

    python -m bench.failover [--runs 2] [--modes cold,warm]

One peer without Spark and two peers that host it share a ZooKeeper. A job reads a queue, which a
client keeps filling, and writes another queue. Once some batches are committed, the peer that
drives the job is killed, with all processes of the job on its machine. The log shows when each part
ended:

* *session*: until the peer is found dead and the log has given the job to the other peer.
* *start*: until the other peer's query runs. In the mode *cold* it first starts a virtual machine
  and opens a session (*host*). It begins with that when the driver does not answer, before the log
  gives it the job. In the mode *warm* its session is already open.
* *recovery*: until its first batch is committed.

A run is *warm* if the standby's session has been open for a while. At the end all tasks must have
come out exactly once. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
from attrs import define, field

from bench.common import emit, machine, median_of, progress
from bench.options import end_on_signal, guarded
from bench.peers import SESSION_TIMEOUT_MS, Cluster, Peer, running, until_whole
from onyxq import Function, Input, Job, Output, api
from onyxq.client import AsyncClient

SPARK = ("--spark", "--allow-local-code", "--slots", "2")
GOALS_S = {"cold": 15.0, "warm": 4.0}
"""Goals for the time from the change of driver to the first batch, in seconds."""
TASKS, EVERY_S = 20, 0.2
BATCHES = 3
"""Batches that are committed before the kill."""
LOOK_EVERY_S = 0.1
STEP_S_MAX = 300.0


@define
class Seen:
    """The log's events about the job, and when they were read."""

    versions: dict[int, float] = field(factory=dict)
    ready: dict[int, float] = field(factory=dict)
    first: dict[int, float] = field(factory=dict)
    """Version -> when its first batch was committed."""
    up: float = math.inf
    """When the next driver's session was open."""
    batches: int = 0
    news: anyio.Event = field(factory=anyio.Event)

    def note(self, name: str, version: int) -> None:
        """Record an entry of the job's driver."""
        now = time.monotonic()
        if name == "driver_ready":
            self.ready.setdefault(version, now)
        elif name == "commit_batch":
            self.first.setdefault(version, now)
            self.batches += 1
        self.tell()

    def tell(self) -> None:
        """Wake the waiting callers."""
        self.news.set()
        self.news = anyio.Event()

    async def until(self, about: str, check: Callable[[], bool]) -> None:
        """Wait until an event was seen."""
        progress(f"  waiting for {about}")
        with anyio.fail_after(STEP_S_MAX):
            while not check():
                await self.news.wait()


async def watch(seen: Seen, connect: str, job: str, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Record the log's events about the job."""
    async with api.subscribe_async(connect=connect) as events:
        task_status.started()
        async for _, entry, verdict, diff in events:
            for change in diff:
                if change.path == ("jobs", job, "version") and isinstance(change.after, int):
                    seen.versions.setdefault(change.after, time.monotonic())
                    seen.tell()
            if verdict == "applied" and getattr(entry.args, "job", None) == job and hasattr(entry.args, "version"):
                seen.note(entry.name, entry.args.version)


@define
class Filling:
    """Keeps a queue filled until it is stopped."""

    sent: list[bytes] = field(factory=list)
    wanted: bool = True
    ended: anyio.Event = field(factory=anyio.Event)

    async def run(self, client: AsyncClient, queue: str) -> None:
        """Enqueue at intervals; finish a started enqueue."""
        number = 0
        while self.wanted:
            number += 1
            some = [json.dumps(f"{number}-{one}").encode() for one in range(TASKS)]
            await client.enqueue_many(queue, some, format="json")
            self.sent += some
            await anyio.sleep(EVERY_S)
        self.ended.set()


async def note_up(seen: Seen, cluster: Cluster) -> None:
    """Record when a host is up on one of the remaining peers."""
    while not any(await anyio.to_thread.run_sync(cluster.metric, "onyxq_spark_host_up")):
        await anyio.sleep(LOOK_EVERY_S)
    seen.up = time.monotonic()


async def until_warm(peers: list[Peer], cluster: Cluster) -> None:
    """Wait until every host has an open session."""
    progress("  waiting for warm sessions")
    with anyio.fail_after(STEP_S_MAX):
        while sum(cluster.metric("onyxq_spark_host_up")) < len(peers):
            await anyio.sleep(1.0)


async def fail_over(cluster: Cluster, name: str, *, warm: bool) -> dict[str, float]:
    """Run one job with one kill; return the seconds of each part."""
    witness, *hosts = cluster.peers
    job = Job(
        id=name,
        workflow=[("in", "shout"), ("shout", "out")],
        catalog=[
            Input("in", queue=f"{name}-in"),
            Function("shout", "builtins:str.upper"),
            Output("out", queue=f"{name}-out"),
        ],
    )
    seen, filling = Seen(), Filling()
    async with AsyncClient(witness.listen) as client, anyio.create_task_group() as group:
        await until_whole(client)
        if warm:
            await until_warm(hosts, cluster)
        await group.start(watch, seen, witness.listen, name)
        await client.submit_job(job)
        group.start_soon(filling.run, client, f"{name}-in")
        await seen.until(f"{BATCHES} batches", lambda: seen.batches >= BATCHES)
        found = await client.job(name)
        old, driver = found["version"], found["driver"]
        killed = next(peer for peer in hosts if driver.startswith(peer.node))
        progress(f"  killing peer {killed.number}")
        at = time.monotonic()
        cluster.kill(killed)
        group.start_soon(note_up, seen, cluster)
        await seen.until("the next batch", lambda: any(version > old for version in seen.first))
        filling.wanted = False
        await filling.ended.wait()
        await client.seal_job(name, "in")
        outcome = await client.wait_job(name, int(STEP_S_MAX * 1000))
        out = sorted([task.data async for task in client.list_all(f"{name}-out")])
        if not outcome.completed or out != sorted(one.upper() for one in filling.sent):
            raise RuntimeError(f"{len(out)} of {len(filling.sent)} tasks came out, or others: {outcome}")
        group.cancel_scope.cancel()
    new = min(version for version in seen.first if version > old)
    took, ready, first = seen.versions[new], seen.ready[new], seen.first[new]
    return {
        "session_s": round(took - at, 2),
        "host_s": round(max(0.0, seen.up - took), 2),
        "start_s": round(ready - took, 2),
        "recovery_s": round(first - ready, 2),
        "beyond_session_s": round(first - took, 2),
        "total_s": round(first - at, 2),
    }


def measured(directory: Path | None, mode: str, runs: int) -> dict[str, Any]:
    """Return the medians of a mode; the killed peer is started again after each run."""
    options = (*SPARK, "--spark-warm") if mode == "warm" else SPARK
    numbers = itertools.count()
    with running(1, directory, zookeepers=1) as cluster:
        for _ in range(2):
            cluster.start(options=options)

        def once() -> dict[str, float]:
            for number in {1, 2} - {peer.number for peer in cluster.peers}:
                cluster.start(number, options=options)
            number = next(numbers)
            progress(f"{mode}, run {number + 1} of {runs}")

            async def measure() -> dict[str, float]:
                return await fail_over(cluster, f"{mode}-{number}", warm=mode == "warm")

            return anyio.run(measure)

        found = median_of(runs, once)
    return {**found, "goal_s": GOALS_S[mode], "reached": found["beyond_session_s"] <= GOALS_S[mode]}


def main() -> None:
    """Measure and print the JSON document."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--runs", type=int, default=2, help="number of measurements; the figures are their medians")
    made.add_argument("--modes", type=lambda text: text.split(","), default="cold,warm")
    made.add_argument("--directory", type=Path, default=None, help="directory of the data")
    options = made.parse_args()
    modes = options.modes if isinstance(options.modes, list) else options.modes.split(",")
    end_on_signal()
    found = {mode: guarded(lambda mode=mode: measured(options.directory, mode, options.runs)) for mode in modes}
    settings = {"runs": options.runs, "slots": 2, "session_timeout_ms": SESSION_TIMEOUT_MS, "master": "local"}
    emit({"benchmark": "failover", "machine": machine(), "settings": settings, "modes": found})


if __name__ == "__main__":
    main()
