"""Peers of a measurement, mostly three on one ZooKeeper, which it may kill, restart or wipe.

They have shorter timeouts than the systems that are compared (`bench.onyxq_system`), because these
benchmarks measure the loss of a peer.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from attrs import define, field

from bench.competitors.servers import Servers
from onyxq.client import AsyncClient
from onyxq.errors import OnyxqError
from onyxq.log.zookeeper_server import ZookeeperServer

ROOT = Path(__file__).resolve().parent.parent
PEERS = 3
PARTITIONS = 64
"""Partitions of a cluster that its first peer creates."""
ABSENT_AFTER_MS = 2_000
SESSION_TIMEOUT_MS = 3_000
LOOK_EVERY_S = 0.25
READY_SECONDS_MAX = 60.0
_SENT = re.compile(r'^onyxq_sync_(rows|bytes)_total\{direction="sent"\} (\d+)', re.MULTILINE)


@define
class Peer:
    """The process of one node, and its address."""

    number: int
    pid: int
    node: str
    listen: str
    http: str


@define
class Cluster:
    """Peers in processes of their own."""

    home: Path
    zookeeper: ZookeeperServer | None
    """None for one peer on the embedded log."""
    absent_after_ms: int = ABSENT_AFTER_MS
    program: Sequence[str] = ("onyxq",)
    """Module that is run as ``onyxq``, and its own arguments."""
    servers: Servers = field(factory=Servers)
    peers: list[Peer] = field(factory=list)
    started: int = 0

    @property
    def addresses(self) -> list[str]:
        """Return the addresses of the running peers."""
        return [peer.listen for peer in self.peers]

    def start(self, number: int | None = None, *, options: Sequence[str] = ()) -> Peer:
        """Start a peer on an empty directory or an existing one; return once it serves."""
        if number is None:
            number, self.started = self.started, self.started + 1
        name = f"peer-{number}"
        output = self.home / f"{name}.log"
        said_before = output.stat().st_size if output.exists() else 0
        more = ["--zookeeper", self.zookeeper.hosts] if self.zookeeper is not None else []
        process = self.servers.run(
            [sys.executable, "-m", *self.program, "peer", "start", "--json", "--data", str(self.home / name),
             "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *more,
             "--session-timeout-ms", str(SESSION_TIMEOUT_MS), "--absent-after-ms", str(self.absent_after_ms),
             *options],
            directory=self.home,
            name=name,
            environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        until = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < until:
            said = output.read_bytes()[said_before:].decode(errors="replace")
            for line in said.splitlines():
                if line.startswith("{") and line.endswith("}") and "listen" in (found := json.loads(line)):
                    peer = Peer(number, process.pid, found["node"], found["listen"], found["http"])
                    self.peers.append(peer)
                    return peer
            if process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"peer {number} does not serve: {output.read_text(errors='replace')[-800:]}")

    def create(self, partitions: int) -> None:
        """Create the cluster before its peers, with another number of partitions than usual."""
        assert self.zookeeper is not None, "an embedded log begins with its first peer"
        made = [
            sys.executable,
            "-m",
            "onyxq",
            "cluster",
            "create",
            "main",
            "--partitions",
            str(partitions),
        ]
        subprocess.run([*made, "--zookeeper", self.zookeeper.hosts], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)

    def kill(self, peer: Peer) -> None:
        """Send SIGKILL; `start` with the peer's number runs it again."""
        self.peers.remove(peer)
        self.servers.end(peer.pid)

    def wipe(self) -> None:
        """Kill the newest peer and delete its data."""
        peer = self.peers[-1]
        self.kill(peer)
        shutil.rmtree(self.home / f"peer-{peer.number}")

    def stop(self) -> None:
        """Stop all peers properly; `start` runs them again."""
        self.servers.stop()
        self.peers.clear()

    def memory_mib(self) -> dict[str, list[float]]:
        """Return the resident memory of each peer: its own, and pages of mapped files, which are the kernel's cache."""
        found = [_resident_kib(peer.pid) for peer in self.peers]
        return {
            "own": [round(own / 1024, 1) for own, _ in found],
            "files": [round(files / 1024, 1) for _, files in found],
        }

    def disk_mib(self) -> float:
        """Return the disk space of the largest store."""
        return max(512 * file.stat().st_blocks for file in self.home.rglob("data.mdb")) / (1 << 20)

    def metric(self, name: str) -> list[float]:
        """Return a metric without labels of each peer; 0 if it does not exist yet."""
        found = []
        for peer in self.peers:
            with urllib.request.urlopen(f"http://{peer.http}/metrics", timeout=30) as answer:
                lines = [line.split() for line in answer.read().decode().splitlines() if line.startswith(f"{name} ")]
            found.append(float(lines[0][1]) if lines else 0.0)
        return found

    def sent(self) -> dict[str, int]:
        """Return rows and bytes that the peers have sent so far to make copies equal."""
        total = {"rows": 0, "bytes": 0}
        for peer in self.peers:
            with urllib.request.urlopen(f"http://{peer.http}/metrics", timeout=30) as answer:
                for kind, count in _SENT.findall(answer.read().decode()):
                    total[kind] += int(count)
        return total

    async def most_leading(self, client: AsyncClient) -> Peer:
        """Return the peer that leads most partitions."""
        placed = (await client.call("partitions", {}))["partitions"]
        led = [one["leader_node"] for one in placed]
        return max(self.peers, key=lambda peer: led.count(peer.node))


def _resident_kib(pid: int) -> tuple[int, int]:
    own = files = 0
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        if name in ("RssAnon", "RssShmem"):
            own += int(rest.split()[0])
        elif name == "RssFile":
            files = int(rest.split()[0])
    return own, files


def three_peers(
    directory: Path | None, *, absent_after_ms: int = ABSENT_AFTER_MS, partitions: int = PARTITIONS
) -> AbstractContextManager[Cluster]:
    """Start three peers on one ZooKeeper, as `running` does."""
    return running(PEERS, directory, zookeepers=1, absent_after_ms=absent_after_ms, partitions=partitions)


@contextmanager
def running(
    peers: int,
    directory: Path | None,
    *,
    zookeepers: int,
    absent_after_ms: int = ABSENT_AFTER_MS,
    partitions: int = PARTITIONS,
    options: Sequence[str] = (),
    program: Sequence[str] = ("onyxq",),
) -> Iterator[Cluster]:
    """Start a cluster on data in a fresh directory; stop it and delete the data at the end.

    ``zookeepers``: the number of servers, 0 for one peer on the embedded log. ``options``: more of each peer.
    ``program``: see `Cluster`.
    """
    with ExitStack() as stack:
        temporary = TemporaryDirectory(prefix="onyxq-bench-", dir=directory, ignore_cleanup_errors=True)
        home = Path(stack.enter_context(temporary))
        zookeeper = None
        if zookeepers:
            zookeeper = stack.enter_context(ZookeeperServer(home / "zookeeper", servers=zookeepers))
        cluster = Cluster(home, zookeeper, absent_after_ms, program)
        stack.callback(cluster.servers.stop)
        if partitions != PARTITIONS:
            cluster.create(partitions)
        for _ in range(peers):
            cluster.start(options=options)
        yield cluster


async def whole(client: AsyncClient, peers: int = PEERS) -> bool:
    """Return whether all peers are up and every partition has all the copies it can have, all of them complete."""
    try:
        cluster = await client.call("cluster", {})
        placed = (await client.call("partitions", {}))["partitions"]
    except OnyxqError:
        return False
    quiet = not any(one["transfers"] or one["members"] != one["target"] or not one["ready"] for one in placed)
    enough = peers < cluster["settings"]["replicas"] or cluster["under_replicated"] == 0
    return quiet and enough and cluster["peers"] == peers


async def until_whole(client: AsyncClient, peers: int = PEERS, *, seconds: float = 300.0) -> None:
    """Wait until `whole`."""
    with anyio.fail_after(seconds):
        while not await whole(client, peers):
            await anyio.sleep(LOOK_EVERY_S)
