"""beanstalkd with its log synced at every write (``-f0``).

The server answers in the order of the commands, so a batch is sent at once, and the answers are
read after it. No Python client does that. So this module speaks the protocol itself, which also
costs less than a thread for each task in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.competitors.base import AsyncLane, AsyncSystem, Batch
from bench.competitors.servers import Servers, find_program, free_port, version_of

LEASE_S = 60


class BeanstalkLane:
    """One connection that uses and watches one tube."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def use(self, tube: str) -> None:
        """Make ``tube`` the only one that this connection sees."""
        commands = ((f"use {tube}", b"USING"), (f"watch {tube}", b"WATCHING"), ("ignore default", b"WATCHING"))
        for command, answer in commands:
            self._writer.write(f"{command}\r\n".encode())
            await self._expect(answer)

    async def enqueue(self, payloads: Sequence[bytes]) -> None:
        """Send ``put`` commands, pipelined."""
        self._writer.write(b"".join(b"put 0 0 %d %d\r\n%b\r\n" % (LEASE_S, len(each), each) for each in payloads))
        for _ in payloads:
            await self._expect(b"INSERTED")

    async def claim(self, count: int, wait_s: float) -> Batch:
        """Send ``reserve-with-timeout`` (whole seconds), pipelined; only the first one waits."""
        more = b"reserve-with-timeout 0\r\n" * (count - 1)
        self._writer.write(b"reserve-with-timeout %d\r\n" % max(1, round(wait_s)) + more)
        payloads, names = [], []
        for _ in range(count):
            words = (await self._reader.readline()).split()
            if words[0] == b"RESERVED":
                payloads.append((await self._reader.readexactly(int(words[2]) + 2))[:-2])
                names.append(words[1])
            elif words[0] != b"TIMED_OUT":
                raise RuntimeError(f"beanstalkd answered {words!r}")
        return Batch(payloads, names)

    async def complete(self, receipt: Any) -> None:
        """Send ``delete`` commands, pipelined."""
        self._writer.write(b"".join(b"delete %b\r\n" % name for name in receipt))
        for _ in receipt:
            await self._expect(b"DELETED")

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        await self._writer.wait_closed()

    async def _expect(self, word: bytes) -> None:
        line = await self._reader.readline()
        if not line.startswith(word):
            raise RuntimeError(f"beanstalkd answered {line!r}, not {word!r}")


class Beanstalkd(AsyncSystem):
    """One beanstalkd, every write synced."""

    name = "beanstalkd"

    def __init__(self) -> None:
        self._servers = Servers()
        self._port = 0
        self._lanes: list[BeanstalkLane] = []

    def start(self, directory: Path) -> None:
        """Start beanstalkd."""
        program = find_program("beanstalkd", package="beanstalkd")
        self._port = free_port()
        self._servers.run(
            [program, "-l", "127.0.0.1", "-p", str(self._port), "-b", str(directory), "-f0"],
            directory=directory,
            name="beanstalkd",
        )
        self._servers.wait_port(self._port)

    def stop(self) -> None:
        """Stop beanstalkd."""
        self._servers.stop()

    def settings(self) -> dict[str, Any]:
        """Return version and durability."""
        return {
            "server": version_of(["beanstalkd", "-v"]),
            "servers": 1,
            "durability": "write-ahead log, fsync at every write (-f0)",
            "calls": "put, reserve-with-timeout, delete; pipelined in batches",
            "client": "the text protocol over asyncio streams, one connection per lane",
        }

    async def open(self, queue: str, *, lanes: int, waiting: bool) -> list[AsyncLane]:
        """Open one connection per lane, all on the tube ``queue``."""
        self._lanes = []
        for _ in range(lanes):
            lane = BeanstalkLane(*await asyncio.open_connection("127.0.0.1", self._port))
            self._lanes.append(lane)
            await lane.use(queue)
        return list(self._lanes)

    async def close(self) -> None:
        """Close every connection."""
        for lane in self._lanes:
            await lane.close()
