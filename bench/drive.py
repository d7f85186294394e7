"""Runs and measures a system's lanes: the same loops for OnyxQ and every competitor.

All lanes are in one process, which both produces and consumes ("one worker"). In the lifecycle each
lane repeats the following: enqueue a batch, then claim and complete until it has taken as many
tasks as it enqueued (its own or those of another lane). So the queue stays short, and every task
goes through all three steps within the measured time.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import anyio

from bench.competitors.base import AsyncLane, AsyncSystem, System, ThreadLane, ThreadSystem

NUMBER_BYTES = 8
"""Bytes of the number at the start of each payload, by which every task is accounted for."""
NOISE_BYTES = 1 << 20
CLAIM_WAIT_S = 0.5
EMPTY_SECONDS_MAX = 10.0
"""Time after which a lane gives up if it finds no task although some are outstanding."""

_names = itertools.count(1)


class Mode(NamedTuple):
    """``batch`` tasks in each call, by ``lanes`` lanes at once."""

    batch: int
    lanes: int

    @classmethod
    def parse(cls, text: str) -> Mode:
        """Parse ``BATCHxLANES``, as in ``100x4``."""
        batch, lanes = text.split("x")
        return cls(int(batch), int(lanes))

    def __str__(self) -> str:
        return f"{self.batch}x{self.lanes}"


class LostTasks(Exception):
    """Tasks did not come back, or came back twice."""


@contextmanager
def started(system: System, parent: Path | None) -> Iterator[None]:
    """Start the system with data in a fresh directory; stop it and delete the data at the end."""
    with TemporaryDirectory(prefix="onyxq-bench-", dir=parent, ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        home.chmod(0o711)
        data = home / system.name
        data.mkdir()
        try:
            system.start(data)
            yield
        finally:
            system.stop()


def fresh_queue() -> str:
    """Return a queue name that no earlier measurement of this process used."""
    return f"bench{next(_names)}"


@lru_cache(maxsize=1)
def _noise(size: int) -> bytes:
    return Random(0).randbytes(size)


def make_payloads(first: int, count: int, payload_bytes: int) -> list[bytes]:
    """Return numbered payloads; the rest of each is noise, so that compression gains nothing."""
    rest = payload_bytes - NUMBER_BYTES
    noise = _noise(NOISE_BYTES + rest)
    starts = (number * 97 % NOISE_BYTES for number in range(first, first + count))
    return [
        number.to_bytes(NUMBER_BYTES, "big") + noise[start : start + rest] for number, start in enumerate(starts, first)
    ]


class Lifecycle:
    """Counters and call times of one measurement, shared by its lanes."""

    def __init__(self, *, batch: int, payload_bytes: int) -> None:
        self.batch = batch
        self._payload_bytes = payload_bytes
        self._next = 0
        self._lock = threading.Lock()
        self.seen: list[bytes] = []
        self.call_seconds: dict[str, list[float]] = {"enqueue": [], "claim": [], "complete": []}

    def payloads(self) -> list[bytes]:
        """Return the next batch of numbered payloads."""
        with self._lock:
            first = self._next
            self._next += self.batch
        return make_payloads(first, self.batch, self._payload_bytes)

    def note(self, call: str, since: float) -> float:
        """Record the duration of a call; return the present time."""
        now = time.perf_counter()
        self.call_seconds[call].append(now - since)
        return now

    def check(self) -> None:
        """Raise `LostTasks` unless each payload came back exactly once."""
        if len(self.seen) != self._next or len(set(self.seen)) != self._next:
            raise LostTasks(f"{self._next} enqueued, {len(self.seen)} claimed, {len(set(self.seen))} of them different")

    def summary(self, elapsed_s: float) -> dict[str, Any]:
        """Return the rate, and the median duration of each kind of call in milliseconds."""
        calls = {f"{name}_ms": round(1000 * statistics.median(each), 3) for name, each in self.call_seconds.items()}
        return {
            "tasks_per_second": round(len(self.seen) / elapsed_s, 1),
            "tasks": len(self.seen),
            "claims": len(self.call_seconds["claim"]),
            **calls,
        }


async def _cycle_async(lane: AsyncLane, work: Lifecycle, until: float) -> None:
    while time.perf_counter() < until:
        payloads = work.payloads()
        now = time.perf_counter()
        await lane.enqueue(payloads)
        now = full = work.note("enqueue", now)
        owed = len(payloads)
        while owed:
            batch = await lane.claim(owed, CLAIM_WAIT_S)
            now = work.note("claim", now)
            if not batch.payloads:
                _give_up(now - full, owed)
                await anyio.sleep(0.001)
                now = time.perf_counter()
                continue
            owed -= len(batch.payloads)
            work.seen.extend(batch.payloads)
            await lane.complete(batch.receipt)
            now = full = work.note("complete", now)


def _cycle_thread(lane: ThreadLane, work: Lifecycle, until: float) -> None:
    while time.perf_counter() < until:
        payloads = work.payloads()
        now = time.perf_counter()
        lane.enqueue(payloads)
        now = full = work.note("enqueue", now)
        owed = len(payloads)
        while owed:
            batch = lane.claim(owed, CLAIM_WAIT_S)
            now = work.note("claim", now)
            if not batch.payloads:
                _give_up(now - full, owed)
                continue
            owed -= len(batch.payloads)
            work.seen.extend(batch.payloads)
            lane.complete(batch.receipt)
            now = full = work.note("complete", now)


def _give_up(empty_s: float, owed: int) -> None:
    if empty_s > EMPTY_SECONDS_MAX:
        raise LostTasks(f"a lane waits for {owed} tasks since {empty_s:.0f} s")


def in_threads(work: Sequence[Callable[[], None]]) -> None:
    """Run each in a thread; raise the first error once all have ended."""
    errors: list[BaseException] = []

    def guarded(each: Callable[[], None]) -> None:
        try:
            each()
        except BaseException as error:  # raised again below, in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(each,), daemon=True) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def lifecycle(system: System, mode: Mode, *, seconds: float, warmup_s: float, payload_bytes: int) -> dict[str, Any]:
    """Measure one mode of a running system; see the module's first paragraph."""

    def fresh() -> Lifecycle:
        return Lifecycle(batch=mode.batch, payload_bytes=payload_bytes)

    if isinstance(system, AsyncSystem):
        return anyio.run(_lifecycle_async, system, mode, fresh, (warmup_s, seconds), backend=system.backend)
    assert isinstance(system, ThreadSystem)
    lanes = system.open(fresh_queue(), lanes=mode.lanes, waiting=False)
    try:
        for duration in (warmup_s, seconds):
            work, begin = fresh(), time.perf_counter()
            in_threads([partial(_cycle_thread, lane, work, begin + duration) for lane in lanes])
            elapsed = time.perf_counter() - begin
    finally:
        system.close()
    work.check()
    return work.summary(elapsed)


async def _lifecycle_async(
    system: AsyncSystem, mode: Mode, fresh: Callable[[], Lifecycle], durations: tuple[float, float]
) -> dict[str, Any]:
    try:
        lanes = await system.open(fresh_queue(), lanes=mode.lanes, waiting=False)
        for duration in durations:
            work, begin = fresh(), time.perf_counter()
            async with anyio.create_task_group() as group:
                for lane in lanes:
                    group.start_soon(_cycle_async, lane, work, begin + duration)
            elapsed = time.perf_counter() - begin
    finally:
        await system.close()
    work.check()
    return work.summary(elapsed)
