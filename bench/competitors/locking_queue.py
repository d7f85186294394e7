"""kazoo's LockingQueue: a queue recipe on ZooKeeper, on one server and on an ensemble of three.

It can enqueue many tasks in one call (``put_all``), but takes and completes one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from kazoo.client import KazooClient
from kazoo.recipe.queue import LockingQueue

from bench.competitors.base import Batch, Skip, ThreadLane, ThreadSystem
from onyxq.errors import Incomplete
from onyxq.log.zookeeper_server import ZookeeperServer


class LockingLane:
    """One queue object, which holds at most one task, on the shared session."""

    def __init__(self, queue: LockingQueue) -> None:
        self._queue = queue

    def enqueue(self, payloads: Sequence[bytes]) -> None:
        """Call ``put``, or ``put_all`` in one transaction."""
        if len(payloads) == 1:
            self._queue.put(payloads[0])
        else:
            self._queue.put_all(list(payloads))

    def claim(self, count: int, wait_s: float) -> Batch:
        """Call ``get``, which takes one task, whatever ``count`` is."""
        payload = self._queue.get(timeout=wait_s)
        return Batch([] if payload is None else [payload], None)

    def complete(self, receipt: Any) -> None:
        """Call ``consume``."""
        if not self._queue.consume():
            raise RuntimeError("LockingQueue lost the lock on its task")


class LockingQueueOn1(ThreadSystem):
    """LockingQueue on a single ZooKeeper."""

    name = "lockingqueue-1"
    batches = False
    servers: ClassVar[int] = 1

    def __init__(self) -> None:
        self._zookeeper: ZookeeperServer | None = None
        self._client: Any = None

    def start(self, directory: Path) -> None:
        """Start ZooKeeper."""
        try:
            self._zookeeper = ZookeeperServer(directory, servers=self.servers)
        except Incomplete as missing:
            raise Skip(f"{missing}. {missing.advice}") from None
        self._zookeeper.start()

    def stop(self) -> None:
        """Stop ZooKeeper."""
        if self._zookeeper is not None:
            self._zookeeper.stop()

    def settings(self) -> dict[str, Any]:
        """Return servers and durability."""
        return {
            "server": "ZooKeeper from pyspark's jars",
            "servers": self.servers,
            "durability": "ZooKeeper's transaction log, synced before each answer",
            "calls": "put, get, consume",
            "client": "kazoo, one session, one thread per lane",
        }

    def open(self, queue: str, *, lanes: int, waiting: bool) -> list[ThreadLane]:
        """Open a path of its own, with one session."""
        assert self._zookeeper is not None
        self._client = KazooClient(hosts=self._zookeeper.hosts)
        self._client.start(timeout=15)
        return [LockingLane(LockingQueue(self._client, f"/{queue}")) for _ in range(lanes)]

    def close(self) -> None:
        """End the session."""
        if self._client is not None:
            self._client.stop()
            self._client.close()


class LockingQueueOn3(LockingQueueOn1):
    """LockingQueue on an ensemble of three."""

    name = "lockingqueue-3"
    servers = 3
