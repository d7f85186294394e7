"""A worker process of the demo: it runs map and reduce tasks until its stdin ends.

Run it as ``python -m onyxq.interfaces.demo.worker NAME DIRECTORY HOST:PORT``.  At the end it prints the number
of tasks that it ran, as JSON.  A map task counts the words of a chunk, and the counts are its result.  A
reduce task adds the results of other tasks, which it reads from the cluster.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections import Counter
from pathlib import Path

import msgpack
import trio

from onyxq.client import AsyncClient, Claim
from onyxq.core.errors import BatchRefused, Overloaded, TimedOut, Unavailable

MAP, REDUCE = "demo-map", "demo-reduce"
LEASE_MS = 30_000
WAIT_MS = 500
WORK_S = 5.0
"""Time after which a worker completes what is done and releases its other tasks, in seconds.

On a busy machine a batch of tasks takes longer than a lease.
"""
CLAIM_TASKS = 16
LOOPS = 2
"""Number of loops: while one waits for an answer, the other one counts."""
PAUSE_S = 0.1
"""Pause after a call that failed, in seconds."""

_WORD = re.compile(r"\w+")


def pack_counts(counts: dict[str, int]) -> bytes:
    """Pack counts for the result of a task."""
    return zlib.compress(msgpack.packb(counts), 1)


def unpack_counts(data: bytes) -> dict[str, int]:
    """Return the counts that `pack_counts` packed."""
    counts: dict[str, int] = msgpack.unpackb(zlib.decompress(data))
    return counts


def count_chunk(path: Path, start: int, end: int) -> dict[str, int]:
    """Count the words in a part of a file."""
    with path.open("rb") as stream:
        stream.seek(start)
        text = stream.read(end - start).decode("utf-8", "replace")
    return Counter(map(str.lower, _WORD.findall(text)))


async def added(client: AsyncClient, tasks: list[str]) -> dict[str, int]:
    """Return the sum of the counts in the results of tasks; ask for all of them at once."""
    total: Counter[str] = Counter()

    async def add(task: str) -> None:
        total.update(unpack_counts((await client.get(task)).result or b""))

    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(add, task)
    return total


async def run_task(client: AsyncClient, claim: Claim, directory: Path) -> bytes:
    """Return the result of a map or reduce task."""
    task = json.loads(claim.data)
    if claim.queue == MAP:
        return pack_counts(count_chunk(directory / task["path"], task["start"], task["end"]))
    return pack_counts(await added(client, task["tasks"]))


async def work(client: AsyncClient, name: str, directory: Path, ran: Counter[str]) -> None:
    """Claim and run tasks until cancelled; ``ran`` counts them by queue.

    If no peer serves a call, or a claim has expired, the worker continues. The task is run again later.
    """
    while True:
        served = False
        try:
            claims = await client.claim([MAP, REDUCE], max=CLAIM_TASKS, lease_ms=LEASE_MS, wait_ms=WAIT_MS, worker=name)
            results: list[bytes] = []
            enough = trio.current_time() + WORK_S
            while len(results) < len(claims) and trio.current_time() < enough:
                results.append(await run_task(client, claims[len(results)], directory))
            done, left = claims[: len(results)], claims[len(results) :]
            ran.update(claim.queue for claim in done)
            if done:
                await client.complete(done, results=results)
            if left:
                await client.release(left)
            served = True
        except* (Unavailable, TimedOut, Overloaded, BatchRefused) as group:
            print(f"{name}: {group.exceptions[0]}; trying again", file=sys.stderr)
        if not served:
            await trio.sleep(PAUSE_S)


async def main(name: str, directory: Path, address: str) -> None:
    """Work until stdin ends. It also ends if the parent dies."""
    ran = Counter[str]()

    async with AsyncClient(address) as client, trio.open_nursery() as nursery:
        for _ in range(LOOPS):
            nursery.start_soon(work, client, name, directory, ran)
        await trio.to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()
    print(json.dumps({"worker": name, "ran": ran.total()}))


if __name__ == "__main__":
    trio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3])
