"""Huey, a small Python task queue, on the Redis of the streams measurement.

The worker takes a task with ``dequeue`` and runs its function with ``execute``, as Huey's consumer
does in its threads. Huey removes a task from the list before it runs, so a worker that dies loses
it. There are no calls for batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.competitors.base import Batch, Skip, ThreadLane, ThreadSystem
from bench.competitors.redis_streams import start_redis
from bench.competitors.servers import Servers, version_of


def handle(payload: bytes) -> None:
    """Do nothing, like the task's function in all of these programs."""


class HueyLane:
    """One thread; connections come from Huey's pool."""

    def __init__(self, huey: Any, task: Any) -> None:
        self._huey = huey
        self._task = task

    def enqueue(self, payloads: Sequence[bytes]) -> None:
        """Call the task, which enqueues it."""
        for payload in payloads:
            self._task(payload)

    def claim(self, count: int, wait_s: float) -> Batch:
        """Take one task with Huey's blocking call, which waits for at most a second."""
        task = self._huey.dequeue()
        return Batch([task.args[0]], task) if task is not None else Batch([], None)

    def complete(self, receipt: Any) -> None:
        """Run the function; no acknowledgement is needed."""
        self._huey.execute(receipt)


class HueyRedis(ThreadSystem):
    """Huey on one Redis server, every write synced."""

    name = "huey"
    batches = False
    lanes_max = 16

    def __init__(self) -> None:
        self._servers = Servers()
        self._port = 0
        self._huey: Any = None

    def start(self, directory: Path) -> None:
        """Start Redis."""
        try:
            import huey  # noqa: F401
            import redis  # noqa: F401
        except ImportError as error:
            raise Skip(f"the Python package {error.name} is not installed") from None
        self._port = start_redis(self._servers, directory)

    def stop(self) -> None:
        """Stop Redis."""
        self._servers.stop()

    def settings(self) -> dict[str, Any]:
        """Return versions and durability."""
        import huey

        return {
            "server": version_of(["redis-server", "--version"]),
            "servers": 1,
            "durability": "appendonly yes, appendfsync always; a task is gone once taken (at most once)",
            "calls": "enqueue, dequeue, execute; results not stored",
            "client": f"huey {huey.__version__}, one thread per lane",
        }

    def open(self, queue: str, *, lanes: int, waiting: bool) -> list[ThreadLane]:
        """Make a queue and its task."""
        from huey import RedisHuey

        self._huey = RedisHuey(queue, host="127.0.0.1", port=self._port, results=False, read_timeout=1)
        task = self._huey.task()(handle)
        return [HueyLane(self._huey, task) for _ in range(lanes)]

    def close(self) -> None:
        """Close the pool's connections."""
        self._huey.storage.pool.disconnect()
