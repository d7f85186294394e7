"""Measures the log: latency of an append, latency from append to read, and rates, under several loads.

    python -m bench.log [--runs 3] [--seconds 3] [--logs embedded zookeeper-1 zookeeper-3]

One session appends, and another one reads at the tail. Both are in one process, with the ZooKeeper
servers on the same machine. Prints one JSON document; every figure is the median of the runs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import trio

from bench.common import emit, machine, median_of, percentiles, progress
from onyxq.core.log.interface import LogBackend, LogSession
from onyxq.log.embedded import EmbeddedBackend
from onyxq.log.zookeeper import ZookeeperBackend
from onyxq.log.zookeeper_server import ZookeeperServer

LOGS = ("embedded", "zookeeper-1", "zookeeper-3")
RECORD_BYTES = 200
PACES_PER_S = (100, 500)
GROUPS = (10, 100)


class Load:
    """One load on an empty log: when each record was appended, and when it was read."""

    def __init__(self, writer: LogSession, reader: LogSession) -> None:
        self.writer = writer
        self.reader = reader
        self.append_s: list[float] = []
        self.read_s: list[float] = []
        self._started = time.perf_counter()

    async def append(self) -> None:
        """Append one record that contains its time."""
        sent = time.perf_counter()
        await self.writer.append(b"%.9f" % sent + bytes(RECORD_BYTES - 32))
        self.append_s.append(time.perf_counter() - sent)

    async def follow(self) -> None:
        """Read at the tail until cancelled."""
        position = 0
        while True:
            record = await self.reader.read(position)
            data = getattr(record, "data", b"")
            self.read_s.append(time.perf_counter() - float(data.rstrip(b"\0")))
            position += 1

    async def caught_up(self) -> None:
        """Wait until all appended records are read."""
        while len(self.read_s) < len(self.append_s):
            await trio.sleep(0.001)

    def figures(self) -> dict[str, Any]:
        """Return rate and latencies."""
        return {
            "records_per_s": round(len(self.append_s) / (time.perf_counter() - self._started), 1),
            "append": percentiles(self.append_s),
            "append_to_read": percentiles(self.read_s),
        }


async def one_by_one(load: Load, seconds: float) -> None:
    """Append records one after the other."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        await load.append()


async def paced(load: Load, seconds: float, *, per_s: int) -> None:
    """Start appends on time, even if earlier ones have not ended."""
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(round(seconds * per_s)):
            await trio.sleep_until(start + number / per_s)
            nursery.start_soon(load.append)


async def grouped(load: Load, seconds: float, *, size: int) -> None:
    """Append groups of records at the same time."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        async with trio.open_nursery() as nursery:
            for _ in range(size):
                nursery.start_soon(load.append)


async def measure(backend: LogBackend, name: str, seconds: float) -> dict[str, Any]:
    """Run one load once on an empty log."""
    writer, reader = await backend.session(), await backend.session()
    load = Load(writer, reader)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.follow)
        kind, _, number = name.partition("_")
        if kind == "single":
            await one_by_one(load, seconds)
        elif kind == "paced":
            await paced(load, seconds, per_s=int(number))
        else:
            await grouped(load, seconds, size=int(number))
        with trio.move_on_after(10):
            await load.caught_up()
        figures = load.figures()
        nursery.cancel_scope.cancel()
    figures["catch_up_per_s"] = await catch_up(backend, len(load.append_s))
    await writer.aclose()
    await reader.aclose()
    return figures


async def catch_up(backend: LogBackend, count: int) -> float:
    """Return the records per second of a new reader that catches up."""
    session = await backend.session()
    started = time.perf_counter()
    for position in range(count):
        await session.read(position)
    rate = count / (time.perf_counter() - started)
    await session.aclose()
    return round(rate, 1)


@contextlib.asynccontextmanager
async def fresh_log(hosts: str) -> AsyncIterator[LogBackend]:
    """Open an empty log: in the ZooKeeper at ``hosts``, or embedded without ``hosts``."""
    if hosts:
        yield ZookeeperBackend(hosts, f"bench-{uuid.uuid4().hex[:8]}")
        return
    with tempfile.TemporaryDirectory() as directory:
        backend = EmbeddedBackend.open(directory)
        try:
            yield backend
        finally:
            await backend.aclose()


async def run_once(hosts: str, name: str, seconds: float) -> dict[str, Any]:
    """Run one load once."""
    async with fresh_log(hosts) as backend:
        return await measure(backend, name, seconds)


def main() -> None:
    """Measure every load on every log."""
    parser = argparse.ArgumentParser(prog="python -m bench.log", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run of one load")
    parser.add_argument("--logs", nargs="+", choices=LOGS, default=list(LOGS))
    options = parser.parse_args()
    loads = ["single", *(f"paced_{pace}" for pace in PACES_PER_S), *(f"group_{size}" for size in GROUPS)]
    document: dict[str, Any] = {
        "benchmark": "log",
        "machine": machine(),
        "settings": {"runs": options.runs, "seconds": options.seconds, "record_bytes": RECORD_BYTES},
        "results": {},
    }
    for log in options.logs:
        with contextlib.ExitStack() as stack:
            hosts = ""
            if log != "embedded":
                directory = stack.enter_context(tempfile.TemporaryDirectory())
                hosts = stack.enter_context(ZookeeperServer(directory, servers=int(log[-1]))).hosts
                progress(f"{log}: warming up")
                trio.run(run_once, hosts, "group_100", options.seconds)
            document["results"][log] = results = {}
            for name in loads:
                progress(f"{log}: {name}")
                run = functools.partial(trio.run, run_once, hosts, name, options.seconds)
                results[name] = median_of(options.runs, run)
    emit(document)


if __name__ == "__main__":
    main()
