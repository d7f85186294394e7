"""Measures updates of the task store per second, with one task or several in each request.

    python -m bench.taskstore [--systems onyxq-embedded-1,onyxq-zookeeper-3] [--modes 1x1,1x64,1x512,100x4]

A mode is BATCHxLANES. One client process has LANES requests in flight, each an atomic update that
changes BATCH tasks and gives them new ids. ``claims`` are measured the same way, with one task
each. First, ``--stored`` other tasks are put into the store. At the end every task must exist once,
with the data of its last change. ``peers_cpu_ms`` is the processor time per request of all peers
together. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from bench.common import cpu_seconds, emit, machine, median_of, percentiles, progress
from bench.drive import fresh_queue, started
from bench.onyxq_system import ONYXQ, OnyxqEmbedded1
from bench.options import end_on_signal, guarded
from onyxq.client import AsyncClient, AsyncTaskStore, StoredTask

GOAL_PER_S = 2_000
LEASE_MS = 3_600_000
SECONDS = 5.0
FILL_TASKS = 500
"""Tasks that one request adds while the store is filled."""


class Wrong(Exception):
    """A task is not as its last change left it."""


async def fill(store: AsyncTaskStore, group: str, count: int, size: int) -> list[StoredTask]:
    """Add a number of tasks to a group."""
    tasks: list[StoredTask] = []
    while len(tasks) < count:
        part = min(FILL_TASKS, count - len(tasks))
        tasks += await store.update(adds=[(group, "0" * size)] * part)
    return tasks


async def lanes_of(count: int, once: Callable[[int], Awaitable[None]]) -> tuple[int, float, list[float]]:
    """Let each lane call ``once`` repeatedly; return the number of calls, the total seconds, and those of each call."""
    took: list[float] = []
    began = time.perf_counter()

    async def lane(number: int) -> None:
        while time.perf_counter() - began < SECONDS:
            start = time.perf_counter()
            await once(number)
            took.append(time.perf_counter() - start)

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(lane, number)
    return len(took), time.perf_counter() - began, took


async def updates(store: AsyncTaskStore, options: argparse.Namespace, batch: int, lanes: int) -> tuple[Any, ...]:
    """Change the tasks of each lane again and again; raises `Wrong`."""
    group = fresh_queue()
    made = await fill(store, group, batch * lanes, options.payload)
    mine = [made[lane * batch : (lane + 1) * batch] for lane in range(lanes)]
    changes = [0] * lanes

    async def once(lane: int) -> None:
        data = str(changes[lane] + 1).zfill(options.payload)
        mine[lane] = await store.update(changes=[(task.id, data) for task in mine[lane]])
        changes[lane] += 1

    found = await lanes_of(lanes, once)
    kept = {task.id: int(task.data) for task in await store.group(group, owned=True)}
    if kept != {task.id: changes[lane] for lane in range(lanes) for task in mine[lane]}:
        raise Wrong("a task is not as its last change left it")
    await empty(store, list(kept))
    return found


async def claims(store: AsyncTaskStore, options: argparse.Namespace, lanes: int) -> tuple[Any, ...]:
    """Claim a task of many, and release it at once with a lease that is over; raises `Wrong`."""
    group = fresh_queue()
    await fill(store, group, 4 * lanes, options.payload)

    async def once(lane: int) -> None:
        if await store.claim(group, 0) is None:
            raise Wrong("a task is missing")

    found = await lanes_of(lanes, once)
    kept = await store.group(group, owned=True)
    if len(kept) != 4 * lanes:
        raise Wrong(f"{4 * lanes} tasks became {len(kept)}")
    await empty(store, [task.id for task in kept])
    return found


async def empty(store: AsyncTaskStore, ids: list[int]) -> None:
    """Delete tasks."""
    for start in range(0, len(ids), FILL_TASKS):
        await store.update(deletes=ids[start : start + FILL_TASKS])


async def measure(
    system: OnyxqEmbedded1, work: Callable[[AsyncTaskStore], Awaitable[tuple[Any, ...]]], batch: int
) -> dict[str, Any]:
    """Run one measurement."""
    async with AsyncClient(system.addresses) as client:
        store = client.task_store()
        cpu_s, own_s = cpu_seconds(system.pids()), time.process_time()
        requests, seconds, took = await work(store)
        cpu_s, own_s = cpu_seconds(system.pids()) - cpu_s, time.process_time() - own_s
    return {
        "per_second": requests * batch / seconds,
        "requests_per_second": requests / seconds,
        **percentiles(took),
        "peers_cpu_ms": 1000 * cpu_s / requests,
        "client_cpu_ms": 1000 * own_s / requests,
    }


def main() -> None:
    """Measure and print the JSON document."""
    options = _options()
    end_on_signal()
    emit(
        {
            "benchmark": "taskstore",
            "machine": machine(),
            "settings": {
                "update": "one request changes BATCH tasks atomically",
                "payload_bytes": options.payload,
                "stored": options.stored,
                "seconds": SECONDS,
                "runs": options.runs,
                "goal_per_second": GOAL_PER_S,
            },
            "systems": {name: _system(name, options) for name in options.systems},
        }
    )


def _system(name: str, options: argparse.Namespace) -> dict[str, Any]:
    system = ONYXQ[name]()
    assert isinstance(system, OnyxqEmbedded1)
    progress(f"{name}: starting")

    def one(about: str, work: Callable[[AsyncTaskStore], Awaitable[tuple[Any, ...]]], batch: int = 1) -> dict[str, Any]:
        progress(f"{name}: {about}")
        run = lambda: anyio.run(lambda: measure(system, work, batch))  # noqa: E731
        return guarded(lambda: median_of(options.runs, run))

    async def store_more() -> None:
        async with AsyncClient(system.addresses) as client:
            await fill(client.task_store(), "stored", options.stored, options.payload)

    def whole() -> dict[str, Any]:
        with started(system, options.directory):
            anyio.run(store_more)
            return {
                "settings": system.settings() | {"calls": "task_store: update, claim"},
                "updates": {
                    f"{batch}x{lanes}": one(
                        f"updates {batch}x{lanes}", lambda store, b=batch, n=lanes: updates(store, options, b, n), batch
                    )
                    for batch, lanes in options.modes
                },
                "claims": {
                    f"1x{lanes}": one(f"claims 1x{lanes}", lambda store, n=lanes: claims(store, options, n))
                    for batch, lanes in options.modes
                    if batch == 1
                },
            }

    return guarded(whole)


def _modes(text: str) -> list[tuple[int, int]]:
    return [(int(batch), int(lanes)) for batch, _, lanes in (mode.partition("x") for mode in text.split(","))]


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--systems", type=lambda text: text.split(","), default="onyxq-embedded-1,onyxq-zookeeper-3")
    made.add_argument("--modes", type=_modes, default="1x1,1x64,1x512,100x4")
    made.add_argument("--stored", type=int, default=10_000, help="other tasks in the store")
    made.add_argument("--runs", type=int, default=3, help="number of measurements; the figures are their medians")
    made.add_argument("--payload", type=int, default=100, help="bytes per task")
    made.add_argument("--directory", type=Path, default=None, help="directory of the data")
    return made.parse_args()


if __name__ == "__main__":
    main()
