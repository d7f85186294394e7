"""Redis Streams with a consumer group, as a task queue: XADD, XREADGROUP, XACK.

Entries of a batch are sent in one pipeline. Acknowledged entries stay in the stream, because XACK
keeps them. Deleting them would need another command.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.competitors.base import AsyncLane, AsyncSystem, Batch, Skip
from bench.competitors.servers import Servers, find_program, free_port, version_of

GROUP = "workers"


def start_redis(servers: Servers, directory: Path) -> int:
    """Start a Redis that syncs its append-only file at every write; return its port."""
    program = find_program("redis-server", package="redis-server")
    port = free_port()
    servers.run(
        [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--save", "",
         "--appendonly", "yes", "--appendfsync", "always", "--daemonize", "no"],
        directory=directory,
        name="redis",
    )  # fmt: skip
    servers.wait_port(port)
    return port


class RedisLane:
    """One connection and one consumer of the group."""

    def __init__(self, connection: Any, queue: str, consumer: str) -> None:
        self._connection = connection
        self._queue = queue
        self._consumer = consumer

    async def enqueue(self, payloads: Sequence[bytes]) -> None:
        """Send XADD, in one pipeline if there are several tasks."""
        if len(payloads) == 1:
            await self._connection.xadd(self._queue, {b"p": payloads[0]})
            return
        pipeline = self._connection.pipeline(transaction=False)
        for payload in payloads:
            pipeline.xadd(self._queue, {b"p": payload})
        await pipeline.execute()

    async def claim(self, count: int, wait_s: float) -> Batch:
        """Send XREADGROUP with COUNT."""
        block = max(1, int(wait_s * 1000))
        found = await self._connection.xreadgroup(GROUP, self._consumer, {self._queue: ">"}, count=count, block=block)
        entries = found[0][1] if found else []
        return Batch([fields[b"p"] for _, fields in entries], [name for name, _ in entries])

    async def complete(self, receipt: Any) -> None:
        """Send one XACK for all tasks."""
        await self._connection.xack(self._queue, GROUP, *receipt)


class RedisStreams(AsyncSystem):
    """One Redis server, every write synced."""

    name = "redis-streams"

    def __init__(self) -> None:
        self._servers = Servers()
        self._port = 0
        self._connections: list[Any] = []

    def start(self, directory: Path) -> None:
        """Start Redis."""
        try:
            import redis.asyncio  # noqa: F401
        except ImportError:
            raise Skip("the Python package redis is not installed") from None
        self._port = start_redis(self._servers, directory)

    def stop(self) -> None:
        """Stop Redis."""
        self._servers.stop()

    def settings(self) -> dict[str, Any]:
        """Return version and durability."""
        return {
            "server": version_of(["redis-server", "--version"]),
            "servers": 1,
            "durability": "appendonly yes, appendfsync always",
            "calls": "XADD (pipelined in batches), XREADGROUP COUNT, XACK",
            "client": "redis-py asyncio with hiredis, one connection per lane",
        }

    async def open(self, queue: str, *, lanes: int, waiting: bool) -> list[AsyncLane]:
        """Make a stream with a consumer group, and open one connection per lane."""
        from redis.asyncio import Redis

        self._connections = [
            Redis(host="127.0.0.1", port=self._port, protocol=2, single_connection_client=True) for _ in range(lanes)
        ]
        await self._connections[0].xgroup_create(queue, GROUP, id="0", mkstream=True)
        return [RedisLane(each, queue, f"worker-{number}") for number, each in enumerate(self._connections)]

    async def close(self) -> None:
        """Close every connection."""
        for connection in self._connections:
            await connection.aclose()
