"""Measures how late timers fire: from the due time of delayed tasks to a worker that may start them.

    python -m bench.timers [--timers 50000] [--seconds 60] [--modes "steady,leader killed"] [--peers 3]

Three peers on one ZooKeeper and the client share one machine, and so the clock of the leaders. To
see what the peers cost each other there, use ``--peers 1 --modes steady``. Due times are random.
All timers are set before the first is due. Workers on each peer claim due tasks a moment ahead, as
workers do (``--ahead-ms 0``: only once they are due). They start each task when it is due, and
complete it afterwards. If a timer fires early or not at all, the measurement is an error. There are
two measurements: one without faults, and one in which the peer that leads most partitions is killed
(SIGKILL) in the middle and started again, or more often (``--kills``). Prints one JSON document.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from attrs import define, field

from bench.common import cpu_seconds, emit, machine, percentiles, progress
from bench.drive import fresh_queue
from bench.options import end_on_signal, guarded
from bench.peers import PARTITIONS, PEERS, SESSION_TIMEOUT_MS, Cluster, running, until_whole
from onyxq.client import AsyncClient
from onyxq.client.claims import ClaimBatch
from onyxq.core.ids import TaskId, ids_of, ms_of
from onyxq.errors import BatchRefused, OnyxqError
from onyxq.worker.loop import AHEAD_MS

GOAL_P50_MS, GOAL_P99_MS = 20.0, 250.0
GOAL_KILLED_MS = SESSION_TIMEOUT_MS + 1_500
SETTERS = 512
"""Timers that are being set at a time; they are sent together."""
SET_PER_S = 1_000
"""Timers that can surely be set in a second. The first one is due when all are set."""
LEASE_MS = 2_000
"""Lease of a claim, in milliseconds: short, because tasks are late if the answer is lost with a peer."""
CLAIM_TASKS = 64
CLAIM_WAIT_MS = 10_000
PATIENCE_S = 60.0
AGAIN_S = 0.05


class Untimely(Exception):
    """A timer fired early or not at all."""


def wall_ms() -> float:
    """Return this machine's wall clock in milliseconds."""
    return time.time_ns() / 1e6


@define
class Timers:
    """Timers of one queue: when each is due and how late it was."""

    queue: str
    due_ms: Sequence[int]
    """Due times, in ascending order."""
    set: dict[TaskId, int] = field(factory=dict)
    """Acknowledged timer -> its due time."""
    late_ms: dict[TaskId, float] = field(factory=dict)
    """Timer -> time from its due time until a worker had the claim and could start it for the first time."""
    again: int = 0
    """Repeated claims of timers whose answers or completions were lost with a peer."""
    over: anyio.Event = field(factory=anyio.Event)
    """Set when workers may stop: all timers have fired, or some never will."""
    more: anyio.Event = field(factory=anyio.Event)
    """Set, and replaced, when some have fired."""

    @classmethod
    def spread(cls, queue: str, count: int, *, begin_ms: int, seconds: float, rng: random.Random) -> Timers:
        """Return timers with random due times in a window."""
        return cls(queue, sorted(begin_ms + rng.randrange(int(seconds * 1000)) for _ in range(count)))

    async def set_all(self, client: AsyncClient, *, setters: int = SETTERS) -> None:
        """Store the timers; return once each is acknowledged."""
        left = iter(self.due_ms)

        async def setter() -> None:
            for due_ms in left:
                task_id = await client.enqueue(self.queue, b"%d" % due_ms, at_ms=due_ms)
                self.set[task_id] = due_ms

        async with anyio.create_task_group() as group:
            for _ in range(setters):
                group.start_soon(setter)

    async def worker(self, client: AsyncClient, name: str, completing: TaskGroup, *, ahead_ms: int) -> None:
        """Claim for ever; start and complete the claimed tasks at the same time."""
        while True:
            try:
                claims = await client.claim(
                    [self.queue],
                    max=CLAIM_TASKS,
                    lease_ms=LEASE_MS,
                    wait_ms=CLAIM_WAIT_MS,
                    worker=name,
                    ahead_ms=ahead_ms,
                )
            except OnyxqError:
                await anyio.sleep(AGAIN_S)
                continue
            if claims:
                completing.start_soon(self._work, client, claims)

    async def _work(self, client: AsyncClient, claims: ClaimBatch) -> None:
        """Start each task once it is due, and complete them together."""
        for run in sorted(claims.runs, key=lambda run: run.due):
            await anyio.sleep_until(run.due)
            self.took(ids_of(run.first, run.count), wall_ms())
        await self._complete(client, claims)

    def took(self, ids: Iterable[TaskId], now_ms: float) -> None:
        """Record that a worker starts these tasks."""
        for task_id in ids:
            if task_id in self.late_ms:
                self.again += 1
            else:
                self.late_ms[task_id] = now_ms - ms_of(task_id)
        self.more.set()
        self.more = anyio.Event()
        if len(self.late_ms) >= len(self.due_ms):
            self.over.set()

    async def _complete(self, client: AsyncClient, claims: ClaimBatch) -> None:
        try:
            await client.complete(claims)
        except (BatchRefused, OnyxqError):
            return  # its lease expired; another worker completes it

    async def until_fired(self, count: int) -> None:
        """Wait until a number of timers have fired."""
        while len(self.late_ms) < count:
            await self.more.wait()

    async def all_fired(self) -> None:
        """Wait until all have fired, or until long after the last due time."""
        with anyio.move_on_after(self.due_ms[-1] / 1000 - time.time() + PATIENCE_S):
            await self.over.wait()
        self.over.set()

    def check(self) -> None:
        """Raise `Untimely` unless each fired once it was due, and no others did."""
        lost = self.set.keys() - self.late_ms.keys()
        if lost or len(self.set) != len(self.due_ms):
            raise Untimely(f"{len(self.due_ms)} timers, {len(self.set)} acknowledged, {len(lost)} of these not fired")
        wrong = [task_id for task_id, due_ms in self.set.items() if ms_of(task_id) != due_ms]
        if wrong or self.late_ms.keys() != self.set.keys():
            raise Untimely(f"{len(wrong)} timers have another due time than they were set to, or others fired")
        early = [late for late in self.late_ms.values() if late < 0]
        if early:
            raise Untimely(f"{len(early)} timers fired early, one by {-min(early):.1f} ms")

    def summary(self) -> dict[str, Any]:
        """Return the lateness in milliseconds."""
        return {
            **percentiles([late / 1000 for late in self.late_ms.values()]),
            "timers": len(self.late_ms),
            "claimed_again": self.again,
            "early": 0,
            "lost": 0,
        }


async def fire(cluster: Cluster, options: argparse.Namespace, *, kill: bool) -> dict[str, Any]:
    """Run one measurement."""
    setting_s = 3 + options.timers / SET_PER_S
    begin_ms = int(wall_ms() + setting_s * 1000)
    timers = Timers.spread(
        fresh_queue(), options.timers, begin_ms=begin_ms, seconds=options.seconds, rng=random.Random(options.seed)
    )
    async with AsyncClient(cluster.addresses) as client:
        await until_whole(client, len(cluster.peers))
        await timers.set_all(client)
        ahead_s = timers.due_ms[0] / 1000 - time.time()
        if ahead_s < 0:
            raise Untimely(f"the first timer was due {-ahead_s:.1f} s before the last one was set")
        progress(f"{len(timers.set)} timers set; the first is due in {ahead_s:.1f} s")
        cpu_s = cpu_seconds(peer.pid for peer in cluster.peers)
        async with anyio.create_task_group() as workers:
            for place in range(len(cluster.peers)):
                begin = partial(work, ahead_ms=options.ahead_ms)
                workers.start_soon(begin, cluster.addresses, timers, place, options.workers)
            if kill:
                await _kills(cluster, client, timers, options)
            await timers.all_fired()
            load = os.getloadavg()[0]
        cpu_s = cpu_seconds(peer.pid for peer in cluster.peers) - cpu_s
        timers.check()
        count = (await client.count(timers.queue))[timers.queue]
    found = timers.summary()
    if not kill:
        found["peers_cpu_ms"] = 1000 * cpu_s / options.timers
    return {**found, "completed": count["completed"], "load_after": round(load, 2), **_reached(found, kill)}


def _reached(found: dict[str, Any], kill: bool) -> dict[str, Any]:
    if kill:
        return {"goal_max_ms": GOAL_KILLED_MS, "reached": found["max_ms"] <= GOAL_KILLED_MS}
    reached = found["p50_ms"] < GOAL_P50_MS and found["p99_ms"] < GOAL_P99_MS
    return {"goal_p50_ms": GOAL_P50_MS, "goal_p99_ms": GOAL_P99_MS, "reached": reached}


async def work(addresses: Sequence[str], timers: Timers, place: int, count: int, *, ahead_ms: int = AHEAD_MS) -> None:
    """Run a number of workers on one client, which uses the peer of its place first, until all timers are over."""
    async with AsyncClient([*addresses[place:], *addresses[:place]]) as client:
        async with anyio.create_task_group() as completing, anyio.create_task_group() as group:
            for number in range(count):
                begin = partial(timers.worker, ahead_ms=ahead_ms)
                group.start_soon(begin, client, f"worker-{place}-{number}", completing)
            await timers.over.wait()
            group.cancel_scope.cancel()


async def _kills(cluster: Cluster, client: AsyncClient, timers: Timers, options: argparse.Namespace) -> None:
    """Kill peers at equal distances, each once all peers serve again."""
    begin_s, pause_s = timers.due_ms[0] / 1000, options.seconds / options.kills
    for number in range(options.kills):
        await until_whole(client, len(cluster.peers))
        await anyio.sleep(max(0.0, begin_s + (number + 0.5) * pause_s - time.time()))
        await _kill_and_restart(cluster, client)


async def _kill_and_restart(cluster: Cluster, client: AsyncClient) -> None:
    peer = await cluster.most_leading(client)
    progress(f"killing peer {peer.number}")
    cluster.kill(peer)
    await anyio.to_thread.run_sync(cluster.start, peer.number)


def main() -> None:
    """Measure and print the JSON document."""
    options = _options()
    end_on_signal()
    found: dict[str, Any] = {}
    partitions = options.partitions
    with running(
        options.peers, options.directory, zookeepers=1, absent_after_ms=60_000, partitions=partitions
    ) as cluster:
        for name, kill in (("steady", False), ("leader killed", True)):
            if name in options.modes:
                progress(f"{name}: setting {options.timers} timers")
                name = f"{name} {options.kills} times" if kill and options.kills > 1 else name
                title = name if options.peers == PEERS else f"{name}, peers: {options.peers}"
                found[title] = guarded(_measuring(cluster, options, kill))
    settings = {
        "timers": options.timers,
        "seconds": options.seconds,
        "seed": options.seed,
        "kills": options.kills,
        "peers": options.peers,
        "partitions": options.partitions,
        "workers": f"{options.workers} per peer, all in one process, each claims up to {CLAIM_TASKS} at a time",
        "lateness": "from the due time until a worker has the claim and may begin",
        "ahead_ms": options.ahead_ms,
        "lease_ms": LEASE_MS,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
    }
    emit({"benchmark": "timers", "machine": machine(), "settings": settings, "modes": found})


def _measuring(cluster: Cluster, options: argparse.Namespace, kill: bool) -> Callable[[], dict[str, Any]]:
    async def measure() -> dict[str, Any]:
        return await fire(cluster, options, kill=kill)

    return lambda: anyio.run(measure)


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--timers", type=int, default=50_000)
    made.add_argument("--seconds", type=float, default=60.0, help="window in which they are due")
    made.add_argument("--peers", type=int, default=PEERS, help="number of peers; with one there is no takeover")
    made.add_argument("--workers", type=int, default=4, help="workers per peer")
    made.add_argument("--ahead-ms", type=int, default=AHEAD_MS, help="how long before they are due workers claim them")
    made.add_argument("--modes", type=lambda text: text.split(","), default="steady,leader killed")
    made.add_argument("--kills", type=int, default=1, help="kills of the leading peer, spread over the window")
    made.add_argument("--seed", type=int, default=1, help="seed of the due times")
    made.add_argument("--partitions", type=int, default=PARTITIONS)
    made.add_argument("--directory", type=Path, default=None, help="directory of the data")
    return made.parse_args()


if __name__ == "__main__":
    main()
