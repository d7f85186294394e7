"""A mixed backlog: ready and delayed runs, tasks with ordering keys, and single tasks, in batches of 1,000."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import trio

from bench.drive import make_payloads
from onyxq.client import AsyncClient

BATCH_TASKS = 1_000
FILL_LANES = 4
KEYS = 10_000
DAY_MS = 86_400_000
READY = ("ready", "keyed", "single")
"""Queues with tasks that can be claimed."""
KINDS = ("ready", "ready", "delayed", "ready", "single", "ready", "keyed", "ready", "delayed", "ready")
"""Kinds of the batches, in turn, which are also the names of their queues."""
MIXTURE = {kind: f"{10 * KINDS.count(kind)} %" for kind in sorted(set(KINDS))}


async def fill(client: AsyncClient, *, first: int, before: int, payload_bytes: int) -> float:
    """Store the tasks with these numbers; return the seconds."""
    starts = iter(range(first, before, BATCH_TASKS))
    begin = time.perf_counter()

    async def lane() -> None:
        for start in starts:
            payloads = make_payloads(start, min(BATCH_TASKS, before - start), payload_bytes)
            await put(client, KINDS[start // BATCH_TASKS % len(KINDS)], start, payloads)

    async with trio.open_nursery() as nursery:
        for _ in range(FILL_LANES):
            nursery.start_soon(lane)
    return time.perf_counter() - begin


async def put(client: AsyncClient, kind: str, number: int, payloads: Sequence[bytes]) -> None:
    """Store one batch of a kind; ``number`` is that of its first task."""
    if kind == "ready":
        await client.enqueue_many(kind, payloads)
    elif kind == "delayed":
        await client.enqueue_many(kind, payloads, delay_ms=DAY_MS + number)
    elif kind == "keyed":
        keys = [f"key-{(number + place) * 7 % KEYS}" for place in range(len(payloads))]
        await client.enqueue_many(kind, payloads, ordering_key=keys)
    else:
        await _singly(client, kind, iter(payloads))


async def _singly(client: AsyncClient, queue: str, payloads: Iterator[bytes]) -> None:
    """Enqueue each task as a run of its own, by naming its time."""

    async def lane() -> None:
        for payload in payloads:
            await client.enqueue(queue, payload, delay_ms=1)

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(lane)
