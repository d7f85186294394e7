"""Measures tasks that arrive at a fixed rate, from enqueue to the start of the handler.

One process produces and consumes. Producers use some lanes, so that one slow enqueue does not delay
the next. Waiting workers use the others, and each takes one task at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio

from bench.common import percentiles
from bench.competitors.base import AsyncLane, AsyncSystem, System, ThreadLane, ThreadSystem
from bench.drive import CLAIM_WAIT_S, EMPTY_SECONDS_MAX, NUMBER_BYTES, LostTasks, fresh_queue, in_threads, make_payloads

WARMUP_S = 1.0


class Arrivals:
    """Start and end of every task of a latency measurement, in seconds of one clock.

    A task's time starts when its enqueue is called. If all producers are late because earlier enqueues took
    long, it starts when the call was planned, so that slowness is not hidden.
    """

    def __init__(self, *, per_second: float, seconds: float, payload_bytes: int) -> None:
        self.total = int(per_second * seconds)
        self._gap = 1 / per_second
        self._payload_bytes = payload_bytes
        self._begin = time.perf_counter()
        self._start = [0.0] * self.total
        self._end = [0.0] * self.total
        self._left = self.total
        self.give_up_at = self._begin + seconds + EMPTY_SECONDS_MAX
        self._lock = threading.Lock()

    def wait_s(self, number: int) -> float:
        """Return the seconds until the task must be enqueued."""
        return self._begin + number * self._gap - time.perf_counter()

    def make(self, number: int, *, late: bool) -> list[bytes]:
        """Start the task's clock; return its payload."""
        self._start[number] = self._begin + number * self._gap if late else time.perf_counter()
        return make_payloads(number, 1, self._payload_bytes)

    def handle(self, payloads: Sequence[bytes]) -> None:
        """Stop the clock of a task, as the first step of its handler."""
        now = time.perf_counter()
        with self._lock:
            for payload in payloads:
                number = int.from_bytes(payload[:NUMBER_BYTES], "big")
                if not self._end[number]:
                    self._end[number] = now
                    self._left -= 1

    def open(self) -> bool:
        """Whether workers must continue."""
        return self._left > 0 and time.perf_counter() < self.give_up_at

    def check(self) -> None:
        """Raise `LostTasks` if some tasks were not handled in time: percentiles of the rest would mislead."""
        if self._left:
            raise LostTasks(f"{self._left} of {self.total} tasks were not handled within {EMPTY_SECONDS_MAX:.0f} s")

    def summary(self) -> dict[str, Any]:
        """Return percentiles in milliseconds."""
        times = [end - start for start, end in zip(self._start, self._end, strict=True)]
        return {**percentiles(times), "tasks": len(times)}


def latency(
    system: System, *, per_second: float, seconds: float, producers: int, workers: int, payload_bytes: int
) -> dict[str, Any]:
    """Measure the time from enqueue to the start of the handler; ``producers`` and ``workers`` are numbers of lanes."""

    def fresh(duration: float) -> Arrivals:
        return Arrivals(per_second=per_second, seconds=duration, payload_bytes=payload_bytes)

    if isinstance(system, AsyncSystem):
        return anyio.run(_latency_async, system, fresh, seconds, (producers, workers), backend=system.backend)
    assert isinstance(system, ThreadSystem)
    try:
        lanes = system.open(fresh_queue(), lanes=producers + workers, waiting=True)
        for duration in (WARMUP_S, seconds):
            work = fresh(duration)
            consume = [partial(_consume_thread, lane, work) for lane in lanes[producers:]]
            produce = [
                partial(_produce_thread, lane, work, range(place, work.total, producers))
                for place, lane in enumerate(lanes[:producers])
            ]
            in_threads(produce + consume)
            work.check()
    finally:
        system.close()
    return work.summary()


async def _latency_async(
    system: AsyncSystem, fresh: Callable[[float], Arrivals], seconds: float, lane_counts: tuple[int, int]
) -> dict[str, Any]:
    try:
        producers, workers = lane_counts
        lanes = await system.open(fresh_queue(), lanes=producers + workers, waiting=True)
        for duration in (WARMUP_S, seconds):
            work = fresh(duration)
            async with anyio.create_task_group() as group:
                for lane in lanes[producers:]:
                    group.start_soon(_consume_async, lane, work)
                for place, lane in enumerate(lanes[:producers]):
                    group.start_soon(_produce_async, lane, work, range(place, work.total, producers))
            work.check()
    finally:
        await system.close()
    return work.summary()


async def _produce_async(lane: AsyncLane, work: Arrivals, numbers: range) -> None:
    for number in numbers:
        wait_s = work.wait_s(number)
        if wait_s > 0:
            await anyio.sleep(wait_s)
        await lane.enqueue(work.make(number, late=wait_s < 0))


async def _consume_async(lane: AsyncLane, work: Arrivals) -> None:
    while work.open():
        batch = await lane.claim(1, CLAIM_WAIT_S)
        if batch.payloads:
            work.handle(batch.payloads)
            await lane.complete(batch.receipt)


def _produce_thread(lane: ThreadLane, work: Arrivals, numbers: range) -> None:
    for number in numbers:
        wait_s = work.wait_s(number)
        if wait_s > 0:
            time.sleep(wait_s)
        lane.enqueue(work.make(number, late=wait_s < 0))


def _consume_thread(lane: ThreadLane, work: Arrivals) -> None:
    while work.open():
        batch = lane.claim(1, CLAIM_WAIT_S)
        if batch.payloads:
            work.handle(batch.payloads)
            lane.complete(batch.receipt)
