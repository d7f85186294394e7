"""OnyxQ as a measured system: peers in processes of their own, one client in this process.

There are four configurations: one peer on the embedded log, one or three peers on a real ZooKeeper
server, and three peers on an ensemble of three. Every peer syncs its store before it acknowledges.
With three peers, each task is on three nodes and acknowledged by a majority.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bench.competitors.base import AsyncLane, AsyncSystem, Batch, Skip, System
from bench.competitors.servers import START_SECONDS_MAX, Servers
from onyxq.errors import Incomplete
from onyxq.log.zookeeper_server import ZookeeperServer

ROOT = Path(__file__).resolve().parent.parent
LEASE_MS = 60_000


class OnyxqLane:
    """One worker name on the shared client."""

    def __init__(self, client: Any, queue: str, worker: str) -> None:
        self._client = client
        self._queue = queue
        self._worker = worker

    async def enqueue(self, payloads: Sequence[bytes]) -> None:
        """Call ``enqueue_many``."""
        await self._client.enqueue_many(self._queue, payloads)

    async def claim(self, count: int, wait_s: float) -> Batch:
        """Call ``claim``."""
        claims = await self._client.claim(
            [self._queue], max=count, lease_ms=LEASE_MS, wait_ms=int(wait_s * 1000), worker=self._worker
        )
        return Batch(claims.payloads, claims)

    async def complete(self, receipt: Any) -> None:
        """Call ``complete``."""
        await self._client.complete(receipt)


class OnyxqEmbedded1(AsyncSystem):
    """One peer on the embedded log."""

    name = "onyxq-embedded-1"
    backend = "asyncio"
    peers: ClassVar[int] = 1
    zookeepers: ClassVar[int] = 0
    options: ClassVar[Sequence[str]] = ()
    """More options of ``onyxq peer start``."""

    def __init__(self) -> None:
        self._servers = Servers()
        self._zookeeper: ZookeeperServer | None = None
        self._client: Any = None
        self.addresses: list[str] = []
        self._home = Path()

    def start(self, directory: Path) -> None:
        """Start ZooKeeper if it is part of the configuration, then the peers."""
        more = [*self.options]
        self._home = directory
        if self.zookeepers:
            try:
                self._zookeeper = ZookeeperServer(directory / "zookeeper", servers=self.zookeepers)
            except Incomplete as missing:
                raise Skip(f"{missing}. {missing.advice}") from None
            self._zookeeper.start()
            more += ["--zookeeper", self._zookeeper.hosts]
        for number in range(self.peers):
            name = f"peer-{number}"
            self._servers.run(
                [sys.executable, "-m", "onyxq", "peer", "start", "--data", str(directory / name),
                 "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *more],
                directory=directory,
                name=name,
                environment={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
            self.addresses.append(self._wait_ready(directory / f"{name}.log"))

    def stop(self) -> None:
        """Stop the peers, then ZooKeeper."""
        self._servers.stop()
        if self._zookeeper is not None:
            self._zookeeper.stop()

    def settings(self) -> dict[str, Any]:
        """Return peers, log and durability."""
        return {
            "server": "onyxq peer start",
            "servers": self.peers,
            "log": f"{self.zookeepers} ZooKeeper" if self.zookeepers else "embedded",
            "durability": f"LMDB synced before each acknowledgement; {self.peers} copies, acknowledged by a majority",
            "calls": "enqueue_many, claim, complete",
            "client": f"AsyncClient on {self.backend}, shared by all lanes",
        }

    def pids(self) -> list[int]:
        """Return the process ids of the peers."""
        return self._servers.pids()

    def zookeeper_pids(self) -> list[int]:
        """Return the process ids of the ZooKeeper servers."""
        return self._zookeeper.pids if self._zookeeper is not None else []

    def file_bytes(self) -> int:
        """Return the disk space of the LMDB files of all peers."""
        return sum(512 * file.stat().st_blocks for file in self._home.rglob("*.mdb"))

    async def ready(self, queue: str) -> int:
        """Return how many tasks of a queue are ready; only while lanes are open."""
        counts = await self._client.count(queue)
        return int(counts[queue]["ready"])

    async def open(self, queue: str, *, lanes: int, waiting: bool) -> list[AsyncLane]:
        """Open one client for all lanes."""
        from onyxq import AsyncClient

        self._client = AsyncClient(self.addresses[0])
        await self._client.__aenter__()
        return [OnyxqLane(self._client, queue, f"worker-{number}") for number in range(lanes)]

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
            self._client = None

    def _wait_ready(self, output: Path) -> str:
        """Return the address in a peer's ``ready`` line."""
        until = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < until:
            self._servers.check()
            for line in output.read_text(errors="replace").splitlines():
                words = dict(word.split("=", 1) for word in line.split() if "=" in word)
                if line.startswith("ready ") and "listen" in words:
                    return words["listen"]
            time.sleep(0.05)
        raise TimeoutError(
            f"a peer is not ready after {START_SECONDS_MAX:.0f} s; see the end of its output: "
            f"{output.read_text(errors='replace')[-800:]}"
        )


class OnyxqZookeeper1(OnyxqEmbedded1):
    """One peer on ZooKeeper."""

    name = "onyxq-zookeeper-1"
    zookeepers = 1


class OnyxqZookeeper3(OnyxqEmbedded1):
    """Three peers on ZooKeeper."""

    name = "onyxq-zookeeper-3"
    peers = 3
    zookeepers = 1


class OnyxqEnsemble3(OnyxqEmbedded1):
    """Three peers on an ensemble of three ZooKeeper servers."""

    name = "onyxq-ensemble-3"
    peers = 3
    zookeepers = 3


ONYXQ: dict[str, Callable[[], System]] = {
    made.name: made for made in (OnyxqEmbedded1, OnyxqZookeeper1, OnyxqZookeeper3, OnyxqEnsemble3)
}
"""Name -> constructor of each configuration."""
