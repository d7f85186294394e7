"""Measures the store of facts: writing, completing, and scanning a large backlog.

``python -m bench.store [--tasks N] [--backlog N] [--directory DIR]`` prints one JSON document.
Rates are tasks per second of durable batches. Memory is that of the process without the mapped
file, with a backlog of ready tasks and with an almost empty store.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from bench.common import emit, machine, median_of, progress
from onyxq.core.facts import COMPLETED, Completion, Row, completion_row, pack_task, task_row
from onyxq.core.ids import IdMaker, Run
from onyxq.store.interface import Batch
from onyxq.store.lmdb_store import LmdbStore

PARTITIONS = 64
WRITERS = 64
PAYLOAD = bytes(100)
SCAN_PIECES = 100
SCANS = 200


def make_runs(tasks: int, size: int, partitions: int = PARTITIONS) -> list[Run]:
    """Make new runs of ``size`` tasks, spread over partitions, each by another maker like those of clients."""
    makers = iter(range(1, tasks // size + 2))
    now_ms = time.time_ns() // 1_000_000
    return [
        IdMaker(lambda: now_ms, lambda: next(makers)).run(number % partitions, size) for number in range(tasks // size)
    ]


def task_rows(runs: Sequence[Run]) -> list[Row]:
    """Return a task row for each run."""
    body = pack_task({"queue": "bench"}, [PAYLOAD] * runs[0].count)
    return [task_row(run.first, body) for run in runs]


def completions(runs: Sequence[Run]) -> list[Row]:
    """Return a completion of each whole run."""
    return [completion_row(run.first, Completion(7, run.count, COMPLETED, 1, [])) for run in runs]


async def write_all(store: LmdbStore, rows: Sequence[Row], *, writers: int) -> float:
    """Return the seconds until every row is durable, one batch each, with ``writers`` waiting at a time."""
    left = iter(rows)

    async def writer() -> None:
        for row in left:
            await store.write(Batch(rows=(row,)))

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(writers):
            nursery.start_soon(writer)
    return time.perf_counter() - began


def rates(directory: str | None, *, size: int, tasks: int, writers: int) -> dict[str, float]:
    """Return tasks per second, enqueued and completed in runs of one size."""

    async def measure() -> dict[str, float]:
        runs = make_runs(tasks, size)
        enqueue, complete = task_rows(runs), completions(runs)
        with tempfile.TemporaryDirectory(dir=directory) as path:
            store = LmdbStore.open(path)
            enqueued = await write_all(store, enqueue, writers=writers)
            completed = await write_all(store, complete, writers=writers)
            await store.aclose()
        done = len(runs) * size
        return {"enqueue_per_second": round(done / enqueued), "complete_per_second": round(done / completed)}

    return trio.run(measure)


def private_bytes() -> int:
    """Return the resident bytes of this process that no file backs."""
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024
    return fields["Anonymous"]


def scan_seconds(store: LmdbStore) -> float:
    """Return the median time to read the best pieces of one partition's queue."""
    times = []
    for _ in range(SCANS):
        began = time.perf_counter()
        pieces = store.ready(0, "bench", limit=SCAN_PIECES)
        times.append(time.perf_counter() - began)
        assert pieces
    return sorted(times)[SCANS // 2]


def backlog(directory: str | None, tasks: int) -> dict[str, float]:
    """Return memory and scan time with ``tasks`` ready single tasks and with 1,000."""

    async def measure() -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=directory) as path:
            store = LmdbStore.open(path)
            await write_all(store, task_rows(make_runs(1000, 1, partitions=4)), writers=8)
            gc.collect()
            small_bytes, small_seconds = private_bytes(), scan_seconds(store)
            for start in range(0, tasks, 100_000):
                rows = task_rows(make_runs(min(100_000, tasks - start), 1, partitions=4))
                for at in range(0, len(rows), 1000):
                    await store.write(Batch(rows=rows[at : at + 1000]))
                del rows
                progress(f"{start + 100_000} single tasks")
            gc.collect()
            result = {
                "ready_tasks": tasks,
                "file_bytes": store.size_bytes(),
                "memory_growth_bytes": private_bytes() - small_bytes,
                "memory_bytes": private_bytes(),
                "scan_us_1000_tasks": round(small_seconds * 1e6, 1),
                "scan_us_all_tasks": round(scan_seconds(store) * 1e6, 1),
            }
            began = time.perf_counter()
            await store.write(Batch(drop=(0,)))
            result["drop_seconds_per_100000_tasks"] = round((time.perf_counter() - began) / tasks * 4e5, 3)
            await store.aclose()
            return result

    return trio.run(measure)


def main(arguments: Sequence[str]) -> None:
    """Run all parts and print the document."""
    parser = argparse.ArgumentParser(prog="python -m bench.store", description=__doc__)
    parser.add_argument("--tasks", type=int, default=200_000, help="tasks per measurement in runs of 100 and 1,000")
    parser.add_argument("--singles", type=int, default=10_000, help="tasks per measurement in runs of 1")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="ready single tasks")
    parser.add_argument("--runs", type=int, default=3, help="repetitions of each rate")
    parser.add_argument("--directory", help="directory of the data (default: the temporary directory)")
    options = parser.parse_args(arguments)
    doc: dict[str, Any] = {"benchmark": "store", "machine": machine()}
    for size, writers in ((1, 1), (1, WRITERS), (100, 1), (100, WRITERS), (1000, 1)):
        tasks = options.tasks if size > 1 else options.singles if writers > 1 else options.singles // 5
        progress(f"runs of {size}, {writers} waiting")
        doc[f"runs_of_{size}_waiting_{writers}"] = median_of(
            options.runs,
            lambda size=size, writers=writers, tasks=tasks: rates(  # type: ignore[misc]
                options.directory, size=size, tasks=tasks, writers=writers
            ),
        )
    if options.backlog:
        doc["backlog"] = backlog(options.directory, options.backlog)
    emit(doc)


if __name__ == "__main__":
    main(sys.argv[1:])
