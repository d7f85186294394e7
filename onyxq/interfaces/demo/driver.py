"""The driver of the demo: it starts a cluster and workers, and stops one peer meanwhile.

All calls use TCP as between machines, but the peers share one process and its embedded log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import frozen

from onyxq.client import AsyncClient
from onyxq.core.errors import OnyxqError, TimedOut
from onyxq.core.ids import TaskId
from onyxq.interfaces.demo.corpus import Chunk
from onyxq.interfaces.demo.worker import MAP, REDUCE, unpack_counts
from onyxq.interfaces.local_cluster import LocalCluster

WORKERS = 2
FAN_IN = 64
"""Number of results that one reduce task adds up."""
STOP_AT_PERCENT = 30
"""Share of completed map tasks at which a peer is stopped."""
STOPPABLE_FROM = 3
"""Smallest number of peers from which one can be stopped: the others are a majority of every cohort."""
STALLED_AFTER_S = 60.0
LOOK_EVERY_S = 0.2


@frozen
class Voice:
    """Output of the demo: ``progress`` is replaced by later output, ``note`` stays."""

    progress: Callable[[str, int, int], None]
    note: Callable[[str], None]


@frozen
class Outcome:
    """The counts of the cluster, and the effort."""

    counts: dict[str, int]
    tasks: int
    seconds: float
    ran: int
    """Number of attempts; more than ``tasks`` if some tasks were run again."""
    stopped: str
    """Id of the peer that was stopped, or empty."""


async def count_on_cluster(
    directory: Path, shares: Sequence[Chunk], *, peers: int, data: Path, voice: Voice
) -> Outcome:
    """Count the words of all shares; raises `TimedOut` if the cluster makes no progress."""
    async with LocalCluster(peers=peers, data=str(data)) as cluster:
        addresses = cluster.addresses
        voice.note(f"{peers} peers serve: {', '.join(addresses)}")
        async with AsyncClient(addresses[0]) as client, _workers(directory, addresses) as ran:
            started = trio.current_time()
            maps = await client.enqueue_many(MAP, [json.dumps(share._asdict()).encode() for share in shares])
            stopped = await _map(client, cluster, len(maps), voice)
            total, reduces = await _reduce(client, maps, voice)
            seconds = trio.current_time() - started
    return Outcome(counts=total, tasks=len(maps) + reduces, seconds=seconds, ran=sum(ran), stopped=stopped)


async def _map(client: AsyncClient, cluster: LocalCluster, total: int, voice: Voice) -> str:
    """Wait for the map tasks; stop a peer while they are in flight and return its id."""
    stopped, last = "", len(cluster.nodes) - 1
    if last + 1 < STOPPABLE_FROM:
        voice.note(f"no peer is stopped: with fewer than {STOPPABLE_FROM} peers, the others are not a majority")
    async for done in _completed(client, MAP, total):
        voice.progress(f"map: {done} of {total} tasks", done, total)
        if not stopped and done * 100 >= STOP_AT_PERCENT * total and last + 1 >= STOPPABLE_FROM:
            addresses = cluster.nodes[last].addresses
            stopped = addresses.peer if addresses else ""
            voice.note(f"map: {done} of {total} tasks; stopping peer {stopped}")
            await cluster.stop_peer(last)
    return stopped


async def _reduce(client: AsyncClient, tasks: list[TaskId], voice: Voice) -> tuple[dict[str, int], int]:
    """Add up groups of ``FAN_IN`` results until one is left; return the counts and the number of tasks."""
    made = 0
    while len(tasks) > 1 or not made:
        groups = [tasks[start : start + FAN_IN] for start in range(0, len(tasks), FAN_IN)]
        payloads = [json.dumps({"tasks": [task.hex() for task in group]}).encode() for group in groups]
        tasks = await client.enqueue_many(REDUCE, payloads)
        made += len(tasks)
        async for done in _completed(client, REDUCE, made):
            voice.progress(f"reduce: {done} of {made} tasks", done, made)
    last = await client.get(tasks[0])
    return unpack_counts(last.result or b""), made


async def _completed(client: AsyncClient, queue: str, total: int) -> AsyncIterator[int]:
    """Yield the number of completed tasks until it is ``total``; raises `TimedOut` if it no longer rises."""
    done, moved_at = -1, trio.current_time()
    while done < total:
        counts = (await client.count(queue)).get(queue, {})
        if counts.get("failed", 0):
            raise OnyxqError(f"{counts['failed']} tasks of {queue} failed for good")
        if counts.get("completed", 0) > done:
            done, moved_at = counts["completed"], trio.current_time()
            yield done
        elif trio.current_time() - moved_at > STALLED_AFTER_S:
            raise TimedOut(f"{queue} has been at {done} of {total} tasks for {STALLED_AFTER_S:.0f} s")
        else:
            await trio.sleep(LOOK_EVERY_S)


@asynccontextmanager
async def _workers(directory: Path, addresses: Sequence[str]) -> AsyncIterator[list[int]]:
    """Start worker processes, each connected to another peer; the list gets the number of tasks that each ran."""
    ran: list[int] = []
    processes = []
    for number in range(WORKERS):
        command = [sys.executable, "-m", "onyxq.interfaces.demo.worker", f"worker-{number + 1}", os.fspath(directory)]
        # The last peer is stopped, so its worker must find another one.
        address = addresses[-1 - number % len(addresses)]
        processes.append(
            await trio.lowlevel.open_process([*command, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
    try:
        yield ran
        for process in processes:
            ran.append(json.loads(await _last_words(process))["ran"])
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()


async def _last_words(process: trio.Process) -> bytes:
    """Close the stdin of a worker and return what it prints."""
    assert process.stdin is not None and process.stdout is not None
    await process.stdin.aclose()
    said = b"".join([part async for part in process.stdout])
    if await process.wait():
        raise OnyxqError(f"a worker ended with code {process.returncode}")
    return said


def figures(outcome: Outcome, *, files: int, size_bytes: int) -> dict[str, Any]:
    """Return the figures of a run, for printing."""
    return {
        "files": files,
        "bytes": size_bytes,
        "words": sum(outcome.counts.values()),
        "distinct_words": len(outcome.counts),
        "tasks": outcome.tasks,
        "seconds": round(outcome.seconds, 2),
        "tasks_per_second": round(outcome.tasks / max(outcome.seconds, 0.001)),
        "retries": outcome.ran - outcome.tasks,
        "stopped_peer": outcome.stopped or None,
    }
