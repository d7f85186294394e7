"""Measures what a large backlog costs a peer: memory beyond its mapped file, and slower claims.

One peer on the embedded log has 1,000,000 ready tasks. Pages of the store's file belong to the
kernel's cache and are counted separately (``smaps``); the rest is the peer's own memory. Claims are
measured in the same loop (enqueue, claim, complete) on an almost empty queue and with the backlog.
Run it from the project's root: ``python -m bench.memory``.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from pathlib import Path
from typing import Any

import anyio

from bench.common import emit, machine, median_of, progress
from bench.competitors.base import AsyncLane
from bench.drive import CLAIM_WAIT_S, LostTasks, make_payloads, started
from bench.onyxq_system import OnyxqEmbedded1
from bench.options import end_on_signal, guarded

QUEUE = "backlog"
FILL_BATCH = 1_000
FILL_LANES = 4
CLAIM_BATCHES = (1, 100)
AHEAD = 1_000
"""Ready tasks on the almost empty queue."""
SETTLE_S = 2.0
"""Pause before memory is read, so that running work ends, in seconds."""

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)$")


def main() -> None:
    """Measure and print the JSON document."""
    options = _options()
    end_on_signal()
    doc = {
        "benchmark": "memory",
        "machine": machine(),
        "settings": {
            "tasks": options.tasks,
            "payload_bytes": options.payload,
            "enqueued": f"in batches of {FILL_BATCH} by {FILL_LANES} lanes",
            "claims": f"in batches of {' and '.join(map(str, CLAIM_BATCHES))} by one lane for {options.seconds} s, "
            f"with {AHEAD} tasks ready and with {options.tasks + AHEAD}",
            "runs": options.runs,
            **OnyxqEmbedded1().settings(),
        },
        "result": guarded(lambda: median_of(options.runs, lambda: _once(options))),
    }
    emit(doc)


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description="What a large backlog costs a peer.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--tasks", type=int, default=1_000_000, help="ready tasks in the backlog")
    made.add_argument("--payload", type=int, default=100, help="bytes per task")
    made.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement of claims")
    made.add_argument("--runs", type=int, default=3, help="number of measurements; the figures are their medians")
    made.add_argument(
        "--directory", type=Path, default=None, help="directory of the data (default: the temporary directory)"
    )
    return made.parse_args()


def _once(options: argparse.Namespace) -> dict[str, Any]:
    system = OnyxqEmbedded1()
    with started(system, options.directory):
        return anyio.run(_measure, system, options, backend=system.backend)


async def _measure(system: OnyxqEmbedded1, options: argparse.Namespace) -> dict[str, Any]:
    payload = make_payloads(0, 1, options.payload)[0]
    pid = system.pids()[0]
    try:
        lanes = await system.open(QUEUE, lanes=FILL_LANES, waiting=False)
        await lanes[0].enqueue(make_payloads(0, AHEAD, options.payload))
        empty = {str(batch): await _claims(lanes[0], batch, payload, options.seconds) for batch in CLAIM_BATCHES}
        before = await _memory(pid)
        progress(f"enqueueing {options.tasks} tasks")
        begin = time.perf_counter()
        await _fill(lanes, options.payload, options.tasks)
        elapsed = time.perf_counter() - begin
        ready = await system.ready(QUEUE)
        if ready != options.tasks + AHEAD:
            raise LostTasks(f"{options.tasks + AHEAD} tasks should be ready, {ready} are")
        after = await _memory(pid)
        file_mib = round(system.file_bytes() / (1 << 20), 1)
        full = {str(batch): await _claims(lanes[0], batch, payload, options.seconds) for batch in CLAIM_BATCHES}
        later = await _memory(pid)
    finally:
        await system.close()
    return {
        "own_mib_before": before["own_mib"],
        "own_mib_with_backlog": after["own_mib"],
        "own_mib_after_claims": later["own_mib"],
        "mapped_file_mib": after["mapped_file_mib"],
        "file_on_disk_mib": file_mib,
        "own_bytes_per_task": round((after["own_mib"] - before["own_mib"]) * (1 << 20) / options.tasks, 2),
        "enqueued_per_second": round(options.tasks / elapsed),
        "claim_almost_empty": empty,
        "claim_with_backlog": full,
        "slow_down": {
            batch: round(full[batch]["claim_ms"] / empty[batch]["claim_ms"], 2) for batch in map(str, CLAIM_BATCHES)
        },
    }


async def _fill(lanes: list[AsyncLane], payload_bytes: int, tasks: int) -> None:
    """Enqueue ``tasks`` tasks, shared by the lanes."""
    firsts = iter(range(0, tasks, FILL_BATCH))

    async def fill(lane: AsyncLane) -> None:
        for first in firsts:
            await lane.enqueue(make_payloads(first, min(FILL_BATCH, tasks - first), payload_bytes))

    async with anyio.create_task_group() as group:
        for lane in lanes:
            group.start_soon(fill, lane)


async def _claims(lane: AsyncLane, batch: int, payload: bytes, seconds: float) -> dict[str, Any]:
    """Return the median milliseconds of a claim; each claimed task is replaced and completed."""
    times = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        await lane.enqueue([payload] * batch)
        begin = time.perf_counter()
        taken = await lane.claim(batch, CLAIM_WAIT_S)
        times.append(time.perf_counter() - begin)
        if not taken.payloads:
            raise LostTasks("a claim found nothing although tasks are ready")
        await lane.complete(taken.receipt)
    return {"claim_ms": round(1000 * statistics.median(times), 3), "claims": len(times)}


async def _memory(pid: int) -> dict[str, float]:
    await anyio.sleep(SETTLE_S)
    own, mapped = resident_kib(await anyio.Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8"))
    return {"own_mib": round(own / 1024, 1), "mapped_file_mib": round(mapped / 1024, 1)}


def resident_kib(smaps: str) -> tuple[int, int]:
    """Return the resident KiB of a process: its own memory, and pages of LMDB's mapped files."""
    own = mapped = 0
    path = ""
    for line in smaps.splitlines():
        if line.startswith("Rss:"):
            kib = int(line.split()[1])
            if path.endswith(".mdb"):
                mapped += kib
            else:
                own += kib
        elif found := _MAPPING.match(line):
            path = found[1].removesuffix(" (deleted)")
    return own, mapped


if __name__ == "__main__":
    main()
