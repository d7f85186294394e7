"""A worker of the demo, a process of its own: claims map and reduce tasks until its stdin ends.

Run as ``python -m onyxq.interfaces.demo.worker NAME DIRECTORY HOST:PORT``; at the end it prints how many
tasks it ran, as JSON.  A map task counts the words of a chunk and keeps the counts as
its result; a reduce task adds the results of others, which it reads through the API.
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
LEASE_MS = 10_000
WAIT_MS = 500
CLAIM_TASKS = 16
LOOPS = 2
"""While one waits for an answer, the other counts."""
PAUSE_S = 0.1
"""Between attempts while nobody can serve."""

_WORD = re.compile(r"\w+")


def pack_counts(counts: dict[str, int]) -> bytes:
    """Counts as they are kept in a task's result."""
    return zlib.compress(msgpack.packb(counts), 1)


def unpack_counts(data: bytes) -> dict[str, int]:
    """The counts that `pack_counts` packed."""
    counts: dict[str, int] = msgpack.unpackb(zlib.decompress(data))
    return counts


def count_chunk(path: Path, start: int, end: int) -> dict[str, int]:
    """The words of a part of a file."""
    with path.open("rb") as stream:
        stream.seek(start)
        text = stream.read(end - start).decode("utf-8", "replace")
    return Counter(map(str.lower, _WORD.findall(text)))


async def added(client: AsyncClient, tasks: list[str]) -> dict[str, int]:
    """The sum of the counts that completed tasks keep; asks for all of them at once."""
    total: Counter[str] = Counter()

    async def add(task: str) -> None:
        total.update(unpack_counts((await client.get(task)).result or b""))

    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(add, task)
    return total


async def run_task(client: AsyncClient, claim: Claim, directory: Path) -> bytes:
    """The result of one task of either kind."""
    task = json.loads(claim.data)
    if claim.queue == MAP:
        return pack_counts(count_chunk(directory / task["path"], task["start"], task["end"]))
    return pack_counts(await added(client, task["tasks"]))


async def work(client: AsyncClient, name: str, directory: Path, ran: Counter[str]) -> None:
    """Claim and run tasks until cancelled; ``ran`` counts them by queue.

    What fails because nobody can serve it now is left, and so is what is refused because
    the claim lapsed: the task is run again, by this worker or another.
    """
    while True:
        served = False
        try:
            claims = await client.claim([MAP, REDUCE], max=CLAIM_TASKS, lease_ms=LEASE_MS, wait_ms=WAIT_MS, worker=name)
            results = [await run_task(client, claim, directory) for claim in claims]
            if claims:
                ran.update(claim.queue for claim in claims)
                await client.complete(claims, results=results)
            served = True
        except* (Unavailable, TimedOut, Overloaded, BatchRefused) as group:
            print(f"{name}: {group.exceptions[0]}; trying again", file=sys.stderr)
        if not served:
            await trio.sleep(PAUSE_S)


async def main(name: str, directory: Path, address: str) -> None:
    """Work until stdin ends, which it also does when the parent dies."""
    ran = Counter[str]()

    async with AsyncClient(address) as client, trio.open_nursery() as nursery:
        for _ in range(LOOPS):
            nursery.start_soon(work, client, name, directory, ran)
        await trio.to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()
    print(json.dumps({"worker": name, "ran": ran.total()}))


if __name__ == "__main__":
    trio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3])
